//! The client's settings.

use super::event::violation;
use super::{Connection, Event, Violation};
use crate::frame::{Code, Header, MAX_31_BITS, flag, kind, setting};

impl Connection {
    pub(super) fn on_settings<'a>(
        &mut self,
        header: Header,
        payload: &[u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        if header.stream != 0 {
            return violation(Code::PROTOCOL_ERROR, "SETTINGS on a stream");
        }
        self.idle_frame()?;
        if header.has(flag::ACK) {
            if header.len != 0 {
                return violation(
                    Code::FRAME_SIZE_ERROR,
                    "a SETTINGS acknowledgement contains settings",
                );
            }
            return Ok(None);
        }
        let (settings, []) = payload.as_chunks::<6>() else {
            return violation(Code::FRAME_SIZE_ERROR, "SETTINGS is truncated");
        };
        self.settings_seen = true;
        let mut window = None;
        for &[i0, i1, v0, v1, v2, v3] in settings {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            match u16::from_be_bytes([i0, i1]) {
                setting::HEADER_TABLE_SIZE => self.encoder.resize(value as usize),
                setting::ENABLE_PUSH if value > 1 => {
                    return violation(Code::PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1");
                }
                setting::INITIAL_WINDOW_SIZE if value > MAX_31_BITS => {
                    return violation(
                        Code::FLOW_CONTROL_ERROR,
                        "a flow-control window exceeds 2^31 - 1 bytes",
                    );
                }
                setting::INITIAL_WINDOW_SIZE => window = Some(value),
                setting::MAX_FRAME_SIZE => {
                    if !(16_384..=16_777_215).contains(&value) {
                        return violation(Code::PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range");
                    }
                    self.client_frame_bytes = value as usize;
                }
                _ => {}
            }
        }
        if let Some(window) = window {
            self.set_client_window(window)?;
        }
        Header { len: 0, kind: kind::SETTINGS, flags: flag::ACK, stream: 0 }.put(&mut self.out);
        Ok(window.map(|_| Event::NewWindow))
    }
}
