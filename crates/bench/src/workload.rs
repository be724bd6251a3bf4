//! The requests of a run, one module for each kind of load.

pub(crate) mod keyed;
pub(crate) mod kubernetes;
pub(crate) mod lease;
pub(crate) mod watch;

/// The gRPC paths of the calls.
pub(crate) mod path {
    use quorate_grpc::methods::named;

    pub(crate) const RANGE: &str = named("/etcdserverpb.KV/Range").path;
    pub(crate) const PUT: &str = named("/etcdserverpb.KV/Put").path;
    pub(crate) const TXN: &str = named("/etcdserverpb.KV/Txn").path;
    pub(crate) const COMPACT: &str = named("/etcdserverpb.KV/Compact").path;
    pub(crate) const WATCH: &str = named("/etcdserverpb.Watch/Watch").path;
    pub(crate) const LEASE_GRANT: &str = named("/etcdserverpb.Lease/LeaseGrant").path;
    pub(crate) const LEASE_REVOKE: &str = named("/etcdserverpb.Lease/LeaseRevoke").path;
    pub(crate) const LEASE_KEEP_ALIVE: &str = named("/etcdserverpb.Lease/LeaseKeepAlive").path;
}
