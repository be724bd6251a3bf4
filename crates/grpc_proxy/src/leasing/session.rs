//! The session: the lease under which keys are owned, and the tasks that must run while any key is owned.
//!
//! # Guarantees
//!
//! * A lease is considered alive until a sixth of its TTL ([`MARGIN_PER_TTL`]) before the earliest time at which it can
//!   end. Time is measured from when the renewal is sent, by a clock that also advances while the machine sleeps. The
//!   margin covers clocks that run at different speeds, and renewals granted by a leader that was already deposed,
//!   because the new leader counts the TTL from its election.
//! * A session ends when its lease ends, when its watch misses events or is silent for too long, or when members
//!   require authentication. No key is owned afterwards.
//! * If the watch receives nothing for more than [`SILENCE_MAX`] renewal periods, the lease is revoked. Other proxies
//!   therefore wait for little more than a TTL if this proxy does not receive their requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderMap;
use quorate_api::etcdserverpb::{
    AuthStatusRequest, AuthStatusResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, TxnRequest, TxnResponse,
};
use quorate_telemetry::log;
use tokio::time::sleep;
use tonic::{Code, Status};

use super::Leasing;
use super::clock;
use super::follow::{Ended, Following, WatchHealth};
use super::guard;
use super::members::{Store, in_time, is_refusal};

/// The TTL of the session, as in etcd.
const TTL_SECS: i64 = 60;

/// Number of renewals of the lease within its TTL.
const RENEWALS_PER_TTL: u32 = 4;

/// The divisor of the TTL that yields the safety margin.
const MARGIN_PER_TTL: u32 = 6;

/// Pause after a failed attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Initial pause before a watch is opened again. The pause grows up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Maximum number of consecutive renewal periods without a response on the watch. A further period without a response
/// ends the session.
const SILENCE_MAX: u32 = 3;

/// A granted lease.
#[derive(Debug)]
struct Granted {
    lease: i64,
    ttl: Duration,
    /// The revision at which the lease was granted. All leasing keys with this lease are created at later revisions.
    revision: i64,
}

/// Returns the time until which the lease is certainly alive, computed from the send time of the renewal and the
/// returned TTL.
fn until(asked_at: Duration, ttl: Duration) -> Duration {
    asked_at + ttl - ttl / MARGIN_PER_TTL
}

fn ttl_of(secs: i64) -> Duration {
    Duration::from_secs(u64::try_from(secs).unwrap_or_default())
}

impl Leasing {
    /// Runs one session after another while the proxy runs.
    pub(crate) async fn run_sessions(self: Arc<Self>) {
        let mut has_logged = false;
        loop {
            match self.begin().await {
                Ok(Some(granted)) => {
                    has_logged = false;
                    let id = format!("{:x}", granted.lease);
                    log::info!("leasing session started", "lease-id" = id);
                    let reason = self.run_session(&granted).await;
                    self.owned_keys.end_session();
                    self.report_load();
                    log::warn!("leasing session ended", "lease-id" = id, "reason" = reason);
                    self.end(&granted).await;
                }
                Ok(None) => {
                    if !std::mem::replace(&mut has_logged, true) {
                        log::info!("leasing is suspended while authentication is enabled");
                    }
                    sleep(ttl_of(TTL_SECS) / RENEWALS_PER_TTL).await;
                }
                Err(status) => {
                    if !std::mem::replace(&mut has_logged, true) {
                        log::warn!("failed to start a leasing session", "error" = status.message());
                    }
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Releases all keys and revokes the lease.
    pub(crate) async fn release_all(&self) {
        if let Some(lease) = self.owned_keys.lease() {
            self.owned_keys.end_session();
            if let Err(status) = self.revoke_lease(lease).await {
                log::warn!("failed to end the leasing session", "error" = status.message());
            }
        }
    }

    /// Returns whether there is a session, without which no key may be owned.
    pub(crate) fn has_session(&self) -> bool {
        self.owned_keys.lease().is_some()
    }

    /// Ends the session immediately because a member refused an anonymous client.
    pub(crate) fn end_for_authentication(&self) {
        if self.has_session() {
            self.owned_keys.end_session();
            self.report_load();
            self.is_over.notify_one();
        }
    }

    /// Ends the session. The next session checks again whether keys may be owned.
    pub(crate) fn restart_session(&self) {
        self.is_over.notify_one();
    }

    async fn begin(&self) -> Result<Option<Granted>, Status> {
        if self.is_authentication_on().await? {
            return Ok(None);
        }
        let asked_at = clock::now();
        let request = LeaseGrantRequest { ttl: TTL_SECS, id: 0 };
        let granted: LeaseGrantResponse =
            self.members.ask("/etcdserverpb.Lease/LeaseGrant", &request).await?;
        let ttl = ttl_of(granted.ttl);
        self.owned_keys.begin_session(granted.id, until(asked_at, ttl));
        let revision = granted.header.map_or(0, |header| header.revision);
        Ok(Some(Granted { lease: granted.id, ttl, revision }))
    }

    /// Returns whether members require authentication. If they do, the proxy must not answer anonymous clients, whose
    /// requests members would refuse.
    async fn is_authentication_on(&self) -> Result<bool, Status> {
        let asking = self.members.ask("/etcdserverpb.Auth/AuthStatus", &AuthStatusRequest {});
        match asking.await {
            Ok(AuthStatusResponse { enabled, .. }) => Ok(enabled),
            Err(status) => match status.code() {
                // The members refuse a status request without a token, so authentication is on.
                Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument => Ok(true),
                _ => Err(status),
            },
        }
    }

    /// Runs the tasks of a session until it ends. Returns the reason.
    async fn run_session(&self, granted: &Granted) -> &'static str {
        let health = WatchHealth::default();
        tokio::select! {
            reason = self.renew(granted, &health) => reason,
            reason = self.watch_leasing_keys(granted, &health) => reason,
            () = self.give_up(granted.lease) => unreachable!("the task that releases keys never ends"),
            () = self.is_over.notified() => "authentication may have been enabled",
        }
    }

    /// Ends a session and revokes its lease, so that other proxies do not have to wait until the TTL elapses.
    async fn end(&self, granted: &Granted) {
        let ended_at = clock::now() + granted.ttl;
        while clock::now() < ended_at {
            match self.revoke_lease(granted.lease).await {
                Ok(()) => return,
                Err(status) if is_refusal(&status) => return,
                Err(_) => sleep(RETRY_PAUSE).await,
            }
        }
    }

    async fn revoke_lease(&self, id: i64) -> Result<(), Status> {
        let request = LeaseRevokeRequest { id };
        let _: LeaseRevokeResponse =
            self.members.ask("/etcdserverpb.Lease/LeaseRevoke", &request).await?;
        Ok(())
    }

    /// Renews the lease until it ends.
    async fn renew(&self, granted: &Granted, health: &WatchHealth) -> &'static str {
        let mut silent_periods = 0;
        loop {
            health.progress_requested.notify_one();
            sleep(granted.ttl / RENEWALS_PER_TTL).await;
            self.deletion_waiters.remove_abandoned();
            if health.has_response.swap(false, Ordering::Relaxed) {
                silent_periods = 0;
            } else {
                silent_periods += 1;
                health.is_silent.notify_one();
            }
            if silent_periods > SILENCE_MAX {
                return "the watch on the leasing keys has stopped receiving responses";
            }
            loop {
                match self.renew_once(granted).await {
                    Ok(None) => break,
                    Ok(Some(reason)) => return reason,
                    // A failed renewal is safe, because owned keys are not used in responses after the lease deadline.
                    Err(status) => {
                        let error = status.message();
                        log::debug!("failed to renew the leasing session", "error" = error);
                    }
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Renews the lease once. If the session must end, returns the reason.
    async fn renew_once(&self, granted: &Granted) -> Result<Option<&'static str>, Status> {
        if self.is_authentication_on().await? {
            return Ok(Some("authentication is enabled"));
        }
        let asked_at = clock::now();
        let ttl = self.members.keep_alive(granted.lease).await?;
        if ttl <= 0 {
            return Ok(Some("the session's lease has expired or was revoked"));
        }
        self.owned_keys.prolong(until(asked_at, ttl_of(ttl).min(granted.ttl)));
        Ok(None)
    }

    /// Watches the leasing keys until events may have been missed.
    async fn watch_leasing_keys(&self, granted: &Granted, health: &WatchHealth) -> &'static str {
        let mut following = Following { next: granted.revision + 1, lease: granted.lease };
        let mut pause = PAUSE;
        loop {
            let from = following.next;
            let ended = tokio::select! {
                ended = self.follow(&mut following, health) => ended,
                () = health.is_silent.notified() => Ok(Ended::Lost),
            };
            match ended {
                Ok(Ended::Missed) => {
                    return "events on the leasing keys were compacted before they were received";
                }
                Ok(Ended::Lost) => {}
                Err(status) => {
                    let error = status.message();
                    log::debug!("failed to watch the leasing keys", "error" = error);
                }
            }
            pause = if following.next > from { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
            sleep(pause).await;
        }
    }
}

impl<S: Store> Leasing<S> {
    /// Deletes the leasing keys that are queued for deletion.
    pub(super) async fn give_up(&self, lease: i64) {
        loop {
            self.owned_keys.has_released.notified().await;
            loop {
                let taken = self.owned_keys.take_released();
                if taken.is_empty() {
                    break;
                }
                if let Err(status) = self.own_txn(guard::give_up(&taken)).await {
                    log::debug!("failed to release owned keys", "error" = status.message());
                    self.owned_keys.requeue_released(taken, lease);
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Runs one of the proxy's own transactions.
    pub(super) async fn own_txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        in_time(self.members.txn(HeaderMap::new(), request)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_deadline_is_before_the_lease_expires() {
        let asked_at = Duration::from_secs(100);
        assert_eq!(until(asked_at, ttl_of(60)), Duration::from_secs(150));
        assert!(until(asked_at, ttl_of(1)) < asked_at + ttl_of(1));
        assert_eq!(until(asked_at, ttl_of(-1)), asked_at);
    }
}
