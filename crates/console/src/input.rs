//! The arguments of an API call: one JSON object whose fields are read by type, within bounds.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::refusal::Refusal;

/// Maximum length of a name or a password, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// The arguments of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Input(Map<String, Value>);

impl Input {
    /// Parses the body of a request. An empty body has no arguments.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(Refusal::bad_request("the body must be a JSON object")),
            Err(error) => Err(Refusal::bad_request(format!("the body is not valid JSON: {error}"))),
        }
    }

    fn field(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Returns a text; `None` if the field is missing.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        match self.field(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= TEXT_BYTES_MAX => Ok(Some(text)),
            Some(_) => Err(mistake(name, &format!("a text of at most {TEXT_BYTES_MAX} bytes"))),
        }
    }

    /// Returns a text of any length that this server has written itself; `None` if the field is missing.
    pub(crate) fn own_text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        match self.field(name) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| mistake(name, "a text")),
        }
    }

    /// Returns a text that must be given and not be empty.
    pub(crate) fn required_text(&self, name: &str) -> Result<&str, Refusal> {
        let text = self.text(name)?.unwrap_or_default();
        if text.is_empty() { Err(mistake(name, "given")) } else { Ok(text) }
    }

    /// Returns a list of texts.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, Refusal> {
        let wrong = || mistake(name, "a list of texts");
        let Some(list) = self.field(name) else { return Ok(Vec::new()) };
        let list = list.as_array().filter(|list| list.len() <= 100).ok_or_else(wrong)?;
        list.iter().map(|text| text.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
    }

    /// Returns bytes, which are given in base64; `None` if the field is missing.
    pub(crate) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
        let wrong = || mistake(name, "base64");
        let Some(value) = self.field(name) else { return Ok(None) };
        let text = value.as_str().ok_or_else(wrong)?;
        STANDARD.decode(text).map(Some).map_err(|_| wrong())
    }

    /// Returns a key, which must be given and not be empty.
    pub(crate) fn key(&self) -> Result<Vec<u8>, Refusal> {
        let key = self.bytes("key")?.unwrap_or_default();
        if key.is_empty() { Err(mistake("key", "given")) } else { Ok(key) }
    }

    /// Returns a number that is not negative; `None` if the field is missing.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, Refusal> {
        match self.field(name) {
            None => Ok(None),
            Some(value) => match value.as_i64() {
                Some(number) if number >= 0 => Ok(Some(number)),
                Some(_) | None => Err(mistake(name, "a number that is not negative")),
            },
        }
    }

    /// Returns a number that must be given.
    pub(crate) fn required_number(&self, name: &str) -> Result<i64, Refusal> {
        self.number(name)?.ok_or_else(|| mistake(name, "given"))
    }

    /// Returns the field `limit`, or a default, within 1 and a maximum.
    pub(crate) fn limit(&self, default: usize, most: usize) -> Result<usize, Refusal> {
        let given = self.number("limit")?.map(|given| usize::try_from(given).unwrap_or(usize::MAX));
        match given.unwrap_or(default) {
            limit if (1..=most).contains(&limit) => Ok(limit),
            _ => Err(mistake("limit", &format!("from 1 to {most}"))),
        }
    }

    /// Returns a switch; false if the field is missing.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.field(name) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| mistake(name, "true or false")),
        }
    }

    /// Returns an id, which is given as hexadecimal digits; `None` if the field is missing.
    pub(crate) fn id(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let wrong = || mistake(name, "an id in hexadecimal digits");
        let Some(value) = self.field(name) else { return Ok(None) };
        let text = value.as_str().filter(|text| !text.starts_with('+')).ok_or_else(wrong)?;
        u64::from_str_radix(text, 16).map(Some).map_err(|_| wrong())
    }

    /// Returns an id that must be given.
    pub(crate) fn required_id(&self, name: &str) -> Result<u64, Refusal> {
        self.id(name)?.ok_or_else(|| mistake(name, "given"))
    }

    /// Returns the id of a lease; 0 if the field is missing.
    pub(crate) fn lease(&self, name: &str) -> Result<i64, Refusal> {
        Ok(self.id(name)?.unwrap_or_default().cast_signed())
    }
}

fn mistake(name: &str, rule: &str) -> Refusal {
    Refusal::bad_request(format!("{name:?} must be {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(text: &str) -> Input {
        Input::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn fields_are_read_by_type() {
        let given = input(r#"{"key":"AP8=","n":5,"id":"8e9e05c52164694d","on":true,"t":"x"}"#);
        assert_eq!(given.key().unwrap(), [0, 0xff]);
        assert_eq!(given.number("n").unwrap(), Some(5));
        assert_eq!(given.id("id").unwrap(), Some(0x8e9e_05c5_2164_694d));
        assert!(given.flag("on").unwrap());
        assert_eq!(given.required_text("t").unwrap(), "x");
        assert_eq!(given.limit(10, 20).unwrap(), 10);
    }

    #[test]
    fn a_field_of_another_type_is_refused_by_name() {
        let given = input(r#"{"key":"%","n":-1,"id":"+1","on":1,"limit":21,"t":[]}"#);
        let texts = [
            given.key().unwrap_err().message,
            given.number("n").unwrap_err().message,
            given.id("id").unwrap_err().message,
            given.flag("on").unwrap_err().message,
            given.limit(10, 20).unwrap_err().message,
            given.text("t").unwrap_err().message,
        ];
        for (text, name) in texts.iter().zip(["key", "n", "id", "on", "limit", "t"]) {
            assert!(text.starts_with(&format!("\"{name}\" must be ")), "{text}");
        }
        assert!(Input::parse(b"[]").is_err());
        assert!(Input::parse(b"{").is_err());
        assert!(Input::parse("[".repeat(100_000).as_bytes()).is_err());
    }
}
