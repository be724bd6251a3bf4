//! Descriptions of the services' messages. `quorate-codegen` generates the tables.

/// A method and its request and response, as indexes in [`MESSAGES`].
#[derive(Debug)]
pub(super) struct Method {
    pub(super) service: &'static str,
    pub(super) name: &'static str,
    pub(super) input: usize,
    pub(super) output: usize,
}

#[derive(Debug)]
pub(super) struct Message {
    pub(super) name: &'static str,
    pub(super) fields: &'static [Field],
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    /// The name in the `.proto` file.
    pub(super) name: &'static str,
    pub(super) camel: &'static str,
    pub(super) kind: Kind,
    pub(super) is_list: bool,
    /// The `oneof` to which the field belongs, if any.
    pub(super) choice: Option<&'static str>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Bool,
    Int64,
    Uint32,
    Uint64,
    /// An enum, with the names and numbers of its values.
    Enum(&'static [(&'static str, i32)]),
    Text,
    Bytes,
    /// The message at this index in [`MESSAGES`].
    Message(usize),
}

impl Kind {
    /// Returns the name of the kind for errors.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int64 => "int64",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Enum(_) => "enum",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Message(_) => "message",
        }
    }
}

#[rustfmt::skip]
#[path = "generated/schema.rs"]
mod tables;

use tables::MESSAGES;
pub(super) use tables::METHODS;

/// Returns the message at an index in [`MESSAGES`].
pub(super) fn message(position: usize) -> &'static Message {
    &MESSAGES[position]
}
