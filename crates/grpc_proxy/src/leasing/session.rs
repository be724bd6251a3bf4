//! The lease that owned keys live by, and all that has to go on for anything to be owned.
//!
//! # Guarantees
//!
//! * A lease is taken for alive until [`MARGIN_PER_TTL`] before it can have ended: from the moment that it was asked to
//!   be renewed at, and by a clock that goes on while the machine sleeps. The margin is for clocks that go at different
//!   speeds, and for a leader that has renewed it as it was none any more, which another counts from its election on.
//! * A session ends with its lease, with a watch that has missed something, and when members are found to want to know
//!   who asks: then nothing is owned.
//! * Who does not hear what is asked of it does not renew: others wait no longer than the lease lasts.

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
use super::follow::{Ear, Ended, Following};
use super::guard::{self, CHANGED_MAX};
use super::members::{Store, in_time, is_refusal};

/// As etcd's.
const TTL_SECS: i64 = 60;

/// A lease is renewed so often within its time to live.
const RENEWALS_PER_TTL: u32 = 4;

/// This part of its time to live a lease is not relied on.
const MARGIN_PER_TTL: u32 = 6;

/// Between two attempts at what has failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Before a watch is begun again: at first, and at most.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Periods in which nothing is heard, until a session is given up.
const SILENCE_MAX: u32 = 3;

/// A lease that was granted.
#[derive(Debug)]
struct Granted {
    lease: i64,
    ttl: Duration,
    /// What is made with it is made after this revision.
    revision: i64,
}

/// Until when a lease of which this was said is certainly alive.
fn until(asked_at: Duration, ttl: Duration) -> Duration {
    asked_at + ttl - ttl / MARGIN_PER_TTL
}

fn ttl_of(secs: i64) -> Duration {
    Duration::from_secs(u64::try_from(secs).unwrap_or_default())
}

impl Leasing {
    /// Has a session as long as the proxy is there.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut has_told = false;
        loop {
            match self.begin().await {
                Ok(Some(granted)) => {
                    has_told = false;
                    let id = format!("{:x}", granted.lease);
                    log::info!("leasing session began", "lease-id" = id);
                    let reason = self.attend(&granted).await;
                    self.holdings.end_session();
                    self.tell_load();
                    log::warn!("leasing session ended", "lease-id" = id, "reason" = reason);
                    self.end(&granted).await;
                }
                Ok(None) => {
                    if !std::mem::replace(&mut has_told, true) {
                        log::info!("no keys are owned while authentication is on");
                    }
                    sleep(ttl_of(TTL_SECS) / RENEWALS_PER_TTL).await;
                }
                Err(status) => {
                    if !std::mem::replace(&mut has_told, true) {
                        log::warn!("failed to begin a leasing session", "error" = status.message());
                    }
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Owns nothing any more, and lets members know.
    pub(crate) async fn leave(&self) {
        if let Some(lease) = self.holdings.lease() {
            self.holdings.end_session();
            if let Err(status) = self.revoke_lease(lease).await {
                log::warn!("failed to end the leasing session", "error" = status.message());
            }
        }
    }

    /// Whether keys may be owned now.
    pub(crate) fn has_session(&self) -> bool {
        self.holdings.lease().is_some()
    }

    /// A member has refused a client without a user: owns nothing any more, at once.
    pub(crate) fn end_for_authentication(&self) {
        if self.has_session() {
            self.holdings.end_session();
            self.tell_load();
            self.is_over.notify_one();
        }
    }

    /// Whether keys may be owned is to be looked at anew.
    pub(crate) fn look_again(&self) {
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
        self.holdings.begin_session(granted.id, until(asked_at, ttl));
        let revision = granted.header.map_or(0, |header| header.revision);
        Ok(Some(Granted { lease: granted.id, ttl, revision }))
    }

    /// Whether members want to know who asks. What they would not tell everybody this proxy must not tell either.
    async fn is_authentication_on(&self) -> Result<bool, Status> {
        let asking = self.members.ask("/etcdserverpb.Auth/AuthStatus", &AuthStatusRequest {});
        match asking.await {
            Ok(AuthStatusResponse { enabled, .. }) => Ok(enabled),
            Err(status) => match status.code() {
                // They want to know it for this question too.
                Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument => Ok(true),
                _ => Err(status),
            },
        }
    }

    /// Does all that a session takes, until it has ended; and says why it has.
    async fn attend(&self, granted: &Granted) -> &'static str {
        let ear = Ear::default();
        tokio::select! {
            reason = self.renew(granted, &ear) => reason,
            reason = self.listen(granted, &ear) => reason,
            () = self.give_up(granted.lease) => unreachable!("it never ends"),
            () = self.is_over.notified() => "authentication may have been turned on",
        }
    }

    /// Ends a session, with its lease if that is still there: who waits for it need not.
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

    /// Renews the lease until it is gone.
    async fn renew(&self, granted: &Granted, ear: &Ear) -> &'static str {
        let mut silent_periods = 0;
        loop {
            ear.asks.notify_one();
            sleep(granted.ttl / RENEWALS_PER_TTL).await;
            self.departures.tidy();
            if ear.has_heard.swap(false, Ordering::Relaxed) {
                silent_periods = 0;
            } else {
                silent_periods += 1;
                ear.is_deaf.notify_one();
            }
            if silent_periods > SILENCE_MAX {
                return "members do not tell who asks for keys";
            }
            loop {
                match self.renew_once(granted).await {
                    Ok(None) => break,
                    Ok(Some(reason)) => return reason,
                    // Nothing is told of owned keys once time is up.
                    Err(status) => {
                        let error = status.message();
                        log::debug!("failed to renew the leasing session", "error" = error);
                    }
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Renews the lease; or says why that was the end of it.
    async fn renew_once(&self, granted: &Granted) -> Result<Option<&'static str>, Status> {
        if self.is_authentication_on().await? {
            return Ok(Some("authentication is on"));
        }
        let asked_at = clock::now();
        let ttl = self.members.keep_alive(granted.lease).await?;
        if ttl <= 0 {
            return Ok(Some("its lease is gone"));
        }
        self.holdings.prolong(until(asked_at, ttl_of(ttl).min(granted.ttl)));
        Ok(None)
    }

    /// Hears what is asked for, until something may have been missed.
    async fn listen(&self, granted: &Granted, ear: &Ear) -> &'static str {
        let mut following = Following { next: granted.revision + 1, lease: granted.lease };
        let mut pause = PAUSE;
        loop {
            let from = following.next;
            let ended = tokio::select! {
                ended = self.follow(&mut following, ear) => ended,
                () = ear.is_deaf.notified() => Ok(Ended::Lost),
            };
            match ended {
                Ok(Ended::Missed) => return "what was asked for is compacted",
                Ok(Ended::Lost) => {}
                Err(status) => {
                    let error = status.message();
                    log::debug!("failed to follow the leasing keys", "error" = error);
                }
            }
            pause = if following.next > from { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
            sleep(pause).await;
        }
    }
}

impl<S: Store> Leasing<S> {
    /// Gives up what is to be given up.
    pub(super) async fn give_up(&self, lease: i64) {
        loop {
            self.holdings.has_given_up.notified().await;
            loop {
                let taken = self.holdings.take_given_up(CHANGED_MAX);
                if taken.is_empty() {
                    break;
                }
                if let Err(status) = self.own_txn(guard::give_up(&taken)).await {
                    log::debug!("failed to give keys up", "error" = status.message());
                    self.holdings.give_back(taken, lease);
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Carries out a transaction in this proxy's own name.
    pub(super) async fn own_txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        in_time(self.members.txn(HeaderMap::new(), request)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_relied_on_for_less_than_it_lasts() {
        let asked_at = Duration::from_secs(100);
        assert_eq!(until(asked_at, ttl_of(60)), Duration::from_secs(150));
        assert!(until(asked_at, ttl_of(1)) < asked_at + ttl_of(1));
        assert_eq!(until(asked_at, ttl_of(-1)), asked_at);
    }
}
