//! Fetching another member's state: its backend file as of a moment, on request.
//!
//! A leader sends its state to a member whose log has fallen behind. A member whose log is sound and whose state is
//! not asks for it: `GET /quorate/image` on the peer port, which members of etcd do not have. The answer is the file,
//! then its SHA-256, as in a client's snapshot. The asking member shows its peer certificate.
//!
//! # Bounds
//!
//! What has come goes to the disk a piece at a time. Somebody who stops sending is given up.
//!
//! # Not here
//!
//! Whether the state is one to go on from: who asked compares it with what a quorum holds.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use quorate_net::runtime::blocking;
use quorate_storage::disk::Disk;
use quorate_storage::snap::{IncomingDatabase, SnapError};
use sha2::{Digest, Sha256};

use crate::call::{Call, CallError};
use crate::dialer::Dialer;
use crate::snapshot_in::{BodyError, PIECE_BYTES, Pieces};

/// Where a member hands its state out.
pub const IMAGE_PATH: &str = "/quorate/image";

/// Names the cluster that both have to be members of.
pub const CLUSTER_HEADER: &str = "x-etcd-cluster-id";

/// Names who asks.
pub const FROM_HEADER: &str = "x-server-from";

/// Bytes of the digest behind the file.
pub const DIGEST_BYTES: usize = 32;

/// Bytes of a refusal's text that are read.
const REFUSAL_BYTES: usize = 512;

/// Longest wait for the answer to begin, and for more of it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody answers.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The member hands its state out to no member, or not to this one.
    #[error("the member answers {status}: {text}")]
    Refused {
        /// The status of its answer.
        status: StatusCode,
        /// The beginning of its answer.
        text: String,
    },
    /// The answer breaks off.
    #[error("the image breaks off: {0}")]
    Body(#[from] BodyError),
    /// The answer is not what was sent.
    #[error("the image does not match its digest")]
    Digest,
    /// It cannot be stored.
    #[error(transparent)]
    Store(#[from] SnapError),
}

impl FetchError {
    /// Whether asking the same member again is of no use: it is one of etcd's, which do not know the path, or it does not
    /// know this member's certificate as a member's.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        const FINAL: [StatusCode; 2] = [StatusCode::NOT_FOUND, StatusCode::UNAUTHORIZED];
        matches!(self, Self::Refused { status, .. } if FINAL.contains(status))
    }
}

/// Who asks whom.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// A peer URL of the member that is asked.
    pub url: &'a str,
    /// The cluster of both.
    pub cluster_id: u64,
    /// Who asks.
    pub member_id: u64,
}

/// Fetches a member's state into a new file in `dir`; `number` tells it from others there. What fails leaves no file.
pub async fn fetch(
    question: Question<'_>,
    dialer: &Dialer,
    (disk, dir, number): (&Arc<dyn Disk>, &Path, u64),
) -> Result<IncomingDatabase, FetchError> {
    let mut call = Call::get(question.url, IMAGE_PATH, PATIENCE);
    call.headers = vec![
        (CLUSTER_HEADER, format!("{:x}", question.cluster_id)),
        (FROM_HEADER, format!("{:x}", question.member_id)),
    ];
    let answer = call.open(dialer).await?;
    let status = answer.status();
    if status != StatusCode::OK {
        let said = Pieces::new(answer.into_body(), PATIENCE).gather(REFUSAL_BYTES).await;
        let said = said.unwrap_or_default().concat();
        let text =
            String::from_utf8_lossy(&said[..said.len().min(REFUSAL_BYTES)]).trim().to_owned();
        return Err(FetchError::Refused { status, text });
    }
    let mut body = Pieces::new(answer.into_body(), PATIENCE);
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

/// A file that comes in, all but the last bytes, which may be the digest.
struct Storing {
    file: IncomingDatabase,
    digest: Sha256,
    /// The last bytes so far.
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
                // If that fails too, the next start removes it.
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
    fn the_digest_is_told_from_the_file_however_it_is_cut() {
        let file: Vec<u8> = (0..200).collect();
        let sent = [&file[..], &Sha256::digest(&file)[..]].concat();
        for piece_bytes in [1, 31, 32, 33, 200, 1000] {
            assert_eq!(stored(&sent, piece_bytes).1.unwrap(), file, "{piece_bytes}");
        }
    }

    #[test]
    fn what_was_cut_off_or_changed_leaves_no_file() {
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
