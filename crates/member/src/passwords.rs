//! Hashing and checking passwords, which is meant to take long: on threads of its own, which give way to all others.
//!
//! # Fairness
//!
//! Work is done for one user after the other, in turn: whoever logs in a thousand times a second waits for himself,
//! and so do those who try names that are nobody's, all together. A user that is unknown takes as long as one
//! whose password is wrong, so that the time tells nothing.
//!
//! # Bound
//!
//! [`WAITING_PER_USER_MAX`] for one user, [`WAITING_MAX`] in all; what comes then is refused. What nobody waits for
//! any more is not done.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};

use bcrypt::Version;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::error::RequestError;
use quorate_telemetry::{log, threads};

/// Passwords that wait on behalf of one user.
const WAITING_PER_USER_MAX: usize = 64;

/// Passwords that wait in all.
const WAITING_MAX: usize = 1024;

/// Longer passwords would not count in full.
const PASSWORD_BYTES_MAX: usize = 72;

/// What costs so much is done where it costs others least.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 19;

/// The costs that bcrypt has.
const COSTS: std::ops::RangeInclusive<u32> = 4..=31;

/// The cost where another one makes no sense.
const COST_DEFAULT: u32 = 10;

pub(crate) type Work = Box<dyn FnOnce(&Shared) + Send>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Passwords {
    shared: Arc<Shared>,
    thread_count: usize,
    are_running: OnceLock<()>,
}

pub(crate) struct Shared {
    cost: u32,
    /// What no password fits, for users that do not exist.
    nobody: OnceLock<String>,
    queue: Mutex<Queue>,
    is_there_work: Condvar,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("cost", &self.cost).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Queue {
    /// What waits, by user.
    users: BTreeMap<String, VecDeque<Work>>,
    /// Users for whom something waits, in the order of their turns.
    turns: VecDeque<String>,
    count: usize,
    /// How many were refused for want of a place.
    refused: u64,
    has_ended: bool,
}

/// How many wait, and how many were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PasswordsLoad {
    /// Passwords that wait to be hashed or checked.
    pub waiting: usize,
    /// Those that were refused because too many others waited.
    pub refused: u64,
}

impl Queue {
    fn add(&mut self, user: &str, work: Work) -> Result<(), RequestError> {
        let waiting = self.users.get(user).map_or(0, VecDeque::len);
        if self.count >= WAITING_MAX || waiting >= WAITING_PER_USER_MAX {
            self.refused += 1;
            return Err(RequestError::TooManyRequests);
        }
        if waiting == 0 {
            self.turns.push_back(user.to_owned());
        }
        self.users.entry(user.to_owned()).or_default().push_back(work);
        self.count += 1;
        Ok(())
    }

    /// What is to be done next: the oldest of the user whose turn it is, who then is the last.
    fn take(&mut self) -> Option<Work> {
        let user = self.turns.pop_front()?;
        let waiting = self.users.get_mut(&user)?;
        let work = waiting.pop_front();
        if waiting.is_empty() {
            self.users.remove(&user);
        } else {
            self.turns.push_back(user);
        }
        self.count -= 1;
        work
    }

    const fn load(&self) -> PasswordsLoad {
        PasswordsLoad { waiting: self.count, refused: self.refused }
    }
}

impl Passwords {
    /// Hashes at this cost, or at the usual one if bcrypt has no such cost. Half of the cores work at most.
    #[must_use]
    pub(crate) fn new(cost: u32) -> Self {
        let cost = if COSTS.contains(&cost) {
            cost
        } else {
            log::warn!(
                "use default bcrypt cost instead of the invalid given cost",
                "min-cost" = *COSTS.start(),
                "max-cost" = *COSTS.end(),
                "default-cost" = COST_DEFAULT,
                "given-cost" = cost
            );
            COST_DEFAULT
        };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shared = Shared {
            cost,
            nobody: OnceLock::new(),
            queue: Mutex::default(),
            is_there_work: Condvar::new(),
        };
        let thread_count = (cores / 2).max(1);
        Self { shared: Arc::new(shared), thread_count, are_running: OnceLock::new() }
    }

    /// Hashes a password on behalf of a user.
    pub(crate) async fn hash(&self, user: &str, password: &str) -> Result<String, RequestError> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(RequestError::PasswordTooLong);
        }
        let password = password.to_owned();
        let hash = move |shared: &Shared| shared.hash(&password);
        self.have_done(user, hash).await?.ok_or(RequestError::Stopped)
    }

    /// Whether the password fits the hash of a user's, or `None` for a user that does not exist.
    pub(crate) async fn fits(
        &self,
        user: &str,
        password: &str,
        hash: Option<&[u8]>,
    ) -> Result<bool, RequestError> {
        // Those that do not exist take turns as one.
        let user = if hash.is_some() { user } else { "" };
        let password = password.to_owned();
        let hash = hash.map(|hash| String::from_utf8_lossy(hash).into_owned());
        let check = move |shared: &Shared| match &hash {
            // What is no hash fits nothing.
            Some(hash) => bcrypt::verify(&password, hash).unwrap_or(false),
            None => {
                let nobody = shared.nobody.get_or_init(|| shared.hash("").unwrap_or_default());
                _ = bcrypt::verify(&password, nobody);
                false
            }
        };
        self.have_done(user, check).await
    }

    /// Has something done that takes long, on behalf of a user.
    pub(crate) async fn have_done<T: Send + 'static>(
        &self,
        user: &str,
        work: impl FnOnce(&Shared) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        self.are_running.get_or_init(|| self.run());
        let (done, told) = oneshot::channel();
        let work: Work = Box::new(move |shared| {
            if !done.is_closed() {
                // Whoever waited may have gone meanwhile.
                _ = done.send(work(shared));
            }
        });
        self.shared.queue.lock().add(user, work)?;
        self.shared.is_there_work.notify_one();
        told.await.map_err(|_| RequestError::Stopped)
    }

    /// How full it is.
    pub(crate) fn load(&self) -> PasswordsLoad {
        self.shared.queue.lock().load()
    }

    fn run(&self) {
        for number in 0..self.thread_count {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name(format!("passwords-{number}"));
            if let Err(error) = threads::spawn(thread, move || shared.work()) {
                log::error!("failed to start a thread for passwords", "error" = error.to_string());
            }
        }
    }
}

impl Drop for Passwords {
    fn drop(&mut self) {
        self.shared.queue.lock().has_ended = true;
        self.shared.is_there_work.notify_all();
    }
}

impl Shared {
    fn hash(&self, password: &str) -> Option<String> {
        let parts = bcrypt::hash_with_result(password, self.cost).ok()?;
        // The form that etcd writes.
        Some(parts.format_for_version(Version::TwoA))
    }

    fn work(&self) {
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::nice(NICENESS) {
            log::debug!("passwords do not give way to other work", "error" = error.to_string());
        }
        loop {
            let work = {
                let mut queue = self.queue.lock();
                loop {
                    if queue.has_ended {
                        return;
                    }
                    if let Some(work) = queue.take() {
                        break work;
                    }
                    self.is_there_work.wait(&mut queue);
                }
            };
            work(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passwords() -> Passwords {
        Passwords::new(4)
    }

    #[tokio::test]
    async fn a_password_fits_its_hash_in_whichever_form() {
        let passwords = passwords();
        let hash = passwords.hash("ann", "secret").await.unwrap();
        assert!(hash.starts_with("$2a$04$"), "{hash}");
        let fits = async |password: &str, hash: &str| {
            passwords.fits("ann", password, Some(hash.as_bytes())).await.unwrap()
        };
        assert!(fits("secret", &hash).await);
        assert!(!fits("Secret", &hash).await);
        // As Go's library made it of "pw".
        let gos = "$2a$04$.lJ6rIbvgV/VLZDgbJtVjuyO4I8SLLSfnGqXJOd.2kH0Ztl5Fa7ae";
        assert!(!fits("other", gos).await);
        for bad in ["", "$2a$", "no hash", "$2a$04$short"] {
            assert!(!fits("", bad).await, "{bad:?}");
        }
        assert!(!passwords.fits("eve", "", None).await.unwrap());
    }

    #[tokio::test]
    async fn what_would_not_count_in_full_is_refused() {
        let passwords = passwords();
        let longest = "x".repeat(PASSWORD_BYTES_MAX);
        passwords.hash("ann", &longest).await.unwrap();
        let refused = passwords.hash("ann", &(longest + "x")).await.unwrap_err();
        assert!(matches!(refused, RequestError::PasswordTooLong));
    }

    #[test]
    fn users_take_turns() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut queue = Queue::default();
        let mut add = |user: &'static str| {
            let order = Arc::clone(&order);
            queue.add(user, Box::new(move |_| order.lock().push(user)))
        };
        for _ in 0..WAITING_PER_USER_MAX {
            add("eve").unwrap();
        }
        assert!(matches!(add("eve"), Err(RequestError::TooManyRequests)));
        add("ann").unwrap();
        add("bob").unwrap();
        add("ann").unwrap();
        let passwords = passwords();
        for _ in 0..6 {
            (queue.take().unwrap())(&passwords.shared);
        }
        assert_eq!(*order.lock(), ["eve", "ann", "bob", "eve", "ann", "eve"]);
        assert_eq!(queue.count, WAITING_PER_USER_MAX - 3);
        while queue.take().is_some() {}
        assert!(queue.users.is_empty() && queue.count == 0);
    }

    #[test]
    fn there_is_a_bound_on_all() {
        let mut queue = Queue::default();
        for number in 0..WAITING_MAX {
            queue.add(&number.to_string(), Box::new(|_| ())).unwrap();
        }
        assert_eq!(queue.load(), PasswordsLoad { waiting: WAITING_MAX, refused: 0 });
        let full = queue.add("one more", Box::new(|_| ()));
        assert!(matches!(full, Err(RequestError::TooManyRequests)));
        assert_eq!(queue.load(), PasswordsLoad { waiting: WAITING_MAX, refused: 1 });
        drop(queue.take());
        assert_eq!(queue.load(), PasswordsLoad { waiting: WAITING_MAX - 1, refused: 1 });
    }

    #[test]
    fn a_cost_that_bcrypt_has_not_is_the_usual_one() {
        for (given, taken) in [(0, 10), (3, 10), (4, 4), (31, 31), (32, 10)] {
            assert_eq!(Passwords::new(given).shared.cost, taken);
        }
    }
}
