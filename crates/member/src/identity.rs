//! Who a member is: settled before anything of it runs, and the same from then on.

/// See the module.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Of the cluster.
    pub cluster_id: u64,
    /// Of the member in it.
    pub member_id: u64,
    /// As the operator has named it.
    pub name: String,
}
