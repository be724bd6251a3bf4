//! Encodes OTLP messages: spans, and the request that exports them.
//!
//! Field numbers are taken from `opentelemetry/proto/trace/v1/trace.proto` and its imports. The encoding is written by
//! hand, because a span is encoded only once, when it ends, and a request is a concatenation of encoded spans.

use quorate_protobuf::{
    Begun, Fields, Value, begin_message, put_bytes, put_fixed32, put_fixed64, put_number,
    varint_len,
};

/// The maximum length of an attribute value or error text in bytes. A longer string is truncated before invalid UTF-8
/// is replaced. The limit is needed because keys may be longer than a million bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// The instrumentation scope of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Spans that etcd reports as well.
    Etcd,
    /// Spans of stages, which only Quorate reports.
    Stages,
}

impl Scope {
    const ALL: [Self; 2] = [Self::Etcd, Self::Stages];

    const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd",
            Self::Stages => "quorate",
        }
    }
}

/// An attribute of a span.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// The name of the attribute.
    pub name: &'static str,
    /// The value of the attribute.
    pub value: AttributeValue,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// A string, truncated if it is too long.
    Text(String),
    /// A number.
    Number(i64),
    /// A boolean.
    Bool(bool),
}

impl Attribute {
    /// Creates a string attribute from bytes, which may be invalid UTF-8.
    #[must_use]
    pub fn text(name: &'static str, bytes: &[u8]) -> Self {
        let kept = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
        let kept = String::from_utf8_lossy(kept).into_owned();
        Self { name, value: AttributeValue::Text(kept) }
    }

    /// Creates a number attribute.
    #[must_use]
    pub const fn number(name: &'static str, value: i64) -> Self {
        Self { name, value: AttributeValue::Number(value) }
    }

    /// Creates a boolean attribute.
    #[must_use]
    pub const fn bool(name: &'static str, value: bool) -> Self {
        Self { name, value: AttributeValue::Bool(value) }
    }

    fn put(&self, field: u32, out: &mut Vec<u8>) {
        let message = begin_message(field, out);
        put_bytes(1, self.name.as_bytes(), out);
        let value = begin_message(2, out);
        match &self.value {
            AttributeValue::Text(text) => put_bytes(1, text.as_bytes(), out),
            AttributeValue::Bool(value) => put_number(2, u64::from(*value), out),
            AttributeValue::Number(number) => put_number(3, number.cast_unsigned(), out),
        }
        end(value, out);
        end(message, out);
    }
}

/// Fills in the length of a message whose encoding is complete.
fn end(begun: Begun, out: &mut [u8]) {
    begun.end(out).expect("the strings of a span are truncated to a length that fits");
}

/// The encoded resource, which identifies the sender of spans.
#[derive(Clone, Debug)]
pub struct Resource(Vec<u8>);

impl Resource {
    /// Creates the resource of a service with this name and instance id. An empty id is omitted.
    #[must_use]
    pub fn new(service: &str, instance: &str) -> Self {
        let mut bytes = Vec::new();
        Attribute::text("service.name", service.as_bytes()).put(1, &mut bytes);
        if !instance.is_empty() {
            Attribute::text("service.instance.id", instance.as_bytes()).put(1, &mut bytes);
        }
        Self(bytes)
    }
}

/// The kind of a span.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A part of the work on a call.
    Internal = 1,
    /// A call that the server handles.
    Server = 2,
}

/// A span that has ended.
#[derive(Debug)]
pub(super) struct Span<'a> {
    pub(super) trace_id: &'a [u8; 16],
    pub(super) id: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    /// Whether the parent is the caller's span.
    pub(super) parent_is_remote: bool,
    pub(super) state: &'a str,
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    pub(super) start_nanos: u64,
    pub(super) end_nanos: u64,
    pub(super) attributes: &'a [Attribute],
    /// The events of the span, each with its time.
    pub(super) events: &'a [(&'static str, u64)],
    /// The error text, if the server caused the failure.
    pub(super) error: Option<&'a str>,
}

impl Span<'_> {
    /// Returns the encoded message, without a field key or a length.
    pub(super) fn encode(&self) -> Vec<u8> {
        const SAMPLED: u32 = 0x1;
        const REMOTE_IS_KNOWN: u32 = 0x100;
        const IS_REMOTE: u32 = 0x200;
        const STATUS_ERROR: u64 = 2;
        let mut bytes = Vec::with_capacity(256);
        let out = &mut bytes;
        put_bytes(1, self.trace_id, out);
        put_bytes(2, &self.id, out);
        if !self.state.is_empty() {
            put_bytes(3, self.state.as_bytes(), out);
        }
        if let Some(parent) = &self.parent {
            put_bytes(4, parent, out);
        }
        put_bytes(5, self.name.as_bytes(), out);
        put_number(6, self.kind as u64, out);
        put_fixed64(7, self.start_nanos, out);
        put_fixed64(8, self.end_nanos, out);
        for attribute in self.attributes {
            attribute.put(9, out);
        }
        for (name, nanos) in self.events {
            let event = begin_message(11, out);
            put_fixed64(1, *nanos, out);
            put_bytes(2, name.as_bytes(), out);
            end(event, out);
        }
        if let Some(reason) = self.error {
            let status = begin_message(15, out);
            let kept = &reason[..reason.floor_char_boundary(TEXT_BYTES_MAX)];
            put_bytes(2, kept.as_bytes(), out);
            put_number(3, STATUS_ERROR, out);
            end(status, out);
        }
        let remote = if self.parent_is_remote { IS_REMOTE } else { 0 };
        put_fixed32(16, SAMPLED | REMOTE_IS_KNOWN | remote, out);
        bytes
    }
}

/// Returns an export request with these spans.
pub(super) fn request(resource: &Resource, spans: &[(Scope, Vec<u8>)]) -> Vec<u8> {
    let lengths = spans.iter().map(|(_, span)| 1 + varint_len(span.len() as u64) + span.len());
    let mut bytes = Vec::with_capacity(lengths.sum::<usize>() + resource.0.len() + 128);
    let out = &mut bytes;
    let of_resource = begin_message(1, out);
    put_bytes(1, &resource.0, out);
    for scope in Scope::ALL {
        let mut of_scope = spans.iter().filter(|(of, _)| *of == scope).peekable();
        if of_scope.peek().is_none() {
            continue;
        }
        let message = begin_message(2, out);
        let named = begin_message(1, out);
        put_bytes(1, scope.name().as_bytes(), out);
        if scope == Scope::Stages {
            put_bytes(2, quorate_version::QUORATE_VERSION.as_bytes(), out);
        }
        end(named, out);
        for (_, span) in of_scope {
            put_bytes(2, span, out);
        }
        end(message, out);
    }
    end(of_resource, out);
    bytes
}

/// Returns how many spans the collector refused, according to an encoded `ExportTraceServiceResponse`.
#[must_use]
pub fn refused_spans(answer: &[u8]) -> u64 {
    let first = |message| Fields::new(message).map_while(Result::ok).find(|(field, _)| *field == 1);
    match first(answer) {
        Some((_, Value::Bytes(partial_success))) => match first(partial_success) {
            Some((_, Value::Varint(count))) => count,
            _ => 0,
        },
        _ => 0,
    }
}
