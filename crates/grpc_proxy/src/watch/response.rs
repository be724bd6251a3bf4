//! What members tell watchers, as clients are told it: parts that all have in common are encoded once.

use bytes::Bytes;
use prost::Message as _;
use quorate_api::etcdserverpb::{ResponseHeader, WatchResponse};
use quorate_api::mvccpb::Event;

/// The revision of an event.
pub(super) fn revision(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |record| record.fields().mod_revision)
}

/// Events, for any watcher.
pub(super) fn events(header: Option<&ResponseHeader>, events: Vec<Event>) -> Bytes {
    encode(WatchResponse { header: header.cloned(), events, ..WatchResponse::default() })
}

/// That a watcher is there.
pub(super) fn created(header: Option<&ResponseHeader>) -> Bytes {
    encode(WatchResponse { header: header.cloned(), created: true, ..WatchResponse::default() })
}

/// How far the watchers have been told.
pub(super) fn progress(header: Option<&ResponseHeader>) -> Bytes {
    encode(WatchResponse { header: header.cloned(), ..WatchResponse::default() })
}

/// That a watcher is no more, because its client has said so.
pub(super) fn cancelled(header: Option<&ResponseHeader>) -> Bytes {
    encode(WatchResponse { header: header.cloned(), canceled: true, ..WatchResponse::default() })
}

/// Any other.
pub(super) fn encode(response: WatchResponse) -> Bytes {
    response.encode_to_vec().into()
}
