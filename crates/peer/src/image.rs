//! Fetches another member's state, which is its backend file at a point in time.
//!
//! A leader sends its state to a member whose log is too far behind. A member whose log is intact but whose state is
//! corrupt requests the state instead, with `GET /quorate/image` on the peer port. etcd members do not have this path.
//! The response is the file followed by its SHA-256, as in a client's snapshot. The requesting member must present its
//! peer certificate.
//!
//! # Bounds
//!
//! Received data is written to disk in pieces. A sender that stops sending is dropped after a timeout.
//!
//! # Not here
//!
//! Deciding whether to use the fetched state. The requesting member compares it with the state of a quorum.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use quorate_net::listen::IncomingBody;
use quorate_net::runtime::blocking;
use quorate_storage::disk::Disk;
use quorate_storage::snap::{IncomingDatabase, SnapError};
use sha2::{Digest, Sha256};

use crate::body_reader::{BodyError, BodyReader};
use crate::call::{Call, CallError};
use crate::dialer::Dialer;
use crate::snapshot_in::PIECE_BYTES;

/// The path from which the state is fetched.
pub const IMAGE_PATH: &str = "/quorate/image";

/// The header that contains the id of the cluster to which both members belong.
pub const CLUSTER_HEADER: &str = "x-etcd-cluster-id";

/// The header that contains the id of the requesting member.
pub const FROM_HEADER: &str = "x-server-from";

/// Length of the digest that follows the file.
pub const DIGEST_BYTES: usize = 32;

/// Maximum number of bytes that are read from the text of a refusal.
const REFUSAL_BYTES: usize = 512;

/// Timeout for the start of the response, and for each further piece.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Why the state could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The request failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The member refuses to provide its state, either to all members or only to this member.
    #[error("the member responded with {status}: {text}")]
    Refused {
        /// The status of the response.
        status: StatusCode,
        /// The start of the response's text.
        text: String,
    },
    /// The response is incomplete.
    #[error("the image is incomplete: {0}")]
    Body(#[from] BodyError),
    /// The digest does not match the file.
    #[error("the image does not match its digest")]
    Digest,
    /// The file could not be stored.
    #[error(transparent)]
    Store(#[from] SnapError),
}

impl FetchError {
    /// Returns whether the member would refuse again: either it runs etcd, which does not have the path, or it does not
    /// accept this member's certificate.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        const FINAL: [StatusCode; 2] = [StatusCode::NOT_FOUND, StatusCode::UNAUTHORIZED];
        matches!(self, Self::Refused { status, .. } if FINAL.contains(status))
    }
}

/// The parameters of a request for a member's state.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// A peer URL of the other member.
    pub url: &'a str,
    /// The id of the cluster to which both members belong.
    pub cluster_id: u64,
    /// The id of the requesting member.
    pub member_id: u64,
}

/// Fetches a member's state into a new file in `dir`. The file's name contains `number`. A failed fetch leaves no file
/// behind.
pub async fn fetch(
    question: Question<'_>,
    dialer: &Dialer,
    (disk, dir, number): (&Arc<dyn Disk>, &Path, u64),
) -> Result<IncomingDatabase, FetchError> {
    let mut call = Call::get(question.url, IMAGE_PATH, TIMEOUT);
    call.headers = vec![
        (CLUSTER_HEADER, format!("{:x}", question.cluster_id)),
        (FROM_HEADER, format!("{:x}", question.member_id)),
    ];
    let answer = call.open(dialer).await?;
    let status = answer.status();
    if status != StatusCode::OK {
        let said = BodyReader::new(IncomingBody::Http1(answer.into_body()), TIMEOUT)
            .gather(REFUSAL_BYTES)
            .await;
        let said = said.unwrap_or_default().concat();
        let text =
            String::from_utf8_lossy(&said[..said.len().min(REFUSAL_BYTES)]).trim().to_owned();
        return Err(FetchError::Refused { status, text });
    }
    let mut body = BodyReader::new(IncomingBody::Http1(answer.into_body()), TIMEOUT);
    let (disk, dir) = (Arc::clone(disk), dir.to_path_buf());
    let mut storing = blocking(move || Storing::begin(disk, &dir, number)).await?;
    loop {
        let pieces = match body.gather(PIECE_BYTES).await {
            Ok(pieces) => pieces,
            Err(error) => {
                blocking(move || storing.file.discard()).await?;
                return Err(error.into());
            }
        };
        if pieces.is_empty() {
            break;
        }
        storing = blocking(move || storing.take(&pieces)).await?;
    }
    blocking(move || storing.end()).await
}

/// A file that is being received. The last received bytes are held back, because they may be the digest.
struct Storing {
    file: IncomingDatabase,
    digest: Sha256,
    /// The last bytes received so far.
    tail: Vec<u8>,
}

impl Storing {
    fn begin(disk: Arc<dyn Disk>, dir: &Path, number: u64) -> Result<Self, SnapError> {
        let file = IncomingDatabase::create(disk, dir, number)?;
        Ok(Self { file, digest: Sha256::new(), tail: Vec::new() })
    }

    fn take(mut self, pieces: &[Bytes]) -> Result<Self, SnapError> {
        for piece in pieces {
            self.tail.extend_from_slice(piece);
        }
        let len = self.tail.len().saturating_sub(DIGEST_BYTES);
        let bytes: Vec<u8> = self.tail.drain(..len).collect();
        self.digest.update(&bytes);
        match self.file.write(&bytes) {
            Ok(()) => Ok(self),
            Err(error) => {
                // If discarding fails as well, the file is removed when the member restarts.
                drop(self.file.discard());
                Err(error)
            }
        }
    }

    fn end(self) -> Result<IncomingDatabase, FetchError> {
        if self.digest.finalize()[..] == self.tail[..] {
            return Ok(self.file);
        }
        self.file.discard()?;
        Err(FetchError::Digest)
    }
}

#[cfg(test)]
mod tests {
    use quorate_storage::disk::RealDisk;

    use super::*;

    fn stored(sent: &[u8], piece_bytes: usize) -> (tempfile::TempDir, Result<Vec<u8>, FetchError>) {
        let dir = tempfile::tempdir().unwrap();
        let mut storing = Storing::begin(Arc::new(RealDisk), dir.path(), 1).unwrap();
        for piece in sent.chunks(piece_bytes) {
            storing = storing.take(&[Bytes::copy_from_slice(piece)]).unwrap();
        }
        let read = |file: IncomingDatabase| std::fs::read(file.path()).unwrap();
        let outcome = storing.end().map(read);
        (dir, outcome)
    }

    #[test]
    fn the_digest_is_separated_from_the_file_however_the_bytes_are_split() {
        let file: Vec<u8> = (0..200).collect();
        let sent = [&file[..], &Sha256::digest(&file)[..]].concat();
        for piece_bytes in [1, 31, 32, 33, 200, 1000] {
            assert_eq!(stored(&sent, piece_bytes).1.unwrap(), file, "{piece_bytes}");
        }
    }

    #[test]
    fn a_truncated_or_changed_image_leaves_no_file() {
        let file: Vec<u8> = (0..200).collect();
        let mut sent = [&file[..], &Sha256::digest(&file)[..]].concat();
        for cut in [0, 10, 32, 199, 231] {
            let (dir, outcome) = stored(&sent[..cut], 50);
            assert!(matches!(outcome, Err(FetchError::Digest)), "{cut}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{cut}");
        }
        sent[7] ^= 1;
        assert!(matches!(stored(&sent, 50).1, Err(FetchError::Digest)));
    }
}
