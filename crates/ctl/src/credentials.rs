//! The user's credentials, read from flags and the environment as `etcdctl` does.

use quorate_client::credentials::{Credentials, token};

use crate::failure::Failure;
use crate::flags::Matches;

/// Reads the credentials from the flags. Calls `ask` for a password if the flags do not contain one.
pub(crate) fn of(
    matches: &Matches,
    ask: impl FnOnce() -> Result<String, String>,
) -> Result<Credentials, Failure> {
    let flag = |name| matches.text(name);
    let (user, password, signed) = (flag("user"), flag("password"), flag("auth-jwt-token"));
    if !signed.is_empty() {
        let text = "--auth-jwt-token contains characters that are not allowed in a header";
        return token(signed).map(Credentials::Token).ok_or_else(|| Failure::bad_args(text));
    }
    Credentials::login(user, password, ask)
}
