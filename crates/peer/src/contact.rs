//! What all ways to one other member share: its id, where it is, whether it can be reached, and how many bytes
//! may wait for it. The ways themselves are the member's `peer`.

use std::sync::Arc;

use quorate_raft::MemberId;

use crate::local::Local;
use crate::outgoing::Allowance;
use crate::status::Status;
use crate::urls::Urls;
use quorate_telemetry::throttle::LogThrottle;

/// See the module.
#[derive(Debug)]
pub(crate) struct Contact {
    pub(crate) id: MemberId,
    /// The id in hex.
    pub(crate) name: String,
    pub(crate) urls: Urls,
    pub(crate) status: Status,
    pub(crate) allowance: Arc<Allowance>,
    pub(crate) notices: Notices,
}

/// Lines that may repeat quickly.
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
