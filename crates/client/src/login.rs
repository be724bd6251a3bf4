//! Login: adds the token to every call, and renews it when the servers no longer accept it.
//!
//! A call that is refused because of its token has had no effect, so even a write is repeated.

use std::cell::Cell;

use quorate_api::etcdserverpb::AuthenticateRequest;
use tokio::time::{Instant, sleep};
use tonic::{Request, Status};

use super::{Attempt, Client, RETRY_PAUSE, Repeat, within};
use crate::credentials::{Credentials, token};
use crate::failure::{Failure, exit, status_text};

/// The maximum number of logins for one call. Every change to users, roles or permissions during the call makes another
/// login necessary.
pub(super) const LOGINS_MAX: usize = 20;

/// The name of the header that contains the token.
const TOKEN: &str = "token";
const NOT_ENABLED: &str = "etcdserver: authentication is not enabled";
const NO_TOKEN: &str = "etcdserver: user name is empty";
const INVALID: &str = "etcdserver: invalid auth token";
const OLD: &str = "etcdserver: revision of auth store is old";

impl Client {
    /// Logs in if there are credentials, within the time limit for connecting. If authentication is disabled, the
    /// client continues without a token.
    pub async fn log_in(&self) -> Result<(), Status> {
        let deadline = self.dial_timeout.map(|timeout| Instant::now() + timeout);
        let fetching = within(deadline, self.fetch_token(deadline)).await;
        fetching.inspect_err(|status| self.warn(status, 0))
    }

    /// Logs in like [`Self::log_in`], and returns the client. The error has the exit code for a failed connection.
    pub async fn logged_in(self) -> Result<Self, Failure> {
        let refused = |status| Failure::new(exit::BAD_CONNECTION, status_text(&status));
        self.log_in().await.map_err(refused)?;
        Ok(self)
    }

    /// Returns a request that opens a stream. The request has a new token, because a stream may be opened long after
    /// the last call.
    pub async fn stream_request<T>(&self, message: T) -> Result<Request<T>, Status> {
        self.log_in().await?;
        Ok(self.signed(message))
    }

    /// Wraps a message in a request with the token.
    pub(super) fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &*self.token.borrow() {
            request.metadata_mut().insert(TOKEN, token.clone());
        }
        request
    }

    /// Requests a new token if a call was refused because of its token. Returns whether the call may be repeated.
    pub(super) async fn renew_token(
        &self,
        deadline: Option<Instant>,
        refusal: &Status,
        logins: usize,
    ) -> Result<bool, Status> {
        let is_worth_it = match (&self.credentials.as_ref(), refusal.message()) {
            // The client cannot renew a token that the user has provided.
            (Credentials::Token(_), _) => false,
            (Credentials::Login { .. }, NO_TOKEN | INVALID | OLD) => true,
            // Without a token, a client certificate identifies the user. A concurrent change to the users can cause
            // this error, so the next attempt may succeed.
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
        let reply = Cell::new(None);
        let (login, reply) = (&login, &reply);
        let attempt = |channel, mut head: Request<()>| -> Attempt<'_> {
            // A login request must not carry a token.
            head.metadata_mut().remove(TOKEN);
            let request = head.map(|()| login.clone());
            Box::pin(async move {
                reply.set(Some(self.auth(channel).authenticate(request).await?.into_inner()));
                Ok(())
            })
        };
        let fetched = match self.attempts(deadline, Repeat::Safe, &attempt, &Cell::new(0)).await {
            Ok(()) => {
                let reply = reply.take().expect("a successful attempt has stored its reply");
                let unusable = || {
                    Status::internal(
                        "the server returned a token with characters that are not allowed in a \
                         header",
                    )
                };
                Some(token(&reply.token).ok_or_else(unusable)?)
            }
            Err(status) if status.message() == NOT_ENABLED => None,
            Err(status) => return Err(status),
        };
        let message = if fetched.is_some() { "logged in" } else { "authentication is off" };
        *self.token.borrow_mut() = fetched;
        (self.logger.debug)(message, &[("user", user.clone())]);
        Ok(())
    }
}
