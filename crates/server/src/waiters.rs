//! Who waits for which request: from the id that travels through the log to the mailbox of the asker.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;

use crate::answer::Answer;
use crate::mailbox::Address;

/// Request ids are unique and count up: their low bits are as good as a hash.
#[derive(Clone, Copy, Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 is hashed");
    }

    fn write_u64(&mut self, id: u64) {
        // The table looks at the top bits too.
        self.0 = id ^ id << 57;
    }
}

type Map = HashMap<u64, Address<Answer>, BuildHasherDefault<IdHasher>>;

/// Shared by the connection runtimes, which add, and the core threads, which take.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    by_request: Mutex<Map>,
}

impl Waiters {
    pub(crate) fn add(&self, request_id: u64, address: Address<Answer>) {
        self.by_request.lock().insert(request_id, address);
    }

    /// `None` when nobody waits: the request came from another member, or its client has given up.
    pub(crate) fn take(&self, request_id: u64) -> Option<Address<Answer>> {
        self.by_request.lock().remove(&request_id)
    }
}
