//! The published users and permissions, for threads other than the applier.
//!
//! Data and permissions are published together, but a request reads them one after the other. A [`Stamp`] shows whether
//! the data and the permissions match: a reader takes a stamp before it checks permissions, and compares it with a
//! second stamp, taken after the data is read. If authentication is disabled, a request reads only the stamp.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};

use super::{Tokens, View};

/// Bit of a stamp that is set while a change is being published.
const IS_CLOSED: u64 = 1;
/// Bit of a stamp that is set while authentication is enabled.
const IS_ENABLED: u64 = 2;
/// The amount by which each change increases the stamp.
const CHANGE: u64 = 4;

/// A version of the published permissions. If two stamps are equal, nothing changed between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// Returns whether authentication is enabled.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.0 & IS_ENABLED != 0
    }
}

/// A handle to the published users and permissions, for any thread.
#[derive(Clone, Debug)]
pub struct AuthReader {
    shared: Arc<Shared>,
    tokens: Tokens,
}

#[derive(Debug)]
struct Shared {
    stamp: AtomicU64,
    view: ArcSwap<View>,
}

impl AuthReader {
    pub(super) fn new(view: Arc<View>, token_ttl_millis: u64) -> Self {
        let stamp = AtomicU64::new(flag_of(&view));
        let shared = Arc::new(Shared { stamp, view: ArcSwap::new(view) });
        Self { shared, tokens: Tokens::new(token_ttl_millis) }
    }

    /// Returns the current stamp, or `None` while permissions and data are being published.
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        let stamp = self.shared.stamp.load(Ordering::Acquire);
        (stamp & IS_CLOSED == 0).then_some(Stamp(stamp))
    }

    /// Returns whether authentication is enabled, or a change that may enable or disable it is
    /// being published.
    #[must_use]
    pub fn may_be_enabled(&self) -> bool {
        self.shared.stamp.load(Ordering::Acquire) & (IS_CLOSED | IS_ENABLED) != 0
    }

    /// Returns the published users and roles.
    #[must_use]
    pub fn view(&self) -> Guard<Arc<View>> {
        self.shared.view.load()
    }

    /// Returns the tokens of clients.
    #[must_use]
    pub const fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    pub(super) fn close(&self) {
        self.shared.stamp.fetch_or(IS_CLOSED, Ordering::AcqRel);
    }

    pub(super) fn open(&self, view: Arc<View>) {
        let flag = flag_of(&view);
        self.shared.view.store(view);
        let changed = self.shared.stamp.load(Ordering::Acquire).wrapping_add(CHANGE);
        let stamp = changed & !(IS_CLOSED | IS_ENABLED) | flag;
        self.shared.stamp.store(stamp, Ordering::Release);
    }
}

fn flag_of(view: &View) -> u64 {
    if view.is_enabled() { IS_ENABLED } else { 0 }
}
