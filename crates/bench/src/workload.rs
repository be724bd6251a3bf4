//! What is asked of the server: one module per shape of load.

pub(crate) mod keyed;
pub(crate) mod kubernetes;
pub(crate) mod lease;
pub(crate) mod watch;

/// The full names of the calls.
pub(crate) mod path {
    pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
    pub(crate) const PUT: &str = "/etcdserverpb.KV/Put";
    pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
    pub(crate) const COMPACT: &str = "/etcdserverpb.KV/Compact";
    pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
    pub(crate) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
    pub(crate) const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
    pub(crate) const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
}
