//! What an operator is to do about a member that cannot go on: the end of its last log line.
//!
//! The commands are etcd's, because those are the ones at hand.

use std::path::Path;

use quorate_node::LogFault;

/// Taking a member's place with a new one, which is how a member that has lost its log comes back.
pub(crate) fn replace_member(id: Option<u64>) -> String {
    let id = id.map_or_else(|| "ID".to_owned(), |id| format!("{id:x}"));
    format!(
        "remove this member from the cluster (etcdctl member remove {id}), delete its data directory and its \
         log directory, and add it anew (etcdctl member add NAME --peer-urls=URL, then start it with \
         --initial-cluster-state=existing)"
    )
}

/// What is left to a cluster whose members have all lost their logs, or are said to have.
pub(crate) const GO_ON_ALONE: &str = "if no other member can go on, and no member runs, start the one with \
    the longest log alone with --force-new-cluster, and add the others anew: writes that were acknowledged and \
    that its log does not have are lost";

/// What is left of a cluster that has a backend file and nothing else.
pub(crate) fn restore_backend(backend: &Path) -> String {
    format!(
        "if it was the only member, its data is brought back by etcdutl snapshot restore {} \
         --skip-hash-check --data-dir NEW",
        backend.display()
    )
}

/// What to do after a fault that consensus has found.
pub(crate) fn after_log_fault(fault: &LogFault, id: u64, data_dir: &str) -> String {
    let replace = replace_member(Some(id));
    match fault {
        LogFault::LogLost(_) => format!("it must not vote again; {replace}"),
        LogFault::GroupLost(_) => format!(
            "keep a copy of {data_dir}, which may be all that is left of those entries; if the cluster is to \
             go on without them, {replace}; if not, start this member alone with --force-new-cluster, and \
             add the others anew"
        ),
    }
}
