//! What all ways to one other member share: its id, where it is, whether it can be reached, and how many bytes
//! may wait for it. The ways themselves are the member's `peer`.

use std::sync::Arc;

use quorate_raft::MemberId;

use super::local::Local;
use super::outgoing::Allowance;
use super::status::Status;
use super::throttle::LogThrottle;
use super::urls::Urls;

/// See the module.
#[derive(Debug)]
pub(super) struct Contact {
    pub(super) id: MemberId,
    /// The id in hex.
    pub(super) name: String,
    pub(super) urls: Urls,
    pub(super) status: Status,
    pub(super) allowance: Arc<Allowance>,
    pub(super) notices: Notices,
}

/// Lines that may repeat quickly.
#[derive(Debug, Default)]
pub(super) struct Notices {
    pub(super) dropped: LogThrottle,
    pub(super) refusals: LogThrottle,
}

impl Contact {
    pub(super) fn new(local: &Local, id: MemberId, peer_urls: &[String]) -> Self {
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
