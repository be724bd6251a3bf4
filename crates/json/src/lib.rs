//! Converts messages of the public API to JSON and back, for the JSON gateway.
//!
//! There is no code for individual messages. A table, generated from the `.proto` files, lists the request and response
//! of every method and the fields of every message. With this table, JSON is converted to the wire format and back
//! without an intermediate representation.
//!
//! The conversion follows protobuf's JSON mapping, as implemented by the Go library in etcd 3.7 (`protojson`): output
//! uses the names in the `.proto` files, and input accepts those names and their camel case forms; 64-bit numbers are
//! written as strings; unset fields are omitted; unknown fields and enum names are ignored.
//!
//! # Bounds
//!
//! Values are scanned without recursion, at most [`NESTED_MAX`] levels deep. Messages may be nested at most
//! [`DEPTH_MAX`] levels deep, and each level uses a stack frame.
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

/// Maximum nesting depth of arrays and objects in a value.
pub const NESTED_MAX: usize = 10_000;

/// Maximum nesting depth of messages.
pub const DEPTH_MAX: usize = 200;

/// Converts the messages of one method.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    input: &'static Message,
    output: &'static Message,
}

impl Conversion {
    /// Returns the conversion for a method, such as `Range` of `etcdserverpb.KV`, if the method exists.
    #[must_use]
    pub fn of(service: &str, method: &str) -> Option<Self> {
        let found = METHODS.iter().find(|one| one.service == service && one.name == method)?;
        Some(Self { input: schema::message(found.input), output: schema::message(found.output) })
    }

    /// Converts a JSON request and appends it in the wire format. `json` must be a value returned by [`Values`].
    pub fn request(&self, json: &[u8], wire: &mut Vec<u8>) -> Result<(), Refusal> {
        read::message(self.input, json, wire)
    }

    /// Converts a request in the wire format and appends it as JSON.
    pub fn asked(&self, wire: &[u8], json: &mut Vec<u8>) -> Result<(), Malformed> {
        write::message(self.input, wire, json)
    }

    /// Converts a response in the wire format and appends it as JSON.
    pub fn response(&self, wire: &[u8], json: &mut Vec<u8>) -> Result<(), Malformed> {
        write::message(self.output, wire, json)
    }
}
