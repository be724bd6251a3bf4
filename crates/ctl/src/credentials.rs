//! Who asks: what the flags and the environment say of a user, in `etcdctl`'s way.

use quorate_client::credentials::{Credentials, token};

use crate::failure::Failure;
use crate::flags::Matches;

/// What the flags say; for a password that they leave out there is `ask`.
pub(crate) fn of(
    matches: &Matches,
    ask: impl FnOnce() -> Result<String, String>,
) -> Result<Credentials, Failure> {
    let flag = |name| matches.text(name);
    let (user, password, signed) = (flag("user"), flag("password"), flag("auth-jwt-token"));
    if !signed.is_empty() {
        let text = "--auth-jwt-token holds what no header can";
        return token(signed).map(Credentials::Token).ok_or_else(|| Failure::bad_args(text));
    }
    Credentials::login(user, password, ask)
}
