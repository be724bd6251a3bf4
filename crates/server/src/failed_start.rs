//! The fatal log line of a member that fails to start: its message, and advice for the operator.
//!
//! # Not here
//!
//! The errors (`server`, `bootstrap`), which contain the cause and, where possible, the remedy.

use quorate_core::bootstrap::Refusal;
use quorate_core::start::StartError as FilesError;
use quorate_storage::wal::WalError;

use crate::bootstrap::BootError;
use crate::remedy;
use crate::server::StartError;

/// Returns the message of the fatal line after a failed start. etcd writes "discovery failed" for every cause, but
/// Quorate writes it only if discovery has failed.
pub(crate) const fn heading(error: &StartError) -> &'static str {
    match error {
        StartError::Boot(error) if error.is_of_discovery() => "discovery failed",
        StartError::Boot(_)
        | StartError::Bind(_)
        | StartError::Security(_)
        | StartError::Descriptors(_)
        | StartError::Config(_)
        | StartError::Tokens(_)
        | StartError::Thread(_)
        | StartError::Engine(_)
        | StartError::Observing(_)
        | StartError::Console(_) => "failed to start etcd",
    }
}

/// Returns advice for a member that failed to start, unless the error already contains the advice.
pub(crate) fn what_to_do(error: &StartError, data_dir: &str) -> Option<String> {
    let StartError::Boot(error) = error else { return None };
    if let BootError::Refused(Refusal::Bootstrapped(id)) = error {
        let replace = remedy::replace_member(Some(id.0));
        return Some(format!(
            "if this member's data is elsewhere, specify its directory with --data-dir; if the data is lost, \
             {replace}"
        ));
    }
    let replace = remedy::replace_member(None);
    if let BootError::Files(FilesError::BackendMissing { .. }) = error {
        return Some(format!("if the file was moved, put it back; if it is lost, {replace}"));
    }
    let (BootError::Wal(error) | BootError::Files(FilesError::Wal(error))) = error else {
        return None;
    };
    is_damage(error).then(|| {
        format!(
            "quorate utl verify {data_dir} lists the damage; if other members have a quorum, {replace}"
        )
    })
}

/// Returns whether the error means that the log no longer contains the bytes that were written to it.
const fn is_damage(error: &WalError) -> bool {
    matches!(
        error,
        WalError::CrcMismatch { .. }
            | WalError::Torn { .. }
            | WalError::Malformed { .. }
            | WalError::UnexpectedKind { .. }
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use quorate_state::units::MemberId;

    use super::*;

    #[test]
    fn a_failed_start_is_logged_as_failed_discovery_only_if_discovery_failed() {
        let heading_of = |error| heading(&StartError::Boot(error));
        assert_eq!(heading_of(BootError::DiscoveryWhileJoining), "discovery failed");
        let other = BootError::Refused(Refusal::Incompatible);
        assert_eq!(heading_of(other), "failed to start etcd");
    }

    #[test]
    fn the_advice_after_a_failed_start_depends_on_the_error() {
        let advice = |error| what_to_do(&StartError::Boot(error), "here").unwrap();
        let path = Path::new("here/member/snap/db").to_owned();
        assert!(
            advice(BootError::Refused(Refusal::Bootstrapped(MemberId(0xab))))
                .contains("member remove ab")
        );
        let missing = BootError::Files(FilesError::BackendMissing { path: path.clone() });
        assert!(advice(missing).starts_with("if the file was moved"));
        let damage =
            || WalError::CrcMismatch { expected: 1, computed: 2, path: path.clone(), offset: 3 };
        for error in [BootError::Wal(damage()), BootError::Files(FilesError::Wal(damage()))] {
            assert!(advice(error).starts_with("quorate utl verify here lists the damage"));
        }
        let other = StartError::Boot(BootError::Refused(Refusal::Incompatible));
        assert_eq!(what_to_do(&other, "here"), None);
    }
}
