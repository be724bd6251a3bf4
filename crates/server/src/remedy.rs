//! Advice for the operator of a member that cannot continue. It is part of the member's last log line.
//!
//! The advice uses commands of etcd's tools, because operators have these tools.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::Path;

use quorate_member::corruption::StateDiffers;
use quorate_node::LogFault;
use quorate_peer::OtherOrigin;

/// Returns the advice to replace a member with a new one. A member that has lost its log can only be replaced.
pub(crate) fn replace_member(id: Option<u64>) -> String {
    let id = id.map_or_else(|| "ID".to_owned(), |id| format!("{id:x}"));
    format!(
        "remove this member from the cluster (etcdctl member remove {id}), delete its data directory and \
         its log directory, and add it again (etcdctl member add NAME --peer-urls=URL, then start it with \
         --initial-cluster-state=existing)"
    )
}

/// The advice if all members have lost their logs or are marked as having lost them.
pub(crate) const GO_ON_ALONE: &str = "if no member is running and no other member can start, use --force-new-cluster \
                                      to start the member with the longest log, and add the other members again; \
                                      acknowledged writes that are missing from that log are lost";

/// Returns the advice if only the backend file is left.
pub(crate) fn restore_backend(backend: &Path) -> String {
    format!(
        "if this was the only member, restore its data with etcdutl snapshot restore {} --skip-hash-check \
         --data-dir NEW",
        backend.display()
    )
}

/// Returns the advice for a fault that consensus detected.
pub(crate) fn after_log_fault(fault: &LogFault, id: u64, data_dir: &str) -> String {
    let replace = replace_member(Some(id));
    match fault {
        LogFault::LogLost(_) => format!("this member must not vote again; {replace}"),
        LogFault::GroupLost(_) => format!(
            "keep a copy of {data_dir}, which may have the only copy of those entries; to give them \
             up, {replace}; to keep them, start this member with --force-new-cluster, and add the \
             others again"
        ),
    }
}

/// The advice for a member whose state comes from a different snapshot than its cluster's state.
const ONE_ORIGIN: &str = "do not start a member on this data directory while those members are running. To replace one \
    member of a running cluster, remove it (etcdctl member remove ID), delete its data directory, and add it again \
    (etcdctl member add NAME --peer-urls=URL, then start it with --initial-cluster-state=existing). To go \
    back to a snapshot, stop all members, restore each of them from the same snapshot with the same tool (all with \
    Quorate's, or all with etcd's etcdutl, which leaves no mark of the snapshot in the data directory) and with a new \
    --initial-cluster-token, and start them";

/// Returns the advice after a failure of this machine, as specific as the error allows.
pub(crate) fn after_fault(error: &(dyn Error + 'static)) -> &'static str {
    let mut cause = Some(error);
    let mut is_full = false;
    while let Some(error) = cause {
        if error.is::<OtherOrigin>() || error.is::<StateDiffers>() {
            return ONE_ORIGIN;
        }
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        is_full |= matches!(kind, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded));
        cause = error.source();
    }
    if is_full {
        "the disk is full: free a few hundred megabytes on the disk that contains the file named in the error (if it \
         has free space, remove unneeded files to free inodes, or raise the quota of the member's user), start the \
         member, then compact and defragment; no acknowledged write is lost, because the log contains all of them"
    } else {
        "fix the cause named in the error, then start the member again; if its files are damaged, remove the \
         member from the cluster and add it again"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot grow the file")]
    struct Growing(#[source] io::Error);

    #[test]
    fn the_advice_for_members_with_different_origins_is_to_restore_them_with_the_same_tool() {
        let other = OtherOrigin { is_restored: true, others: vec![2], member_count: 3 };
        let differs = StateDiffers { member: 2, revision: 5 };
        assert!(after_fault(&other).contains("from the same snapshot with the same tool"));
        assert_eq!(after_fault(&other), after_fault(&differs));
    }

    #[test]
    fn advice_to_free_space_is_given_only_for_a_full_disk() {
        let full = |errno| after_fault(&Growing(io::Error::from_raw_os_error(errno)));
        assert!(full(28).starts_with("the disk is full: free"), "ENOSPC");
        assert!(full(122).starts_with("the disk is full: free"), "EDQUOT");
        assert!(full(5).starts_with("fix the cause"), "EIO");
    }
}
