//! The head of a request, checked against the rules of HTTP (RFC 9113, section 8). Requests with identical heads share
//! one decoded copy.

use std::any::Any;
use std::sync::OnceLock;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};

use super::hpack::{Field, Name};

/// The head of a request. Most requests on a connection have one of a few heads, so identical heads are decoded once
/// and shared.
#[derive(Debug, Default)]
pub struct Head {
    /// The method of the request.
    pub method: Method,
    /// The path, with the authority if there is one. `invalid` stands for an invalid authority.
    pub uri: Uri,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// The length of the body, if the headers state it.
    pub content_length: Option<u64>,
    derived: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Head {
    /// Returns a value that `make` derives from this head. The first call stores the value, and later calls return it.
    /// All calls must use the same type.
    pub fn derived<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> T) -> &T {
        let value = self.derived.get_or_init(|| Box::new(make(self)));
        value.downcast_ref().expect("all callers derive values of the same type")
    }
}

/// The reason why a head is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The fields violate the rules of HTTP.
    Malformed,
    /// The fields are too long.
    TooLong,
}

/// Collects the fields of a head.
#[derive(Debug)]
pub(crate) struct Builder {
    method: Option<Method>,
    scheme: Option<HeaderValue>,
    authority: Option<HeaderValue>,
    path: Option<HeaderValue>,
    headers: HeaderMap,
    bytes: usize,
    bytes_max: usize,
    fault: Option<Fault>,
}

impl Builder {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            method: None,
            scheme: None,
            authority: None,
            path: None,
            headers: HeaderMap::new(),
            bytes: 0,
            bytes_max,
            fault: None,
        }
    }

    pub(crate) fn add(&mut self, field: &Field) {
        self.bytes = self.bytes.saturating_add(field.bytes);
        if self.bytes > self.bytes_max {
            self.headers.clear();
            self.fault = Some(Fault::TooLong);
        }
        if self.fault.is_none() && !self.take(field) {
            self.fault = Some(Fault::Malformed);
        }
    }

    /// Adds a field. Returns false if the field is invalid or violates the rules of HTTP.
    fn take(&mut self, field: &Field) -> bool {
        let Some(value) = &field.value else { return false };
        let once = |place: &mut Option<HeaderValue>| place.replace(value.clone()).is_none();
        // Pseudo-header fields, which begin with a colon, must come first.
        let is_first = self.headers.is_empty();
        match &field.name {
            Name::Method => {
                let method = Method::from_bytes(value.as_bytes()).ok();
                is_first && self.method.is_none() && {
                    self.method = method;
                    self.method.is_some()
                }
            }
            Name::Scheme => is_first && once(&mut self.scheme),
            Name::Authority => is_first && once(&mut self.authority),
            Name::Path => is_first && once(&mut self.path),
            Name::Status | Name::Malformed => false,
            Name::Field(name) => {
                is_allowed(name, value)
                    && self.headers.try_append(name.clone(), value.clone()).is_ok()
            }
        }
    }

    /// Returns the head of a request.
    pub(crate) fn request(self) -> Result<Head, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let Self { method: Some(method), scheme: Some(scheme), path: Some(path), .. } = self else {
            return Err(Fault::Malformed);
        };
        let mut uri = http::uri::Parts::default();
        let path = PathAndQuery::try_from(path.as_bytes()).map_err(|_| Fault::Malformed)?;
        uri.path_and_query = Some(path);
        if let Some(authority) = self.authority.filter(|authority| !authority.is_empty()) {
            // No service uses the authority. Some clients send the path of a socket or a list of endpoints instead, so
            // an invalid authority is accepted, and a placeholder replaces it.
            let authority = Authority::try_from(authority.as_bytes());
            uri.authority = Some(authority.unwrap_or_else(|_| Authority::from_static("invalid")));
            uri.scheme = Some(Scheme::try_from(scheme.as_bytes()).map_err(|_| Fault::Malformed)?);
        }
        let uri = Uri::from_parts(uri).map_err(|_| Fault::Malformed)?;
        let content_length = content_length(&self.headers)?;
        let (headers, derived) = (self.headers, OnceLock::new());
        Ok(Head { method, uri, headers, content_length, derived })
    }

    /// Checks the trailers of a request.
    pub(crate) fn check_trailers(self) -> Result<(), Fault> {
        let has_pseudo = self.method.is_some()
            || self.scheme.is_some()
            || self.authority.is_some()
            || self.path.is_some();
        match self.fault {
            Some(fault) => Err(fault),
            None if has_pseudo => Err(Fault::Malformed),
            None => Ok(()),
        }
    }
}

/// Returns the body length stated in the headers. If several headers state a length, the lengths must be equal.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).into_iter();
    let Some(first) = lengths.next() else { return Ok(None) };
    if lengths.any(|other| other != first) || !first.as_bytes().iter().all(u8::is_ascii_digit) {
        return Err(Fault::Malformed);
    }
    let length = first.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or(Fault::Malformed)
}

/// Returns whether a field is allowed in HTTP/2, which forbids connection-specific fields.
fn is_allowed(name: &HeaderName, value: &HeaderValue) -> bool {
    match *name {
        header::CONNECTION | header::TRANSFER_ENCODING | header::UPGRADE => false,
        header::TE => value == "trailers",
        _ => name != "keep-alive" && name != "proxy-connection",
    }
}
