//! Two more members for every server of the suite, when it runs against a cluster; or a proxy or a gateway before it.
//!
//! A test asks for a server and is given one member of three: the one that leads, or one that follows.
//! What it expects must be true there as well, because to a client a cluster is one store. Tests that
//! are about one process and its files have no use for this ([`run_alone`](crate::run_alone)).
//!
//! With a proxy a test's own client and its tools come by that; what it asks over HTTP it asks the member. By a
//! gateway goes all there is.

use std::time::Duration;

use crate::server::Exit;
use crate::{ClusterOptions, Kind, Options, Proxy, Server, skipped};

const MEMBERS: usize = 3;

/// Where in a cluster the suite asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There is only one member.
    Alone,
    /// At the leader of three.
    Leader,
    /// At a follower of three.
    Follower,
    /// There is only one member, and its clients come by a proxy of gRPC.
    Proxy,
    /// There is only one member, and all connections go by a gateway.
    Gateway,
}

impl Place {
    /// What `QUORATE_CLUSTER` says.
    #[must_use]
    pub fn of_suite() -> Self {
        match std::env::var("QUORATE_CLUSTER").as_deref() {
            Ok("leader") => Self::Leader,
            Ok("follower") => Self::Follower,
            Ok("proxy") => Self::Proxy,
            Ok("gateway") => Self::Gateway,
            Ok("") | Err(_) => Self::Alone,
            Ok(other) => {
                panic!("QUORATE_CLUSTER={other} is neither leader, follower, proxy nor gateway")
            }
        }
    }

    /// How many members a server of the suite has, itself included.
    #[must_use]
    pub const fn members(self) -> usize {
        match self {
            Self::Alone | Self::Proxy | Self::Gateway => 1,
            Self::Leader | Self::Follower => MEMBERS,
        }
    }
}

/// True for the term of a server's first election, which a member that is alone wins at once.
#[must_use]
pub fn is_first_term(term: u64) -> bool {
    term == 2 || term > 2 && Place::of_suite().members() > 1
}

impl Options {
    /// Starts the server on a directory that may be in use, and gives it a moment. Nothing is returned
    /// when it does not serve by then, whether it ended or waits.
    pub async fn start_within_a_moment(self) -> Option<Server> {
        let patience = Duration::from_secs(3);
        tokio::time::timeout(patience, self.try_start()).await.ok()?.ok()
    }

    /// Starts the server and waits until it serves.
    pub async fn start(self) -> Server {
        match self.try_start().await {
            Ok(server) => server,
            Err(exit) => panic!("the server does not start: {exit}"),
        }
    }

    /// Starts the server; the error is a server that ended instead of serving.
    ///
    /// In a run of the suite against clusters it is one member of three, unless the options are about
    /// this process alone.
    pub async fn try_start(self) -> Result<Server, Exit> {
        let place = Place::of_suite();
        if self.is_about_one_process() {
            return self.try_start_process().await;
        }
        match place {
            Place::Alone => self.try_start_process().await,
            Place::Leader | Place::Follower => Ok(start(self, place).await),
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

/// Starts a cluster of members with the same options, and returns the one to ask with the others in
/// its company.
async fn start(options: Options, place: Place) -> Server {
    let cluster = ClusterOptions::alike(options, MEMBERS).start().await;
    let leader = cluster.leader().await;
    let asked = if place == Place::Leader { leader } else { (leader + 1) % MEMBERS };
    let mut servers = cluster.into_servers();
    let mut server = servers.remove(asked);
    server.keep_company(servers);
    server
}

/// False when the suite runs against clusters.
pub(crate) fn is_alone() -> bool {
    let alone = Place::of_suite() == Place::Alone;
    if !alone {
        skipped("in a cluster: what is about one process and its files, and runs alone");
    }
    alone
}

/// With these a proxy keeps to itself less than it does otherwise: members list themselves, and judge large requests.
const PROXY_FLAGS: [&str; 2] = ["--advertise-client-url=", "--max-send-bytes=8388608"];

/// Tests that are left out where clients come by a proxy: what their names begin with, and why. etcd's proxy fails all of
/// them too, or would if it were of 3.7.
const NOT_BY_PROXY: &[(&str, &str)] = &[
    ("metrics::what_watchers_are_sent_is_counted", "watchers of one range are one for the member"),
    ("permissions::every_method_asks_for_what_it_needs", NO_RANGE_STREAM),
    ("range::a_stream_", NO_RANGE_STREAM),
    ("range::large_records_behind_small_ones", NO_RANGE_STREAM),
    ("range::stream_refusals", NO_RANGE_STREAM),
    ("requests::health_service", NO_HEALTH_SERVICE),
    ("requests::malformed_bodies", NO_HEALTH_SERVICE),
    ("watch::cancelling", "a proxy does not know the revision of now"),
    ("watch_flow::large_responses_are_fragmented", "no proxy sends fragments"),
    (
        "watch_flow::streams_end_with_the_server",
        "a watch goes on when a member is back, or at another",
    ),
];

/// And those that etcd's proxy alone fails, of 3.5.16.
const NOT_BY_ETCDS_PROXY: &[(&str, &str)] = &[
    ("auth::a_token_ends_with_its_user", CODES_ARE_LOST),
    ("auth::logging_in", CODES_ARE_LOST),
    ("auth::permissions_are_those_of_now", CODES_ARE_LOST),
    ("auth::watching_is_reading", "a watch that joins another one is asked for as nobody"),
    ("kubernetes::a_list_in_pages", CODES_ARE_LOST),
    ("kubernetes::progress_is_told", "questions for progress are not answered"),
    ("kubernetes::servers_agree_on_who", CODES_ARE_LOST),
    ("lease::", "keep-alives end with their requests, and refusals lose their code"),
    ("lock_election::keys_are_touched_with_the_rights", "streams end without a status"),
    ("maintenance::a_corrupt_alarm_stops_changes", CODES_ARE_LOST),
    ("maintenance::alarms_survive_a_restart", CODES_ARE_LOST),
    ("permissions::", CODES_ARE_LOST),
    ("quota::what_costs_nothing_passes", CODES_ARE_LOST),
    ("range::range_refusals", CODES_ARE_LOST),
    ("requests::", CODES_ARE_LOST),
    ("txn::", CODES_ARE_LOST),
    ("watch::", "ids, progress and cancellations are its own, and streams end with their requests"),
    ("watch_flow::", "a client that is slow for 50 ms loses its stream"),
    ("write::", CODES_ARE_LOST),
];

const NO_RANGE_STREAM: &str = "lists in pieces are not passed on";
const NO_HEALTH_SERVICE: &str = "a proxy has no health service";
const CODES_ARE_LOST: &str = "refusals lose their code in the client library";

/// Those that etcd's gateway fails.
const NOT_BY_ETCDS_GATEWAY: &[(&str, &str)] =
    &[("http::a_client_that_sends_no_more", "it takes one direction's end for both's")];

/// Why a test is left out where clients come by a proxy or a gateway, if it is.
pub(crate) fn reason_to_leave_out(path: &str, kind: Kind) -> Option<&'static str> {
    let (of_any, of_etcd) = match Place::of_suite() {
        Place::Proxy => (NOT_BY_PROXY, NOT_BY_ETCDS_PROXY),
        Place::Gateway => (&[][..], NOT_BY_ETCDS_GATEWAY),
        Place::Alone | Place::Leader | Place::Follower => return None,
    };
    let (_, path) = path.split_once("::")?;
    let of_kind = if kind == Kind::Etcd { of_etcd } else { &[] };
    let mut all = of_any.iter().chain(of_kind);
    all.find(|(name, _)| path.starts_with(name)).map(|(_, reason)| *reason)
}
