//! What everybody but the applier sees of users and permissions.
//!
//! Data and permissions are published together, and read one after the other. A [`Stamp`] says whether they belong
//! together: one is taken before the permissions are looked at, and held against another when the data is
//! read. Where the switch is off, a stamp is all that is looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};

use super::{Tokens, View};

/// Set in a stamp while a change is being published.
const IS_CLOSED: u64 = 1;
/// Set in a stamp while the switch is on.
const IS_ENABLED: u64 = 2;
/// What a change adds to a stamp.
const CHANGE: u64 = 4;

/// Which permissions hold. Two that are equal saw the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// Whether anything is asked of anybody.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.0 & IS_ENABLED != 0
    }
}

/// A handle to what is published, for any thread.
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

    /// Which permissions hold now; `None` for the moment in which others are being published, data and all.
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        let stamp = self.shared.stamp.load(Ordering::Acquire);
        (stamp & IS_CLOSED == 0).then_some(Stamp(stamp))
    }

    /// Whether the switch is on, or is being turned.
    #[must_use]
    pub fn may_be_enabled(&self) -> bool {
        self.shared.stamp.load(Ordering::Acquire) & (IS_CLOSED | IS_ENABLED) != 0
    }

    /// Users, roles and the switch.
    #[must_use]
    pub fn view(&self) -> Guard<Arc<View>> {
        self.shared.view.load()
    }

    /// The tokens of clients.
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
