//! The modes in which the suite runs: every server is a single member, is one of three members of a cluster, is behind
//! a proxy or a gateway, or stores its data in a PostgreSQL database.
//!
//! In a run against clusters, a test that requests a server gets one of three members, either the leader or a follower.
//! The test's expectations must hold for this member as well, because clients see a cluster as one store.
//!
//! With a proxy, a test's client and its tools connect to the proxy, but HTTP requests go directly to the member. With
//! a gateway, all connections go through the gateway.
//!
//! With a database, every server that a test requests has its own schema in one PostgreSQL server, which the test
//! process starts. In the mode with three servers, the two others use the same schema. Tests that start clusters of
//! raft members themselves run unchanged. Tests of one process and its files run only in the first of these modes
//! ([`run_alone`](crate::run_alone)).

use std::time::Duration;

use crate::server::Exit;
use crate::{ClusterOptions, Kind, Options, Proxy, Server, postgres, skipped};

const MEMBERS: usize = 3;

/// Position of the tested member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The member is the only one of its cluster, and clients connect to it directly.
    Alone,
    /// The member is the leader of a cluster of three.
    Leader,
    /// The member is a follower in a cluster of three.
    Follower,
    /// The member is the only one of its cluster, and its clients connect to a gRPC proxy.
    Proxy,
    /// The member is the only one of its cluster, and all connections go through a gateway.
    Gateway,
    /// The server is the only one on a PostgreSQL database.
    Postgres,
    /// The server is one of three on a PostgreSQL database, and not the sequencer.
    PostgresThree,
}

impl Place {
    /// Reads the position from `QUORATE_CLUSTER`.
    #[must_use]
    pub fn of_suite() -> Self {
        match std::env::var("QUORATE_CLUSTER").as_deref() {
            Ok("leader") => Self::Leader,
            Ok("follower") => Self::Follower,
            Ok("proxy") => Self::Proxy,
            Ok("gateway") => Self::Gateway,
            Ok("postgres") => Self::Postgres,
            Ok("postgres-three") => Self::PostgresThree,
            Ok("") | Err(_) => Self::Alone,
            Ok(other) => {
                panic!(
                    "QUORATE_CLUSTER={other} is unknown: use leader, follower, proxy, gateway, postgres or postgres-three"
                )
            }
        }
    }

    /// Returns the number of members per cluster in this run.
    #[must_use]
    pub const fn members(self) -> usize {
        match self {
            Self::Alone | Self::Proxy | Self::Gateway | Self::Postgres => 1,
            Self::Leader | Self::Follower | Self::PostgresThree => MEMBERS,
        }
    }

    /// Returns whether the tested server is the leader or, on a database, the sequencer.
    #[must_use]
    pub const fn leads(self) -> bool {
        !matches!(self, Self::Follower | Self::PostgresThree)
    }
}

/// Returns whether `term` may be the term of a server's first election. A single member wins its first election.
#[must_use]
pub fn is_first_term(term: u64) -> bool {
    match Place::of_suite() {
        // The terms of a database's sequencers begin at 1.
        Place::Postgres | Place::PostgresThree => term >= 1,
        place => term == 2 || term > 2 && place.members() > 1,
    }
}

impl Options {
    /// Starts the server on a directory that may be in use, and waits briefly. Returns `None` if the server is not
    /// serving by then, because it has exited or is still waiting for the directory.
    pub async fn start_within_a_moment(self) -> Option<Server> {
        let timeout = Duration::from_secs(3);
        tokio::time::timeout(timeout, self.try_start()).await.ok()?.ok()
    }

    /// Starts the server and waits until it serves.
    pub async fn start(self) -> Server {
        match self.try_start().await {
            Ok(server) => server,
            Err(exit) => panic!("the server failed to start: {exit}"),
        }
    }

    /// Starts the server. Returns an error if the server exits instead of serving.
    ///
    /// In a run against clusters, the server is one member of three, unless the options concern only this process.
    pub async fn try_start(self) -> Result<Server, Exit> {
        let place = Place::of_suite();
        if self.is_about_one_process() {
            return self.try_start_process().await;
        }
        match place {
            Place::Alone => self.try_start_process().await,
            Place::Leader | Place::Follower => Ok(start(self, place).await),
            Place::Postgres => self.on_database(&postgres::new_url()).try_start_process().await,
            Place::PostgresThree => Ok(start_on_database(self).await),
            Place::Proxy => {
                let server = self.try_start_process().await?;
                let proxy = Proxy::start(server.kind(), &[server.port()], &PROXY_FLAGS).await;
                Ok(server.behind(proxy))
            }
            Place::Gateway => {
                let server = self.try_start_process().await?;
                let gateway = Proxy::start_gateway(server.kind(), &[server.port()], &[]).await;
                Ok(server.behind(gateway))
            }
        }
    }
}

/// Starts a cluster of members with the same options, and returns the member to test, which owns the others.
async fn start(options: Options, place: Place) -> Server {
    let cluster = ClusterOptions::alike(options, MEMBERS).start().await;
    let leader = cluster.leader().await;
    let asked = if place == Place::Leader { leader } else { (leader + 1) % MEMBERS };
    let mut servers = cluster.into_servers();
    let mut server = servers.remove(asked);
    server.keep_company(servers);
    server
}

/// Starts three servers with the same options on one database. The first becomes the sequencer. Returns the last
/// server, which owns the others.
async fn start_on_database(options: Options) -> Server {
    let url = postgres::new_url();
    let mut servers = Vec::new();
    for number in 1..=MEMBERS {
        let options = options.clone().on_database(&url).name(&format!("server{number}"));
        match options.try_start_process().await {
            Ok(server) => servers.push(server),
            Err(exit) => panic!("the server failed to start: {exit}"),
        }
    }
    let mut server = servers.pop().unwrap();
    server.keep_company(servers);
    server
}

/// Returns whether the suite runs in the mode [`Place::Alone`]. In any other mode, reports the test as skipped.
pub(crate) fn is_alone() -> bool {
    let alone = Place::of_suite() == Place::Alone;
    if !alone {
        skipped("tests of one process and its files (QUORATE_CLUSTER is set)");
    }
    alone
}

/// With these flags, a proxy behaves more like its members: the member list contains the members, and only the members
/// check the request size.
const PROXY_FLAGS: [&str; 2] = ["--advertise-client-url=", "--max-send-bytes=8388608"];

/// Tests that are skipped if clients connect to a proxy: the prefix of their names and the reason. etcd's proxy fails
/// all of them too, or would fail them in version 3.7.
const NOT_BY_PROXY: &[(&str, &str)] = &[
    (
        "metrics::responses_to_watchers_are_counted",
        "watchers of one range share one watch of the member",
    ),
    ("permissions::every_method_requires_its_permission", NO_RANGE_STREAM),
    ("range::a_range_stream_", NO_RANGE_STREAM),
    ("range::range_stream_messages_stay_small", NO_RANGE_STREAM),
    ("range::invalid_range_streams_are_refused", NO_RANGE_STREAM),
    ("requests::the_grpc_health_service_reports_serving", NO_HEALTH_SERVICE),
    ("requests::malformed_bodies_return_an_unmarshalling_error", NO_HEALTH_SERVICE),
    (
        "watch::a_cancelled_watcher_gets_no_more_events",
        "a proxy does not know the current revision",
    ),
    ("watch_flow::large_responses_are_fragmented", "proxies do not send fragments"),
    (
        "watch_flow::watch_streams_end_when_the_server_stops",
        "a watch continues once its member is back, or through another member",
    ),
];

/// Tests that are skipped only with etcd's proxy (3.5.16), which fails them.
const NOT_BY_ETCDS_PROXY: &[(&str, &str)] = &[
    ("auth::deleting_a_user_invalidates_its_tokens", CODES_ARE_LOST),
    ("auth::logins_return_tokens_only_for_correct_passwords", CODES_ARE_LOST),
    ("auth::permission_changes_take_effect_at_once", CODES_ARE_LOST),
    (
        "auth::a_watch_requires_read_permission",
        "the proxy does not forward the user's token when a watch joins an existing one",
    ),
    ("kubernetes::all_pages_of_a_list", CODES_ARE_LOST),
    ("kubernetes::progress_is_sent", "the proxy does not respond to progress requests"),
    ("kubernetes::api_servers_agree_on_the", CODES_ARE_LOST),
    (
        "lease::",
        "keep-alive streams end when their clients stop sending, and errors lose their gRPC codes",
    ),
    ("lock_election::locks_use_the_permissions", "streams end without a status"),
    ("maintenance::changes_are_refused_during_a_corrupt_alarm", CODES_ARE_LOST),
    ("maintenance::alarms_survive_a_restart", CODES_ARE_LOST),
    ("permissions::", CODES_ARE_LOST),
    ("quota::requests_that_need_no_space_are_accepted", CODES_ARE_LOST),
    ("range::invalid_ranges_are_refused", CODES_ARE_LOST),
    ("requests::", CODES_ARE_LOST),
    ("txn::", CODES_ARE_LOST),
    (
        "watch::",
        "watch ids, progress and cancellations are the proxy's own, and streams end when clients stop sending",
    ),
    ("watch_flow::", "a client that is slow for 50 ms loses its stream"),
    ("write::", CODES_ARE_LOST),
];

const NO_RANGE_STREAM: &str = "range streams are not forwarded";
const NO_HEALTH_SERVICE: &str = "a proxy has no health service";
const CODES_ARE_LOST: &str = "errors lose their gRPC codes in the proxy's client library";

/// Tests that are skipped with etcd's gateway, which fails them.
const NOT_BY_ETCDS_GATEWAY: &[(&str, &str)] = &[(
    "http::a_client_that_has_closed_its_sending_side_is_answered",
    "the gateway treats the end of one direction as the end of both",
)];

/// Tests that are skipped with a database: the prefix of their names and the reason.
const NOT_BY_DATABASE: &[(&str, &str)] = &[
    (
        "http::metrics_count_writes_and_applied_proposals",
        "the server does not sync a write-ahead log, and does not count keys",
    ),
    ("maintenance::defragmentation_shrinks_the_backend_file", NO_FILE),
    ("tools::etcdutl_accepts_the_backend_file_of_a_stopped_member", NO_FILE),
    ("maintenance::status_reports_the_backend_sizes", NO_FILE),
    ("metrics::the_phases_of_a_commit_are_measured", NO_FILE),
    ("metrics::written_log_bytes_are_counted", NO_FILE),
    (
        "metrics::the_time_that_proposals_wait_before_consensus_is_measured",
        "the server commits writes through the database, not through consensus",
    ),
    (
        "maintenance::the_hashes_of_the_last_ten_compactions_are_kept",
        "the database computes the hash of any revision, not only of the last ten compactions",
    ),
];

/// Tests that are skipped with three servers on a database, because the tested server is not the sequencer.
const NOT_BY_ONE_OF_THREE: &[(&str, &str)] = &[
    ("metrics::operations_on_the_keyspace_are_counted", "only the sequencer counts operations"),
    (
        "txn::transactions_nested_too_deeply_are_refused",
        "a forwarded request is one level deeper, so it is refused with a different message",
    ),
    (
        "write::a_finished_compaction_is_logged",
        "only the sequencer removes compacted versions and logs it",
    ),
    ("lease::leases_are_listed_in_order_of_expiry", "only the sequencer knows when leases expire"),
];

const NO_FILE: &str = "the server has no files";

/// Returns the reason to skip a test, if any, when clients connect to a proxy or a gateway, or the data is in a
/// database.
pub(crate) fn reason_to_leave_out(path: &str, kind: Kind) -> Option<&'static str> {
    let (of_any, of_etcd) = match Place::of_suite() {
        Place::Proxy => (NOT_BY_PROXY, NOT_BY_ETCDS_PROXY),
        Place::Gateway => (&[][..], NOT_BY_ETCDS_GATEWAY),
        Place::Postgres | Place::PostgresThree => {
            if kind == Kind::Etcd {
                return Some("etcd cannot keep its data in a database");
            }
            let of_three = match Place::of_suite() {
                Place::PostgresThree => NOT_BY_ONE_OF_THREE,
                _ => &[],
            };
            // Tests against etcd have already been skipped, so the list for three servers applies only to Quorate.
            return reason_in(path, NOT_BY_DATABASE.iter().chain(of_three));
        }
        Place::Alone | Place::Leader | Place::Follower => return None,
    };
    let of_kind = if kind == Kind::Etcd { of_etcd } else { &[] };
    reason_in(path, of_any.iter().chain(of_kind))
}

/// Looks up the test with this path in a list of prefixes and reasons. Returns the reason to skip the test, if any.
fn reason_in<'a>(
    path: &str,
    mut list: impl Iterator<Item = &'a (&'static str, &'static str)>,
) -> Option<&'static str> {
    let (_, path) = path.split_once("::")?;
    list.find(|(name, _)| path.starts_with(name)).map(|(_, reason)| *reason)
}
