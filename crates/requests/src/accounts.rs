//! Logins and user changes: the work that this member does for a client before it proposes the client's request.
//!
//! The member that receives a password checks or hashes it, so that a write contains only the hash. A login is repeated
//! if users have changed during the check.
//!
//! # Not here
//!
//! Permissions (`state::apply`, on every member), and the service (`edge::services::auth`).

use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use quorate_api::etcdserverpb::{
    AuthStatusResponse, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateResponse,
    InternalAuthenticateRequest, InternalRaftRequest,
};
use quorate_jwt::SignFault;
use quorate_state::apply::{AuthRefusal, Response};
use quorate_state::auth::{NAME_BYTES_MAX, ROOT, User};
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;
use quorate_telemetry::throttle::LogThrottle;

use crate::access::{AccessControl, Client, Credentials, Provider};
use crate::admission::LoginSource;
use crate::data_store::DataStore;
use crate::error::RequestError;
use crate::passwords::{Passwords, PasswordsLoad, Requester};
use crate::server_info::ServerInfo;
use crate::writer::Writer;

/// Number of letters in the random part of a token.
const PREFIX_LETTERS: usize = 16;

/// Letters that the random part of a token may contain.
const ALPHABET: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Performs logins and prepares user changes.
#[derive(Debug)]
pub struct Accounts {
    info: Arc<ServerInfo>,
    access_control: Arc<AccessControl>,
    store: Arc<dyn DataStore>,
    writer: Arc<Writer>,
    passwords: Passwords,
    refusals: LogThrottle,
}

impl Accounts {
    pub(crate) fn new(
        info: &Arc<ServerInfo>,
        access_control: &Arc<AccessControl>,
        store: &Arc<dyn DataStore>,
        writer: &Arc<Writer>,
    ) -> Self {
        Self {
            info: Arc::clone(info),
            access_control: Arc::clone(access_control),
            store: Arc::clone(store),
            writer: Arc::clone(writer),
            passwords: Passwords::new(info.limits().bcrypt_cost),
            refusals: LogThrottle::default(),
        }
    }

    /// Returns how many passwords wait to be hashed or checked, and how many were refused.
    #[must_use]
    pub fn passwords_load(&self) -> PasswordsLoad {
        self.passwords.load()
    }

    /// Returns whether a user with this name exists.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.access_control.view().user(name).is_some()
    }

    /// Returns whether authentication is enabled, and the auth revision. A client needs no credentials for this, so the
    /// request must not occupy space in the log.
    pub async fn status(&self, client: &Client) -> Result<AuthStatusResponse, RequestError> {
        self.store.read_barrier().await?;
        // Invalid credentials are refused.
        self.access_control.user_for_write(&client.credentials)?;
        let view = self.access_control.view();
        Ok(AuthStatusResponse {
            header: Some(self.info.header(self.store.current_revision())),
            enabled: view.is_enabled(),
            auth_revision: view.revision(),
        })
    }

    /// Issues a token for a user name and password. Any other credentials of the client are ignored.
    pub async fn authenticate(
        &self,
        client: &Client,
        user: &str,
        password: &str,
    ) -> Result<AuthenticateResponse, RequestError> {
        // No user has such a name, and waiting logins keep copies of the name. Up to four bytes represent a byte of a
        // name that is not UTF-8.
        if user.len() > 4 * NAME_BYTES_MAX {
            return Err(AuthRefusal::AuthenticationFailed.into());
        }
        let deadline = Instant::now() + self.info.limits().request_timeout;
        let nobody = Client { credentials: Credentials::Nothing, ..client.clone() };
        loop {
            self.store.read_barrier().await?;
            let revision = self.check_password(client.source, user, password).await?;
            let simple_token = match &self.access_control.provider {
                Provider::Simple => token_prefix()?,
                Provider::Signed(_) => String::new(),
                Provider::Nothing => return Err(AuthRefusal::AuthenticationFailed.into()),
            };
            let (name, password) = (user.to_owned(), String::new());
            let authenticate = InternalAuthenticateRequest { name, password, simple_token };
            let request = InternalRaftRequest {
                authenticate: Some(Box::new(authenticate)),
                ..InternalRaftRequest::default()
            };
            let kind = RequestKind::Authenticate;
            let outcome = self.writer.write_for(&nobody, request, kind).await?;
            let Response::Authenticated { mut response, auth_revision } = outcome else {
                unreachable!("the response to a login is a token")
            };
            if let Provider::Signed(_) = &self.access_control.provider {
                response.token = self.sign(user, auth_revision).await?;
            }
            // If users changed between the check of the password and the execution of the login, the password may no
            // longer be valid, so the login is repeated. The outcome contains the revision at which the login was
            // executed. This server's own revision may be older if another server executed the login. A change after
            // the login revokes the token.
            if auth_revision == revision {
                return Ok(response);
            }
            if Instant::now() >= deadline {
                return Err(RequestError::Timeout);
            }
        }
    }

    /// Signs a token on a password thread, because signing is slow, like hashing.
    async fn sign(&self, user: &str, revision: u64) -> Result<String, RequestError> {
        let (access_control, name) = (Arc::clone(&self.access_control), user.to_owned());
        let sign = move || match &access_control.provider {
            Provider::Signed(signer) => signer.sign(&name, revision),
            Provider::Simple | Provider::Nothing => Err(SignFault::Failed),
        };
        self.passwords.compute(Requester::User(user), move |_| sign()).await?.map_err(|fault| {
            match fault {
                SignFault::VerifyOnly => RequestError::VerifyOnlyKey,
                SignFault::Failed => RequestError::Fault(fault.to_string().into()),
            }
        })
    }

    /// Checks a password. Returns the auth revision at which the password is valid.
    async fn check_password(
        &self,
        source: LoginSource,
        name: &str,
        password: &str,
    ) -> Result<u64, RequestError> {
        let (hash, other, revision) = {
            let view = self.access_control.view();
            if !view.is_enabled() {
                return Err(AuthRefusal::NotEnabled.into());
            }
            let user = view.user(name);
            if user.is_some_and(|user| user.has_no_password()) {
                return Err(AuthRefusal::NoPasswordUser.into());
            }
            let users = [ROOT].into_iter().chain(view.user_names());
            let mut hashes = users.filter_map(|name| view.user(name)).map(User::password_hash);
            let other = hashes.find(|hash| !hash.is_empty()).unwrap_or_default().to_vec();
            (user.map(|user| user.password_hash().to_vec()), other, view.revision())
        };
        if self.passwords.fits((source, name), password, hash.as_deref(), &other).await? {
            return Ok(revision);
        }
        if let Some(left_out) = self.refusals.admits() {
            // The name is logged only if the user exists. Any other name may be arbitrary text, even a password.
            let name = hash.map_or("", |_| name);
            log::warn!(
                "refused a login",
                "remote-addr" = source.to_string(),
                "user-name" = name,
                "left-out" = left_out
            );
        }
        Err(AuthRefusal::AuthenticationFailed.into())
    }

    /// Replaces the password of a new user with its hash.
    pub async fn hash_new(
        &self,
        client: &Credentials,
        request: &mut AuthUserAddRequest,
    ) -> Result<(), RequestError> {
        let password = std::mem::take(&mut request.password);
        if request.options.is_some_and(|options| options.no_password) {
            return Ok(());
        }
        request.hashed_password = self.hash(client, &password).await?;
        Ok(())
    }

    /// Replaces the new password of a user with its hash. If there is no password, the hash in the request is kept.
    pub async fn hash_other(
        &self,
        client: &Credentials,
        request: &mut AuthUserChangePasswordRequest,
    ) -> Result<(), RequestError> {
        let password = std::mem::take(&mut request.password);
        if !password.is_empty() {
            request.hashed_password = self.hash(client, &password).await?;
        }
        Ok(())
    }

    /// Hashes a password, so that the write contains only the hash. Only administrators may change users, so other
    /// clients are refused before the expensive hash is computed.
    async fn hash(&self, client: &Credentials, password: &str) -> Result<String, RequestError> {
        if self.access_control.check_admin(client).is_err() {
            // Another member may have made this user an administrator a moment ago, so the check is repeated after a
            // read barrier.
            self.store.read_barrier().await?;
            self.access_control.check_admin(client)?;
        }
        let user = self.access_control.user_of(client);
        let hash = self.passwords.hash(&user, password).await?;
        Ok(BASE64_STANDARD.encode(hash))
    }
}

/// Generates the random part of a token.
fn token_prefix() -> Result<String, RequestError> {
    let mut prefix = String::with_capacity(PREFIX_LETTERS);
    let mut bytes = [0; 2 * PREFIX_LETTERS];
    // Random bytes at or above this limit are discarded, so that all letters are equally probable.
    let beyond = u8::MAX - u8::MAX % 52;
    while prefix.len() < PREFIX_LETTERS {
        getrandom::fill(&mut bytes).map_err(|error| {
            RequestError::Fault(format!("failed to get random bytes: {error}").into())
        })?;
        let letters = bytes.iter().filter(|byte| **byte < beyond);
        let left = PREFIX_LETTERS - prefix.len();
        prefix.extend(letters.take(left).map(|byte| char::from(ALPHABET[usize::from(byte % 52)])));
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_prefixes_are_random_letters() {
        let [one, other] = [(); 2].map(|()| token_prefix().unwrap());
        assert_eq!(one.len(), PREFIX_LETTERS);
        assert!(one.bytes().all(|byte| byte.is_ascii_alphabetic()), "{one}");
        assert_ne!(one, other);
    }
}
