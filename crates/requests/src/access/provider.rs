//! The token providers. Simple tokens are issued through the log, and signed tokens by each member.
//!
//! The key files are read regularly ([`KEYS_READ_EVERY`]), and changed keys replace the previous ones. If the files
//! contain no valid key, the previous keys stay in force, and a single warning is logged.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use quorate_gotext::quote::go_reason;
use quorate_jwt::{Claims, KeyFault, Keys, Method, SignFault};
use quorate_telemetry::log;

/// Interval at which the key files are read.
pub const KEYS_READ_EVERY: Duration = Duration::from_secs(5);

/// The token provider that `--auth-token` selects.
#[derive(Debug)]
pub enum Provider {
    /// Simple tokens, issued through the log.
    Simple,
    /// Signed tokens (JWT).
    Signed(Signer),
    /// No token is issued, and every token is invalid.
    Nothing,
}

/// The key files and the signing method.
#[derive(Clone, Debug)]
pub struct KeySource {
    /// The signing method.
    pub method: Method,
    /// The path of the private key file.
    pub private: Option<PathBuf>,
    /// The path of the public key file.
    pub public: Option<PathBuf>,
}

/// The keys cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SourceFault {
    /// A file cannot be read.
    #[error("auth: invalid auth options: {path}: {}", go_reason(source))]
    File {
        /// The path of the file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The files contain no valid keys.
    #[error(transparent)]
    Keys(#[from] KeyFault),
}

/// The content of the key files.
#[derive(Clone, PartialEq, Eq)]
struct Texts {
    private: Option<Vec<u8>>,
    public: Option<Vec<u8>>,
}

/// The contents of the key files when they were last processed and when they were last read.
struct Seen {
    /// The content that was processed last: its keys are in force, or it was reported as invalid.
    settled: Texts,
    /// The content that was read last.
    latest: Texts,
}

/// Issues and verifies signed tokens.
pub struct Signer {
    source: KeySource,
    ttl: Duration,
    keys: ArcSwap<Keys>,
    seen: Mutex<Seen>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("source", &self.source).finish_non_exhaustive()
    }
}

impl KeySource {
    fn texts(&self) -> Result<Texts, SourceFault> {
        let read = |path: &Option<PathBuf>| {
            let read = path.as_ref().map(|path| {
                std::fs::read(path).map_err(|source| SourceFault::File {
                    path: path.display().to_string(),
                    source,
                })
            });
            read.transpose()
        };
        Ok(Texts { private: read(&self.private)?, public: read(&self.public)? })
    }

    fn keys(&self, texts: &Texts) -> Result<Keys, KeyFault> {
        Keys::read(self.method, texts.private.as_deref(), texts.public.as_deref())
    }
}

impl Signer {
    /// Creates a signer and reads its keys. Tokens expire after `ttl`.
    pub fn new(source: KeySource, ttl: Duration) -> Result<Self, SourceFault> {
        let texts = source.texts()?;
        let keys = ArcSwap::from_pointee(source.keys(&texts)?);
        let seen = Seen { settled: texts.clone(), latest: texts };
        Ok(Self { source, ttl, keys, seen: Mutex::new(seen) })
    }

    pub(super) fn keys(&self) -> Guard<Arc<Keys>> {
        self.keys.load()
    }

    /// Signs a token for a user.
    pub(crate) fn sign(&self, username: &str, revision: u64) -> Result<String, SignFault> {
        let ttl = i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX);
        quorate_jwt::sign(&self.keys.load(), username, revision, now().saturating_add(ttl))
    }

    /// Returns the claims of a token if its signature is valid and it has not expired.
    pub(super) fn read(&self, text: &str) -> Option<Claims> {
        quorate_jwt::read(&self.keys.load(), text).filter(|claims| claims.are_good_at(now()))
    }

    /// Reads the key files again. New content is used only once two consecutive reads return it. Any sequence of bytes
    /// is a valid HMAC key, so the key in a half-written file could not be distinguished from a shorter key.
    pub fn reload(&self) {
        let reloaded = self.source.texts().and_then(|texts| {
            let mut seen = self.seen.lock();
            let stands_still = texts == seen.latest;
            seen.latest = texts.clone();
            if texts == seen.settled || !stands_still {
                return Ok(false);
            }
            let keys = self.source.keys(&texts);
            seen.settled = texts;
            self.keys.store(Arc::new(keys?));
            Ok(true)
        });
        match reloaded {
            Ok(true) => log::info!("loaded the changed token keys"),
            Ok(false) => {}
            Err(fault @ SourceFault::Keys(_)) => log::warn!(
                "the token key files contain no valid key; the previous keys stay in force",
                "error" = fault.to_string()
            ),
            // The file may be missing because it is being replaced.
            Err(fault @ SourceFault::File { .. }) => {
                log::debug!("cannot read a token key file", "error" = fault.to_string());
            }
        }
    }
}

/// Returns the number of seconds since the Unix epoch.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reloading_replaces_signing_keys_unless_the_file_is_invalid() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "first").unwrap();
        let source = KeySource { method: Method::Hs256, private: Some(path.clone()), public: None };
        let signer = Signer::new(source, Duration::from_secs(60)).unwrap();
        let token = signer.sign("ann", 3).unwrap();
        let is_good = || signer.read(&token).is_some();
        assert!(is_good());
        // The file is empty while it is being rewritten, so the previous keys stay valid.
        std::fs::write(&path, "").unwrap();
        signer.reload();
        assert!(is_good());
        std::fs::remove_file(&path).unwrap();
        signer.reload();
        assert!(is_good());
        // The file is incomplete when it is read for the first time.
        std::fs::write(&path, "sec").unwrap();
        signer.reload();
        assert!(is_good());
        std::fs::write(&path, "second").unwrap();
        signer.reload();
        assert!(is_good());
        signer.reload();
        assert!(!is_good());
        let token = signer.sign("ann", 3).unwrap();
        assert_eq!(signer.read(&token).unwrap().revision, 3);
    }

    #[test]
    fn an_expired_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "s").unwrap();
        let source = KeySource { method: Method::Hs256, private: Some(path), public: None };
        let signer = Signer::new(source, Duration::ZERO).unwrap();
        assert!(signer.read(&signer.sign("ann", 3).unwrap()).is_none());
    }
}
