//! The limits of a connection.

/// How many blocks are remembered with their heads.
pub(super) const KNOWN_HEADS_MAX: usize = 8;
/// The longest block that is remembered.
pub(super) const KNOWN_BLOCK_BYTES_MAX: usize = 512;
/// The frames of one header block.
pub(super) const BLOCK_FRAMES_MAX: u32 = 128;
/// How many of the streams that this side has reset are remembered, because their clients may still send to them.
pub(super) const RESET_KEPT_MAX: usize = 1024;
/// The frames without use that are tolerated between two calls of [`Connection::forgive`].
pub(super) const IDLE_FRAMES_MAX: u32 = 10_000;
/// The frames without use as which a change of the windows of all streams counts, because it concerns every stream.
pub(super) const IDLE_FRAMES_PER_NEW_WINDOW: u32 = 100;
/// The frames without use that are forgiven for each request: windows of a stream may be updated after its end.
pub(super) const IDLE_FRAMES_PER_REQUEST: u32 = 100;

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open streams.
    pub streams_max: usize,
    /// Whether the client learns the limit of streams.
    pub is_announced: bool,
    /// The fields of one request, as counted by HTTP/2.
    pub header_list_bytes_max: usize,
    /// The receive window of a stream.
    pub stream_window: u32,
    /// The receive window of the connection.
    pub connection_window: u32,
    /// Requests that the client may give up before they are answered.
    pub given_up_max: u32,
}
