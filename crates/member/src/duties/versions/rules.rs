//! The cluster version that a leader proposes, derived from the versions of the members.
//!
//! The cluster version is the newest version that every member supports. It rises once the last member has been
//! upgraded. It falls only if the operator has requested a downgrade, by one minor version at a time. All functions are
//! pure.

use quorate_state::versions::{Downgrade, Version};

/// The leader's next action for the cluster version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Keep,
    Propose(Version),
    /// The requested downgrade is not possible from version `from`.
    BadTarget {
        target: Version,
        from: Version,
    },
}

/// Returns the next step. `lowest` is the lowest version of all members, or `None` if the version of any member is
/// unknown.
pub(super) fn next_step(
    cluster: Option<Version>,
    lowest: Option<Version>,
    downgrade: &Downgrade,
) -> Step {
    let Some(cluster) = cluster else {
        // Until all members have reported their versions, the first cluster version is the minimum version.
        return Step::Propose(lowest.unwrap_or(Version::MINIMUM));
    };
    let Some(lowest) = lowest else { return Step::Keep };
    if downgrade.enabled {
        let Some(target) = Version::parse(&downgrade.target_version) else { return Step::Keep };
        if target == cluster {
            return Step::Keep;
        }
        let stranger =
            [cluster, lowest].into_iter().find(|from| downgrade_of(*from) != Some(target));
        return stranger.map_or(Step::Propose(target), |from| Step::BadTarget { target, from });
    }
    if cluster.major == lowest.major && cluster < lowest {
        return Step::Propose(lowest);
    }
    Step::Keep
}

/// Returns the old and the new cluster version if a rise is expected, and `None` otherwise. The old version is the
/// directory's version (`cluster`). The new version is `own`: at startup this member's version, and later the version
/// that the leader is about to propose. While an operator holds the cluster version, neither is higher than the held
/// version. For a cluster version that is older than the oldest supported file version, returns `None`: it was set
/// because not all founding members had answered, so no operator needs to return to it.
pub(super) fn expected_rise(
    cluster: Option<Version>,
    own: Version,
    downgrade: &Downgrade,
) -> Option<(Version, Version)> {
    let cluster = cluster.filter(|cluster| *cluster >= Version::OLDEST_FILE)?;
    (cluster < own && !downgrade.enabled).then_some((cluster, own))
}

/// Returns the only allowed target of a downgrade from `version`.
pub(super) fn downgrade_of(version: Version) -> Option<Version> {
    Some(Version::new(version.major, version.minor.checked_sub(1)?))
}

/// Returns whether every member runs the target version of a downgrade, so that the downgrade is complete.
pub(super) fn is_downgraded(target: Version, members: &[Option<Version>]) -> bool {
    members.iter().all(|member| *member == Some(target))
}

/// Returns the lowest version, or `None` if any version is unknown.
pub(super) fn lowest_of(members: &[Option<Version>]) -> Option<Version> {
    members.iter().copied().collect::<Option<Vec<Version>>>()?.into_iter().min()
}

/// Parses the target version of a downgrade: `3.6.0` or `3.6`. The patch number is ignored.
pub(super) fn parse_target(text: &str) -> Option<Version> {
    // A leading `v` and a version without a minor number are invalid.
    let starts_with_digit = text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    // A pre-release or build suffix is valid only after a patch number.
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let dot_count = core.matches('.').count();
    let is_form = dot_count == 2 || (dot_count == 1 && core == text);
    (starts_with_digit && is_form).then(|| Version::parse(text)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn v(minor: u64) -> Version {
        Version::new(3, minor)
    }

    fn to(target: &str) -> Downgrade {
        Downgrade { target_version: target.to_owned(), enabled: true }
    }

    #[test]
    fn the_first_cluster_version_is_the_lowest_member_version_or_the_minimum_if_any_is_unknown() {
        let step = |members: &[Option<Version>]| {
            next_step(None, lowest_of(members), &Downgrade::default())
        };
        assert_eq!(step(&[Some(v(7))]), Step::Propose(v(7)));
        assert_eq!(step(&[Some(v(7)), Some(v(5)), Some(v(6))]), Step::Propose(v(5)));
        assert_eq!(step(&[Some(v(7)), None]), Step::Propose(Version::MINIMUM));
    }

    #[test]
    fn the_cluster_version_rises_with_the_last_upgraded_member_and_falls_only_in_a_downgrade() {
        let step = |cluster, members: &[Option<Version>]| {
            next_step(Some(cluster), lowest_of(members), &Downgrade::default())
        };
        assert_eq!(step(Version::MINIMUM, &[Some(v(6)), Some(v(7))]), Step::Propose(v(6)));
        assert_eq!(step(v(5), &[Some(v(7)), Some(v(7))]), Step::Propose(v(7)));
        assert_eq!(step(v(5), &[Some(v(7)), None]), Step::Keep);
        assert_eq!(step(v(6), &[Some(v(7)), Some(v(6))]), Step::Keep);
        assert_eq!(step(v(7), &[Some(v(6))]), Step::Keep);
        assert_eq!(step(v(7), &[Some(Version::new(4, 0))]), Step::Keep);
    }

    #[test]
    fn a_downgrade_target_must_be_one_minor_version_below_all_members() {
        let step = |cluster, lowest, target| next_step(Some(cluster), Some(lowest), &to(target));
        assert_eq!(step(v(7), v(7), "3.6.0"), Step::Propose(v(6)));
        assert_eq!(step(v(6), v(7), "3.6.0"), Step::Keep, "the cluster version is already lowered");
        assert_eq!(step(v(6), v(6), "3.6.0"), Step::Keep);
        let bad = |target, from| Step::BadTarget { target, from };
        assert_eq!(step(v(7), v(7), "3.5.0"), bad(v(5), v(7)));
        assert_eq!(step(v(7), v(8), "3.6.0"), bad(v(6), v(8)));
        assert_eq!(step(v(7), v(6), "3.6.0"), bad(v(6), v(6)));
        assert_eq!(step(v(7), v(7), "six"), Step::Keep);
        assert_eq!(next_step(Some(v(7)), None, &to("3.6.0")), Step::Keep);
        assert_eq!(downgrade_of(Version::new(4, 0)), None);
    }

    #[test]
    fn a_downgrade_is_complete_when_all_members_run_its_target() {
        assert!(is_downgraded(v(6), &[Some(v(6)), Some(v(6))]));
        assert!(!is_downgraded(v(6), &[Some(v(6)), Some(v(7))]));
        assert!(!is_downgraded(v(6), &[Some(v(6)), None]));
    }

    #[test]
    fn a_cluster_version_rise_is_expected_unless_a_hold_or_a_downgrade_prevents_it() {
        let none = Downgrade::default();
        assert_eq!(expected_rise(Some(v(5)), v(7), &none), Some((v(5), v(7))));
        assert_eq!(expected_rise(Some(v(5)), v(6), &none), Some((v(5), v(6))));
        // A member that holds the cluster version passes the older version as its own.
        assert_eq!(expected_rise(Some(v(5)), v(5), &none), None);
        assert_eq!(expected_rise(Some(v(7)), v(7), &none), None);
        assert_eq!(expected_rise(Some(v(6)), v(7), &to("3.6.0")), None);
        assert_eq!(expected_rise(None, v(7), &none), None);
        assert_eq!(expected_rise(Some(Version::MINIMUM), v(7), &none), None);
    }

    #[test]
    fn a_downgrade_target_needs_a_major_and_a_minor_version() {
        for text in ["3.6", "3.6.0", "3.6.99", "3.6.0-rc.1", "3.6.0+build"] {
            assert_eq!(parse_target(text), Some(v(6)), "{text}");
        }
        for text in ["", "3", "v3.6.0", "3.6-rc.1", "3.6.0.0", "3.x", "3.6.", "three", " 3.6"] {
            assert_eq!(parse_target(text), None, "{text}");
        }
    }
}
