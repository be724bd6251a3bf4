//! Encodes watch responses for clients. The parts shared by all watchers are encoded once.

use bytes::Bytes;
use prost::Message as _;
use quorate_api::etcdserverpb::{ResponseHeader, WatchResponse};
use quorate_api::mvccpb::Event;

/// Returns the revision of an event.
pub(super) fn revision(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |record| record.fields().mod_revision)
}

/// Encodes events in a form that is valid for any watcher.
pub(super) fn events(header: Option<&ResponseHeader>, events: Vec<Event>) -> Bytes {
    encode(WatchResponse { header: header.cloned(), events, ..WatchResponse::default() })
}

/// Encodes the response to a created watch.
pub(super) fn created(header: Option<&ResponseHeader>) -> Bytes {
    encode(WatchResponse { header: header.cloned(), created: true, ..WatchResponse::default() })
}

/// Encodes a progress notification.
pub(super) fn progress(header: Option<&ResponseHeader>) -> Bytes {
    encode(WatchResponse { header: header.cloned(), ..WatchResponse::default() })
}

/// Encodes the response to a client's request to cancel a watch.
pub(super) fn cancelled(header: Option<&ResponseHeader>) -> Bytes {
    encode(WatchResponse { header: header.cloned(), canceled: true, ..WatchResponse::default() })
}

/// Encodes any other response.
pub(super) fn encode(response: WatchResponse) -> Bytes {
    response.encode_to_vec().into()
}
