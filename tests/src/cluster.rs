//! A cluster of server processes on this machine: started, interrupted, changed, compared.
//!
//! Each member has its own program, flags, ports and directory, and keeps ports and directory through every restart,
//! including one as another program. Members are named `m0`, `m1`, ... and addressed by that number, which they keep
//! when others are added or removed.
//!
//! Elections take half a second instead of etcd's one second. That is five times the timeout of a single server in
//! these tests, because a busy machine may delay a heartbeat, and the members would then elect another leader.
//!
//! This module manages processes. Leadership and agreement are in `agreement`, membership changes in `membership`, the
//! network between members in [`Links`].

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

/// How long a cluster may take to agree on something once it can.
pub const TIMEOUT: Duration = Duration::from_secs(45);

/// Timeout of a request to one member before another member is asked.
const QUESTION: Duration = Duration::from_secs(2);

/// The state of a member's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Running,
    /// It exists but is paused.
    Paused,
    /// There is no process.
    Down,
}

#[derive(Debug)]
struct Member {
    server: Server,
    client: Client,
    state: State,
    /// `None` once the member is removed.
    id: Option<u64>,
    /// The start of the current pause.
    paused: Option<Instant>,
    /// The longest pause from which it was resumed.
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

/// Members of one cluster. All processes end when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Member>,
    /// Options of a member that is added.
    template: Options,
    links: Option<Links>,
}

impl Cluster {
    /// Starts a cluster with the default options.
    pub async fn start(kind: Kind, size: usize) -> Self {
        ClusterOptions::new(kind, size).start().await
    }

    /// The number of members that were ever part of the cluster.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.members.len()
    }

    /// Never true.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The numbers of the members that are in the cluster.
    #[must_use]
    pub fn members(&self) -> Vec<usize> {
        self.numbers(|member| member.id.is_some())
    }

    /// The numbers of the members whose process runs, paused ones left out.
    #[must_use]
    pub fn running(&self) -> Vec<usize> {
        self.numbers(|member| member.state == State::Running)
    }

    fn numbers(&self, wanted: impl Fn(&Member) -> bool) -> Vec<usize> {
        let all = self.members.iter().enumerate();
        all.filter(|(_, member)| wanted(member)).map(|(number, _)| number).collect()
    }

    /// A member's process, with its directory, its log and its metrics.
    #[must_use]
    pub fn server(&self, member: usize) -> &Server {
        &self.members[member].server
    }

    /// A member's process, for changes of its next start. Only the cluster starts and ends it.
    pub fn server_mut(&mut self, member: usize) -> &mut Server {
        &mut self.members[member].server
    }

    /// The state of a member's process.
    #[must_use]
    pub fn state(&self, member: usize) -> State {
        self.members[member].state
    }

    /// A client of one member, with a connection of its own.
    #[must_use]
    pub fn client(&self, member: usize) -> Client {
        self.members[member].server.client()
    }

    /// A client of all members, which switches to another member when one does not answer.
    #[must_use]
    pub fn everyone(&self) -> Endpoints {
        let members = self.members.iter().filter(|member| member.id.is_some());
        Endpoints::new(members.map(|member| member.server.client()).collect())
    }

    /// The links between the members, if the cluster was started with links.
    #[must_use]
    pub fn links(&self) -> &Links {
        self.links.as_ref().expect("the cluster is linked")
    }

    /// Kills a member, which may be paused.
    pub fn kill(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.server.kill();
        member.state = State::Down;
    }

    /// Asks a member to stop, and waits for its end.
    pub async fn stop(&mut self, member: usize) -> ExitStatus {
        let member = &mut self.members[member];
        let status = member.server.stop().await;
        member.state = State::Down;
        status
    }

    /// Waits until a member's process has ended.
    pub async fn ended(&mut self, member: usize) -> ExitStatus {
        let member = &mut self.members[member];
        let status = member.server.ended().await;
        member.state = State::Down;
        status
    }

    /// Takes the processor from a member (`SIGSTOP`).
    pub fn pause(&mut self, member: usize) {
        let member = &mut self.members[member];
        assert_eq!(member.state, State::Running);
        member.server.signal("STOP");
        member.state = State::Paused;
        member.paused = Some(Instant::now());
    }

    /// Resumes a paused member (`SIGCONT`).
    pub fn resume(&mut self, member: usize) {
        let member = &mut self.members[member];
        assert_eq!(member.state, State::Paused);
        member.server.signal("CONT");
        member.state = State::Running;
        let pause = member.paused.take().map_or(Duration::ZERO, |since| since.elapsed());
        member.longest_pause = member.longest_pause.max(pause);
    }

    /// The longest pause from which a member of this kind was resumed.
    #[must_use]
    pub fn longest_pause(&self, kind: Kind) -> Duration {
        let members = self.members.iter().filter(|member| member.server.kind() == kind);
        members.map(|member| member.longest_pause).max().unwrap_or_default()
    }

    /// Starts the process of a member that is down, without waiting: without a majority it cannot serve, and several
    /// members that are down together need each other.
    pub fn launch(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.server.launch();
        member.state = State::Running;
    }

    /// Waits until a member that was launched serves clients.
    pub async fn ready(&mut self, member: usize) {
        if let Err(exit) = self.try_ready(member).await {
            panic!("m{member} does not start: {exit}");
        }
    }

    /// Waits until a launched member serves clients; the member may refuse to start.
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

    /// Starts a member that is down, on the directory and the ports that it had, and waits until it
    /// serves.
    pub async fn restart(&mut self, member: usize) {
        self.launch(member);
        self.ready(member).await;
    }

    /// Starts members that are down, all before waiting for the first.
    pub async fn restart_all(&mut self, members: &[usize]) {
        for member in members {
            self.launch(*member);
        }
        for member in members {
            self.ready(*member).await;
        }
    }

    /// Starts a member that is down as another program with other flags, on the directory and the
    /// ports that it had.
    pub async fn restart_as(&mut self, member: usize, kind: Kind, flags: &[&str]) {
        let server = self.server_mut(member);
        server.set_kind(kind);
        server.set_flags(flags);
        self.restart(member).await;
    }

    /// Deletes the data of a member that is down.
    pub fn wipe(&mut self, member: usize) {
        let member = &self.members[member];
        assert_eq!(member.state, State::Down, "files of a running member");
        std::fs::remove_dir_all(member.server.data()).unwrap();
    }

    /// Returns the processes, which the caller then owns.
    pub(crate) fn into_servers(self) -> Vec<Server> {
        self.members.into_iter().map(|member| member.server).collect()
    }

    /// A directory that lives as long as the cluster, for a test's own files.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.members[0].server.scratch()
    }
}
