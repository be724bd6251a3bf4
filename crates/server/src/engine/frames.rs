//! The connection between two servers with the same database: proof of the secret, and authenticated frames.
//!
//! ```text
//! sender ──► receiver   nonce                                     (32 bytes)
//! sender ◄── receiver   nonce, HMAC(secret, "receiver", nonces)   (64 bytes)
//! sender ──► receiver   HMAC(secret, "sender", nonces)            (32 bytes)
//! both directions       frames: length, number, payload, HMAC(key of the direction, count, length, number, payload)
//! ```
//!
//! All HMACs use SHA-256, and the keys of the two directions are HMACs of the nonces. The proofs do not need TLS: an
//! attacker who reads and changes the traffic cannot find the secret or a key, so every forged, repeated or changed
//! frame is refused. Only TLS hides the content of the frames.
//!
//! # Bounds
//!
//! A payload has at most [`FRAME_BYTES_MAX`] bytes. The receiver reads the length before the payload, so that it can
//! wait until enough memory is free.
//!
//! # Not here
//!
//! The meaning of frames (`forward`, `forward_service`).

use std::io;

use aws_lc_rs::constant_time;
use aws_lc_rs::hmac::{self, HMAC_SHA256, Key, Tag};
use aws_lc_rs::rand;
use bytes::{BufMut, Bytes, BytesMut};
use quorate_engine::Secret;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum size of a frame's payload in bytes. A request has at most `--max-request-bytes`, but a response may contain
/// many deleted keys.
pub(super) const FRAME_BYTES_MAX: usize = 256 << 20;

const NONCE_BYTES: usize = 32;
const TAG_BYTES: usize = 32;
const HEAD_BYTES: usize = 12;

/// The keys that authenticate the frames of each direction.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) to_receiver: Key,
    pub(super) to_sender: Key,
}

/// The random bytes that both sides contribute to a connection.
type Nonces = [u8; 2 * NONCE_BYTES];

fn tag(key: &Key, role: &str, nonces: &Nonces) -> Tag {
    let mut context = hmac::Context::with_key(key);
    context.update(role.as_bytes());
    context.update(nonces);
    context.sign()
}

fn keys(secret: &Key, nonces: &Nonces) -> Keys {
    let of = |role| Key::new(HMAC_SHA256, tag(secret, role, nonces).as_ref());
    Keys { to_receiver: of("to receiver"), to_sender: of("to sender") }
}

fn key_of(secret: &Secret) -> io::Result<Key> {
    if secret.bytes().is_empty() {
        return Err(io::Error::other("the sequencer has no secret"));
    }
    Ok(Key::new(HMAC_SHA256, secret.bytes()))
}

fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    rand::fill(bytes).map_err(|_| io::Error::other("failed to get random bytes"))
}

fn check(tag: &Tag, received: &[u8], what: &str) -> io::Result<()> {
    constant_time::verify_slices_are_equal(tag.as_ref(), received)
        .map_err(|_| io::Error::new(io::ErrorKind::PermissionDenied, what))
}

/// Proves to the receiver that this side knows the receiver's secret, and checks that the receiver knows it, too.
pub(super) async fn introduce<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    secret: &Secret,
) -> io::Result<Keys> {
    let secret = key_of(secret)?;
    let mut nonces: Nonces = [0; 2 * NONCE_BYTES];
    fill_random(&mut nonces[..NONCE_BYTES])?;
    stream.write_all(&nonces[..NONCE_BYTES]).await?;
    stream.flush().await?;
    stream.read_exact(&mut nonces[NONCE_BYTES..]).await?;
    let mut proof = [0; TAG_BYTES];
    stream.read_exact(&mut proof).await?;
    let text = "the server at this address is not the sequencer; does another server advertise the same peer URL?";
    check(&tag(&secret, "receiver", &nonces), &proof, text)?;
    stream.write_all(tag(&secret, "sender", &nonces).as_ref()).await?;
    stream.flush().await?;
    Ok(keys(&secret, &nonces))
}

/// Admits a sender only if it proves that it knows this server's secret. Proves to the sender that this server knows
/// the secret, too.
pub(super) async fn admit<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    secret: &Secret,
) -> io::Result<Keys> {
    let secret = key_of(secret)?;
    let mut nonces: Nonces = [0; 2 * NONCE_BYTES];
    stream.read_exact(&mut nonces[..NONCE_BYTES]).await?;
    fill_random(&mut nonces[NONCE_BYTES..])?;
    let mut answer = nonces[NONCE_BYTES..].to_vec();
    answer.extend_from_slice(tag(&secret, "receiver", &nonces).as_ref());
    stream.write_all(&answer).await?;
    stream.flush().await?;
    let mut proof = [0; TAG_BYTES];
    stream.read_exact(&mut proof).await?;
    check(&tag(&secret, "sender", &nonces), &proof, "the sender does not know the secret")?;
    Ok(keys(&secret, &nonces))
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The length of the payload.
    pub(super) length: usize,
    /// The number of the frame. The response has the same number.
    pub(super) number: u64,
    bytes: [u8; HEAD_BYTES],
}

#[cfg(test)]
impl Head {
    /// Returns the head of a frame with a payload of this length.
    pub(super) const fn of_length(length: usize) -> Self {
        Self { length, number: 0, bytes: [0; HEAD_BYTES] }
    }
}

/// Encodes the frames of one direction.
#[derive(Debug)]
pub(super) struct Sealer {
    key: Key,
    count: u64,
}

impl Sealer {
    pub(super) const fn new(key: Key) -> Self {
        Self { key, count: 0 }
    }

    /// Appends a frame to `to`. The payload must not be longer than [`FRAME_BYTES_MAX`].
    pub(super) fn seal(&mut self, number: u64, payload: &[u8], to: &mut BytesMut) {
        let length =
            u32::try_from(payload.len()).expect("the maximum payload length fits in 32 bits");
        let start = to.len();
        to.reserve(HEAD_BYTES + payload.len() + TAG_BYTES);
        to.put_u32(length);
        to.put_u64(number);
        to.put_slice(payload);
        let tag = frame_tag(&self.key, self.count, &to[start..]);
        to.put_slice(tag.as_ref());
        self.count += 1;
    }
}

/// Reads and verifies the frames of one direction.
#[derive(Debug)]
pub(super) struct Opener<R> {
    reader: R,
    key: Key,
    count: u64,
}

impl<R: AsyncRead + Unpin> Opener<R> {
    pub(super) const fn new(reader: R, key: Key) -> Self {
        Self { reader, key, count: 0 }
    }

    /// Reads the head of the next frame. Returns `None` at the end of the stream.
    pub(super) async fn head(&mut self) -> io::Result<Option<Head>> {
        let mut bytes = [0; HEAD_BYTES];
        if self.reader.read(&mut bytes[..1]).await? == 0 {
            return Ok(None);
        }
        self.reader.read_exact(&mut bytes[1..]).await?;
        let (length, number) = bytes.split_at(4);
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let number = number.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        if length > FRAME_BYTES_MAX {
            let text =
                format!("a frame of {length} bytes exceeds the maximum of {FRAME_BYTES_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Some(Head { length, number, bytes }))
    }

    /// Reads the payload of a frame, and verifies the authentication code of the frame.
    pub(super) async fn payload(&mut self, head: Head) -> io::Result<Bytes> {
        let mut frame = vec![0; HEAD_BYTES + head.length];
        frame[..HEAD_BYTES].copy_from_slice(&head.bytes);
        self.reader.read_exact(&mut frame[HEAD_BYTES..]).await?;
        let mut received = [0; TAG_BYTES];
        self.reader.read_exact(&mut received).await?;
        check(
            &frame_tag(&self.key, self.count, &frame),
            &received,
            "a frame has an invalid authentication code",
        )?;
        self.count += 1;
        Ok(Bytes::from(frame).slice(HEAD_BYTES..))
    }
}

fn frame_tag(key: &Key, count: u64, frame: &[u8]) -> Tag {
    let mut context = hmac::Context::with_key(key);
    context.update(&count.to_be_bytes());
    context.update(frame);
    context.sign()
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    async fn connected(of_sender: &Secret, of_receiver: &Secret) -> [io::Result<Keys>; 2] {
        let (mut near, mut far) = duplex(1024);
        let introducing = async move { introduce(&mut near, of_sender).await };
        let admitting = async move { admit(&mut far, of_receiver).await };
        let (sender, receiver) = tokio::join!(introducing, admitting);
        [sender, receiver]
    }

    async fn read(sealed: &[u8], key: &Key) -> io::Result<Vec<(u64, Bytes)>> {
        let mut opener = Opener::new(sealed, key.clone());
        let mut frames = Vec::new();
        while let Some(head) = opener.head().await? {
            frames.push((head.number, opener.payload(head).await?));
        }
        Ok(frames)
    }

    #[tokio::test]
    async fn servers_with_the_same_secret_exchange_frames() {
        let secret = Secret::generate().unwrap();
        let [sender, receiver] = connected(&secret, &secret).await.map(Result::unwrap);
        let (mut sealer, mut sealed) = (Sealer::new(sender.to_receiver), BytesMut::new());
        sealer.seal(7, b"one", &mut sealed);
        sealer.seal(8, b"", &mut sealed);
        let frames = read(&sealed, &receiver.to_receiver).await.unwrap();
        assert_eq!(frames, [(7, Bytes::from("one")), (8, Bytes::new())]);
        // The two directions have different keys, so a frame of one direction is refused in the other direction.
        assert!(read(&sealed, &receiver.to_sender).await.is_err());
    }

    #[tokio::test]
    async fn a_sender_without_the_secret_is_refused() {
        let [right, wrong] = [(); 2].map(|()| Secret::generate().unwrap());
        let [sender, receiver] = connected(&wrong, &right).await;
        assert!(sender.unwrap_err().to_string().contains("is not the sequencer"));
        assert!(receiver.is_err());
        let [sender, _] = connected(&Secret::default(), &right).await;
        assert!(sender.is_err(), "a server that was never the sequencer has no secret");
    }

    /// The sender does not know the secret, and sends the receiver's own proof back, as an attacker might.
    #[tokio::test]
    async fn a_forged_proof_is_refused() {
        let secret = Secret::generate().unwrap();
        let (mut near, mut far) = duplex(1024);
        let attack = async move {
            near.write_all(&[1; NONCE_BYTES]).await.unwrap();
            let mut answer = [0; NONCE_BYTES + TAG_BYTES];
            near.read_exact(&mut answer).await.unwrap();
            // The receiver does not accept its own proof as the proof of a sender.
            near.write_all(&answer[NONCE_BYTES..]).await.unwrap();
            near
        };
        let (_near, admitted) = tokio::join!(attack, admit(&mut far, &secret));
        assert_eq!(admitted.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn altered_repeated_and_overlong_frames_are_refused() {
        let key = Key::new(HMAC_SHA256, &[1; 32]);
        let mut sealed = BytesMut::new();
        Sealer::new(key.clone()).seal(1, b"payload", &mut sealed);
        assert!(read(&sealed, &key).await.is_ok());
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert!(read(&altered, &key).await.is_err(), "byte {at}");
        }
        let repeated = [&sealed[..], &sealed[..]].concat();
        assert!(read(&repeated, &key).await.is_err());
        let overlong = u32::MAX.to_be_bytes();
        let refused = read(&[&overlong[..], &[0; 8]].concat(), &key).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
