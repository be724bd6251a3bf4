//! How far the store is, as far as this proxy knows.
//!
//! A client that was told of a revision is not told of an earlier one by an answer that no member has given: such an
//! answer says the latest revision that anybody was told by this proxy. It is true of it, because what is owned does not
//! change but by this proxy.

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use quorate_api::etcdserverpb::ResponseHeader;
use quorate_grpc::framing::HEAD_BYTES;

/// The field that all answers begin with, as it stands before a header.
const HEADER_TAG: u8 = 0x0a;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Latest(Mutex<ResponseHeader>);

impl Latest {
    /// A member has said so.
    pub(crate) fn see(&self, header: Option<&ResponseHeader>) {
        let Some(header) = header else { return };
        let mut latest = self.0.lock();
        if header.revision >= latest.revision {
            *latest = *header;
        }
    }

    /// The same, where an answer passes as bytes; whether enough of it has passed.
    pub(crate) fn see_frame(&self, passed: &[u8]) -> bool {
        passed.get(HEAD_BYTES..).is_some_and(|message| self.see_message(message))
    }

    /// The same of a message.
    pub(crate) fn see_message(&self, message: &[u8]) -> bool {
        let Some((&HEADER_TAG, rest)) = message.split_first() else { return !message.is_empty() };
        // A header is shorter than what one byte can say the length of.
        let Some((&length, rest)) = rest.split_first() else { return false };
        let Some(header) = rest.get(..usize::from(length)) else { return false };
        if length < 0x80
            && let Ok(header) = ResponseHeader::decode(Bytes::copy_from_slice(header))
        {
            self.see(Some(&header));
        }
        true
    }

    /// The header of an answer from here.
    pub(super) fn header(&self) -> ResponseHeader {
        *self.0.lock()
    }
}

/// The header of an answer about what was so at this revision.
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
    fn it_never_goes_back() {
        let latest = Latest::default();
        for (seen, is) in [(5, 5), (3, 5), (9, 9)] {
            latest.see(Some(&header(seen)));
            assert_eq!(latest.header().revision, is);
        }
        assert_eq!(latest.header(), header(9));
        assert_eq!(at_least(header(9), 12), header(12));
    }

    #[test]
    fn it_is_read_from_answers_that_pass() {
        let answer = RangeResponse { header: Some(header(i64::MAX)), ..RangeResponse::default() };
        let frame = framed(&answer);
        let latest = Latest::default();
        for length in 0..frame.len() - 1 {
            assert!(!latest.see_frame(&frame[..length]), "{length}");
        }
        assert!(latest.see_frame(&frame));
        assert_eq!(latest.header().revision, i64::MAX);
        assert!(latest.see_frame(b"\0\0\0\0\x01x"), "no header will come");
    }
}
