//! Limits of the watch service: bytes read, sent at a time and queued for watchers, and the memory
//! of the watchers themselves.

/// All limits of the watch service.
#[derive(Clone, Copy, Debug)]
pub struct WatchLimits {
    /// Limits of the queue of one stream.
    pub queue: QueueLimits,
    /// Limits of catching up.
    pub catch_up: CatchUpLimits,
    /// Memory of all watchers, their keys included. Further watchers are refused.
    pub watcher_bytes_max: usize,
    /// Bytes of events that are queued and not yet taken, over all streams. At this bound a stream
    /// receives events, new ones or history, only if its queue is empty.
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

/// Limits of the queue of one stream. An empty queue always accepts one response.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Bytes of events.
    pub bytes_max: usize,
    /// Responses. Watchers that receive the same events together count once.
    pub count_max: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { bytes_max: 2 << 20, count_max: 512 }
    }
}

/// Limits of catching up. None of these bounds the size of a revision: at least one revision is
/// always read and sent whole.
#[derive(Clone, Copy, Debug)]
pub struct CatchUpLimits {
    /// Distinct revisions in one response; at least one.
    pub response_revisions_max: usize,
    /// Bytes of events after which a response takes no further revision.
    pub response_bytes: usize,
    /// Changes after which a pass reads no further revision.
    pub pass_changes: usize,
    /// The number of revisions that may be read while the hub is locked.
    pub locked_revisions_max: i64,
    /// The bytes that may be read and copied while the hub is locked. A larger revision is read
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
