//! Infrastructure of the black-box tests: real server processes and real clients.
//!
//! Each test is one function that takes a [`Kind`] of server. Most tests run twice, against Quorate and against
//! Debian's etcd. Tests of guarantees that etcd does not give run against Quorate only ([`on_quorate`]). The run
//! against etcd verifies that the expectations of the test hold for etcd. Where Debian's older release differs from the
//! release that Quorate implements, the test checks [`Server::is_3_7`] and contains both expected answers.
//!
//! # Rules
//!
//! * Each test starts its own server on its own port and directory.
//! * Tests wait for a condition, and fail if it is not met before a deadline. They wait for a fixed time only if there
//!   is no condition that they could check.
//! * If the Quorate binary is missing, the tests fail. If etcd is missing, the tests against etcd are skipped and print
//!   a notice.
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `QUORATE_BIN` | the server under test; defaults to `target/blackbox/quorate` |
//! | `QUORATE_REQUIRE` | material that must exist (`CONTRIBUTING.md` lists the names): tests that need it fail instead of being skipped |
//! | `ETCD_BIN_DIR` | folder with `etcd`, `etcdctl` and `etcdutl`; without it, tests against etcd are skipped |
//! | `PATRONI_DIR` | root folder in which Debian's Patroni is unpacked; without it, the Patroni test is skipped |
//! | `QUORATE_GOLDEN` | data directories written by real etcd, with etcd's responses |
//! | `QUORATE_CLUSTER` | `leader` or `follower`: every server of the suite is the leader, or a follower, of three members; `proxy`: clients connect through a proxy of the same kind; `gateway`: all connections go through a gateway; `postgres`: the data of every server is in a PostgreSQL database; `postgres-three`: every server is one of three on a database |
//! | `POSTGRES_BIN_DIR` | folder with the programs of PostgreSQL, if it is not Debian's package |
//! | `QUORATE_CITUS_WORKERS` | number of workers: each PostgreSQL database is a Citus database with that many workers |
//! | `QUORATE_SECURED` | `1`: authentication is enabled, and clients and peers present certificates (`guard`) |
//! | `QUORATE_LONG` | `1` runs the long form of tests that have one |
//! | `QUORATE_SEED` | repeats the random choices of a failed test |

#![expect(clippy::unwrap_used, reason = "a failing step must fail the test")]
#![expect(clippy::print_stderr, reason = "a failing test prints the log of its server")]

mod bridge;
mod client;
mod cluster;
mod collector;
mod company;
mod condition;
mod console;
mod ctl;
mod guard;
mod history;
mod http;
mod json_stream;
mod kind;
pub mod linear;
mod links;
mod machine;
pub mod pki;
mod ports;
pub mod postgres;
#[path = "../../crates/engine/tests/engine/postgres.rs"]
#[expect(dead_code, reason = "only the tests of the engine use the other functions")]
mod postgres_server;
mod proxy;
mod random;
mod raw_http2;
mod requests;
mod server;
mod signal;
mod terminal;
mod tunnel;
mod watch;
pub mod web_socket;
mod workload;

pub use bridge::Bridge;
pub use client::{Client, RawCodec, refused};
pub use cluster::{Cluster, ClusterOptions, Endpoints, State, TIMEOUT};
pub use collector::{Collector, ExportedSpan, Span};
pub use company::{Place, is_first_term};
pub use condition::{DEADLINE, changed, eventually, eventually_ok, eventually_within, within};
pub use console::{Console, ConsolePage};
pub use ctl::{Ctl, Finished, Tool, Utl, etcdutl, has_etcd_tools, run_to_end};
pub use guard::{is_guarded_suite, suite_authority};
pub use history::History;
pub use http::{
    Response, get, get_and_shut_down, read_answer, request, request_with, try_request_with,
};
pub use json_stream::JsonStream;
pub use kind::{Kind, is_long, missing, notice, skipped};
pub use links::{Links, Rule};
pub use machine::{Held, Shim, SmallDisk, Strace, Syncing, Syncs};
pub use ports::Port;
pub use proxy::Proxy;
pub use random::Random;
pub use raw_http2::{
    RawAnswer, RawFrame, RawHttp2, RawResponse, call_head, framed, literal, string,
};
pub use requests::{
    bytes, compare, deep_put, delete, from_key, get_op, key, op, prefix, prefix_end, put,
    put_leased, put_op, range, txn, txn_when, watch_key, watch_prefix, write_op,
};
pub use server::{Exit, Options, Server};
pub use signal::{pause_process, resume_process, send_signal};
pub use terminal::Terminal;
pub use tunnel::{Tunnel, Visitor};
pub use watch::Watch;
pub use web_socket::{Message, WebSocket};
pub use workload::{Load, Summary};

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Timeout of one test.
const TEST_LIMIT: Duration = Duration::from_secs(120);
/// Timeout of one test in the long form.
const LONG_LIMIT: Duration = Duration::from_secs(5400);
/// Maximum number of clusters that run at the same time.
const CLUSTERS_MAX: usize = 3;

/// Runs a test against one kind of server. Tests call this function through [`on_both_servers`].
pub fn run<F: Future<Output = ()>>(kind: Kind, body: impl FnOnce(Kind) -> F) {
    let limit = if is_long() { LONG_LIMIT } else { TEST_LIMIT };
    run_within(limit, kind, body);
}

/// Runs a test that starts a cluster. Only a few such tests run at a time, regardless of the number of threads, because
/// a cluster that lacks CPU time looks like a faulty one.
pub fn run_cluster<F: Future<Output = ()>>(kind: Kind, body: impl FnOnce(Kind) -> F) {
    run_cluster_within(if is_long() { LONG_LIMIT } else { TEST_LIMIT }, kind, body);
}

/// Runs a cluster test with its own timeout, which does not include the wait for other cluster tests.
pub fn run_cluster_within<F: Future<Output = ()>>(
    limit: Duration,
    kind: Kind,
    body: impl FnOnce(Kind) -> F,
) {
    static RUNNING: Mutex<usize> = Mutex::new(0);
    static ENDED: Condvar = Condvar::new();
    struct Turn;
    impl Drop for Turn {
        fn drop(&mut self) {
            *RUNNING.lock().unwrap() -= 1;
            ENDED.notify_one();
        }
    }
    let running = RUNNING.lock().unwrap();
    *ENDED.wait_while(running, |running| *running >= CLUSTERS_MAX).unwrap() += 1;
    let _turn = Turn;
    run_within(limit, kind, body);
}

/// Runs a test with its own timeout.
pub fn run_within<F: Future<Output = ()>>(
    limit: Duration,
    kind: Kind,
    body: impl FnOnce(Kind) -> F,
) {
    if !kind.is_present() {
        return;
    }
    if let Some(reason) = guard::reason_to_leave_out(std::any::type_name_of_val(&body)) {
        return skipped(&format!(
            "tests that do not apply with authentication and certificates ({reason})"
        ));
    }
    if let Some(reason) = company::reason_to_leave_out(std::any::type_name_of_val(&body), kind) {
        return skipped(&format!("tests that do not apply in this mode ({reason})"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Tasks stay on this thread and need not be `Send`.
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let ended = tokio::time::timeout(limit, body(kind)).await;
        assert!(ended.is_ok(), "the test took longer than {limit:?}");
    });
}

/// Runs a test that concerns one process and its files, unless `QUORATE_CLUSTER` is set. Tests call this function
/// through `alone:`.
pub fn run_alone<F: Future<Output = ()>>(kind: Kind, body: impl FnOnce(Kind) -> F) {
    if company::is_alone() {
        run(kind, body);
    } else {
        skipped("tests of one process and its files (QUORATE_CLUSTER is set)");
    }
}

/// Defines two tests for each function: `name::quorate` and `name::etcd`. Functions after `alone:` concern one process
/// and its files, so they are skipped if `QUORATE_CLUSTER` is set.
#[macro_export]
macro_rules! on_both_servers {
    (alone: $($name:ident),* $(,)?) => {
        $($crate::on_both_servers! { @with run_alone, $name })*
    };
    (@with $run:ident, $name:ident) => {
        mod $name {
            #[test]
            fn quorate() {
                $crate::$run($crate::Kind::Quorate, super::$name);
            }

            #[test]
            fn etcd() {
                $crate::$run($crate::Kind::Etcd, super::$name);
            }
        }
    };
    ($($name:ident),* $(,)?) => {
        $($crate::on_both_servers! { @with run, $name })*
    };
}

/// Defines four tests for each function: each command-line tool against each server. Functions after `alone:` are
/// skipped if `QUORATE_CLUSTER` is set.
#[macro_export]
macro_rules! with_both_tools {
    (alone: $($name:ident),* $(,)?) => {
        $($crate::with_both_tools! { @with run_alone, $name })*
    };
    ($($name:ident),* $(,)?) => {
        $($crate::with_both_tools! { @with run, $name })*
    };
    (@with $run:ident, $name:ident) => {
        mod $name {
            use $crate::{Kind, Tool, $run as run};

            #[test]
            fn etcdctl_to_quorate() {
                run(Kind::Quorate, |kind| super::$name(kind, Tool::Etcdctl));
            }

            #[test]
            fn etcdctl_to_etcd() {
                run(Kind::Etcd, |kind| super::$name(kind, Tool::Etcdctl));
            }

            #[test]
            fn quorate_ctl_to_quorate() {
                run(Kind::Quorate, |kind| super::$name(kind, Tool::QuorateCtl));
            }

            #[test]
            fn quorate_ctl_to_etcd() {
                run(Kind::Etcd, |kind| super::$name(kind, Tool::QuorateCtl));
            }
        }
    };
}

/// Defines one test for each function, against Quorate only, for guarantees that etcd does not give. `alone:` has the
/// same meaning as in [`on_both_servers`].
#[macro_export]
macro_rules! on_quorate {
    (alone: $($name:ident),* $(,)?) => {
        $($crate::on_quorate! { @with run_alone, $name })*
    };
    (@with $run:ident, $name:ident) => {
        mod $name {
            #[test]
            fn quorate() {
                $crate::$run($crate::Kind::Quorate, super::$name);
            }
        }
    };
    ($($name:ident),* $(,)?) => {
        $($crate::on_quorate! { @with run, $name })*
    };
}
