//! Ends streams whose callers have lost access.
//!
//! A member checks the caller's permissions only when a watch or a snapshot starts. Without further checks, a stream of
//! the console would continue after its user is deleted or loses a permission, after the user's token expires, and
//! after authentication is turned on or off. The guard of a stream therefore repeats the checks.
//!
//! # Guarantees
//!
//! * While a member responds, a stream ends at most about [`CHECK_INTERVAL`] plus `MODE_TIME` (`access`) after its
//!   caller has lost access.
//! * While no member responds, the stream stays open. This reveals nothing, because the stream receives no data during
//!   that time.

use std::rc::Rc;
use std::time::Duration;

use quorate_client::key_range::KeyRange;
use tokio::time::sleep;

use crate::access::{Access, Mode, may_administer, may_read};
use crate::cluster::Caller;
use crate::refusal::{Kind, Refusal};

/// Interval between two checks, each of which is one call with a short response.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The permission that a stream needs while authentication is on.
pub(crate) enum Needed {
    /// Permission to read all keys of a range.
    Read(KeyRange),
    /// The root role.
    Root,
}

/// Repeats the access checks for one stream.
pub(crate) struct Guard {
    access: Rc<Access>,
    anonymous: Caller,
    user: Option<Caller>,
    /// Whether authentication was on when the stream began.
    mode: Mode,
    needed: Needed,
}

impl Guard {
    /// Creates the guard of a stream.
    pub(crate) async fn begin(
        access: &Rc<Access>,
        anonymous: Caller,
        user: Option<Caller>,
        needed: Needed,
    ) -> Result<Self, Refusal> {
        let mode = access.mode(&anonymous).await?;
        Ok(Self { access: Rc::clone(access), anonymous, user, mode, needed })
    }

    /// Waits until the caller has lost access, and returns the reason.
    pub(crate) async fn lost(&self) -> Refusal {
        loop {
            sleep(CHECK_INTERVAL).await;
            if let Err(refused) = self.check().await
                && is_final(refused.kind)
            {
                return refused;
            }
        }
    }

    async fn check(&self) -> Result<(), Refusal> {
        match (self.mode, self.access.mode(&self.anonymous).await?) {
            (Mode::On, Mode::Off) => {
                let text = "authentication was turned off in this cluster";
                Err(Refusal::new(Kind::AuthenticationChanged, text))
            }
            (Mode::Off, Mode::On) => {
                let text = "authentication was turned on in this cluster: log in first";
                Err(Refusal::new(Kind::LoginRequired, text))
            }
            (Mode::Off, Mode::Off) => Ok(()),
            (Mode::On, Mode::On) => match &self.user {
                Some(user) => match &self.needed {
                    Needed::Read(range) => may_read(user, range).await,
                    Needed::Root => may_administer(user).await,
                },
                None => Err(Refusal::login_required()),
            },
        }
    }
}

/// Returns whether a failed check means that access has been lost, rather than that no member answered.
const fn is_final(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::AuthenticationChanged
            | Kind::LoginRequired
            | Kind::TokenExpired
            | Kind::PermissionDenied
    )
}
