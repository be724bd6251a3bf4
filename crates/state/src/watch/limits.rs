//! Bounds of what is read, told at a time and kept for watchers, and of the watchers themselves.

/// All of them.
#[derive(Clone, Copy, Debug)]
pub struct WatchLimits {
    /// What may wait on one stream.
    pub queue: QueueLimits,
    /// What is told at a time to those who are behind.
    pub catch_up: CatchUpLimits,
    /// Memory of all watchers, their keys included. Further ones are refused.
    pub watcher_bytes_max: usize,
    /// Bytes of events that wait to be taken, over all streams. Beyond it a stream gets events, new ones or
    /// history, only if none wait on it.
    pub held_bytes_max: usize,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self {
            queue: QueueLimits::default(),
            catch_up: CatchUpLimits::default(),
            watcher_bytes_max: 512 << 20,
            held_bytes_max: 256 << 20,
        }
    }
}

/// How much may wait on one stream. One response always may.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Bytes of events.
    pub bytes_max: usize,
    /// Responses; watchers that get the same events together count once.
    pub count_max: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { bytes_max: 2 << 20, count_max: 512 }
    }
}

/// How much is told and read at a time for those who are behind. None of these bounds what a revision may
/// hold: one revision is always read and told whole.
#[derive(Clone, Copy, Debug)]
pub struct CatchUpLimits {
    /// Distinct revisions in one response, at least one.
    pub response_revisions_max: usize,
    /// Bytes of events after which a response takes no further revision.
    pub response_bytes: usize,
    /// Changes after which a pass reads no further revision.
    pub pass_changes: usize,
    /// Revisions that may be read with the hub locked.
    pub locked_revisions_max: i64,
    /// Bytes that may be read and copied with the hub locked. A revision that is too large for it is read
    /// without the lock.
    pub locked_bytes_max: usize,
}

impl Default for CatchUpLimits {
    fn default() -> Self {
        Self {
            response_revisions_max: 1000,
            response_bytes: 1 << 20,
            pass_changes: 50_000,
            locked_revisions_max: 64,
            locked_bytes_max: 1 << 20,
        }
    }
}
