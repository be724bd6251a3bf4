//! `--experimental-enable-grpc-logging`: logs every message of every call in JSON.
//!
//! For messages with passwords or tokens, compressed messages, and messages longer than [`LOGGED_BYTES_MAX`], only the
//! length is logged.

use std::net::SocketAddr;

use bytes::{Buf as _, BytesMut};
use quorate_grpc::framing::{HEAD_BYTES, message_len};
use quorate_grpc::observed::{Observed, Observer};
use quorate_json::Conversion;
use quorate_telemetry::log;
use tonic::body::Body;

/// Maximum length, in bytes, of a message that is logged in full. The message is buffered until it is complete.
const LOGGED_BYTES_MAX: usize = 1 << 20;

/// Methods whose messages contain passwords or tokens.
const SECRET_METHODS: [&str; 3] = ["Authenticate", "UserAdd", "UserChangePassword"];

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Response,
}

/// A call whose messages are logged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedCall {
    pub(crate) service: &'static str,
    pub(crate) method: &'static str,
    pub(crate) from: Option<SocketAddr>,
}

impl LoggedCall {
    /// Returns a body whose messages are logged as they are forwarded.
    pub(crate) fn body(self, side: Side, inner: Body) -> Body {
        let held = BytesMut::new();
        Observed::of_body(inner, BodyLogger { call: self, side, held, passed_over: 0 })
    }

    fn show(&self, side: Side, message: Option<&[u8]>, length: usize) {
        let content = message.and_then(|message| self.json(side, message));
        let content = content.unwrap_or_else(|| format!("({length} bytes)"));
        let address = self.from.map(|from| from.to_string()).unwrap_or_default();
        match side {
            Side::Request => log::info!(
                "received payload logged as grpc.request.content field",
                "grpc.request.content" = content,
                "grpc.service" = self.service,
                "grpc.method" = self.method,
                "peer.address" = address
            ),
            Side::Response => log::info!(
                "returned response payload logged as grpc.response.content field",
                "grpc.response.content" = content,
                "grpc.service" = self.service,
                "grpc.method" = self.method,
                "peer.address" = address
            ),
        }
    }

    fn json(&self, side: Side, message: &[u8]) -> Option<String> {
        if SECRET_METHODS.contains(&self.method) {
            return None;
        }
        let conversion = Conversion::of(self.service, self.method)?;
        let mut json = Vec::new();
        match side {
            Side::Request => conversion.asked(message, &mut json).ok()?,
            Side::Response => conversion.response(message, &mut json).ok()?,
        }
        String::from_utf8(json).ok()
    }
}

#[derive(Debug)]
struct BodyLogger {
    call: LoggedCall,
    side: Side,
    /// The received part of an incomplete message, including its gRPC prefix.
    held: BytesMut,
    /// Number of bytes of the current message that have not arrived yet, if only its length is logged.
    passed_over: usize,
}

impl BodyLogger {
    fn pass(&mut self, mut bytes: &[u8]) {
        loop {
            let skipped = self.passed_over.min(bytes.len());
            bytes.advance(skipped);
            self.passed_over -= skipped;
            let missing = HEAD_BYTES.saturating_sub(self.held.len()).min(bytes.len());
            self.held.extend_from_slice(&bytes[..missing]);
            bytes.advance(missing);
            let Some(head) = self.held.first_chunk::<HEAD_BYTES>() else { return };
            let length = message_len(head);
            if head[0] != 0 || length > LOGGED_BYTES_MAX {
                self.call.show(self.side, None, length);
                self.held.clear();
                self.passed_over = length;
                continue;
            }
            let missing = (HEAD_BYTES + length - self.held.len()).min(bytes.len());
            self.held.extend_from_slice(&bytes[..missing]);
            bytes.advance(missing);
            if self.held.len() < HEAD_BYTES + length {
                return;
            }
            self.call.show(self.side, Some(&self.held[HEAD_BYTES..]), length);
            self.held.clear();
        }
    }
}

impl Observer for BodyLogger {
    fn passed(&mut self, data: &[u8]) {
        self.pass(data);
    }
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::{AuthenticateRequest, PutRequest};

    use super::*;
    use quorate_grpc::framing::framed;

    fn body_logger(method: &'static str) -> BodyLogger {
        let call = LoggedCall { service: "etcdserverpb.KV", method, from: None };
        BodyLogger { call, side: Side::Request, held: BytesMut::new(), passed_over: 0 }
    }

    #[test]
    fn messages_are_found_however_the_bytes_are_split() {
        let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
        let wire = [framed(&put), framed(&put)].concat();
        for piece in 1..=wire.len() {
            let mut shower = body_logger("Put");
            for bytes in wire.chunks(piece) {
                shower.pass(bytes);
                assert!(shower.held.len() < wire.len() / 2);
            }
            assert!(shower.held.is_empty());
        }
        let long = framed(&PutRequest { value: vec![0; 2 << 20].into(), ..PutRequest::default() });
        let mut shower = body_logger("Put");
        for bytes in long.chunks(4096) {
            shower.pass(bytes);
            assert!(shower.held.len() <= HEAD_BYTES);
        }
        assert_eq!(shower.passed_over, 0);
    }

    #[test]
    fn logged_messages_contain_no_passwords() {
        let call = body_logger("Put").call;
        let put = PutRequest { key: "k".into(), ..PutRequest::default() };
        let message = framed(&put).slice(HEAD_BYTES..);
        assert_eq!(call.json(Side::Request, &message).as_deref(), Some("{\"key\":\"aw==\"}"));
        let service = "etcdserverpb.Auth";
        let call = LoggedCall { service, method: "Authenticate", from: None };
        let request = AuthenticateRequest { name: "n".into(), password: "p".into() };
        assert_eq!(call.json(Side::Request, &framed(&request).slice(HEAD_BYTES..)), None);
    }
}
