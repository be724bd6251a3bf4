//! Cursors. A cursor is a string that encodes where the next part of a list begins. The web page sends it back to
//! request that part.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::encode::base64;
use crate::input::Input;
use crate::refusal::Refusal;

/// The position in a list at which the next part begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The revision of the list; 0 for the newest revision.
    pub(crate) revision: i64,
    /// The first key; `None` for the beginning of the list.
    pub(crate) key: Option<Vec<u8>>,
}

impl Cursor {
    /// Parses the arguments `cursor` and `revision` of a call.
    pub(crate) fn of(input: &Input) -> Result<Self, Refusal> {
        let Some(text) = input.own_text("cursor")? else {
            return Ok(Self { revision: input.number("revision")?.unwrap_or_default(), key: None });
        };
        Self::parse(text).ok_or_else(|| Refusal::bad_request("\"cursor\" is not valid"))
    }

    fn parse(text: &str) -> Option<Self> {
        let (revision, key) = text.split_once('.')?;
        let revision = revision.parse().ok().filter(|revision| *revision >= 0)?;
        Some(Self { revision, key: Some(STANDARD.decode(key).ok()?).filter(|key| !key.is_empty()) })
    }

    pub(crate) fn text(&self) -> String {
        format!("{}.{}", self.revision, base64(self.key.as_deref().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_through_its_string_form() {
        let cursor = Cursor { revision: 7, key: Some(b"a\0\xff".to_vec()) };
        assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
        for wrong in ["", "7", "x.YQ==", "-1.YQ==", "7.%"] {
            assert_eq!(Cursor::parse(wrong), None, "{wrong}");
        }
    }
}
