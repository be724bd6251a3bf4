//! The clients of a console, and the slots for calls, streams and logins that they share.
//!
//! A client is a logged-in user, or all callers without a login at one address. A request cannot claim an arbitrary
//! user, because only a token that the console has received from the cluster identifies a user.
//!
//! # Guarantees
//!
//! * A client receives a slot only if it holds fewer slots than are free. One client thus holds at most half of all
//!   slots, two clients together hold at most three quarters, and a third client still finds a free slot.
//! * All clients at one address together leave a quarter of the slots for other addresses.
//! * Only digests of tokens are stored.
//!
//! # Bound
//!
//! * A client is remembered while it holds a slot.
//! * At most [`TOKENS_MAX`] tokens are remembered, and at most [`USER_TOKENS_MAX`] of one user. A user whose token was
//!   dropped shares the slots of the user's address until the next login.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_client::credentials::Token;
use sha2::{Digest as _, Sha256};

use crate::refusal::{Kind, Refusal};

const TOKENS_MAX: usize = 1024;
const USER_TOKENS_MAX: usize = 16;

/// The maximum number of slots that one address may hold, as a multiple of the free slots.
const ADDRESS_FACTOR: usize = 3;

/// The address of a client. All addresses of this machine count as one address. So do all addresses in an IPv6 /64
/// network, because a host can freely choose its address within the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    ThisMachine,
    Network(IpAddr),
}

impl Origin {
    /// Returns the origin of a connection. A connection without an address comes from this machine.
    pub(crate) fn of(remote: Option<IpAddr>) -> Self {
        match remote.map(|remote| remote.to_canonical()) {
            None => Self::ThisMachine,
            Some(address) if address.is_loopback() => Self::ThisMachine,
            Some(IpAddr::V6(address)) => {
                let network = Ipv6Addr::from_bits(address.to_bits() >> 64 << 64);
                Self::Network(IpAddr::V6(network))
            }
            Some(address) => Self::Network(address),
        }
    }
}

/// A client of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) origin: Origin,
    /// The logged-in user, if the console knows the user's token.
    pub(crate) user: Option<Arc<str>>,
}

impl Client {
    /// Returns the holder for which slots are counted: the user, or else the address.
    pub(crate) fn holder(&self) -> Holder {
        match &self.user {
            Some(user) => Holder::User(Arc::clone(user)),
            None => Holder::Origin(self.origin),
        }
    }
}

/// The holder of slots: a user, or an address without a login.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    User(Arc<str>),
    Origin(Origin),
}

/// A fixed number of slots, of which each client may hold only a share.
#[derive(Debug)]
pub(crate) struct Slots {
    count: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_holder: BTreeMap<Holder, usize>,
    by_origin: BTreeMap<Origin, usize>,
}

/// A slot held by a client. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    client: Client,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { count, held: Mutex::default() })
    }

    /// Takes a slot for a client.
    pub(crate) fn take(self: &Arc<Self>, client: &Client) -> Result<Slot, Refusal> {
        let mut held = lock(&self.held);
        let free = self.count - held.all;
        let holder = client.holder();
        let own = held.by_holder.get(&holder).copied().unwrap_or_default();
        let of_origin = held.by_origin.get(&client.origin).copied().unwrap_or_default();
        if own >= free || of_origin >= free * ADDRESS_FACTOR {
            let text = match own {
                0 => "too many requests are in progress".to_owned(),
                _ => format!("too many requests: {own} from this client are already in progress"),
            };
            let advice = "Close other pages of this console, and try again.";
            return Err(Refusal::new(Kind::Busy, text).advising(advice));
        }
        held.all += 1;
        *held.by_holder.entry(holder).or_default() += 1;
        *held.by_origin.entry(client.origin).or_default() += 1;
        Ok(Slot { slots: Arc::clone(self), client: client.clone() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = lock(&self.slots.held);
        held.all -= 1;
        release(&mut held.by_holder, &self.client.holder());
        release(&mut held.by_origin, &self.client.origin);
    }
}

fn release<K: Ord>(held: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = held.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            held.remove(key);
        }
    }
}

/// Locks `mutex` even if a thread has panicked while it held the lock. The state is still consistent, because no code
/// between two changes to it can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The users for whom the cluster has issued tokens.
#[derive(Debug, Default)]
pub(crate) struct Users(Mutex<VecDeque<(TokenDigest, Arc<str>)>>);

type TokenDigest = [u8; 32];

impl Users {
    /// Records that the cluster has issued a token for a user.
    pub(crate) fn remember(&self, token: &Token, user: &str) {
        let mut known = lock(&self.0);
        let mut own = known.iter().enumerate().filter(|(_, (_, name))| &**name == user);
        let oldest = own.next().map(|(at, (_, name))| (at, Arc::clone(name)));
        let name = oldest.as_ref().map_or_else(|| Arc::from(user), |(_, name)| Arc::clone(name));
        let is_full = own.count() + 1 >= USER_TOKENS_MAX;
        if let Some((at, _)) = oldest.filter(|_| is_full) {
            known.remove(at);
        } else if known.len() == TOKENS_MAX {
            known.pop_front();
        }
        known.push_back((digest(token), name));
    }

    /// Returns the user for whom a token was issued, if the token is remembered.
    pub(crate) fn of(&self, token: &Token) -> Option<Arc<str>> {
        let digest = digest(token);
        let known = lock(&self.0);
        known.iter().find(|(known, _)| *known == digest).map(|(_, user)| Arc::clone(user))
    }
}

fn digest(token: &Token) -> TokenDigest {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
pub(crate) mod tests {
    use quorate_client::credentials::token;

    use super::*;

    /// Returns a client at the address `10.0.0.NUMBER` without a login.
    pub(crate) fn anonymous(number: u8) -> Client {
        let address = IpAddr::from([10, 0, 0, number]);
        Client { origin: Origin::of(Some(address)), user: None }
    }

    fn user(name: &str, number: u8) -> Client {
        Client { user: Some(name.into()), ..anonymous(number) }
    }

    /// Takes slots for this client until no more are granted.
    fn take_all(slots: &Arc<Slots>, client: &Client) -> Vec<Slot> {
        std::iter::from_fn(|| slots.take(client).ok()).collect()
    }

    #[test]
    fn one_client_leaves_slots_for_other_clients() {
        let slots = Slots::new(32);
        let first = take_all(&slots, &anonymous(1));
        assert_eq!(first.len(), 16);
        assert_eq!(slots.take(&anonymous(1)).unwrap_err().kind, Kind::Busy);
        let second = take_all(&slots, &anonymous(2));
        assert_eq!(second.len(), 8);
        let third = take_all(&slots, &anonymous(3));
        assert_eq!(third.len(), 4);
        drop(first);
        assert!(!take_all(&slots, &anonymous(4)).is_empty());
        drop((second, third));
        assert_eq!(take_all(&slots, &anonymous(1)).len(), 16);
        let held = lock(&slots.held);
        assert_eq!((held.all, held.by_holder.len(), held.by_origin.len()), (0, 0, 0));
    }

    #[test]
    fn a_users_slots_are_counted_across_addresses_and_one_address_cannot_take_the_last_quarter() {
        let slots = Slots::new(32);
        let mut held: Vec<_> = (1..=4).flat_map(|at| take_all(&slots, &user("ann", at))).collect();
        assert_eq!(held.len(), 16);
        assert!(slots.take(&user("bob", 1)).is_ok(), "another user at the same address");
        held.clear();
        for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            held.extend(take_all(&slots, &user(name, 9)));
        }
        assert!(held.len() <= 24, "{}", held.len());
        assert!(slots.take(&anonymous(8)).is_ok());
    }

    #[test]
    fn loopback_addresses_and_addresses_of_one_ipv6_network_count_as_one_origin() {
        let of = |text: &str| Origin::of(Some(text.parse().unwrap()));
        assert_eq!(of("127.0.0.1"), of("127.1.2.3"));
        assert_eq!(of("::1"), of("127.0.0.1"));
        assert_eq!(of("::ffff:127.0.0.1"), of("127.0.0.1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn only_a_token_issued_by_the_cluster_identifies_a_user() {
        let users = Users::default();
        let issued = |number: usize| token(&format!("t{number}")).unwrap();
        users.remember(&issued(0), "ann");
        assert_eq!(users.of(&issued(0)).as_deref(), Some("ann"));
        assert_eq!(users.of(&issued(1)), None);
        // A user who logs in repeatedly does not displace the tokens of other users.
        for number in 1..=2 * TOKENS_MAX {
            users.remember(&issued(number), "eve");
        }
        assert_eq!(users.of(&issued(0)).as_deref(), Some("ann"));
        assert_eq!(lock(&users.0).len(), USER_TOKENS_MAX + 1);
        for number in 0..2 * TOKENS_MAX {
            users.remember(&issued(number), &number.to_string());
        }
        assert_eq!(lock(&users.0).len(), TOKENS_MAX);
    }
}
