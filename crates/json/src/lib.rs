//! Messages of the published interface as JSON, and back: what the JSON gateway speaks.
//!
//! Nothing here knows a message by itself. One table, written from the `.proto` files when the crate is built, says of
//! every method which messages it takes and gives, and of every message which fields it has; JSON is turned into bytes
//! on the wire by it, and bytes into JSON, without any message in between.
//!
//! The rules are those of protobuf's JSON mapping, as Go's library applies them in etcd 3.7 (`protojson`): names as in
//! the `.proto` files go out, and those or their forms in camel case come in; numbers of 64 bits go out as text; what
//! is not set is left out; unknown fields and names of values are passed over.
//!
//! # Bounds
//!
//! Values are scanned without recursion, nested [`NESTED_MAX`] deep at most; messages are nested [`DEPTH_MAX`] deep at
//! most, each of which takes a stack frame.
//!
//! # Not here
//!
//! HTTP, and how long a body may be.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod number;
mod read;
mod scan;
mod schema;
mod write;

pub use self::read::Refusal;
pub use self::scan::{SyntaxError, Values};
pub use self::write::{Malformed, put_text};

use self::schema::{METHODS, Message};

/// Arrays and objects in one another, of which a value may consist.
pub const NESTED_MAX: usize = 10_000;

/// Messages in one another.
pub const DEPTH_MAX: usize = 200;

/// How the messages of one method are converted.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    input: &'static Message,
    output: &'static Message,
}

impl Conversion {
    /// That of a method, if there is one of that name: `etcdserverpb.KV`, `Range`.
    #[must_use]
    pub fn of(service: &str, method: &str) -> Option<Self> {
        let found = METHODS.iter().find(|one| one.service == service && one.name == method)?;
        Some(Self { input: schema::message(found.input), output: schema::message(found.output) })
    }

    /// Appends a request, of which [`Values`] has found that it is JSON, as it is on the wire.
    pub fn request(&self, json: &[u8], wire: &mut Vec<u8>) -> Result<(), Refusal> {
        read::message(self.input, json, wire)
    }

    /// Appends a request that was on the wire as JSON.
    pub fn asked(&self, wire: &[u8], json: &mut Vec<u8>) -> Result<(), Malformed> {
        write::message(self.input, wire, json)
    }

    /// Appends a response as JSON.
    pub fn response(&self, wire: &[u8], json: &mut Vec<u8>) -> Result<(), Malformed> {
        write::message(self.output, wire, json)
    }
}
