//! Counts of operations on the keyspace and on leases, for the metrics `etcd_mvcc_*_total` and
//! `etcd_debugging_lease_*_total`.
//!
//! Every read counts as a range: range requests, conditions of transactions, and reads of previous records by puts and
//! deletions.

/// Counts of operations on the keyspace and on leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of reads.
    pub ranges: u64,
    /// The number of puts.
    pub puts: u64,
    /// The number of deletions, including those that matched no key.
    pub deletes: u64,
    /// Bytes of the keys and values of puts.
    pub put_bytes: u64,
    /// The number of views of the keyspace in which more than one operation was executed.
    pub txns: u64,
    /// The TTLs of the granted leases, in seconds.
    pub lease_ttls: Vec<i64>,
    /// The number of revoked leases, including those that had expired.
    pub leases_revoked: u64,
}

impl Tally {
    /// Returns the tally of one view of the keyspace in which `ranges` reads were made.
    #[must_use]
    pub fn of_reads(ranges: u64) -> Self {
        let mut tally = Self::default();
        tally.end_view(&Self { ranges, ..Self::default() });
        tally
    }

    /// Adds the operations of one view of the keyspace.
    pub(super) const fn end_view(&mut self, view: &Self) {
        self.ranges += view.ranges;
        self.puts += view.puts;
        self.deletes += view.deletes;
        self.put_bytes += view.put_bytes;
        if view.ranges + view.puts + view.deletes > 1 {
            self.txns += 1;
        }
    }
}
