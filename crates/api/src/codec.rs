//! The gRPC codec: protobuf messages, with decoding errors worded as etcd's clients know them.
//!
//! Both stubs use it. It differs from the stock codec in four things: a field of a type that it should
//! not have is passed over, as [`crate::shape`] has it; a transaction is read as deep as etcd reads it; a
//! request that cannot be decoded is answered Internal with grpc-go's text; and buffers are as large as small
//! messages are.

use std::any::Any;
use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::{Message, Name};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::etcdserverpb::TxnRequest;
use crate::{deep_txn, shape};

/// What a call sets aside for its message in each direction. The stock 8 KiB are beyond what allocators
/// keep at hand for a thread, and cost a small request a tenth of its CPU; most messages are smaller than
/// this, and a larger one grows its buffer once, its length being known.
const BUFFER_BYTES: usize = 512;

/// Bytes of a stream's messages that are encoded ahead of the transport.
const AHEAD_BYTES: usize = 32 * 1024;

/// Encodes `E`, decodes `D`.
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
        // Known in advance, so that a large reply is not copied from buffer to larger buffer.
        buf.reserve(item.encoded_len());
        item.encode(buf).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, AHEAD_BYTES)
    }
}

/// Reads what the generated decoder has given up on, if it is a transaction.
fn decode_deep<M: Message + Default + 'static>(bytes: &Bytes) -> Option<M> {
    let mut message = M::default();
    let txn = (&mut message as &mut dyn Any).downcast_mut::<TxnRequest>()?;
    *txn = deep_txn::decode(bytes)?;
    Some(message)
}

/// Reads a message.
///
/// # Errors
///
/// The bytes are none, which is told as of a request.
pub fn decode<M: Message + Name + Default + 'static>(bytes: Bytes) -> Result<M, Status> {
    let error = match shape::decode(bytes.clone()) {
        Ok(message) => return Ok(message),
        Err(error) => error.to_string(),
    };
    // prost tells them apart only in its message.
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
