//! Texts of the manual page, except the texts about loads and flags.

use quorate_cli::manual::Manual;

use crate::cli::{Leads, ROOT};

/// The texts of the manual page.
pub(crate) const MANUAL: Manual<Leads> = Manual {
    name: "quorate-bench",
    program: "quorate bench",
    alias: None,
    summary: "generate load on etcd, and report throughput, latency and cost",
    description: &[
        "Sends requests to a Quorate or etcd server as fast as it answers them, or at a fixed rate, and reports \
         throughput, latencies and, for processes on the same machine, the CPU time of each operation. Lost \
         connections are reopened, and the in-flight requests on them count as errors.",
        "Keys are written under --prefix and are not deleted afterwards.",
    ],
    environment: &[
        "ETCDCTL_ENDPOINTS, ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY, ETCDCTL_INSECURE_SKIP_TLS_VERIFY, \
         ETCDCTL_USER and ETCDCTL_PASSWORD set the corresponding options. An option takes precedence over its \
         variable.",
    ],
    exits: &[
        ("0", "Every operation succeeded."),
        ("1", "Some operations failed, or the run ended early or could not start."),
        ("2", "The command line is invalid."),
    ],
    see_also: &["quorate(1)", "quorate-ctl(1)"],
    root: &ROOT,
};
