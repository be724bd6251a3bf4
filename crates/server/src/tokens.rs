//! Creates the provider of authentication tokens that the flags configure. The key files are read here, so that a
//! member with invalid keys does not start.

use quorate_config::{AuthToken, AuthTokenFault};
use quorate_jwt::Method;

use quorate_config::Config;
use quorate_requests::access::{KeySource, Provider, Signer, SourceFault};
use quorate_telemetry::log;

/// Why the token provider cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenFault {
    #[error(transparent)]
    Setting(#[from] AuthTokenFault),
    #[error(transparent)]
    Keys(#[from] SourceFault),
}

/// Creates the provider that issues and verifies tokens.
pub(crate) fn provider(config: &Config) -> Result<Provider, TokenFault> {
    let jwt = match AuthToken::parse(&config.auth_token)? {
        AuthToken::Simple => {
            log::warn!("simple token is not cryptographically signed");
            return Ok(Provider::Simple);
        }
        AuthToken::Nothing => return Ok(Provider::Nothing),
        AuthToken::Jwt(jwt) => jwt,
    };
    if !jwt.unknown.is_empty() {
        log::warn!("unknown JWT options", "keys" = jwt.unknown);
    }
    let method = Method::named(&jwt.sign_method).ok_or(AuthTokenFault::Method)?;
    let source = KeySource { method, private: jwt.private_key, public: jwt.public_key };
    Ok(Provider::Signed(Signer::new(source, jwt.ttl)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(auth_token: &str) -> String {
        let config = Config { auth_token: auth_token.to_owned(), ..Config::default() };
        provider(&config).map_or_else(|fault| fault.to_string(), |_| "ok".to_owned())
    }

    #[test]
    fn a_member_does_not_start_without_valid_token_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "s").unwrap();
        let file = path.display();
        assert_eq!(outcome("simple"), "ok");
        assert_eq!(outcome(""), "ok");
        assert_eq!(outcome(&format!("jwt,sign-method=HS256,priv-key={file}")), "ok");
        assert_eq!(outcome("jwt,sign-method=HS256"), "auth: missing key data");
        let options = "auth: invalid auth options";
        for bad in ["paper", "jwt", "jwt,sign-method=none", "jwt,sign-method=HS1"] {
            assert!(outcome(bad).starts_with(&format!("{options}: ")), "{bad}");
        }
        assert!(outcome("jwt,sign-method=HS256,priv-key=/nowhere/at/all").starts_with(options));
        let unfit = outcome(&format!("jwt,sign-method=RS256,priv-key={file}"));
        assert_eq!(unfit, "auth: the private key cannot be parsed, or is not for the sign-method");
    }
}
