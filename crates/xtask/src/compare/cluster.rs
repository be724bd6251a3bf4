//! A cluster in a comparison. Its members start together, and requests go to the leader or to a follower.
//!
//! The leader is looked up each time it is needed, because it may change. A single member is its own leader, so the
//! cases with one member and with three members share their code.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::server::{Programs, Proxy, Server, Side};
use super::service::{Service, USER, number, user_name};

/// The timeout for electing a leader, and for a member to catch up.
const TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    /// The proxy that clients connect to, if there is one.
    proxy: Option<Proxy>,
    members: Vec<Server>,
}

/// The position of a member in its cluster.
pub(super) type Position = usize;

impl Cluster {
    /// Starts the members of a new cluster.
    pub(super) fn start(side: &Side, programs: &Programs, count: usize) -> Result<Self, String> {
        Self::begin(Server::founders(side, programs, count)?)
    }

    /// Starts the members of a new cluster, which require client certificates and use TLS among each other.
    pub(super) fn start_secured(
        side: &Side,
        programs: &Programs,
        count: usize,
    ) -> Result<Self, String> {
        let mut members = Server::founders(side, programs, count)?;
        members.iter_mut().try_for_each(Server::secure)?;
        Self::begin(members)
    }

    /// Enables authentication. Services that the cluster returns afterwards send the user's credentials with their
    /// requests ([`Service::for_user`]).
    pub(super) fn guarded(mut self) -> Result<Self, String> {
        let service = self.members[0].service();
        for command in [
            &["user", "add", USER][..],
            &["role", "add", "all"],
            &["role", "grant-permission", "all", "readwrite", "", "--prefix"],
            &["user", "grant-role", user_name(), "all"],
            // Authentication requires the root user, although no client of a comparison logs in as root.
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

    /// Puts a proxy in front of the first member. Services that the cluster returns afterwards connect to the proxy,
    /// and measure only its cost.
    pub(super) fn proxied(mut self) -> Result<Self, String> {
        self.proxy = Some(Proxy::before(&self.members[0])?);
        Ok(self)
    }

    /// Waits until there is a leader, and returns its position.
    pub(super) fn leader(&self) -> Result<Position, String> {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            for (position, member) in self.members.iter().enumerate() {
                // A stopped member cannot be the leader. A member that does not answer is queried again in the next
                // round.
                if member.pid().is_some()
                    && let Ok(status) = member.service().status()
                    && leads(&status)
                {
                    return Ok(position);
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Err(format!("no leader was elected within {} s", TIMEOUT.as_secs()))
    }

    /// Returns the position of a running follower.
    pub(super) fn follower(&self) -> Result<Position, String> {
        let leader = self.leader()?;
        let mut others = (0..self.members.len()).filter(|position| *position != leader);
        let follower = others.find(|position| self.members[*position].pid().is_some());
        follower.ok_or_else(|| "no follower is running".to_owned())
    }

    pub(super) fn member(&mut self, position: Position) -> &mut Server {
        &mut self.members[position]
    }

    /// Returns a service that sends requests to one member and measures the cost of all members. With a proxy, it uses
    /// and measures the proxy instead.
    pub(super) fn service(&self, position: Position) -> Service {
        match &self.proxy {
            Some(proxy) => proxy.service(),
            None => self.members[position].service().at_the_cost_of(self.pids()),
        }
    }

    /// Returns a service that sends requests to all members but one. It does not measure costs, because the excluded
    /// member may end during the run.
    pub(super) fn service_without(&self, position: Position) -> Result<Service, String> {
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != position);
        let service = others.map(|(_, member)| member.service()).reduce(Service::and);
        let service = service.ok_or_else(|| "there is no other member".to_owned())?;
        Ok(service.at_the_cost_of(Vec::new()))
    }

    fn pids(&self) -> Vec<u32> {
        self.members.iter().filter_map(Server::pid).collect()
    }

    /// Waits until a member's applied index has reached the applied index of the leader.
    pub(super) fn wait_until_caught_up(&self, position: Position) -> Result<(), String> {
        let applied = |status: &Value| number(status, "/raftAppliedIndex");
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            // Requests are sent only to a listening member, because a request to any other member would block the
            // client for seconds.
            if self.members[position].listens() {
                let leader = self.members[self.leader()?].service().status()?;
                let member = self.members[position].service().status();
                if member.is_ok_and(|member| applied(&member) >= applied(&leader)) {
                    return Ok(());
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Err(format!("the member did not catch up within {} s", TIMEOUT.as_secs()))
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
        // The ids of the two members are equal when converted to floating point, so they must be compared as integers.
        let own = u64::MAX - 1;
        assert!(leads(&status(own, own)));
        assert!(!leads(&status(own, own - 1)));
        assert!(!leads(&serde_json::json!({"header": {"member_id": own}})));
        assert!(!leads(&serde_json::json!({"leader": 0, "header": {"member_id": 0}})));
    }
}
