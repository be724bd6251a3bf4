//! Credentials for servers with authentication. `engine` logs in and keeps the tokens.

use std::sync::Arc;

use quorate_api::etcdserverpb::AuthenticateRequest;

use crate::error::BenchError;
use crate::secret::Secret;

/// The credentials of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    user: String,
    password: Secret,
}

impl Login {
    /// Returns the credentials given by the flags: `name:password` in one flag, or name and password in two.
    pub(crate) fn of(
        user: Option<&Secret>,
        password: Option<&Secret>,
    ) -> Result<Option<Arc<Self>>, BenchError> {
        let Some(user) = user.map(Secret::text).filter(|user| !user.is_empty()) else {
            return Ok(None);
        };
        let (user, password) = match (password, user.split_once(':')) {
            (Some(password), _) => (user, password.clone()),
            (None, Some((user, password))) => (user, Secret::from(password.to_owned())),
            (None, None) => {
                let text = "a user needs a password: --user name:password, or --password";
                return Err(BenchError::Usage(text.to_owned()));
            }
        };
        Ok(Some(Arc::new(Self { user: user.to_owned(), password })))
    }

    /// Returns the request with which the user logs in.
    pub(crate) fn request(&self) -> AuthenticateRequest {
        let (name, password) = (self.user.clone(), self.password.text().to_owned());
        AuthenticateRequest { name, password }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_password_is_refused() {
        let secret = |text: &str| Secret::from(text.to_owned());
        let of = |user: &str, password: Option<&str>| {
            Login::of(Some(&secret(user)), password.map(secret).as_ref())
        };
        let login = of("ann:s3cret:2", None).unwrap().unwrap();
        assert_eq!((login.user.as_str(), login.password.text()), ("ann", "s3cret:2"));
        let login = of("ann", Some("s3cret")).unwrap().unwrap();
        assert_eq!((login.user.as_str(), login.password.text()), ("ann", "s3cret"));
        assert_eq!(of("", Some("s3cret")).unwrap(), None);
        assert!(of("ann", None).unwrap_err().to_string().contains("--password"));
        let shown = format!("{login:?} {:?}", secret("s3cret"));
        assert!(shown.contains("ann") && !shown.contains("s3cret"), "{shown}");
    }
}
