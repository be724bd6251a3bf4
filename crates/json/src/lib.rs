//! Converts messages of the published API to JSON and back, for the JSON gateway.
//!
//! The code contains no individual messages. A table, generated from the `.proto` files, lists the request and
//! response of every method and the fields of every message. With this table JSON is converted to the wire
//! format and back without an intermediate message.
//!
//! The rules are those of protobuf's JSON mapping, as Go's library applies them in etcd 3.7 (`protojson`):
//! output uses the names in the `.proto` files, and input accepts those or their camel case forms; 64-bit
//! numbers are written as strings; unset fields are left out; unknown fields and enum names are ignored.
//!
//! # Bounds
//!
//! Values are scanned without recursion, at most [`NESTED_MAX`] levels deep. Messages are nested at most
//! [`DEPTH_MAX`] levels deep, and each level takes a stack frame.
//!
//! # Not here
//!
//! HTTP, and the maximum length of a body.

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

/// The maximum nesting of arrays and objects in a value.
pub const NESTED_MAX: usize = 10_000;

/// The maximum nesting of messages.
pub const DEPTH_MAX: usize = 200;

/// Converts the messages of one method.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    input: &'static Message,
    output: &'static Message,
}

impl Conversion {
    /// The conversion for a method, if it exists: `etcdserverpb.KV`, `Range`.
    #[must_use]
    pub fn of(service: &str, method: &str) -> Option<Self> {
        let found = METHODS.iter().find(|one| one.service == service && one.name == method)?;
        Some(Self { input: schema::message(found.input), output: schema::message(found.output) })
    }

    /// Appends a request in the wire format. `json` must have passed [`Values`].
    pub fn request(&self, json: &[u8], wire: &mut Vec<u8>) -> Result<(), Refusal> {
        read::message(self.input, json, wire)
    }

    /// Appends a request in the wire format as JSON.
    pub fn asked(&self, wire: &[u8], json: &mut Vec<u8>) -> Result<(), Malformed> {
        write::message(self.input, wire, json)
    }

    /// Appends a response in the wire format as JSON.
    pub fn response(&self, wire: &[u8], json: &mut Vec<u8>) -> Result<(), Malformed> {
        write::message(self.output, wire, json)
    }
}
