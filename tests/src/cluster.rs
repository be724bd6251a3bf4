//! A cluster of server processes on this machine, which tests can start, interrupt, change and compare.
//!
//! Each member has its own program, flags, ports and directory. It keeps its ports and directory through every restart,
//! even if it restarts as another program. Members are named `m0`, `m1`, ... and addressed by the number in the name,
//! which does not change when other members are added or removed.
//!
//! The election timeout is half a second instead of etcd's one second. It is five times the election timeout of a
//! single server in these tests, because a busy machine may delay a heartbeat, and the members would then elect another
//! leader.
//!
//! This module manages processes. Leadership and agreement are in `agreement`, membership changes in `membership`, and
//! the network between members in [`Links`].

mod agreement;
mod endpoints;
mod membership;
mod options;

pub use endpoints::Endpoints;
pub use options::ClusterOptions;

use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::{Client, Exit, Kind, Links, Options, Server};

/// Time within which a cluster must reach agreement once agreement is possible.
pub const TIMEOUT: Duration = Duration::from_secs(45);

/// Timeout of a request to one member before another member is tried.
const QUESTION: Duration = Duration::from_secs(2);

/// The state of a member's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The process runs.
    Running,
    /// The process exists but is paused.
    Paused,
    /// There is no process.
    Down,
}

#[derive(Debug)]
struct Member {
    server: Server,
    client: Client,
    state: State,
    /// Member id; `None` before the member is added and once it is removed.
    id: Option<u64>,
    /// Start of the current pause.
    paused: Option<Instant>,
    /// Longest pause from which the member was resumed.
    longest_pause: Duration,
}

impl Member {
    fn new(server: Server) -> Self {
        Self {
            client: server.client(),
            server,
            state: State::Down,
            id: None,
            paused: None,
            longest_pause: Duration::ZERO,
        }
    }
}

/// The members of one cluster. All processes are killed when the cluster is dropped.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Member>,
    /// Options for members that are added later.
    template: Options,
    links: Option<Links>,
}

impl Cluster {
    /// Starts a cluster with the default options.
    pub async fn start(kind: Kind, size: usize) -> Self {
        ClusterOptions::new(kind, size).start().await
    }

    /// Returns the number of members that have ever been part of the cluster.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.members.len()
    }

    /// Always returns false.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the numbers of the members that are in the cluster.
    #[must_use]
    pub fn members(&self) -> Vec<usize> {
        self.numbers(|member| member.id.is_some())
    }

    /// Returns the numbers of the members whose processes run and are not paused.
    #[must_use]
    pub fn running(&self) -> Vec<usize> {
        self.numbers(|member| member.state == State::Running)
    }

    fn numbers(&self, wanted: impl Fn(&Member) -> bool) -> Vec<usize> {
        let all = self.members.iter().enumerate();
        all.filter(|(_, member)| wanted(member)).map(|(number, _)| number).collect()
    }

    /// Returns a member's process, which gives access to its directory, log and metrics.
    #[must_use]
    pub fn server(&self, member: usize) -> &Server {
        &self.members[member].server
    }

    /// Returns a member's process, so that the next start can be configured. Only the cluster may start and stop the
    /// process.
    pub fn server_mut(&mut self, member: usize) -> &mut Server {
        &mut self.members[member].server
    }

    /// Returns the state of a member's process.
    #[must_use]
    pub fn state(&self, member: usize) -> State {
        self.members[member].state
    }

    /// Returns a client of one member. The client has its own connection.
    #[must_use]
    pub fn client(&self, member: usize) -> Client {
        self.members[member].server.client()
    }

    /// Returns a client of all members. If a request fails, the client sends the next one to another member.
    #[must_use]
    pub fn everyone(&self) -> Endpoints {
        let members = self.members.iter().filter(|member| member.id.is_some());
        Endpoints::new(members.map(|member| member.server.client()).collect())
    }

    /// Returns the links between the members, if the cluster was started with links.
    #[must_use]
    pub fn links(&self) -> &Links {
        self.links.as_ref().expect("the cluster was started with links")
    }

    /// Kills a member, which may be paused.
    pub fn kill(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.server.kill();
        member.state = State::Down;
    }

    /// Asks a member to stop, and waits until its process exits.
    pub async fn stop(&mut self, member: usize) -> ExitStatus {
        let member = &mut self.members[member];
        let status = member.server.stop().await;
        member.state = State::Down;
        status
    }

    /// Waits until a member's process has exited.
    pub async fn ended(&mut self, member: usize) -> ExitStatus {
        let member = &mut self.members[member];
        let status = member.server.ended().await;
        member.state = State::Down;
        status
    }

    /// Pauses a member's process, and waits until none of its threads runs.
    pub async fn pause(&mut self, member: usize) {
        let member = &mut self.members[member];
        assert_eq!(member.state, State::Running);
        member.server.pause().await;
        member.state = State::Paused;
        member.paused = Some(Instant::now());
    }

    /// Resumes a paused member.
    pub fn resume(&mut self, member: usize) {
        let member = &mut self.members[member];
        assert_eq!(member.state, State::Paused);
        member.server.resume();
        member.state = State::Running;
        let pause = member.paused.take().map_or(Duration::ZERO, |since| since.elapsed());
        member.longest_pause = member.longest_pause.max(pause);
    }

    /// Returns the longest pause from which a member of this kind was resumed.
    #[must_use]
    pub fn longest_pause(&self, kind: Kind) -> Duration {
        let members = self.members.iter().filter(|member| member.server.kind() == kind);
        members.map(|member| member.longest_pause).max().unwrap_or_default()
    }

    /// Starts the process of a stopped member without waiting until the member serves. A member cannot serve without a
    /// majority, so several stopped members may have to be launched before any of them can serve.
    pub fn launch(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.server.launch();
        member.state = State::Running;
    }

    /// Waits until a launched member serves clients.
    pub async fn ready(&mut self, member: usize) {
        if let Err(exit) = self.try_ready(member).await {
            panic!("m{member} failed to start: {exit}");
        }
    }

    /// Waits until a launched member serves clients. Returns its exit if the member refuses to start.
    pub async fn try_ready(&mut self, member: usize) -> Result<(), Exit> {
        let number = member;
        let member = &mut self.members[number];
        let outcome = member.server.ready().await;
        if outcome.is_err() {
            member.state = State::Down;
        }
        for other in self.members.iter().filter(|_| outcome.is_ok()) {
            self.members[number].server.adopt_token(&other.server);
        }
        outcome
    }

    /// Starts a stopped member on its previous directory and ports, and waits until it serves.
    pub async fn restart(&mut self, member: usize) {
        self.launch(member);
        self.ready(member).await;
    }

    /// Starts all of these stopped members, then waits until they serve.
    pub async fn restart_all(&mut self, members: &[usize]) {
        for member in members {
            self.launch(*member);
        }
        for member in members {
            self.ready(*member).await;
        }
    }

    /// Starts a stopped member as another program with other flags, on its previous directory and ports.
    pub async fn restart_as(&mut self, member: usize, kind: Kind, flags: &[&str]) {
        let server = self.server_mut(member);
        server.set_kind(kind);
        server.set_flags(flags);
        self.restart(member).await;
    }

    /// Deletes the data of a stopped member.
    pub fn wipe(&mut self, member: usize) {
        let member = &self.members[member];
        assert_eq!(member.state, State::Down, "the member must be down");
        std::fs::remove_dir_all(member.server.data()).unwrap();
    }

    /// Hands ownership of the processes to the caller.
    pub(crate) fn into_servers(self) -> Vec<Server> {
        self.members.into_iter().map(|member| member.server).collect()
    }

    /// Returns a directory for a test's own files, which is deleted when the cluster is dropped.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.members[0].server.scratch()
    }
}
