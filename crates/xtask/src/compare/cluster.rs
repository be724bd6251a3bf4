//! A cluster under comparison: members started together, asked at the leader or at a follower.
//!
//! Which member leads is asked each time, for leaders change. A cluster of one member leads itself, so that
//! cases for one and for three members differ in nothing else.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::server::{Programs, Proxy, Server, Side};
use super::service::{Service, USER, number, user_name};

/// How long a cluster may take to agree on a leader, or a member to catch up.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(50);

/// Running members.
#[derive(Debug)]
pub(super) struct Cluster {
    /// What clients come by.
    proxy: Option<Proxy>,
    members: Vec<Server>,
}

/// A member of a cluster: its position.
pub(super) type Position = usize;

impl Cluster {
    /// Starts the members of a new cluster.
    pub(super) fn start(side: &Side, programs: &Programs, count: usize) -> Result<Self, String> {
        Self::begin(Server::founders(side, programs, count)?)
    }

    /// Starts the only member of one, which asks clients for certificates.
    pub(super) fn start_secured(side: &Side, programs: &Programs) -> Result<Self, String> {
        let mut members = Server::founders(side, programs, 1)?;
        members.iter_mut().try_for_each(Server::secure)?;
        Self::begin(members)
    }

    /// Turns authentication on; from then on clients are [`Service::for_user`].
    pub(super) fn guarded(mut self) -> Result<Self, String> {
        let service = self.members[0].service();
        for command in [
            &["user", "add", USER][..],
            &["role", "add", "all"],
            &["role", "grant-permission", "all", "readwrite", "", "--prefix"],
            &["user", "grant-role", user_name(), "all"],
            // No authentication without root, whom nobody needs here.
            &["user", "add", "root", "--no-password"],
            &["user", "grant-role", "root", "root"],
            &["auth", "enable"],
        ] {
            service.ctl(command)?;
        }
        self.members.iter_mut().for_each(Server::guard);
        Ok(self)
    }

    fn begin(mut members: Vec<Server>) -> Result<Self, String> {
        for member in &mut members {
            member.spawn()?;
        }
        for member in &mut members {
            member.wait_until_it_serves()?;
        }
        Ok(Self { proxy: None, members })
    }

    /// Puts a proxy before the first member: clients come by that from now on, and what it costs is measured.
    pub(super) fn proxied(mut self) -> Result<Self, String> {
        self.proxy = Some(Proxy::before(&self.members[0])?);
        Ok(self)
    }

    /// Waits until a running member says that it leads.
    pub(super) fn leader(&self) -> Result<Position, String> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            for (position, member) in self.members.iter().enumerate() {
                // Who does not run does not lead, and who does not answer is asked again.
                if member.pid().is_some()
                    && let Ok(status) = member.service().status()
                    && leads(&status)
                {
                    return Ok(position);
                }
            }
            std::thread::sleep(LOOK);
        }
        Err(format!("no member leads after {} s", PATIENCE.as_secs()))
    }

    /// A running member that does not lead.
    pub(super) fn follower(&self) -> Result<Position, String> {
        let leader = self.leader()?;
        let mut others = (0..self.members.len()).filter(|position| *position != leader);
        let follower = others.find(|position| self.members[*position].pid().is_some());
        follower.ok_or_else(|| "there is no follower".to_owned())
    }

    pub(super) fn member(&mut self, position: Position) -> &mut Server {
        &mut self.members[position]
    }

    /// What clients of one member see, at the cost of all members.
    pub(super) fn service(&self, position: Position) -> Service {
        match &self.proxy {
            Some(proxy) => proxy.service(),
            None => self.members[position].service().at_the_cost_of(self.pids()),
        }
    }

    /// What clients of all members but one see. What it costs is not measured: that one may end meanwhile.
    pub(super) fn service_without(&self, position: Position) -> Result<Service, String> {
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != position);
        let service = others.map(|(_, member)| member.service()).reduce(Service::and);
        let service = service.ok_or_else(|| "there is no other member".to_owned())?;
        Ok(service.at_the_cost_of(Vec::new()))
    }

    fn pids(&self) -> Vec<u32> {
        self.members.iter().filter_map(Server::pid).collect()
    }

    /// Waits until a member has applied what the leader had applied a moment before.
    pub(super) fn wait_until_in_step(&self, position: Position) -> Result<(), String> {
        let applied = |status: &Value| number(status, "/raftAppliedIndex");
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            // To a member that does not listen, a client would wait for seconds.
            if self.members[position].listens() {
                let leader = self.members[self.leader()?].service().status()?;
                let member = self.members[position].service().status();
                if member.is_ok_and(|member| applied(&member) >= applied(&leader)) {
                    return Ok(());
                }
            }
            std::thread::sleep(LOOK);
        }
        Err(format!("the member is not in step after {} s", PATIENCE.as_secs()))
    }
}

fn leads(status: &Value) -> bool {
    let leader = &status["leader"];
    leader.as_u64().is_some_and(|id| id != 0) && *leader == status["header"]["member_id"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_who_names_itself() {
        let status = |leader: u64, member: u64| serde_json::json!({"leader": leader, "header": {"member_id": member}});
        // Two numbers that differ less than a floating point number can tell.
        let own = u64::MAX - 1;
        assert!(leads(&status(own, own)));
        assert!(!leads(&status(own, own - 1)));
        assert!(!leads(&serde_json::json!({"header": {"member_id": own}})));
        assert!(!leads(&serde_json::json!({"leader": 0, "header": {"member_id": 0}})));
    }
}
