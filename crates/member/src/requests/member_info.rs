//! The identity and status of this member.
//!
//! A [`MemberInfo`] dereferences to the [`ServerInfo`], which contains the information that the services read. The
//! [`MemberInfo`] adds the information that only the member itself uses.

use std::ops::Deref;
use std::sync::Arc;

use quorate_core::bootstrap::Identity;
use quorate_peer::Dialer;
use quorate_requests::ServerInfo;

use crate::threads::member_status::MemberStatus;

/// The identity, limits and status of this member.
#[derive(Debug)]
pub struct MemberInfo {
    pub(crate) server: Arc<ServerInfo>,
    pub(crate) identity: Identity,
    pub(crate) member_status: Arc<MemberStatus>,
    /// The dialer for connections to other members.
    pub(crate) dialer: Dialer,
}

impl Deref for MemberInfo {
    type Target = ServerInfo;

    fn deref(&self) -> &ServerInfo {
        &self.server
    }
}

impl MemberInfo {
    /// Returns the identity of this member.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the dialer for connections to other members.
    pub(crate) const fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Returns this member's position in the log and its leadership status.
    pub const fn member_status(&self) -> &Arc<MemberStatus> {
        &self.member_status
    }
}
