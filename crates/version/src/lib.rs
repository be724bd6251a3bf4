//! Versions of this program: the etcd release that it emulates, and Quorate's own version.

mod version;

use std::sync::OnceLock;

pub use version::Version;

/// The etcd release that this server emulates, reported as its version. Tools compare it with the versions that they
/// support.
pub const ETCD_VERSION: &str = "3.7.1";
/// The oldest cluster version that this release supports.
pub const ETCD_MIN_CLUSTER_VERSION: &str = "3.0.0";
/// Quorate's own version.
pub const QUORATE_VERSION: &str = env!("CARGO_PKG_VERSION");
/// The compiler, reported where etcd reports its Go version.
pub const COMPILER: &str = concat!("rustc-", env!("CARGO_PKG_RUST_VERSION"));

/// The etcd releases that a member reports while it is held back to an older version. They are recent patch releases,
/// because clients treat some earlier ones as unable to serve certain requests. Kubernetes, for example, sends progress
/// requests only to 3.5.13 and later.
const HELD_RELEASES: [(Version, &str); 2] =
    [(Version::new(3, 5), "3.5.32"), (Version::new(3, 6), "3.6.13")];

/// Returns the version that a member reports. A member held back to an older version reports a release of that version
/// to its peers, which agree on the lowest major and minor version of all members. It also reports that release to
/// clients, which derive the supported requests from it.
pub fn reported_version(held: Option<Version>) -> String {
    let Some(held) = held.filter(|held| *held < Version::OWN) else {
        return ETCD_VERSION.to_owned();
    };
    let release = HELD_RELEASES.iter().find(|(version, _)| *version == held);
    release.map_or_else(|| held.to_string(), |(_, release)| (*release).to_owned())
}

static COMMIT: OnceLock<&str> = OnceLock::new();

/// Sets the commit from which the program was built. Must be called before [`git_sha`].
pub fn built_from(commit: Option<&'static str>) {
    if let Some(commit) = commit {
        COMMIT.get_or_init(|| commit);
    }
}

/// Returns the commit from which the program was built, if the build set it.
pub fn git_sha() -> &'static str {
    COMMIT.get().copied().unwrap_or("Not provided (set QUORATE_GIT_SHA when building)")
}

/// Returns Go's name for the operating system.
pub fn go_os() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    }
}

/// Returns Go's name for the processor architecture.
pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Returns the output of `--version`: etcd's four lines, which tools parse, and then Quorate's own lines.
pub fn version_text() -> String {
    format!(
        "etcd Version: {ETCD_VERSION}\nGit SHA: {}\nGo Version: none ({COMPILER})\n\
         Go OS/Arch: {}/{}\nQuorate Version: {QUORATE_VERSION}\n",
        git_sha(),
        go_os(),
        go_arch(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_held_at_an_older_version_reports_a_release_of_that_version() {
        assert_eq!(reported_version(None), ETCD_VERSION);
        assert_eq!(reported_version(Some(Version::OWN)), ETCD_VERSION);
        for held in [Version::new(3, 5), Version::new(3, 6)] {
            assert_eq!(Version::parse(&reported_version(Some(held))), Some(held));
        }
    }

    #[test]
    fn kubernetes_sends_progress_requests_to_a_held_member() {
        let reported = reported_version(Some(Version::new(3, 5)));
        let patch: u64 = reported.strip_prefix("3.5.").unwrap().parse().unwrap();
        assert!(patch >= 13, "{reported}");
    }

    #[test]
    fn the_version_text_starts_with_etcds_four_lines() {
        let text = version_text();
        let heads: Vec<&str> = text.lines().filter_map(|l| l.split(": ").next()).collect();
        assert_eq!(
            heads,
            ["etcd Version", "Git SHA", "Go Version", "Go OS/Arch", "Quorate Version"]
        );
        assert!(text.starts_with("etcd Version: 3.7.1\n"));
    }
}
