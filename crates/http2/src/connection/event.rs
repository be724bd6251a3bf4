//! Events of a connection, and violations of the protocol.

use std::sync::Arc;

use http::HeaderMap;

use super::StreamId;
use crate::frame::Code;
use crate::head::Head;

/// An event of a connection: a frame of the client, or an error that the client has caused.
#[derive(Debug)]
pub enum Event<'a> {
    /// A request. `ends` says that it has no body.
    Request {
        /// Its stream.
        stream: StreamId,
        /// Its head.
        head: Arc<Head>,
        /// Whether it has no body.
        ends: bool,
    },
    /// Part of the body of a request.
    Data {
        /// Its stream.
        stream: StreamId,
        /// The tag of the stream.
        tag: u32,
        /// The part.
        data: &'a [u8],
        /// Whether it is the last one.
        ends: bool,
    },
    /// The end of a request with fields after its body.
    Trailers {
        /// Its stream.
        stream: StreamId,
        /// The tag of the stream.
        tag: u32,
        /// The fields.
        trailers: HeaderMap,
    },
    /// The client, or an error of its own, has ended a stream.
    Reset {
        /// The stream.
        stream: StreamId,
        /// The tag of the stream.
        tag: u32,
        /// The code.
        code: Code,
    },
    /// The settings have changed the windows of all streams.
    NewWindow,
    /// A stream that had no room may have some; 0 stands for the connection.
    Room {
        /// The stream.
        stream: StreamId,
        /// The tag of the stream.
        tag: u32,
    },
    /// A ping, which [`Connection::pong`] answers.
    Ping {
        /// Its payload.
        payload: [u8; 8],
    },
    /// The answer to a ping of this side.
    Pong {
        /// Its payload.
        payload: [u8; 8],
    },
}

impl Event<'_> {
    /// Sets the tag of an event that was read before its stream had one.
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

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The code for the client.
    pub code: Code,
    /// The reason in words.
    pub reason: &'static str,
}

pub(super) const fn violation<T>(code: Code, reason: &'static str) -> Result<T, Violation> {
    Err(Violation { code, reason })
}
