//! The latest revision that this proxy has received.
//!
//! A client must not see a lower revision just because the proxy answers instead of a member. Responses from the proxy
//! therefore contain the latest revision of any response that the proxy has received. This is correct for owned keys,
//! because they change only through this proxy: their records are still current at that revision.

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use quorate_api::etcdserverpb::ResponseHeader;
use quorate_grpc::framing::HEAD_BYTES;

/// The tag of field 1, the header, which comes first in every response.
const HEADER_TAG: u8 = 0x0a;

/// The response header with the latest revision.
#[derive(Debug, Default)]
pub(crate) struct Latest(Mutex<ResponseHeader>);

impl Latest {
    /// Records the header of a response from a member.
    pub(crate) fn see(&self, header: Option<&ResponseHeader>) {
        let Some(header) = header else { return };
        let mut latest = self.0.lock();
        if header.revision >= latest.revision {
            *latest = *header;
        }
    }

    /// Records the header of a response that is forwarded as framed bytes. Returns false if more bytes are needed to
    /// read the header.
    pub(crate) fn see_frame(&self, passed: &[u8]) -> bool {
        passed.get(HEAD_BYTES..).is_some_and(|message| self.see_message(message))
    }

    /// Records the header of an unframed message. Returns false if more bytes are needed to read the header.
    pub(crate) fn see_message(&self, message: &[u8]) -> bool {
        let Some((&HEADER_TAG, rest)) = message.split_first() else { return !message.is_empty() };
        // The length of a header always fits in one byte.
        let Some((&length, rest)) = rest.split_first() else { return false };
        let Some(header) = rest.get(..usize::from(length)) else { return false };
        if length < 0x80
            && let Ok(header) = ResponseHeader::decode(Bytes::copy_from_slice(header))
        {
            self.see(Some(&header));
        }
        true
    }

    /// Returns the header for a response from this proxy.
    pub(super) fn header(&self) -> ResponseHeader {
        *self.0.lock()
    }
}

/// Returns the header with its revision raised to at least `revision`.
pub(super) fn at_least(header: ResponseHeader, revision: i64) -> ResponseHeader {
    ResponseHeader { revision: header.revision.max(revision), ..header }
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::RangeResponse;

    use super::*;
    use quorate_grpc::framing::framed;

    fn header(revision: i64) -> ResponseHeader {
        ResponseHeader { cluster_id: u64::MAX, member_id: u64::MAX, revision, raft_term: 3 }
    }

    #[test]
    fn the_latest_revision_never_decreases() {
        let latest = Latest::default();
        for (seen, is) in [(5, 5), (3, 5), (9, 9)] {
            latest.see(Some(&header(seen)));
            assert_eq!(latest.header().revision, is);
        }
        assert_eq!(latest.header(), header(9));
        assert_eq!(at_least(header(9), 12), header(12));
    }

    #[test]
    fn the_latest_revision_is_read_from_forwarded_responses() {
        let answer = RangeResponse { header: Some(header(i64::MAX)), ..RangeResponse::default() };
        let frame = framed(&answer);
        let latest = Latest::default();
        for length in 0..frame.len() - 1 {
            assert!(!latest.see_frame(&frame[..length]), "{length}");
        }
        assert!(latest.see_frame(&frame));
        assert_eq!(latest.header().revision, i64::MAX);
        assert!(latest.see_frame(b"\0\0\0\0\x01x"), "a complete message may have no header");
    }
}
