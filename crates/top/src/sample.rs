//! The raw results of one refresh, from which a report is computed.

use std::time::Duration;

use quorate_api::etcdserverpb::{AlarmType, StatusResponse};

use super::metrics::Metrics;

/// The state of all members at nearly the same time.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// The time of the sample, measured from the start of this program.
    pub(super) at: Duration,
    pub(super) cluster_id: u64,
    pub(super) members: Vec<Member>,
    /// The number of leases, if it is known.
    pub(super) leases: Option<u64>,
}

/// A member of the member list, with its responses.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The id of the member; 0 for an endpoint whose member is unknown.
    pub(super) id: u64,
    /// The name of the member, or the endpoint if the member is unknown.
    pub(super) name: String,
    pub(super) is_learner: bool,
    /// The URLs at which other members connect.
    pub(super) peer_urls: Vec<String>,
    /// The URLs at which clients connect.
    pub(super) client_urls: Vec<String>,
    pub(super) standing: Result<Standing, Trouble>,
    /// The duration of the status request.
    pub(super) took: Duration,
    /// The time at which the member's responses had arrived, measured from the start of this program.
    pub(super) at: Duration,
    pub(super) metrics: Option<Metrics>,
}

/// The reason why a member has not reported its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) kind: TroubleKind,
    pub(super) text: String,
}

/// The kinds of reasons why a member has not reported its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TroubleKind {
    /// The member does not answer.
    Unreachable,
    /// The member is reachable but refuses to answer this user.
    Refusal,
    /// The member receives no request, because its client URLs have no TLS and the request would contain credentials.
    Plaintext,
}

/// The status of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The version of the server.
    pub version: String,
    /// The id of the leader; 0 if there is none.
    pub leader: u64,
    /// The term that the member is in.
    pub term: u64,
    /// The index of the last committed entry that the member knows.
    pub index: u64,
    /// The index of the last applied entry.
    pub applied: u64,
    /// The revision of the keyspace.
    pub revision: i64,
    /// The size of the backend file, in bytes.
    pub db_bytes: u64,
    /// The used bytes of the backend, which etcd has reported since 3.4.
    pub used_bytes: Option<u64>,
    /// The backend quota, which etcd has reported since 3.6.
    pub quota_bytes: Option<u64>,
    /// The active alarms.
    pub alarms: Vec<Alarm>,
    /// The texts of the reported errors that are not alarms.
    pub errors: Vec<String>,
}

/// An active alarm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    /// The id of the member that raised the alarm.
    pub member: u64,
    /// The name of the alarm, such as NOSPACE.
    pub name: String,
}

impl Standing {
    pub(super) fn of(response: &StatusResponse) -> Self {
        let bytes = |count: i64| u64::try_from(count).ok().filter(|count| *count > 0);
        let (mut alarms, mut errors) = (Vec::new(), Vec::new());
        for error in &response.errors {
            match Alarm::read(error) {
                Some(alarm) => alarms.push(alarm),
                None => errors.push(error.clone()),
            }
        }
        Self {
            version: response.version.clone(),
            leader: response.leader,
            term: response.raft_term,
            index: response.raft_index,
            applied: response.raft_applied_index,
            revision: response.header.as_ref().map_or(0, |header| header.revision),
            db_bytes: bytes(response.db_size).unwrap_or_default(),
            used_bytes: bytes(response.db_size_in_use),
            quota_bytes: bytes(response.db_size_quota),
            alarms,
            errors,
        }
    }
}

impl Alarm {
    /// Parses an alarm from an error in a status. The error is the text form of a protobuf message, whose spacing
    /// varies.
    fn read(text: &str) -> Option<Self> {
        let mut alarm = Self { member: 0, name: AlarmType::None.as_str_name().to_owned() };
        let mut is_one = false;
        for (name, value) in text.split_whitespace().filter_map(|word| word.split_once(':')) {
            match name {
                "memberID" => alarm.member = value.parse().ok()?,
                "alarm" => (alarm.name, is_one) = (value.to_owned(), true),
                _ => return None,
            }
        }
        is_one.then_some(alarm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_distinguished_from_other_errors() {
        let errors = ["etcdserver: no leader", "memberID:10276657743932975437  alarm:NOSPACE "];
        let response = StatusResponse {
            errors: errors.map(str::to_owned).to_vec(),
            db_size: 20,
            db_size_in_use: 0,
            ..Default::default()
        };
        let standing = Standing::of(&response);
        assert_eq!(standing.errors, ["etcdserver: no leader"]);
        let nospace = Alarm { member: 10_276_657_743_932_975_437, name: "NOSPACE".to_owned() };
        assert_eq!(standing.alarms, [nospace]);
        assert_eq!((standing.db_bytes, standing.used_bytes), (20, None));
    }
}
