//! The data that all connections to one other member share: its id, its URLs, whether it is reachable, and how many
//! bytes wait for it. The connections themselves belong to `peer`.

use std::sync::Arc;

use quorate_raft::MemberId;

use crate::local::Local;
use crate::outgoing::Allowance;
use crate::status::Status;
use crate::urls::Urls;
use quorate_telemetry::throttle::LogThrottle;

/// The address and status of another member.
#[derive(Debug)]
pub(crate) struct Contact {
    pub(crate) id: MemberId,
    /// The member's id in hex.
    pub(crate) name: String,
    pub(crate) urls: Urls,
    pub(crate) status: Status,
    pub(crate) allowance: Arc<Allowance>,
    pub(crate) notices: Notices,
}

/// Rate limits for log lines that may repeat often.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    pub(crate) dropped: LogThrottle,
    pub(crate) refusals: LogThrottle,
}

impl Contact {
    pub(crate) fn new(local: &Local, id: MemberId, peer_urls: &[String]) -> Self {
        let name = format!("{id:x}");
        Self {
            id,
            urls: Urls::new(peer_urls),
            status: Status::new(&local.introduction.member, &name, &local.metrics),
            allowance: Arc::default(),
            notices: Notices::default(),
            name,
        }
    }
}
