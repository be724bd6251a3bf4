//! Access control: authentication and authorisation of every client request.
//!
//! The [`Credentials`] of a request identify a user, either by a token (issued through the log or signed with a key) or
//! by the certificate of the connection. If a proposal reads or writes keys, or changes users and roles, every member
//! checks the user's permissions when it applies the proposal (`state::apply::guard`). For other requests, the
//! permissions are checked only here, against the published users and roles.
//!
//! # Invariants
//!
//! * While authentication is enabled, a request without credentials has no permissions.
//! * A read is checked against the permissions that are in force when it reads the data: [`AccessControl::pass`] is
//!   called before the read, and [`AccessControl::confirm`] after it.
//!
//! # Cost
//!
//! While authentication is disabled, a check costs one atomic load. While it is enabled, a request takes no lock,
//! because each connection remembers its last token.
//!
//! # Not here
//!
//! The permissions that each method needs (`edge::methods`), the permissions of users (`state::auth`), passwords
//! (`accounts`).

mod client;
mod credentials;
mod provider;

use std::sync::Arc;
use std::time::Instant;

use arc_swap::Guard;
use http::{HeaderMap, HeaderValue};
use quorate_jwt::Claims;
use quorate_state::apply::{AuthRefusal, Permission, Refusal};
use quorate_state::auth::{Access, AuthReader, Caller, ROOT, Stamp, Tokens, View};
use quorate_state::lease::Leases;
use quorate_state::units::LeaseId;
use quorate_telemetry::log;
use quorate_telemetry::throttle::LogThrottle;

pub use self::client::Client;
use self::credentials::text_of;
pub use self::credentials::{Credentials, Remembered, Signed};
use self::provider::now;
pub use self::provider::{KEYS_READ_EVERY, KeySource, Provider, Signer, SourceFault};
use crate::error::RequestError;
use crate::server_info::ServerInfo;

/// Identifies the users of requests and checks their permissions.
#[derive(Debug)]
pub struct AccessControl {
    info: Arc<ServerInfo>,
    auth: AuthReader,
    leases: Leases,
    pub(crate) provider: Provider,
    /// Limits the rate of log lines about refused tokens.
    refusals: LogThrottle,
}

/// The version of the permissions in force when a read began.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Pass(Stamp);

impl From<AuthRefusal> for RequestError {
    fn from(refusal: AuthRefusal) -> Self {
        Self::Refused(Refusal::Auth(refusal))
    }
}

impl AccessControl {
    /// Creates the access control of a server from its published users, roles and leases.
    pub fn new(
        info: Arc<ServerInfo>,
        auth: AuthReader,
        leases: Leases,
        provider: Provider,
    ) -> Self {
        Self { info, auth, leases, provider, refusals: LogThrottle::default() }
    }

    /// Returns whether authentication is disabled, in which case requests need no credentials.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.auth.may_be_enabled()
    }

    /// Returns the number of valid tokens that were issued through the log.
    #[must_use]
    pub fn tokens_held(&self) -> usize {
        self.auth.tokens().count()
    }

    /// Returns the credentials of a request without waiting. If the token is not the last one used on the connection,
    /// the result is [`Credentials::Unread`].
    #[must_use]
    pub fn recall(&self, headers: &HeaderMap, remembered: &Remembered) -> Credentials {
        match Credentials::in_head(headers) {
            Credentials::Unread(value) => {
                remembered.recall(&value).unwrap_or(Credentials::Unread(value))
            }
            credentials => credentials,
        }
    }

    /// Reads an unread token. For a simple token, waits until this member has applied the entry that issued the token.
    pub async fn read(&self, credentials: Credentials, remembered: &Remembered) -> Credentials {
        let Credentials::Unread(value) = credentials else { return credentials };
        if let Provider::Simple = self.provider {
            let index = std::str::from_utf8(text_of(&value)).ok().and_then(Tokens::index);
            let is_applied = match index {
                Some(index) => self.wait_applied(index).await,
                None => false,
            };
            if !is_applied {
                self.log_refused_token();
                return Credentials::Invalid;
            }
        }
        let found = self.find(&value);
        match &found {
            Credentials::Given(_) | Credentials::Signed(_) => remembered.remember(value, &found),
            Credentials::Nothing
            | Credentials::Unread(_)
            | Credentials::Named(_)
            | Credentials::Invalid => {
                self.log_refused_token();
            }
        }
        found
    }

    /// Logs that tokens are refused. Because expired tokens are common, the rate of these log lines is limited. The
    /// tokens themselves are not logged.
    fn log_refused_token(&self) {
        if let Some(left_out) = self.refusals.admits() {
            log::warn!("invalid auth token", "left-out" = left_out);
        }
    }

    /// Looks up a simple token among the valid tokens, or verifies a signed token with the current keys.
    fn find(&self, value: &HeaderValue) -> Credentials {
        let text = text_of(value);
        match &self.provider {
            Provider::Simple => {
                self.auth.tokens().find(text).map_or(Credentials::Invalid, Credentials::Given)
            }
            Provider::Signed(signer) => {
                let keys = Arc::clone(&signer.keys());
                let claims = std::str::from_utf8(text).ok().and_then(|text| signer.read(text));
                claims.map_or(Credentials::Invalid, |claims| {
                    Credentials::Signed(Arc::new(Signed { text: value.clone(), keys, claims }))
                })
            }
            Provider::Nothing => Credentials::Invalid,
        }
    }

    /// Returns whether the claims of a token are still valid: the keys have not changed since the token was read, and
    /// the token has not expired.
    fn holds(&self, signed: &Signed) -> bool {
        match &self.provider {
            Provider::Signed(signer) => {
                Arc::ptr_eq(&signer.keys(), &signed.keys) && signed.claims.are_good_at(now())
            }
            Provider::Simple | Provider::Nothing => false,
        }
    }

    /// Waits until an entry is applied, but at most for the request timeout. A forged token may name an entry that will
    /// never exist, so at most [`TOKENS_WAITING_MAX`](crate::admission::TOKENS_WAITING_MAX) requests wait at
    /// a time.
    async fn wait_applied(&self, index: u64) -> bool {
        let status = self.info.status();
        if status.progress().applied >= index {
            return true;
        }
        let Ok(_permit) = self.info.admission().tokens.take(1) else { return false };
        let deadline = Instant::now() + self.info.limits().request_timeout;
        status.wait_applied(index, deadline).await
    }

    /// Calls `take` with the user that the credentials identify.
    fn with_caller<T>(
        &self,
        view: &View,
        credentials: &Credentials,
        take: impl FnOnce(Caller<'_>) -> T,
    ) -> Result<T, RequestError> {
        let found;
        let credentials = match credentials {
            Credentials::Unread(value) => {
                found = self.find(value);
                &found
            }
            Credentials::Signed(signed) if !self.holds(signed) => {
                found = self.find(&signed.text);
                &found
            }
            Credentials::Nothing
            | Credentials::Given(_)
            | Credentials::Signed(_)
            | Credentials::Named(_)
            | Credentials::Invalid => credentials,
        };
        match credentials {
            Credentials::Nothing => Ok(take(Caller::UNAUTHENTICATED)),
            Credentials::Given(token) => {
                let user = token.validate(self.info.now()).ok_or(RequestError::InvalidAuthToken)?;
                Ok(take(Caller { name: user, revision: view.revision() }))
            }
            Credentials::Signed(signed) => {
                let Claims { username, revision, .. } = &signed.claims;
                Ok(take(Caller { name: username, revision: *revision }))
            }
            Credentials::Named(user) => Ok(take(Caller { name: user, revision: view.revision() })),
            Credentials::Invalid | Credentials::Unread(_) => Err(RequestError::InvalidAuthToken),
        }
    }

    /// Checks the permissions of a request that reads no data, according to the current users and roles.
    fn ask(
        &self,
        credentials: &Credentials,
        check: impl FnOnce(&View, Caller<'_>) -> Result<(), AuthRefusal>,
    ) -> Result<(), RequestError> {
        if self.is_open() {
            return Ok(());
        }
        let view = self.auth.view();
        if !view.is_enabled() {
            return Ok(());
        }
        Ok(self.with_caller(&view, credentials, |caller| check(&view, caller))??)
    }

    /// Returns whether this member uses signed tokens.
    pub const fn has_keys(&self) -> bool {
        matches!(self.provider, Provider::Signed(_))
    }

    /// Reloads the keys for signed tokens.
    pub fn reload_keys(&self) {
        if let Provider::Signed(signer) = &self.provider {
            signer.reload();
        }
    }

    /// Returns the published users and roles.
    pub(crate) fn view(&self) -> Guard<Arc<View>> {
        self.auth.view()
    }

    /// Returns the revision of the users and roles.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.view().revision()
    }

    /// Returns the name of the user, or an empty string if the credentials are missing or invalid.
    #[must_use]
    pub fn user_of(&self, credentials: &Credentials) -> String {
        self.with_caller(&self.view(), credentials, |caller| caller.name.to_owned())
            .unwrap_or_default()
    }

    /// Returns whether a request has a user's valid credentials. Always true while authentication is disabled.
    #[must_use]
    pub fn is_of_user(&self, credentials: &Credentials) -> bool {
        let view = self.view();
        !view.is_enabled()
            || self
                .with_caller(&view, credentials, |caller| view.user(caller.name).is_some())
                .unwrap_or(false)
    }

    /// Checks that the user is an administrator.
    pub fn check_admin(&self, credentials: &Credentials) -> Result<(), RequestError> {
        self.ask(credentials, View::check_admin)
    }

    /// Checks that the request has the credentials of a user.
    pub fn check_user(&self, credentials: &Credentials) -> Result<(), RequestError> {
        self.ask(credentials, View::check_authenticated)
    }

    /// Checks a permission according to the current users, roles and leases, which may change at any time.
    pub fn check(
        &self,
        credentials: &Credentials,
        check: impl FnOnce(Permission<'_>) -> Result<(), AuthRefusal>,
    ) -> Result<(), RequestError> {
        let leases = &self.leases;
        self.ask(credentials, |auth, caller| check(Permission { auth, caller, leases }))
    }

    /// Checks that the user may watch a range.
    pub fn check_watch(
        &self,
        credentials: &Credentials,
        key: &[u8],
        range_end: &[u8],
    ) -> Result<(), RequestError> {
        self.ask(credentials, |view, caller| view.check_keys(caller, Access::Read, key, range_end))
    }

    /// Admits a read if `check` permits it. The check is repeated if users or roles change in the meantime.
    pub async fn pass(
        &self,
        credentials: &Credentials,
        check: impl Fn(Permission<'_>) -> Result<(), AuthRefusal>,
    ) -> Result<Pass, RequestError> {
        loop {
            let stamp = self.stamp().await;
            if !stamp.is_enabled() {
                return Ok(Pass(stamp));
            }
            let checked = {
                let view = self.auth.view();
                let leases = &self.leases;
                self.with_caller(&view, credentials, |caller| {
                    check(Permission { auth: &view, caller, leases })
                })
            };
            // If users or roles have changed since the check began, the check is repeated.
            if self.auth.stamp() == Some(stamp) {
                checked??;
                return Ok(Pass(stamp));
            }
        }
    }

    /// Admits a read of keys and values. Unlike [`AccessControl::pass`], it refuses a signed token issued at another
    /// auth revision even if `check` requires no permission.
    pub async fn pass_to_read(
        &self,
        credentials: &Credentials,
        check: impl Fn(Permission<'_>) -> Result<(), AuthRefusal>,
    ) -> Result<Pass, RequestError> {
        let check = |may: Permission<'_>| {
            check(may)?;
            let is_of_now = [0, may.auth.revision()].contains(&may.caller.revision);
            if is_of_now { Ok(()) } else { Err(AuthRefusal::OldRevision) }
        };
        self.pass(credentials, check).await
    }

    /// Checks after a read that the permissions did not change during the read.
    pub async fn confirm(&self, Pass(begun): Pass) -> Result<(), RequestError> {
        if self.auth.stamp() == Some(begun) {
            return Ok(());
        }
        let now = self.stamp().await;
        if begun.is_enabled() || now.is_enabled() {
            return Err(AuthRefusal::OldRevision.into());
        }
        Ok(())
    }

    /// Checks whether the client may renew a lease: it must be a user with permission to write all keys that are
    /// attached to the lease.
    pub async fn check_renewal(
        &self,
        credentials: &Credentials,
        id: LeaseId,
    ) -> Result<(), RequestError> {
        if self.is_open() {
            return Ok(());
        }
        let check = |may: Permission<'_>| {
            may.check_user()?;
            may.check_lease(Access::Write, id)
        };
        let pass = self.pass(credentials, check).await?;
        self.confirm(pass).await
    }

    /// Checks, without waiting, that the permissions for the next part of a long read have not changed. Fails while new
    /// users or roles are being published.
    pub fn still_holds(&self, Pass(begun): Pass) -> Result<(), RequestError> {
        let holds = self.auth.stamp() == Some(begun) || !begun.is_enabled() && self.is_open();
        if holds { Ok(()) } else { Err(AuthRefusal::OldRevision.into()) }
    }

    /// Returns the version of the permissions in force. While new users or roles are being published, waits for the
    /// publication to end, which takes only a short time.
    async fn stamp(&self) -> Stamp {
        loop {
            match self.auth.stamp() {
                Some(stamp) => return stamp,
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Returns the user of a client's write, and the revision of users and roles that the user's token is valid for.
    /// The name is empty and the revision is 0 while authentication is disabled.
    pub fn user_for_write(&self, client: &Credentials) -> Result<(String, u64), RequestError> {
        self.user_for(|view| {
            self.with_caller(view, client, |caller| (caller.name.to_owned(), caller.revision))
        })
    }

    /// Like [`AccessControl::user_for_write`], for a write of this server itself, which needs no permission.
    pub fn user_for_own_write(&self) -> (String, u64) {
        let user = self.user_for(|view| Ok((ROOT.to_owned(), view.revision())));
        user.expect("the server's own user is valid")
    }

    fn user_for(
        &self,
        find: impl FnOnce(&View) -> Result<(String, u64), RequestError>,
    ) -> Result<(String, u64), RequestError> {
        if self.is_open() {
            return Ok((String::new(), 0));
        }
        let view = self.auth.view();
        if view.is_enabled() { find(&view) } else { Ok((String::new(), 0)) }
    }
}
