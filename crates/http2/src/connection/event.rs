//! Events of a connection, and protocol violations.

use std::sync::Arc;

use super::StreamId;
use crate::frame::Code;
use crate::head::Head;

/// An event of a connection: a frame from the client, or an error that the client has caused.
#[derive(Debug)]
pub enum Event<'a> {
    /// A new request.
    Request {
        /// The stream of the request.
        stream: StreamId,
        /// The head of the request.
        head: Arc<Head>,
        /// Whether the request has no body.
        ends: bool,
    },
    /// A part of a request body.
    Data {
        /// The stream of the request.
        stream: StreamId,
        /// The tag of the stream.
        tag: u32,
        /// The received bytes.
        data: &'a [u8],
        /// Whether this is the last part of the body.
        ends: bool,
    },
    /// The end of a request that has trailers. The trailers are dropped, because no service uses them and they would
    /// occupy memory that is not counted for the request.
    Trailers {
        /// The stream of the request.
        stream: StreamId,
        /// The tag of the stream.
        tag: u32,
    },
    /// The client has reset a stream, or has caused an error that ended the stream.
    Reset {
        /// The id of the stream.
        stream: StreamId,
        /// The tag of the stream.
        tag: u32,
        /// The error code.
        code: Code,
    },
    /// The client's settings have changed the windows of all streams.
    NewWindow,
    /// A stream, or the connection if the id is 0, may have room in its window again.
    Room {
        /// The id of the stream.
        stream: StreamId,
        /// The tag of the stream.
        tag: u32,
    },
    /// A ping. The caller answers it with [`Connection::pong`].
    Ping {
        /// The payload of the ping.
        payload: [u8; 8],
    },
    /// The reply to a ping that this side has sent.
    Pong {
        /// The payload of the ping.
        payload: [u8; 8],
    },
}

impl Event<'_> {
    /// Sets the tag of an event that was read before its stream had a tag.
    #[must_use]
    pub fn tagged(mut self, of: StreamId, with: u32) -> Self {
        match &mut self {
            Self::Data { stream, tag, .. }
            | Self::Trailers { stream, tag, .. }
            | Self::Reset { stream, tag, .. }
            | Self::Room { stream, tag }
                if *stream == of =>
            {
                *tag = with;
            }
            _ => {}
        }
        self
    }
}

/// The reason why a connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The error code that the client receives.
    pub code: Code,
    /// The reason as text.
    pub reason: &'static str,
}

pub(super) const fn violation<T>(code: Code, reason: &'static str) -> Result<T, Violation> {
    Err(Violation { code, reason })
}
