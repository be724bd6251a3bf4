//! The limits of a connection.

/// The maximum number of header blocks that a connection remembers with their decoded heads.
pub(super) const KNOWN_HEADS_MAX: usize = 8;
/// The maximum size of a remembered header block, in bytes.
pub(super) const KNOWN_BLOCK_BYTES_MAX: usize = 512;
/// The maximum number of header fields in a remembered head. A field of one byte may refer to a long entry of the
/// compression table, so the size of the block does not limit the memory of the head.
pub(super) const KNOWN_FIELDS_MAX: usize = 32;
/// The maximum number of frames in one header block.
pub(super) const BLOCK_FRAMES_MAX: u32 = 128;
/// The maximum number of remembered streams that this side has reset. They are remembered because the client may still
/// send frames on them.
pub(super) const RESET_KEPT_MAX: usize = 1024;
/// The maximum count of idle frames, which carry neither a request nor data. Each sent part of a response lowers the
/// count by one, and `Connection::forgive` halves it.
pub(super) const IDLE_FRAMES_MAX: u32 = 10_000;
/// A change to the initial window counts as this many idle frames, in addition to its SETTINGS frame and to one idle
/// frame for every [`STREAMS_PER_IDLE_FRAME`] open streams, because the change affects every stream.
pub(super) const IDLE_FRAMES_PER_NEW_WINDOW: u32 = 100;
/// The number of open streams for which a change to the initial window counts as one more idle frame.
pub(super) const STREAMS_PER_IDLE_FRAME: usize = 8;
/// The number of idle frames that are subtracted from the count for each accepted request. A client may still send
/// window updates for a stream that has ended, and each of them counts as an idle frame.
pub(super) const IDLE_FRAMES_PER_REQUEST: u32 = 100;

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of open streams.
    pub streams_max: usize,
    /// Whether the limit on streams is announced to the client.
    pub is_announced: bool,
    /// The maximum size of the header fields of one request, as counted by HTTP/2.
    pub header_list_bytes_max: usize,
    /// The receive window of a stream, in bytes.
    pub stream_window: u32,
    /// The receive window of the connection, in bytes.
    pub connection_window: u32,
    /// The maximum count of requests that the client has cancelled before they were answered. `Connection::forgive`
    /// halves the count.
    pub given_up_max: u32,
}
