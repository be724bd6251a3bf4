//! A cluster in a comparison. Its members start together, and requests go to the leader or to a follower.
//!
//! The leader is determined again each time, because it may change. The only member of a cluster is its own
//! leader, so cases for one and for three members differ in nothing else.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::server::{Programs, Proxy, Server, Side};
use super::service::{Service, USER, number, user_name};

/// The timeout for electing a leader, and for a member to catch up.
const TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Running members.
#[derive(Debug)]
pub(super) struct Cluster {
    /// The proxy that clients connect to, if there is one.
    proxy: Option<Proxy>,
    members: Vec<Server>,
}

/// A member of a cluster, by its position.
pub(super) type Position = usize;

impl Cluster {
    /// Starts the members of a new cluster.
    pub(super) fn start(side: &Side, programs: &Programs, count: usize) -> Result<Self, String> {
        Self::begin(Server::founders(side, programs, count)?)
    }

    /// Starts a single member that requires client certificates.
    pub(super) fn start_secured(side: &Side, programs: &Programs) -> Result<Self, String> {
        let mut members = Server::founders(side, programs, 1)?;
        members.iter_mut().try_for_each(Server::secure)?;
        Self::begin(members)
    }

    /// Enables authentication; from then on clients are [`Service::for_user`].
    pub(super) fn guarded(mut self) -> Result<Self, String> {
        let service = self.members[0].service();
        for command in [
            &["user", "add", USER][..],
            &["role", "add", "all"],
            &["role", "grant-permission", "all", "readwrite", "", "--prefix"],
            &["user", "grant-role", user_name(), "all"],
            // Authentication requires root, but no client uses it here.
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

    /// Puts a proxy in front of the first member. Clients use it from then on, and its cost is measured.
    pub(super) fn proxied(mut self) -> Result<Self, String> {
        self.proxy = Some(Proxy::before(&self.members[0])?);
        Ok(self)
    }

    /// Waits for a leader, and returns it.
    pub(super) fn leader(&self) -> Result<Position, String> {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            for (position, member) in self.members.iter().enumerate() {
                // A stopped member is no leader, and a member that does not answer is asked again.
                if member.pid().is_some()
                    && let Ok(status) = member.service().status()
                    && leads(&status)
                {
                    return Ok(position);
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Err(format!("no member leads after {} s", TIMEOUT.as_secs()))
    }

    /// A running follower.
    pub(super) fn follower(&self) -> Result<Position, String> {
        let leader = self.leader()?;
        let mut others = (0..self.members.len()).filter(|position| *position != leader);
        let follower = others.find(|position| self.members[*position].pid().is_some());
        follower.ok_or_else(|| "there is no follower".to_owned())
    }

    pub(super) fn member(&mut self, position: Position) -> &mut Server {
        &mut self.members[position]
    }

    /// The service of one member, at the cost of all members.
    pub(super) fn service(&self, position: Position) -> Service {
        match &self.proxy {
            Some(proxy) => proxy.service(),
            None => self.members[position].service().at_the_cost_of(self.pids()),
        }
    }

    /// The service of all members but one. Its cost is not measured, because that member may end meanwhile.
    pub(super) fn service_without(&self, position: Position) -> Result<Service, String> {
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != position);
        let service = others.map(|(_, member)| member.service()).reduce(Service::and);
        let service = service.ok_or_else(|| "there is no other member".to_owned())?;
        Ok(service.at_the_cost_of(Vec::new()))
    }

    fn pids(&self) -> Vec<u32> {
        self.members.iter().filter_map(Server::pid).collect()
    }

    /// Waits until a member has applied what the leader had applied at the time of the call.
    pub(super) fn wait_until_caught_up(&self, position: Position) -> Result<(), String> {
        let applied = |status: &Value| number(status, "/raftAppliedIndex");
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            // A client would wait for seconds for a member that does not listen.
            if self.members[position].listens() {
                let leader = self.members[self.leader()?].service().status()?;
                let member = self.members[position].service().status();
                if member.is_ok_and(|member| applied(&member) >= applied(&leader)) {
                    return Ok(());
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Err(format!("the member has not caught up after {} s", TIMEOUT.as_secs()))
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
    fn a_member_that_reports_itself_as_leader_is_the_leader() {
        let status = |leader: u64, member: u64| serde_json::json!({"leader": leader, "header": {"member_id": member}});
        // Two numbers that are equal as floating point numbers.
        let own = u64::MAX - 1;
        assert!(leads(&status(own, own)));
        assert!(!leads(&status(own, own - 1)));
        assert!(!leads(&serde_json::json!({"header": {"member_id": own}})));
        assert!(!leads(&serde_json::json!({"leader": 0, "header": {"member_id": 0}})));
    }
}
