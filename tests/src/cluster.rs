//! A cluster of server processes on this machine: started, interrupted, changed, compared.
//!
//! Each member has its own program, flags, ports and directory, and keeps ports and directory through
//! every restart, also through one as another program. Members are named `m0`, `m1`, ... and addressed
//! by that number, which stays theirs when others come and go.
//!
//! Elections take half a second instead of etcd's whole one: five times what a single server of these
//! tests takes, because here a busy machine that delays a heartbeat would unseat a leader.
//!
//! Here: processes. Who leads and who agrees is in `agreement`, members that come and go in
//! `membership`, what stands between members in [`Links`].

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
pub const PATIENCE: Duration = Duration::from_secs(45);

/// Longest that one question to one member may take before another member is asked.
const QUESTION: Duration = Duration::from_secs(2);

/// What the process of a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Running,
    /// It is there and gets no processor.
    Paused,
    /// There is none.
    Down,
}

#[derive(Debug)]
struct Member {
    server: Server,
    client: Client,
    state: State,
    /// Nothing once it is removed.
    id: Option<u64>,
    /// Since when it is paused, if it is.
    paused: Option<Instant>,
    /// The longest pause that it has come back from.
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
    /// What a member that is added starts with.
    template: Options,
    links: Option<Links>,
}

impl Cluster {
    /// Starts a cluster with the default options.
    pub async fn start(kind: Kind, size: usize) -> Self {
        ClusterOptions::new(kind, size).start().await
    }

    /// How many members there ever were.
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

    /// The same, to change how it starts next. Starting and ending it is up to the cluster.
    pub fn server_mut(&mut self, member: usize) -> &mut Server {
        &mut self.members[member].server
    }

    /// What the process of a member is doing.
    #[must_use]
    pub fn state(&self, member: usize) -> State {
        self.members[member].state
    }

    /// A client of one member, with a connection of its own.
    #[must_use]
    pub fn client(&self, member: usize) -> Client {
        self.members[member].server.client()
    }

    /// A client of all members, which asks another one when one does not answer.
    #[must_use]
    pub fn everyone(&self) -> Endpoints {
        let members = self.members.iter().filter(|member| member.id.is_some());
        Endpoints::new(members.map(|member| member.server.client()).collect())
    }

    /// The links between the members, of a cluster that was started with such.
    #[must_use]
    pub fn links(&self) -> &Links {
        self.links.as_ref().expect("the cluster is linked")
    }

    /// Ends a member without a warning. A paused one can be killed too.
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

    /// Waits until a member has ended by itself.
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

    /// Gives it back (`SIGCONT`).
    pub fn resume(&mut self, member: usize) {
        let member = &mut self.members[member];
        assert_eq!(member.state, State::Paused);
        member.server.signal("CONT");
        member.state = State::Running;
        let pause = member.paused.take().map_or(Duration::ZERO, |since| since.elapsed());
        member.longest_pause = member.longest_pause.max(pause);
    }

    /// The longest pause that a member which is of this kind now has come back from.
    #[must_use]
    pub fn longest_pause(&self, kind: Kind) -> Duration {
        let members = self.members.iter().filter(|member| member.server.kind() == kind);
        members.map(|member| member.longest_pause).max().unwrap_or_default()
    }

    /// Starts the process of a member that is down and does not wait: without a majority it cannot
    /// serve, and several that are down together need each other.
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

    /// The same, for a member that may refuse.
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

    /// The processes, for somebody else to look after.
    pub(crate) fn into_servers(self) -> Vec<Server> {
        self.members.into_iter().map(|member| member.server).collect()
    }

    /// A directory that lives as long as the cluster, for a test's own files.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.members[0].server.scratch()
    }
}
