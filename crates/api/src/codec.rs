//! The gRPC codec: protobuf messages, with decoding errors in the words that etcd's clients expect.
//!
//! Servers and clients use the codec, which differs from the standard codec in four ways: fields with a wrong wire type
//! are skipped (see [`crate::shape`]); transactions are decoded as deeply as in etcd; a request that cannot be decoded
//! is refused with the code Internal and grpc-go's text; and buffers have the size of small messages.

use std::any::Any;
use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::{Message, Name};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::etcdserverpb::TxnRequest;
use crate::{deep_txn, shape};

/// The initial size in bytes of a call's buffer in each direction. The standard 8 KiB exceed the size that allocators
/// cache per thread, and cost a small request a tenth of its CPU time. Most messages are smaller than this buffer. A
/// larger message grows its buffer once, because its length is known.
const BUFFER_BYTES: usize = 512;

/// Number of bytes of a stream's messages that are encoded before the transport accepts them.
const AHEAD_BYTES: usize = 32 * 1024;

/// Encodes `E` and decodes `D`.
#[derive(Debug)]
pub struct Codec<E, D> {
    marker: PhantomData<fn(E) -> D>,
}

impl<E, D> Default for Codec<E, D> {
    fn default() -> Self {
        Self { marker: PhantomData }
    }
}

impl<E, D> tonic::codec::Codec for Codec<E, D>
where
    E: Message + Send + 'static,
    D: Message + Name + Default + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = Half<E>;
    type Decoder = Half<D>;

    fn encoder(&mut self) -> Self::Encoder {
        Half::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Half::default()
    }
}

/// One direction of a [`Codec`].
#[derive(Debug)]
pub struct Half<M> {
    marker: PhantomData<fn(M) -> M>,
}

impl<M> Default for Half<M> {
    fn default() -> Self {
        Self { marker: PhantomData }
    }
}

impl<M: Message> Encoder for Half<M> {
    type Item = M;
    type Error = Status;

    fn encode(&mut self, item: M, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // The length is known, so a large reply is not copied between growing buffers.
        buf.reserve(item.encoded_len());
        item.encode(buf).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, AHEAD_BYTES)
    }
}

/// Decodes a message that the generated decoder refuses, if the message is a transaction.
fn decode_deep<M: Message + Default + 'static>(bytes: &Bytes) -> Option<M> {
    let mut message = M::default();
    let txn = (&mut message as &mut dyn Any).downcast_mut::<TxnRequest>()?;
    *txn = deep_txn::decode(bytes)?;
    Some(message)
}

/// Decodes a message.
///
/// # Errors
///
/// Fails if the bytes are invalid, with the error for an invalid request.
pub fn decode<M: Message + Name + Default + 'static>(bytes: Bytes) -> Result<M, Status> {
    let error = match shape::decode(bytes.clone()) {
        Ok(message) => return Ok(message),
        Err(error) => error.to_string(),
    };
    // prost distinguishes these errors only by their texts.
    let reason = if error.contains("UTF-8") {
        "string field contains invalid UTF-8"
    } else if error.contains("recursion limit") {
        match decode_deep(&bytes) {
            Some(message) => return Ok(message),
            None => "proto: exceeded maximum recursion depth",
        }
    } else {
        "proto: cannot parse invalid wire-format data"
    };
    Err(Status::internal(format!("grpc: error unmarshalling request: {reason}")))
}

impl<M: Message + Name + Default + 'static> Decoder for Half<M> {
    type Item = M;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<M>, Status> {
        // The bytes are shared, not copied.
        decode(buf.copy_to_bytes(buf.remaining())).map(Some)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, AHEAD_BYTES)
    }
}
