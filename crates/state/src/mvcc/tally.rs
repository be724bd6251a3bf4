//! What was done to the keyspace, in the units that `etcd_mvcc_*_total` count.
//!
//! Every look at the keyspace counts as a range: a range, a condition of a transaction, and the record that a put or a
//! deletion is to show as it was before.

/// Counts of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Ranges.
    pub ranges: u64,
    /// Puts.
    pub puts: u64,
    /// Deletions, those that found nothing too.
    pub deletes: u64,
    /// Bytes of keys and values that were put.
    pub put_bytes: u64,
    /// Views of the keyspace in which more than one of these was done.
    pub txns: u64,
}

impl Tally {
    /// One view of the keyspace, with so many looks at it.
    #[must_use]
    pub fn of_reads(ranges: u64) -> Self {
        let mut tally = Self::default();
        tally.end_view(&Self { ranges, ..Self::default() });
        tally
    }

    /// Adds what was done in one view of the keyspace.
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
