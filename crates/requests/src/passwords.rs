//! Hashing and checking of passwords. Both are slow by design, so they run on separate threads with the lowest
//! priority.
//!
//! # Fairness
//!
//! There are two queues, and the threads take work from them alternately. One queue contains the work of authenticated
//! users (hashes of new passwords, signatures), and serves the users in turn. The other queue contains the passwords of
//! logins. It serves the sources of logins in turn, and for each source, the user names in turn. A client with many
//! failing logins therefore delays only logins from its own source, not an administrator or a login under the same name
//! from another source.
//!
//! A login for a user that does not exist waits like any other login, and its password is checked against another
//! user's hash, which takes the same time. Therefore, the duration does not reveal which users exist, even if the cost
//! of the stored hashes differs from this server's cost.
//!
//! # Threads
//!
//! The first request starts the threads. If some of them cannot be started, each further request tries again. While no
//! thread is running, requests fail.
//!
//! # Bound
//!
//! At most [`WAITING_PER_USER_MAX`] items of work wait for one authenticated user, and at most [`WAITING_MAX`] in each
//! queue. Further work is refused. The share of one source is limited when its calls are admitted
//! (`admission::logins`). Work is discarded if its caller no longer waits for the result.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use bcrypt::{HashParts, Version};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::admission::LoginSource;
use crate::error::RequestError;
use quorate_telemetry::throttle::LogThrottle;
use quorate_telemetry::{log, threads};

/// Maximum number of items that wait for one authenticated user.
const WAITING_PER_USER_MAX: usize = 64;

/// Maximum number of items that wait in each queue.
const WAITING_MAX: usize = 1024;

/// Maximum length of a password. bcrypt ignores any further bytes.
const PASSWORD_BYTES_MAX: usize = 72;

/// Niceness of the threads: the lowest priority.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 19;

/// The valid bcrypt costs.
const COSTS: std::ops::RangeInclusive<u32> = 4..=31;

/// The default cost, which replaces an invalid cost.
const COST_DEFAULT: u32 = 10;

pub(crate) type Work = Box<dyn FnOnce(&Shared) + Send>;

/// The threads that hash and check passwords, with their queues.
#[derive(Debug)]
pub(crate) struct Passwords {
    shared: Arc<Shared>,
    thread_count: usize,
    /// Number of running threads.
    running: Mutex<usize>,
    /// Starts a thread with this name.
    start: fn(String, Arc<Shared>) -> io::Result<()>,
    start_failures: LogThrottle,
}

pub(crate) struct Shared {
    cost: u32,
    /// The hash that is checked if there is no valid hash.
    nobody: OnceLock<String>,
    queues: Mutex<Queues>,
    is_there_work: Condvar,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("cost", &self.cost).finish_non_exhaustive()
    }
}

/// The caller for which work is done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Requester<'a> {
    /// An authenticated user.
    User(&'a str),
    /// A login under this name, from this source.
    Login(LoginSource, &'a str),
}

#[derive(Default)]
struct Queues {
    users: Turns,
    user_count: usize,
    logins: LoginTurns,
    login_count: usize,
    /// Whether the next item comes from the queue of logins, if a login is waiting.
    is_logins_turn: bool,
    /// Number of items refused because a queue was full.
    refused: u64,
    has_ended: bool,
}

/// Waiting items by name. The names take turns, and the items of one name are served in order of arrival.
#[derive(Default)]
struct Turns {
    by_name: BTreeMap<String, VecDeque<Work>>,
    /// The names with waiting items, in turn order.
    order: VecDeque<String>,
}

/// Waiting logins. The sources take turns, and so do the names of each source.
#[derive(Default)]
struct LoginTurns {
    by_source: BTreeMap<LoginSource, Turns>,
    /// The sources with waiting logins, in turn order.
    order: VecDeque<LoginSource>,
}

/// The load of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PasswordsLoad {
    /// Number of passwords waiting to be hashed or checked.
    pub waiting: usize,
    /// Number of passwords that were refused because a queue was full.
    pub refused: u64,
}

impl Turns {
    fn add(&mut self, name: &str, work: Work) {
        if let Some(waiting) = self.by_name.get_mut(name) {
            waiting.push_back(work);
        } else {
            self.by_name.insert(name.to_owned(), VecDeque::from([work]));
            self.order.push_back(name.to_owned());
        }
    }

    /// Takes the oldest item of the name whose turn it is, and moves that name to the end of the turn order.
    fn take(&mut self) -> Option<Work> {
        let name = self.order.pop_front()?;
        let waiting = self.by_name.get_mut(&name)?;
        let work = waiting.pop_front();
        if waiting.is_empty() {
            self.by_name.remove(&name);
        } else {
            self.order.push_back(name);
        }
        work
    }
}

impl LoginTurns {
    fn add(&mut self, source: LoginSource, name: &str, work: Work) {
        if !self.by_source.contains_key(&source) {
            self.order.push_back(source);
        }
        self.by_source.entry(source).or_default().add(name, work);
    }

    /// Takes the next item of the source whose turn it is, and moves that source to the end of the turn order.
    fn take(&mut self) -> Option<Work> {
        let source = self.order.pop_front()?;
        let names = self.by_source.get_mut(&source)?;
        let work = names.take();
        if names.order.is_empty() {
            self.by_source.remove(&source);
        } else {
            self.order.push_back(source);
        }
        work
    }
}

impl Queues {
    fn add(&mut self, requester: Requester<'_>, work: Work) -> Result<(), RequestError> {
        let has_room = match requester {
            Requester::User(name) => {
                let waiting = self.users.by_name.get(name).map_or(0, VecDeque::len);
                self.user_count < WAITING_MAX && waiting < WAITING_PER_USER_MAX
            }
            Requester::Login(..) => self.login_count < WAITING_MAX,
        };
        if !has_room {
            self.refused += 1;
            return Err(RequestError::TooManyRequests);
        }
        match requester {
            Requester::User(name) => {
                self.users.add(name, work);
                self.user_count += 1;
            }
            Requester::Login(source, name) => {
                self.logins.add(source, name, work);
                self.login_count += 1;
            }
        }
        Ok(())
    }

    /// Takes the next item, alternating between the two queues.
    fn take(&mut self) -> Option<Work> {
        let is_login = self.login_count > 0 && (self.is_logins_turn || self.user_count == 0);
        self.is_logins_turn = !is_login;
        if is_login {
            self.login_count -= 1;
            self.logins.take()
        } else {
            let work = self.users.take()?;
            self.user_count -= 1;
            Some(work)
        }
    }

    const fn load(&self) -> PasswordsLoad {
        PasswordsLoad { waiting: self.user_count + self.login_count, refused: self.refused }
    }
}

impl Passwords {
    /// Creates the queues. Passwords are hashed with the bcrypt cost `cost`, or with the default cost if `cost` is
    /// invalid. The threads use at most half of the cores.
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
            queues: Mutex::default(),
            is_there_work: Condvar::new(),
        };
        let thread_count = (cores / 2).max(1);
        Self {
            shared: Arc::new(shared),
            thread_count,
            running: Mutex::default(),
            start,
            start_failures: LogThrottle::default(),
        }
    }

    /// Hashes a password on behalf of an authenticated user.
    pub(crate) async fn hash(&self, user: &str, password: &str) -> Result<String, RequestError> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(RequestError::PasswordTooLong);
        }
        let password = password.to_owned();
        let hash = move |shared: &Shared| shared.hash(&password);
        self.compute(Requester::User(user), hash).await?.ok_or(RequestError::Stopped)
    }

    /// Checks the password of a login against the user's hash. `hash` is `None` if the user does not exist. In this
    /// case, or if `hash` is invalid, the check takes as long as a check against `other`, the hash of another user.
    pub(crate) async fn fits(
        &self,
        (source, name): (LoginSource, &str),
        password: &str,
        hash: Option<&[u8]>,
        other: &[u8],
    ) -> Result<bool, RequestError> {
        // Bcrypt reads only this part of a password.
        let read = password.len().min(PASSWORD_BYTES_MAX);
        let password = password.as_bytes()[..read].to_vec();
        let hash = hash.map(|hash| String::from_utf8_lossy(hash).into_owned());
        let other = String::from_utf8_lossy(other).into_owned();
        let check = move |shared: &Shared| {
            let (checked, is_of_user) = shared.hash_to_check(hash.as_deref(), &other);
            let matches = bcrypt::verify(&password, checked).unwrap_or(false);
            matches && is_of_user
        };
        self.compute(Requester::Login(source, name), check).await
    }

    /// Runs slow work on the threads and waits for its result.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        requester: Requester<'_>,
        work: impl FnOnce(&Shared) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        self.start_missing_threads()?;
        let (done, receiver) = oneshot::channel();
        let work: Work = Box::new(move |shared| {
            if !done.is_closed() {
                // The caller may have stopped waiting in the meantime.
                _ = done.send(work(shared));
            }
        });
        self.shared.queues.lock().add(requester, work)?;
        self.shared.is_there_work.notify_one();
        receiver.await.map_err(|_| RequestError::Stopped)
    }

    /// Returns the load of the queues.
    pub(crate) fn load(&self) -> PasswordsLoad {
        self.shared.queues.lock().load()
    }

    /// Starts the threads that are not running yet. Fails if no thread is running, because the work would then wait
    /// forever.
    fn start_missing_threads(&self) -> Result<(), RequestError> {
        let mut running = self.running.lock();
        while *running < self.thread_count {
            let name = format!("passwords-{running}");
            let Err(error) = (self.start)(name, Arc::clone(&self.shared)) else {
                *running += 1;
                continue;
            };
            if let Some(left_out) = self.start_failures.admits() {
                log::error!(
                    "failed to start a password thread",
                    "error" = error.to_string(),
                    "running-threads" = *running,
                    "left-out" = left_out
                );
            }
            if *running == 0 {
                return Err(RequestError::NoPasswordThread(error.to_string().into()));
            }
            break;
        }
        Ok(())
    }
}

fn start(name: String, shared: Arc<Shared>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name);
    threads::spawn(thread, move || shared.work()).map(drop)
}

impl Drop for Passwords {
    fn drop(&mut self) {
        self.shared.queues.lock().has_ended = true;
        self.shared.is_there_work.notify_all();
    }
}

impl Shared {
    fn hash(&self, password: &str) -> Option<String> {
        let parts = bcrypt::hash_with_result(password, self.cost).ok()?;
        // etcd writes hashes with the version prefix `2a`.
        Some(parts.format_for_version(Version::TwoA))
    }

    /// Returns the hash to check the password of a login against, and whether it is the user's own hash.
    fn hash_to_check<'a>(&'a self, hash: Option<&'a str>, other: &'a str) -> (&'a str, bool) {
        let is_valid = |hash: &&str| hash.parse::<HashParts>().is_ok();
        if let Some(own) = hash.filter(is_valid) {
            return (own, true);
        }
        let nobody = || self.nobody.get_or_init(|| self.hash("").unwrap_or_default());
        (Some(other).filter(is_valid).unwrap_or_else(|| nobody()), false)
    }

    fn work(&self) {
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::nice(NICENESS) {
            log::debug!(
                "cannot lower the priority of the password threads",
                "error" = error.to_string()
            );
        }
        loop {
            let work = {
                let mut queue = self.queues.lock();
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
    async fn only_the_right_password_matches_a_bcrypt_hash() {
        let passwords = passwords();
        let hash = passwords.hash("ann", "secret").await.unwrap();
        assert!(hash.starts_with("$2a$04$"), "{hash}");
        let fits = async |password: &str, hash: &str| {
            passwords
                .fits((LoginSource::default(), "ann"), password, Some(hash.as_bytes()), b"")
                .await
                .unwrap()
        };
        assert!(fits("secret", &hash).await);
        assert!(!fits("Secret", &hash).await);
        // A hash of "pw" created by Go's library.
        let gos = "$2a$04$.lJ6rIbvgV/VLZDgbJtVjuyO4I8SLLSfnGqXJOd.2kH0Ztl5Fa7ae";
        assert!(!fits("other", gos).await);
        for bad in ["", "$2a$", "no hash", "$2a$04$short"] {
            assert!(!fits("", bad).await, "{bad:?}");
        }
        assert!(!passwords.fits((LoginSource::default(), "eve"), "", None, b"").await.unwrap());
    }

    #[tokio::test]
    async fn a_login_without_a_valid_hash_costs_as_much_as_a_check_of_a_stored_hash() {
        let passwords = passwords();
        // The cost of this hash is not this server's cost.
        let stored = "$2a$05$abcdefghijklmnopqrstuuUmqLIxC2xcNpxMrx5wPPsT1FiuIXC7K";
        let shared = &passwords.shared;
        for hash in [None, Some(""), Some("no hash")] {
            assert_eq!(shared.hash_to_check(hash, stored), (stored, false), "{hash:?}");
            let (own_cost, is_of_user) = shared.hash_to_check(hash, "no hash");
            assert!(own_cost.starts_with("$2a$04$") && !is_of_user, "{own_cost}");
        }
        let own = "$2a$04$.lJ6rIbvgV/VLZDgbJtVjuyO4I8SLLSfnGqXJOd.2kH0Ztl5Fa7ae";
        assert_eq!(shared.hash_to_check(Some(own), stored), (own, true));
        // The password of the other user is not the password of this login.
        let login = (LoginSource::default(), "eve");
        let others = passwords.hash("ann", "pw").await.unwrap();
        for hash in [None, Some(&b"no hash"[..])] {
            assert!(!passwords.fits(login, "pw", hash, others.as_bytes()).await.unwrap());
        }
    }

    #[tokio::test]
    async fn password_requests_fail_until_a_thread_can_be_started() {
        let mut passwords = passwords();
        let start =
            std::mem::replace(&mut passwords.start, |_, _| Err(io::ErrorKind::WouldBlock.into()));
        let login = (source(1), "ann");
        for _ in 0..2 {
            let failed = tokio::select! {
                biased;
                failed = passwords.fits(login, "secret", None, b"") => failed.unwrap_err(),
                () = std::future::ready(()) => panic!("the request is waiting although no thread can be started"),
            };
            assert!(matches!(failed, RequestError::NoPasswordThread(_)), "{failed}");
        }
        assert_eq!(passwords.load().waiting, 0);
        passwords.start = start;
        assert!(!passwords.fits(login, "secret", None, b"").await.unwrap());
    }

    #[tokio::test]
    async fn a_password_longer_than_the_bcrypt_limit_is_refused() {
        let passwords = passwords();
        let longest = "x".repeat(PASSWORD_BYTES_MAX);
        passwords.hash("ann", &longest).await.unwrap();
        let refused = passwords.hash("ann", &(longest + "x")).await.unwrap_err();
        assert!(matches!(refused, RequestError::PasswordTooLong));
    }

    fn source(last: u8) -> LoginSource {
        LoginSource::of(Some(([192, 0, 2, last], 1).into()))
    }

    /// Adds items in this order and returns the order in which they are taken.
    fn order_of(requesters: &[Requester<'static>]) -> Vec<String> {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut queues = Queues::default();
        for requester in requesters {
            let (order, label) = (
                Arc::clone(&order),
                match requester {
                    Requester::User(name) => (*name).to_owned(),
                    Requester::Login(source, name) if *source == self::source(1) => {
                        format!("1 {name}")
                    }
                    Requester::Login(_, name) => format!("2 {name}"),
                },
            );
            queues.add(*requester, Box::new(move |_| order.lock().push(label))).unwrap();
        }
        let passwords = passwords();
        while let Some(work) = queues.take() {
            work(&passwords.shared);
        }
        assert_eq!((queues.user_count, queues.login_count), (0, 0));
        assert!(queues.users.by_name.is_empty() && queues.logins.by_source.is_empty());
        order.lock().clone()
    }

    #[test]
    fn password_requests_of_authenticated_users_take_turns() {
        let users = ["eve", "eve", "eve", "ann", "bob", "ann"].map(Requester::User);
        assert_eq!(order_of(&users), ["eve", "ann", "bob", "eve", "ann", "eve"]);
    }

    #[test]
    fn login_sources_take_turns_and_user_names_within_a_source_take_turns() {
        let [one, two] = [1, 2].map(source);
        let mut logins = vec![Requester::Login(one, "root"); 3];
        logins.extend([Requester::Login(one, "ghost"), Requester::Login(two, "root")]);
        assert_eq!(order_of(&logins), ["1 root", "2 root", "1 ghost", "1 root", "1 root"]);
    }

    #[test]
    fn authenticated_users_and_logins_take_turns_in_the_password_queue() {
        let login = Requester::Login(source(1), "eve");
        let asked = [login, login, login, Requester::User("root"), Requester::User("root")];
        assert_eq!(order_of(&asked), ["root", "1 eve", "root", "1 eve", "1 eve"]);
    }

    #[tokio::test]
    async fn logins_of_unknown_users_wait_like_logins_of_known_users() {
        let order = async |hash: Option<&'static [u8]>| {
            let mut passwords = passwords();
            passwords.start = |_, _| Ok(());
            let login = |name| passwords.fits((source(1), name), "p", hash, b"");
            let logins = async { tokio::join!(login("x"), login("x"), login("y"), login("x")) };
            tokio::select! { biased; _ = logins => unreachable!("no thread is running"), () = std::future::ready(()) => {} }
            let queues = passwords.shared.queues.lock();
            let names = &queues.logins.by_source[&source(1)];
            let lengths = names.by_name.iter().map(|(name, line)| (name.clone(), line.len()));
            (names.order.clone(), lengths.collect::<Vec<_>>())
        };
        assert_eq!(order(None).await, order(Some(b"no hash")).await);
    }

    #[test]
    fn password_requests_are_refused_while_a_queue_or_the_share_of_a_user_is_full() {
        let mut queues = Queues::default();
        let mut add = |requester: Requester<'_>| queues.add(requester, Box::new(|_| ()));
        for number in 0..WAITING_MAX {
            add(Requester::Login(source(1), &number.to_string())).unwrap();
        }
        let full = add(Requester::Login(source(2), "one more"));
        assert!(matches!(full, Err(RequestError::TooManyRequests)));
        // Authenticated users have a separate queue.
        for _ in 0..WAITING_PER_USER_MAX {
            add(Requester::User("root")).unwrap();
        }
        assert!(matches!(add(Requester::User("root")), Err(RequestError::TooManyRequests)));
        add(Requester::User("ann")).unwrap();
        let waiting = WAITING_MAX + WAITING_PER_USER_MAX + 1;
        assert_eq!(queues.load(), PasswordsLoad { waiting, refused: 2 });
        drop(queues.take());
        assert_eq!(queues.load(), PasswordsLoad { waiting: waiting - 1, refused: 2 });
    }

    #[test]
    fn an_invalid_bcrypt_cost_is_replaced_by_the_default() {
        for (given, taken) in [(0, 10), (3, 10), (4, 4), (31, 31), (32, 10)] {
            assert_eq!(Passwords::new(given).shared.cost, taken);
        }
    }
}
