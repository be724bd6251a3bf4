//! Access control: authentication and authorization of every request of a client.
//!
//! What a request shows ([`Credentials`]) is turned into a user here, by the tokens that the log has given out or by the
//! certificate of its connection, and held against users and roles as they are published. What goes through the log is judged once more by every
//! member, when it is applied; what a member answers from its own state is judged here alone.
//!
//! # Invariants
//!
//! * Nothing is permitted to who shows nothing, while the switch is on.
//! * Data is not read by permissions that no longer went with it: [`AccessControl::pass`] comes before a read, and
//!   [`AccessControl::confirm`] after it.
//!
//! # Cost
//!
//! With the switch off, one look at a number. With it on no lock: a connection remembers the token that it showed last.
//!
//! # Not here
//!
//! What each method needs (`edge::methods`), what users may (`state::auth`), passwords (`login`).

mod client;
mod credentials;
mod provider;

use std::sync::Arc;
use std::time::Instant;

use arc_swap::Guard;
use http::{HeaderMap, HeaderValue};
use quorate_jwt::Claims;
use quorate_raft::LogIndex;
use quorate_state::apply::{AuthRefusal, Permission, Readers, Refusal};
use quorate_state::auth::{Access, Caller, ROOT, Stamp, Tokens, View};
use quorate_telemetry::log;
use quorate_telemetry::throttle::LogThrottle;

pub use self::client::Client;
use self::credentials::text_of;
pub use self::credentials::{Credentials, Remembered, Signed};
use self::provider::now;
pub use self::provider::{KEYS_READ_EVERY, KeySource, Provider, Signer, SourceFault};
use crate::error::RequestError;
use crate::requests::admission::Admission;
use crate::requests::member_info::MemberInfo;
use crate::threads::completion;
use crate::threads::outcome::AWAITING;

/// Whose a proposal is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Author<'a> {
    /// This member's own: what it has to do may not fail for want of permission.
    Member,
    /// A client's.
    Client(&'a Client),
}

/// See the module.
#[derive(Debug)]
pub struct AccessControl {
    pub(crate) info: Arc<MemberInfo>,
    pub(crate) readers: Readers,
    pub(crate) provider: Provider,
    pub(crate) admission: Arc<Admission>,
    /// Of what is told of tokens that are refused.
    pub(crate) refusals: LogThrottle,
}

/// What a read was begun by.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Pass(Stamp);

impl From<AuthRefusal> for RequestError {
    fn from(refusal: AuthRefusal) -> Self {
        Self::Refused(Refusal::Auth(refusal))
    }
}

impl AccessControl {
    /// Whether nothing is asked of anybody.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.readers.auth.may_be_enabled()
    }

    /// How many tokens are held that the log has given out.
    #[must_use]
    pub fn tokens_held(&self) -> usize {
        self.readers.auth.tokens().count()
    }

    /// What a request shows, where that needs no waiting: nothing, or what the connection has shown before.
    #[must_use]
    pub fn recall(&self, headers: &HeaderMap, remembered: &Remembered) -> Credentials {
        match Credentials::in_head(headers) {
            Credentials::Unread(value) => {
                remembered.recall(&value).unwrap_or(Credentials::Unread(value))
            }
            credentials => credentials,
        }
    }

    /// Looks at a token that nobody has looked at: waits until the entry that gave it out is applied here.
    pub async fn read(&self, credentials: Credentials, remembered: &Remembered) -> Credentials {
        let Credentials::Unread(value) = credentials else { return credentials };
        if let Provider::Simple = self.provider {
            let index = std::str::from_utf8(text_of(&value)).ok().and_then(Tokens::index);
            let is_applied = match index {
                Some(index) => self.wait_applied(LogIndex(index)).await,
                None => false,
            };
            if !is_applied {
                self.tell_refused();
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
                self.tell_refused();
            }
        }
        found
    }

    /// Says now and then that tokens are refused, and not which: one that has run out is no news.
    fn tell_refused(&self) {
        if let Some(left_out) = self.refusals.admits() {
            log::info!("refused a token that is not good", "left-out" = left_out);
        }
    }

    /// Looks at a token as it is now.
    fn find(&self, value: &HeaderValue) -> Credentials {
        let text = text_of(value);
        match &self.provider {
            Provider::Simple => self
                .readers
                .auth
                .tokens()
                .find(text)
                .map_or(Credentials::Invalid, Credentials::Given),
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

    /// Whether what a token said when it was looked at holds still: by the keys of now, at this time.
    fn holds(&self, signed: &Signed) -> bool {
        match &self.provider {
            Provider::Signed(signer) => {
                Arc::ptr_eq(&signer.keys(), &signed.keys) && signed.claims.are_good_at(now())
            }
            Provider::Simple | Provider::Nothing => false,
        }
    }

    /// Waits until an entry is applied, no longer than a request may take. One that nobody will write is waited for in
    /// vain, and so are there no more at a time than [`TOKENS_WAITING_MAX`](crate::requests::admission::TOKENS_WAITING_MAX).
    async fn wait_applied(&self, index: LogIndex) -> bool {
        let member_status = self.info.member_status();
        if member_status.applied() >= index {
            return true;
        }
        let Ok(_permit) = self.admission.tokens.take(1) else { return false };
        let deadline = Instant::now() + self.info.limits().request_timeout;
        let Some((completer, waiting)) = completion::wait(&AWAITING, deadline) else {
            return false;
        };
        member_status.when_applied(index, completer);
        waiting.await.is_some()
    }

    /// Does something with who asks.
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

    /// Asks something of users and roles as they are now, of whatever does not read data.
    fn ask(
        &self,
        credentials: &Credentials,
        check: impl FnOnce(&View, Caller<'_>) -> Result<(), AuthRefusal>,
    ) -> Result<(), RequestError> {
        if self.is_open() {
            return Ok(());
        }
        let view = self.readers.auth.view();
        if !view.is_enabled() {
            return Ok(());
        }
        Ok(self.with_caller(&view, credentials, |caller| check(&view, caller))??)
    }

    /// Whether tokens are signed.
    pub(crate) const fn has_keys(&self) -> bool {
        matches!(self.provider, Provider::Signed(_))
    }

    /// Takes over keys of tokens that have changed.
    pub(crate) fn reload_keys(&self) {
        if let Provider::Signed(signer) = &self.provider {
            signer.reload();
        }
    }

    /// Users and roles as they are.
    pub(crate) fn view(&self) -> Guard<Arc<View>> {
        self.readers.auth.view()
    }

    /// The revision of users and roles.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.view().revision()
    }

    /// The name of who asks; empty for who shows nothing, or nothing that is good.
    #[must_use]
    pub fn user_of(&self, credentials: &Credentials) -> String {
        self.with_caller(&self.view(), credentials, |caller| caller.name.to_owned())
            .unwrap_or_default()
    }

    /// Whether a request shows the valid credentials of a user. Where authentication is off, every request is taken for a
    /// user's.
    #[must_use]
    pub fn is_of_user(&self, credentials: &Credentials) -> bool {
        let view = self.view();
        !view.is_enabled()
            || self
                .with_caller(&view, credentials, |caller| view.user(caller.name).is_some())
                .unwrap_or(false)
    }

    /// Whether who asks may administer.
    pub fn check_admin(&self, credentials: &Credentials) -> Result<(), RequestError> {
        self.ask(credentials, View::check_admin)
    }

    /// Whether who asks has told who he is.
    pub fn check_user(&self, credentials: &Credentials) -> Result<(), RequestError> {
        self.ask(credentials, View::check_authenticated)
    }

    /// Whether who asks may read a range from now on.
    pub fn check_watch(
        &self,
        credentials: &Credentials,
        key: &[u8],
        range_end: &[u8],
    ) -> Result<(), RequestError> {
        self.ask(credentials, |view, caller| view.check_keys(caller, Access::Read, key, range_end))
    }

    /// Lets a read begin that this check permits.
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
                let view = self.readers.auth.view();
                let leases = &self.readers.leases;
                self.with_caller(&view, credentials, |caller| {
                    check(Permission { auth: &view, caller, leases })
                })
            };
            // Those that were published meanwhile are looked at instead.
            if self.readers.auth.stamp() == Some(stamp) {
                checked??;
                return Ok(Pass(stamp));
            }
        }
    }

    /// The same for a read of keys and values: who was told apart at another time reads by no permissions of today,
    /// not even where the check asks for nothing.
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

    /// Says after a read whether the permissions that it was begun by held all the time.
    pub async fn confirm(&self, Pass(begun): Pass) -> Result<(), RequestError> {
        if self.readers.auth.stamp() == Some(begun) {
            return Ok(());
        }
        let now = self.stamp().await;
        if begun.is_enabled() || now.is_enabled() {
            return Err(AuthRefusal::OldRevision.into());
        }
        Ok(())
    }

    /// The same for each part of a long read: where others are being published, the permissions are taken not to hold.
    pub fn still_holds(&self, Pass(begun): Pass) -> Result<(), RequestError> {
        let holds =
            self.readers.auth.stamp() == Some(begun) || !begun.is_enabled() && self.is_open();
        if holds { Ok(()) } else { Err(AuthRefusal::OldRevision.into()) }
    }

    /// Which permissions hold. Others that are just being published are waited for: that takes no time to speak of.
    async fn stamp(&self) -> Stamp {
        loop {
            match self.readers.auth.stamp() {
                Some(stamp) => return stamp,
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// The name and revision that a proposal carries.
    pub(crate) fn sign(&self, author: Author<'_>) -> Result<(String, u64), RequestError> {
        if self.is_open() {
            return Ok((String::new(), 0));
        }
        let view = self.readers.auth.view();
        if !view.is_enabled() {
            return Ok((String::new(), 0));
        }
        match author {
            Author::Member => Ok((ROOT.to_owned(), view.revision())),
            Author::Client(client) => self.with_caller(&view, &client.credentials, |caller| {
                (caller.name.to_owned(), caller.revision)
            }),
        }
    }
}
