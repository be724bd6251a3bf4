//! Limits of the watch service: the bytes of one read and of one response, the bytes queued for
//! watchers, and the memory of the watchers themselves.

/// All limits of the watch service.
#[derive(Clone, Copy, Debug)]
pub struct WatchLimits {
    /// Limits of the queue of one stream.
    pub queue: QueueLimits,
    /// Limits of catch-up.
    pub catch_up: CatchUpLimits,
    /// Maximum memory of all watchers in bytes, including their keys. Further watchers are refused.
    pub watcher_bytes_max: usize,
    /// Maximum number of bytes of events that are queued and not yet taken, over all streams. At this bound, a stream
    /// receives events, whether new or from history, only if its queue is empty.
    pub held_bytes_max: usize,
    /// Seeds the shape of the index of watched ranges. A client that knew the seed could choose ranges for which the
    /// index degenerates into a list. Therefore each member uses a random seed.
    pub seed: u64,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self {
            queue: QueueLimits::default(),
            catch_up: CatchUpLimits::default(),
            watcher_bytes_max: 512 << 20,
            held_bytes_max: 256 << 20,
            seed: 0,
        }
    }
}

/// Limits of the queue of one stream. An empty queue always accepts one response.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Maximum number of bytes of queued events.
    pub bytes_max: usize,
    /// Maximum number of queued responses. Watchers that receive the same events together count
    /// once.
    pub count_max: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { bytes_max: 2 << 20, count_max: 512 }
    }
}

/// Limits of catch-up. They do not bound the size of a revision, because at least one whole
/// revision is always read and sent.
#[derive(Clone, Copy, Debug)]
pub struct CatchUpLimits {
    /// Maximum number of distinct revisions in one response. A response contains at least one revision.
    pub response_revisions_max: usize,
    /// Bytes of events after which no further revision is added to a response.
    pub response_bytes: usize,
    /// Number of changes after which a pass reads no further revision.
    pub pass_changes: usize,
    /// Maximum number of revisions that may be read while the hub is locked.
    pub locked_revisions_max: i64,
    /// Maximum number of bytes that may be read and copied while the hub is locked. A larger revision is read without
    /// the lock.
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
