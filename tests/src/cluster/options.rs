//! Options for starting a cluster.

use super::{Cluster, Member, State};
use crate::{Kind, Links, Options, within};

/// Maximum number of attempts to start. If another process has taken a port, the next attempt uses different ports.
const ATTEMPTS: usize = 5;

/// Options for starting a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    members: Vec<Options>,
    template: Options,
    linked: bool,
}

impl ClusterOptions {
    /// Returns the options of members of one kind.
    #[must_use]
    pub fn new(kind: Kind, size: usize) -> Self {
        let template = Options::new(kind).timing(50, 500);
        let members = (0..size).map(|number| template.clone().name(&name(number))).collect();
        Self { members, template, linked: false }
    }

    /// Returns options with which all members are alike, except for their names.
    pub(crate) fn alike(options: Options, size: usize) -> Self {
        let template = options.patient();
        let members = (0..size).map(|number| template.clone().name(&name(number))).collect();
        Self { members, template, linked: false }
    }

    /// Adds a flag, written `--name=value`, to every member, including members added later.
    #[must_use]
    pub fn flag(self, flag: impl Into<String>) -> Self {
        let flag = flag.into();
        let add = |options: Options| options.flag(flag.clone());
        Self {
            members: self.members.into_iter().map(add).collect(),
            template: self.template.flag(flag.clone()),
            ..self
        }
    }

    /// Enables authentication, with certificates for clients and peers.
    #[must_use]
    pub fn guarded(self) -> Self {
        Self {
            members: self.members.into_iter().map(Options::guarded).collect(),
            template: self.template.guarded(),
            ..self
        }
    }

    /// Sets the heartbeat interval and the election timeout, in milliseconds.
    #[must_use]
    pub fn timing(self, heartbeat: u32, election: u32) -> Self {
        let set = |options: Options| options.timing(heartbeat, election);
        Self {
            members: self.members.into_iter().map(set).collect(),
            template: set(self.template),
            ..self
        }
    }

    /// Connects the members through links that tests can disturb.
    #[must_use]
    pub const fn linked(mut self) -> Self {
        self.linked = true;
        self
    }

    /// Changes the options of one member, such as its kind, flags, environment or disk.
    #[must_use]
    pub fn member(mut self, number: usize, change: impl FnOnce(Options) -> Options) -> Self {
        let options = self.members.remove(number);
        self.members.insert(number, change(options));
        self
    }

    /// Starts all members and waits until all serve.
    pub async fn start(self) -> Cluster {
        for _ in 0..ATTEMPTS {
            if let Some(mut cluster) = self.clone().try_start().await {
                cluster.learn_ids().await;
                return cluster;
            }
        }
        panic!("other processes took the ports in every attempt");
    }

    /// Starts all members. Returns `None` if another process has taken a port.
    async fn try_start(self) -> Option<Cluster> {
        let mut servers: Vec<_> = self.members.into_iter().map(Options::prepare).collect();
        let links = self.linked.then(Links::new);
        if let Some(links) = &links {
            for server in &mut servers {
                server.set_advertised_peer_port(links.add(server.peer_port()));
            }
        }
        let words = servers.iter().map(|server| format!("{}={}", server.name(), server.peer_url()));
        let words = words.collect::<Vec<_>>().join(",");
        for server in &mut servers {
            server.set_cluster(words.clone(), false);
            server.launch();
        }
        let members = servers.into_iter().map(Member::new).collect();
        let mut cluster = Cluster { members, template: self.template, links };
        for (number, member) in cluster.members.iter_mut().enumerate() {
            match within("the member is ready or exits", member.server.ready()).await {
                Ok(()) => member.state = State::Running,
                Err(exit) if exit.found_port_taken() => return None,
                Err(exit) => panic!("m{number} failed to start: {exit}"),
            }
        }
        Some(cluster)
    }
}

/// Returns the name of a member.
pub(super) fn name(number: usize) -> String {
    format!("m{number}")
}
