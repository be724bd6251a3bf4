//! Who a member is: settled before anything of it runs, and the same from then on.

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) cluster_id: u64,
    pub(crate) member_id: u64,
    /// As the operator has named it.
    pub(crate) name: String,
}
