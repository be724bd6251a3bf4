//! Logging in: the token that goes with every call, and another when the servers know it no more.
//!
//! A call that is refused for its token alone has changed nothing, so it is made again, writes too.

use std::cell::Cell;

use quorate_api::etcdserverpb::AuthenticateRequest;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::{Client, RETRY_PAUSE, Repeat, within};
use crate::credentials::{Credentials, token};
use crate::failure::{Failure, exit, status_text};

/// How often one call logs in anew: each time users, roles or permissions change while it is under way.
pub(super) const LOGINS_MAX: usize = 20;

/// The name of the header.
const TOKEN: &str = "token";
const NOT_ENABLED: &str = "etcdserver: authentication is not enabled";
const NO_TOKEN: &str = "etcdserver: user name is empty";
const INVALID: &str = "etcdserver: invalid auth token";
const OLD: &str = "etcdserver: revision of auth store is old";

impl Client {
    /// Logs in where there is something to log in with, for as long as a connection may take. With
    /// authentication off there is nothing to log in to, and the client goes on without a token.
    pub async fn log_in(&self) -> Result<(), Status> {
        let deadline = self.dial_timeout.map(|timeout| Instant::now() + timeout);
        let fetching = within(deadline, self.fetch_token(deadline)).await;
        fetching.inspect_err(|status| self.warn(status, 0))
    }

    /// As [`Self::log_in`], told as a command tells that it has no connection.
    pub async fn logged_in(self) -> Result<Self, Failure> {
        let refused = |status| Failure::new(exit::BAD_CONNECTION, status_text(&status));
        self.log_in().await.map_err(refused)?;
        Ok(self)
    }

    /// A request that opens a stream. A stream may be opened long after the last call, so it has a token of its own.
    pub async fn stream_request<T>(&self, message: T) -> Result<Request<T>, Status> {
        self.log_in().await?;
        Ok(self.signed(message))
    }

    /// A request with the token.
    pub(super) fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &*self.token.borrow() {
            request.metadata_mut().insert(TOKEN, token.clone());
        }
        request
    }

    /// Makes good what a call was refused for, if it was for its token; says whether the call may be made again.
    pub(super) async fn renew_token(
        &self,
        deadline: Option<Instant>,
        refusal: &Status,
        logins: usize,
    ) -> Result<bool, Status> {
        let is_worth_it = match (&self.credentials.as_ref(), refusal.message()) {
            // Whoever gave the token has to give another.
            (Credentials::Token(_), _) => false,
            (Credentials::Login { .. }, NO_TOKEN | INVALID | OLD) => true,
            // Who is known by a certificate is known by it the next time.
            (Credentials::None, INVALID | OLD) => true,
            (Credentials::Login { .. } | Credentials::None, _) => false,
        };
        if !is_worth_it || logins == LOGINS_MAX {
            return Ok(false);
        }
        if logins > 0 {
            sleep(RETRY_PAUSE).await;
        }
        self.fetch_token(deadline).await?;
        Ok(true)
    }

    async fn fetch_token(&self, deadline: Option<Instant>) -> Result<(), Status> {
        let Credentials::Login { user, password } = &*self.credentials else { return Ok(()) };
        let login = AuthenticateRequest { name: user.clone(), password: password.clone() };
        let make = async |channel: Channel, request: Request<AuthenticateRequest>| {
            // An old token is no part of a login.
            let mut request = request;
            request.metadata_mut().remove(TOKEN);
            self.auth(channel).authenticate(request).await
        };
        let fetched =
            match self.attempts(deadline, Repeat::Safe, &login, &make, &Cell::new(0)).await {
                Ok(reply) => {
                    let unusable =
                        || Status::internal("the server gave a token that no header holds");
                    Some(token(&reply.token).ok_or_else(unusable)?)
                }
                Err(status) if status.message() == NOT_ENABLED => None,
                Err(status) => return Err(status),
            };
        let message = if fetched.is_some() { "logged in" } else { "authentication is off" };
        *self.token.borrow_mut() = fetched;
        (self.voice.debug)(message, &[("user", user.clone())]);
        Ok(())
    }
}
