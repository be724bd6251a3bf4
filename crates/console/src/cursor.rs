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
    /// The number of entries in the list, if the page shows it.
    pub(crate) count: Option<i64>,
}

impl Cursor {
    /// Parses the arguments `cursor` and `revision` of a call.
    pub(crate) fn of(input: &Input) -> Result<Self, Refusal> {
        let Some(text) = input.own_text("cursor")? else {
            let revision = input.number("revision")?.unwrap_or_default();
            return Ok(Self { revision, ..Self::default() });
        };
        Self::parse(text).ok_or_else(|| Refusal::bad_request("\"cursor\" is not valid"))
    }

    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.parse().ok().filter(|number| *number >= 0);
        let (revision, rest) = text.split_once('.')?;
        let (key, count) = match rest.split_once('.') {
            Some((key, count)) => (key, Some(number(count)?)),
            None => (rest, None),
        };
        let key = Some(STANDARD.decode(key).ok()?).filter(|key| !key.is_empty());
        Some(Self { revision: number(revision)?, key, count })
    }

    pub(crate) fn text(&self) -> String {
        let count = self.count.map_or_else(String::new, |count| format!(".{count}"));
        format!("{}.{}{count}", self.revision, base64(self.key.as_deref().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_through_its_string_form() {
        for count in [None, Some(0), Some(1_000_000)] {
            let cursor = Cursor { revision: 7, key: Some(b"a\0\xff".to_vec()), count };
            assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
        }
        for wrong in ["", "7", "x.YQ==", "-1.YQ==", "7.%", "7.YQ==.", "7.YQ==.-1", "7.YQ==.1.1"] {
            assert_eq!(Cursor::parse(wrong), None, "{wrong}");
        }
    }
}
