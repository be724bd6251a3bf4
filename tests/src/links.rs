//! Links between the members of a cluster: TCP proxies that delay, drop and cut connections.
//!
//! Each member advertises its proxy's port to its peers. The first `X-Server-From` field on a connection identifies the
//! member that opened the connection. A rule applies to all bytes from one member to another, regardless of which of
//! them opened the connection. Connections without that field (`GET /version` and similar requests, and connections
//! that have carried only health probes so far) are not attributed to any member. Their bytes pass unless everything to
//! or from the member behind the proxy is dropped.
//!
//! The proxy keeps dropped bytes, as if the network retransmitted them. They arrive late and in order once the link is
//! healed, unless one side has closed the connection by then.
//!
//! A member's proxy can also refuse new connections and break existing ones, like a packet filter or a host whose
//! process has exited. The member itself can still connect to others.
//!
//! The proxies run on a thread of their own, so that a test with heavy computation does not slow them down. The clients
//! of a cluster do not use the proxies and can reach every member at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener as Listener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::Random;
use crate::ports::Port;

/// Rule for the bytes from one member to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The bytes pass.
    #[default]
    Pass,
    /// The bytes do not arrive while the rule is in force.
    Drop,
    /// The bytes arrive later, in order.
    Delay {
        /// Minimum delay.
        base: Duration,
        /// Maximum of the random additional delay.
        jitter: Duration,
    },
    /// At random, the link breaks the connection instead of delivering a piece of data.
    Cut {
        /// On average, one in this many pieces breaks its connection.
        one_in: u64,
    },
    /// The link alternates between two kinds of period of the same length: in one, the bytes pass; in the other, they
    /// are delayed until the period ends.
    Flap {
        /// Length of each period.
        turn: Duration,
    },
}

/// Rules in force. Bytes between members without a rule pass.
#[derive(Clone, Debug)]
struct Rules {
    since: Instant,
    pairs: BTreeMap<(usize, usize), Rule>,
}

impl Rules {
    fn between(&self, from: usize, to: usize) -> Rule {
        let rule = self.pairs.get(&(from, to)).copied().unwrap_or_default();
        match rule {
            Rule::Flap { turn } => {
                let turns = self.since.elapsed().as_millis() / turn.as_millis().max(1);
                if turns.is_multiple_of(2) { Rule::Drop } else { Rule::Pass }
            }
            rule => rule,
        }
    }

    /// Returns the rule for a connection to a member from an unknown member.
    fn rule_for_unknown_dialler(&self, member: usize, inward: bool, count: usize) -> Rule {
        let dropped = |other: usize| {
            let (from, to) = if inward { (other, member) } else { (member, other) };
            self.between(from, to) == Rule::Drop
        };
        let mut others = (0..count).filter(|other| *other != member);
        let isolated = count > 1 && others.all(dropped);
        if isolated { Rule::Drop } else { Rule::Pass }
    }
}

#[derive(Debug)]
struct Shared {
    rules: watch::Sender<Rules>,
    /// Members whose proxies refuse connections.
    refusing: watch::Sender<BTreeSet<usize>>,
    /// Members by id, written as in the header field.
    ids: Mutex<BTreeMap<String, usize>>,
    count: Mutex<usize>,
    random: Mutex<Random>,
}

/// The links of one cluster. Dropping the value stops the proxies.
#[derive(Debug)]
pub struct Links {
    shared: Arc<Shared>,
    proxies: Option<mpsc::UnboundedSender<Proxy>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The proxy in front of one member.
#[derive(Debug)]
struct Proxy {
    listener: TcpListener,
    member: usize,
    port: u16,
}

impl Links {
    /// Creates links that do not have any members yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        let rules = Rules { since: Instant::now(), pairs: BTreeMap::new() };
        let shared = Arc::new(Shared {
            rules: watch::Sender::new(rules),
            refusing: watch::Sender::default(),
            ids: Mutex::default(),
            count: Mutex::default(),
            random: Mutex::new(Random::new(1)),
        });
        let (proxies, receiver) = mpsc::unbounded_channel();
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || serve(&shared, receiver)
        });
        Self { shared, proxies: Some(proxies), thread: Some(thread) }
    }

    /// Puts a proxy for each of `count` clients in front of the port of one server. Returns the links and the port of
    /// each proxy. In the rules, a client's number stands for its connections to the server.
    #[must_use]
    pub fn in_front_of(port: u16, count: usize) -> (Self, Vec<u16>) {
        let links = Self::new();
        let ports = (0..count).map(|_| links.add(port)).collect();
        (links, ports)
    }

    /// Puts a proxy in front of the next member's port, and returns the port to advertise.
    pub(crate) fn add(&self, port: u16) -> u16 {
        let advertised = Port::free();
        let listener = TcpListener::bind(("127.0.0.1", advertised.number())).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut count = self.shared.count.lock().unwrap();
        let proxy = Proxy { listener, member: *count, port };
        *count += 1;
        self.proxies.as_ref().unwrap().send(proxy).unwrap();
        advertised.number()
    }

    /// Records the id of a member.
    pub(crate) fn identify(&self, member: usize, id: u64) {
        self.shared.ids.lock().unwrap().insert(format!("{id:x}"), member);
    }

    /// Sets the rule for one direction between two members.
    pub fn set(&self, from: usize, to: usize, rule: Rule) {
        self.shared.rules.send_modify(|rules| {
            rules.since = Instant::now();
            rules.pairs.insert((from, to), rule);
        });
    }

    /// Sets the rule for both directions between two members.
    pub fn set_both(&self, one: usize, other: usize, rule: Rule) {
        self.set(one, other, rule);
        self.set(other, one, rule);
    }

    /// Sets the rule between all members of one side and all members of the other, in both directions.
    pub fn split(&self, side: &[usize], other_side: &[usize], rule: Rule) {
        for one in side {
            for other in other_side {
                self.set_both(*one, *other, rule);
            }
        }
    }

    /// Sets the rule between a member and all others, in both directions.
    pub fn set_links_of(&self, member: usize, rule: Rule) {
        let others: Vec<usize> = (0..self.count()).filter(|other| *other != member).collect();
        self.split(&[member], &others, rule);
    }

    /// Sets the rule between all members.
    pub fn set_all(&self, rule: Rule) {
        for member in 0..self.count() {
            self.set_links_of(member, rule);
        }
    }

    /// Drops everything to and from a member.
    pub fn isolate(&self, member: usize) {
        self.set_links_of(member, Rule::Drop);
    }

    /// Breaks existing connections to a member and refuses new ones.
    pub fn refuse(&self, member: usize) {
        self.shared.refusing.send_modify(|refusing| _ = refusing.insert(member));
    }

    /// Removes all rules, so that the bytes that the proxies have kept are delivered.
    pub fn heal(&self) {
        self.shared.refusing.send_modify(BTreeSet::clear);
        self.shared.rules.send_modify(|rules| rules.pairs.clear());
    }

    fn count(&self) -> usize {
        *self.shared.count.lock().unwrap()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.proxies = None;
        if let Some(thread) = self.thread.take() {
            // A failed proxy has already failed the test.
            drop(thread.join());
        }
    }
}

fn serve(shared: &Arc<Shared>, mut proxies: mpsc::UnboundedReceiver<Proxy>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        while let Some(proxy) = proxies.recv().await {
            tokio::spawn(accept(Arc::clone(shared), proxy));
        }
    });
}

async fn accept(shared: Arc<Shared>, proxy: Proxy) {
    let mut listener = Listener::from_std(proxy.listener).unwrap();
    let address = listener.local_addr().unwrap();
    let mut refusing = shared.refusing.subscribe();
    loop {
        let stream = tokio::select! {
            biased;
            _ = refusing.wait_for(|refusing| refusing.contains(&proxy.member)) => None,
            accepted = listener.accept() => Some(accepted),
        };
        match stream {
            Some(Ok((stream, _))) => {
                let end = End {
                    shared: Arc::clone(&shared),
                    member: proxy.member,
                    dialler: OnceLock::new(),
                };
                tokio::spawn(forward_until_refused(Arc::new(end), stream, proxy.port));
            }
            Some(Err(_)) => {}
            None => {
                drop(listener);
                drop(refusing.wait_for(|refusing| !refusing.contains(&proxy.member)).await);
                // No other process can take the port, because a `Port` reserves it.
                listener = Listener::bind(address).await.unwrap();
            }
        }
    }
}

/// Forwards a connection until the proxy refuses connections.
async fn forward_until_refused(end: Arc<End>, stream: TcpStream, port: u16) {
    let mut refusing = end.shared.refusing.subscribe();
    let member = end.member;
    tokio::select! {
        _ = refusing.wait_for(|refusing| refusing.contains(&member)) => {}
        () = connection(end, stream, port) => {}
    }
}

/// The two ends of a connection. The first request identifies the member that opened the connection.
#[derive(Debug)]
struct End {
    shared: Arc<Shared>,
    /// The member behind the proxy.
    member: usize,
    /// Id of the member that opened the connection.
    dialler: OnceLock<String>,
}

impl End {
    fn rule(&self, inward: bool) -> Rule {
        let dialler = self.dialler.get().and_then(|id| {
            let ids = self.shared.ids.lock().unwrap();
            ids.get(id).copied()
        });
        let rules = self.shared.rules.borrow();
        match dialler {
            Some(dialler) if inward => rules.between(dialler, self.member),
            Some(dialler) => rules.between(self.member, dialler),
            None => rules.rule_for_unknown_dialler(
                self.member,
                inward,
                *self.shared.count.lock().unwrap(),
            ),
        }
    }

    /// Waits until the rule allows bytes to pass.
    async fn gate(&self, inward: bool) {
        /// Interval at which the rule is checked, because a flapping link changes without a notification.
        const LOOK: Duration = Duration::from_millis(10);
        let mut changes = self.shared.rules.subscribe();
        while self.rule(inward) == Rule::Drop {
            drop(tokio::time::timeout(LOOK, changes.changed()).await);
        }
    }

    fn chance(&self, bound: u64) -> u64 {
        self.shared.random.lock().unwrap().below(bound.max(1))
    }
}

async fn connection(end: Arc<End>, stream: TcpStream, port: u16) {
    let (mut reader, writer) = stream.into_split();
    let mut seen = Vec::new();
    // The target is not dialled until bytes arrive.
    let Ok(true) = read_head(&end, &mut reader, &mut seen).await else { return };
    end.gate(true).await;
    let Ok(target) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (back, mut forth) = target.into_split();
    if forth.write_all(&seen).await.is_err() {
        return;
    }
    // An error in one direction ends both.
    drop(tokio::try_join!(pump(&end, true, reader, forth), pump(&end, false, back, writer),));
}

/// Reads the first bytes and looks for the sender's header field. Returns false at the end of the stream.
async fn read_head(
    end: &End,
    reader: &mut OwnedReadHalf,
    seen: &mut Vec<u8>,
) -> std::io::Result<bool> {
    let some = reader.read_buf(seen).await? > 0;
    end.find_sender_header(seen);
    Ok(some)
}

impl End {
    /// Looks for the field that names the sender. Field names are case-insensitive.
    fn find_sender_header(&self, piece: &[u8]) {
        const FIELD: &[u8] = b"x-server-from:";
        if self.dialler.get().is_some() {
            return;
        }
        let mut windows = piece.windows(FIELD.len());
        let Some(position) = windows.position(|window| window.eq_ignore_ascii_case(FIELD)) else {
            return;
        };
        let value = &piece[position + FIELD.len()..];
        if let Some(line_end) = value.iter().position(|byte| *byte == b'\r') {
            let id = String::from_utf8_lossy(&value[..line_end]).trim().to_owned();
            // The field occurs only in the inward direction, so only that direction sets this value.
            drop(self.dialler.set(id));
        }
    }
}

/// Copies bytes in one direction until the end of the stream or an error.
async fn pump(
    end: &End,
    inward: bool,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) -> std::io::Result<()> {
    /// Maximum number of pieces in transit on a slow link.
    const UNDER_WAY: usize = 1024;
    let (sender, mut pieces) = mpsc::channel::<(tokio::time::Instant, Vec<u8>)>(UNDER_WAY);
    let read = async move {
        let mut due = tokio::time::Instant::now();
        loop {
            let mut piece = Vec::with_capacity(16 * 1024);
            if from.read_buf(&mut piece).await? == 0 {
                return Ok(());
            }
            if inward {
                end.find_sender_header(&piece);
            }
            let mut delay = Duration::ZERO;
            match end.rule(inward) {
                Rule::Delay { base, jitter } => {
                    let more = end.chance(u64::try_from(jitter.as_micros()).unwrap());
                    delay = base + Duration::from_micros(more);
                }
                Rule::Cut { one_in } if end.chance(one_in) == 0 => {
                    return Err(std::io::ErrorKind::ConnectionAborted.into());
                }
                Rule::Pass | Rule::Drop | Rule::Cut { .. } | Rule::Flap { .. } => {}
            }
            due = due.max(tokio::time::Instant::now() + delay);
            if sender.send((due, piece)).await.is_err() {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, piece)) = pieces.recv().await {
            if due > tokio::time::Instant::now() {
                tokio::time::sleep_until(due).await;
            }
            end.gate(inward).await;
            to.write_all(&piece).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(|_: ((), ())| ())
}
