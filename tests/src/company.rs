//! Two more members for every server of the suite, when it runs against a cluster.
//!
//! A test asks for a server and is given one member of three: the one that leads, or one that follows.
//! What it expects must be true there as well, because to a client a cluster is one store. Tests that
//! are about one process and its files have no use for this ([`run_alone`](crate::run_alone)).

use std::time::Duration;

use crate::server::Exit;
use crate::{ClusterOptions, Options, Server, skipped};

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
}

impl Place {
    /// What `QUORATE_CLUSTER` says.
    #[must_use]
    pub fn of_suite() -> Self {
        match std::env::var("QUORATE_CLUSTER").as_deref() {
            Ok("leader") => Self::Leader,
            Ok("follower") => Self::Follower,
            Ok("") | Err(_) => Self::Alone,
            Ok(other) => panic!("QUORATE_CLUSTER={other} is neither leader nor follower"),
        }
    }

    /// How many members a server of the suite has, itself included.
    #[must_use]
    pub const fn members(self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Leader | Self::Follower => MEMBERS,
        }
    }
}

/// True for the term of a server's first election, which a member that is alone wins at once.
#[must_use]
pub fn is_first_term(term: u64) -> bool {
    term == 2 || term > 2 && Place::of_suite() != Place::Alone
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
        if place != Place::Alone && !self.is_about_one_process() {
            return Ok(start(self, place).await);
        }
        self.try_start_process().await
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
