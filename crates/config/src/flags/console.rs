//! The flags of the web console.

use super::super::setting::Setting::{Bool, Urls};
use super::sections::MEMBER;
use super::{Flag, flag};

pub(super) const LISTEN_CONSOLE_URL: Flag = flag(
    MEMBER,
    "listen-console-url",
    Urls(|d| &mut d.config.listen_console_urls),
    "Comma-separated URLs on which to serve the web console; none if empty. Plain http requires loopback addresses.",
);

pub(super) const CONSOLE_ALLOW_WRITES: Flag = flag(
    MEMBER,
    "console-allow-writes",
    Bool(|d| &mut d.config.console_allow_writes),
    "Allow the web console to change the cluster, with the permissions of the user who is logged in.",
);
