//! Access to the console: decides whether each call is allowed, and handles logins.
//!
//! The cluster checks the permissions of a user. The console adds one rule: if authentication is off, the console's
//! listener must be private (`Settings::is_private`), or the caller must know the console's secret.
//!
//! # Bound
//!
//! * At most [`PAGE_LOGINS_MAX`] logins are in progress, and each address may use only a share of them (`clients`),
//!   because hashing a password is costly for the cluster. The cluster also limits logins itself. `attempts` limits the
//!   rate of logins.
//! * At most [`KNOWN_MAX`] tokens are remembered, each for [`KNOWN_TIME`] after the cluster has accepted it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_api::etcdserverpb::{AuthUserListRequest, AuthenticateRequest, RangeRequest};
use quorate_client::credentials::{Token, token};
use quorate_client::key_range::KeyRange;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::attempts::Attempts;
use crate::clients::{Client, Slots, Users};
use crate::cluster::Caller;
use crate::input::Input;
use crate::refusal::{Kind, Refusal};

const PAGE_LOGINS_MAX: usize = 8;
const KNOWN_MAX: usize = 64;
const KNOWN_TIME: Duration = Duration::from_secs(10);

/// Time for which the last known authentication mode remains valid.
const MODE_TIME: Duration = Duration::from_secs(5);

/// The listener of a console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// Whether the listener can be reached only from this machine.
    pub is_loopback: bool,
    /// Whether the listener uses TLS.
    pub is_secured: bool,
    /// Whether the listener accepts only clients with a certificate.
    pub verifies_clients: bool,
}

/// Whether users must log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    On,
    Off,
}

/// The access rules that a console's settings imply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether everyone who can reach the console may use the cluster while authentication is off.
    pub(crate) is_private: bool,
    /// Whether users may log in.
    pub(crate) allows_login: bool,
}

/// The state of access control: whether authentication is on, the accepted tokens, and the logins.
pub(crate) struct Access {
    rules: Rules,
    mode: RefCell<Option<(Instant, Mode)>>,
    known: RefCell<VecDeque<(Instant, Token)>>,
    users: Arc<Users>,
    logins: Arc<Slots>,
    attempts: Attempts,
}

impl Access {
    pub(crate) fn new(rules: Rules, users: Arc<Users>) -> Self {
        let (mode, known) = (RefCell::default(), RefCell::default());
        let (logins, attempts) = (Slots::new(PAGE_LOGINS_MAX), Attempts::default());
        Self { rules, mode, known, users, logins, attempts }
    }

    /// Returns whether authentication is on. The check calls the cluster as `anonymous`, which is a caller without a
    /// user.
    pub(crate) async fn mode(&self, anonymous: &Caller) -> Result<Mode, Refusal> {
        let last = *self.mode.borrow();
        if let Some((at, mode)) = last
            && at.elapsed() < MODE_TIME
        {
            return Ok(mode);
        }
        let mode = match is_accepted(anonymous).await {
            Ok(()) => Mode::Off,
            Err(refused) if refused.kind == Kind::LoginRequired => Mode::On,
            Err(refused) => return Err(refused),
        };
        *self.mode.borrow_mut() = Some((Instant::now(), mode));
        Ok(mode)
    }

    /// Discards the remembered authentication mode. Called after authentication was turned on or off.
    pub(crate) fn forget_mode(&self) {
        *self.mode.borrow_mut() = None;
    }

    /// Refuses a call that the console's own rules forbid, before the cluster checks the caller's permissions.
    pub(crate) async fn admit(
        &self,
        is_logged_in: bool,
        knows_secret: bool,
        anonymous: &Caller,
    ) -> Result<(), Refusal> {
        let is_private = self.rules.is_private || knows_secret;
        if is_logged_in && is_private {
            return Ok(());
        }
        match self.mode(anonymous).await? {
            Mode::On if is_logged_in => Ok(()),
            Mode::On => Err(Refusal::login_required()),
            Mode::Off if is_private => Ok(()),
            Mode::Off => Err(Refusal::new(
                Kind::AuthenticationOff,
                "authentication is off in this cluster, so everyone who can reach this console could use \
                 the cluster",
            )
            .advising(
                "Turn authentication on, or use --trusted-ca-file to require client certificates, or run \
                 `quorate console` with --listen 127.0.0.1:2383 and open the address that it prints.",
            )),
        }
    }

    /// Checks with the cluster that a user's token is valid, unless the cluster has accepted the token within the last
    /// [`KNOWN_TIME`]. The figures that the console collects for all users are shown only after this check.
    pub(crate) async fn confirm(
        &self,
        user: &Caller,
        user_token: Option<&Token>,
    ) -> Result<(), Refusal> {
        let Some(user_token) = user_token else { return Ok(()) };
        {
            let mut known = self.known.borrow_mut();
            known.retain(|(at, _)| at.elapsed() < KNOWN_TIME);
            if known.iter().any(|(_, other)| other == user_token) {
                return Ok(());
            }
        }
        is_accepted(user).await?;
        let mut known = self.known.borrow_mut();
        if known.len() == KNOWN_MAX {
            known.pop_front();
        }
        known.push_back((Instant::now(), user_token.clone()));
        Ok(())
    }

    /// Refuses logins that would send passwords over the network in plaintext.
    pub(crate) fn check_login(&self) -> Result<(), Refusal> {
        if self.rules.allows_login {
            return Ok(());
        }
        let text = "the console is connected to the cluster without TLS, so a login would send the password over the \
                    network in plaintext";
        Err(Refusal::new(Kind::PlaintextLogin, text).advising(
            "Use https:// endpoints, run the console on a member's machine, or start it with \
             --allow-plaintext-login if the network is trusted.",
        ))
    }

    /// Exchanges a user name and a password for a token.
    pub(crate) async fn log_in(
        &self,
        anonymous: &Caller,
        client: &Client,
        input: &Input,
    ) -> Result<Value, Refusal> {
        self.check_login()?;
        let user = input.required_text("user")?.to_owned();
        let password = input.required_text("password")?.to_owned();
        // The user is not authenticated yet, so the login counts towards the limit of the client's address.
        let _slot = self.logins.take(&Client { user: None, ..client.clone() })?;
        let attempt = self.attempts.begin(&user, client.origin).await?;
        let request = AuthenticateRequest { name: user.clone(), password };
        let caller = Caller { client: anonymous.client.for_user(None), is_logged_in: false };
        let make = async |channel, request| caller.client.auth(channel).authenticate(request).await;
        match caller.read(request, make).await {
            Ok(reply) => match token(&reply.token) {
                Some(token) => {
                    attempt.succeeded();
                    self.users.remember(&token, &user);
                    Ok(json!({ "token": reply.token, "user": user }))
                }
                None => Err(Refusal::new(Kind::Cluster, "the cluster returned an invalid token")),
            },
            Err(refused) if refused.message == "etcdserver: authentication is not enabled" => {
                Err(Refusal::bad_request(refused.message))
            }
            Err(refused) => {
                attempt.failed();
                Err(refused)
            }
        }
    }
}

/// Checks with a small read that the cluster accepts a user. A user without permission to read is accepted as well.
async fn is_accepted(caller: &Caller) -> Result<(), Refusal> {
    match may_read(caller, &KeyRange { key: vec![0], end: Vec::new() }).await {
        Err(refused) if refused.kind == Kind::PermissionDenied => Ok(()),
        checked => checked,
    }
}

/// Checks that a user may read all keys of a range.
pub(crate) async fn may_read(caller: &Caller, range: &KeyRange) -> Result<(), Refusal> {
    let request = RangeRequest {
        key: Bytes::copy_from_slice(&range.key),
        range_end: Bytes::copy_from_slice(&range.end),
        count_only: true,
        serializable: true,
        ..RangeRequest::default()
    };
    caller.range(request).await.map(drop)
}

/// Checks that a user is an administrator.
pub(crate) async fn may_administer(caller: &Caller) -> Result<(), Refusal> {
    let list = async |channel, request| caller.client.auth(channel).user_list(request).await;
    caller.read(AuthUserListRequest {}, list).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::tests::anonymous;

    #[test]
    fn logins_beyond_the_limit_are_refused() {
        let access = Access::new(Rules { is_private: true, allows_login: true }, Arc::default());
        let take = |number| access.logins.take(&anonymous(number));
        let held: Vec<_> = std::iter::from_fn(|| take(1).ok()).collect();
        assert_eq!(held.len(), PAGE_LOGINS_MAX / 2);
        assert_eq!(take(1).unwrap_err().kind, Kind::Busy);
        assert!(take(2).is_ok(), "another address can log in");
    }

    #[test]
    fn a_login_that_would_send_the_password_in_plaintext_is_refused() {
        let access =
            |allows_login| Access::new(Rules { is_private: true, allows_login }, Arc::default());
        assert!(access(true).check_login().is_ok());
        assert_eq!(access(false).check_login().unwrap_err().kind, Kind::PlaintextLogin);
    }
}
