//! The headings of the help text, and the settings that can be set only in the configuration file.

use super::super::setting::Setting::{Bool, Texts};
use super::{Flag, flag};

pub(super) const MEMBER: &str = "Member";
pub(super) const CLUSTERING: &str = "Clustering";
pub(super) const SECURITY: &str = "Security";
pub(super) const ACCESS: &str = "Access";
pub(super) const MONITORING: &str = "Monitoring and logging";
pub(super) const AUTH: &str = "Auth";
pub(super) const FEATURES: &str = "Features";
pub(super) const UNSAFE: &str = "Unsafe";
pub(super) const SPECIAL: &str = "Special";

/// Settings that exist only in the file.
pub(crate) static FILE_ONLY: &[Flag] = &[
    flag(
        SECURITY,
        "client-transport-security.allowed-cn",
        Texts(|d| &mut d.config.security.client.allowed_cns),
        "",
    )
    .file_key("client-transport-security.allowed-cn"),
    flag(
        SECURITY,
        "client-transport-security.skip-client-san-verification",
        Bool(|d| &mut d.config.security.client.skip_client_san_verification),
        "",
    )
    .file_key("client-transport-security.skip-client-san-verification"),
];

/// The headings of the help text, in order.
pub(crate) const SECTIONS: &[&str] =
    &[MEMBER, CLUSTERING, SECURITY, ACCESS, AUTH, MONITORING, FEATURES, UNSAFE, SPECIAL];
