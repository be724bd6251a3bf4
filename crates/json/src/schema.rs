//! What the messages of the services are made of. The tables are written by `build.rs`.

/// A method and its messages, by their positions in [`MESSAGES`].
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
    /// As in the `.proto` file.
    pub(super) name: &'static str,
    pub(super) camel: &'static str,
    pub(super) kind: Kind,
    pub(super) is_list: bool,
    /// The choice that it is one of, if it is.
    pub(super) choice: Option<&'static str>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Bool,
    Int64,
    Uint32,
    Uint64,
    /// Its values.
    Enum(&'static [(&'static str, i32)]),
    Text,
    Bytes,
    /// The message at that position in [`MESSAGES`].
    Message(usize),
}

impl Kind {
    /// As refusals name it.
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

include!(concat!(env!("OUT_DIR"), "/schema.rs"));

/// The message at a position.
pub(super) fn message(position: usize) -> &'static Message {
    &MESSAGES[position]
}
