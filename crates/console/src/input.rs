//! The arguments of an API call: one JSON object. Each field is read as a value of an expected type, and the length and
//! number of fields are limited.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::refusal::Refusal;

/// Maximum length of a name or a password, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// Maximum number of arguments of a call, and of strings in a list.
const ARGUMENTS_MAX: usize = 32;
const TEXTS_MAX: usize = 100;

/// The arguments of a call.
///
/// An argument cannot contain objects. The body of a request is parsed before its caller is known, so the parsed form
/// must not occupy much more memory than the body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Input(Vec<(String, Argument)>);

#[derive(Clone, Debug)]
enum Argument {
    Missing,
    Flag(bool),
    Number(i64),
    Text(String),
    Texts(Vec<String>),
    /// A fraction, or a number outside the supported range.
    OtherNumber,
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Arguments;
        impl<'de> Visitor<'de> for Arguments {
            type Value = Input;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Input, A::Error> {
                let mut arguments = Vec::new();
                while let Some(argument) = map.next_entry()? {
                    if arguments.len() == ARGUMENTS_MAX {
                        return Err(de::Error::custom(format!(
                            "more than {ARGUMENTS_MAX} arguments"
                        )));
                    }
                    arguments.push(argument);
                }
                Ok(Input(arguments))
            }
        }
        deserializer.deserialize_map(Arguments)
    }
}

impl<'de> Deserialize<'de> for Argument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneArgument;
        impl<'de> Visitor<'de> for OneArgument {
            type Value = Argument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number, true or false, or a list of strings")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Argument, E> {
                Ok(Argument::Missing)
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Argument, E> {
                Ok(Argument::Flag(flag))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Argument, E> {
                Ok(Argument::Number(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Argument, E> {
                Ok(i64::try_from(number).map_or(Argument::OtherNumber, Argument::Number))
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Argument, E> {
                Ok(Argument::OtherNumber)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Argument, E> {
                Ok(Argument::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Argument, E> {
                Ok(Argument::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Argument, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element::<String>()? {
                    if texts.len() == TEXTS_MAX {
                        return Err(de::Error::custom(format!(
                            "a list of more than {TEXTS_MAX} strings"
                        )));
                    }
                    texts.push(text);
                }
                Ok(Argument::Texts(texts))
            }
        }
        deserializer.deserialize_any(OneArgument)
    }
}

impl Input {
    /// Parses the body of a request. An empty body has no arguments.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        serde_json::from_slice(body).map_err(|error| {
            Refusal::bad_request(format!("the body is not a JSON object of arguments: {error}"))
        })
    }

    /// Returns an argument. If a name occurs several times, returns the last argument with that name.
    fn field(&self, name: &str) -> Option<&Argument> {
        let named = self.0.iter().rev().find(|(given, _)| given == name);
        named.map(|(_, argument)| argument).filter(|one| !matches!(one, Argument::Missing))
    }

    /// Returns a string; `None` if the field is missing.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        match self.field(name) {
            None => Ok(None),
            Some(Argument::Text(text)) if text.len() <= TEXT_BYTES_MAX => Ok(Some(text)),
            Some(_) => Err(mistake(name, &format!("a string of at most {TEXT_BYTES_MAX} bytes"))),
        }
    }

    /// Returns a string of any length that was created by this server; `None` if the field is missing.
    pub(crate) fn own_text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        match self.field(name) {
            None => Ok(None),
            Some(Argument::Text(text)) => Ok(Some(text)),
            Some(_) => Err(mistake(name, "a string")),
        }
    }

    /// Returns a required string, which must not be empty.
    pub(crate) fn required_text(&self, name: &str) -> Result<&str, Refusal> {
        let text = self.text(name)?.unwrap_or_default();
        if text.is_empty() { Err(mistake(name, "given")) } else { Ok(text) }
    }

    /// Returns a list of strings.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, Refusal> {
        match self.field(name) {
            None => Ok(Vec::new()),
            Some(Argument::Texts(texts)) => Ok(texts.clone()),
            Some(_) => Err(mistake(name, "a list of strings")),
        }
    }

    /// Returns bytes, which are given in base64; `None` if the field is missing.
    pub(crate) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
        let wrong = || mistake(name, "base64");
        let Some(argument) = self.field(name) else { return Ok(None) };
        let Argument::Text(text) = argument else { return Err(wrong()) };
        STANDARD.decode(text).map(Some).map_err(|_| wrong())
    }

    /// Returns the required key, which must not be empty.
    pub(crate) fn key(&self) -> Result<Vec<u8>, Refusal> {
        let key = self.bytes("key")?.unwrap_or_default();
        if key.is_empty() { Err(mistake("key", "given")) } else { Ok(key) }
    }

    /// Returns a number that is not negative; `None` if the field is missing.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, Refusal> {
        match self.field(name) {
            None => Ok(None),
            Some(Argument::Number(number)) if *number >= 0 => Ok(Some(*number)),
            Some(_) => Err(mistake(name, "a non-negative integer")),
        }
    }

    /// Returns a required number.
    pub(crate) fn required_number(&self, name: &str) -> Result<i64, Refusal> {
        self.number(name)?.ok_or_else(|| mistake(name, "given"))
    }

    /// Returns the field `limit`, or `default` if it is missing. The result is at least 1 and at most `most`.
    pub(crate) fn limit(&self, default: usize, most: usize) -> Result<usize, Refusal> {
        let given = self.number("limit")?.map(|given| usize::try_from(given).unwrap_or(usize::MAX));
        match given.unwrap_or(default) {
            limit if (1..=most).contains(&limit) => Ok(limit),
            _ => Err(mistake("limit", &format!("from 1 to {most}"))),
        }
    }

    /// Returns a boolean; false if the field is missing.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.field(name) {
            None => Ok(false),
            Some(Argument::Flag(flag)) => Ok(*flag),
            Some(_) => Err(mistake(name, "true or false")),
        }
    }

    /// Returns an id, which is given as hexadecimal digits; `None` if the field is missing.
    pub(crate) fn id(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let wrong = || mistake(name, "an id in hexadecimal digits");
        let Some(argument) = self.field(name) else { return Ok(None) };
        let Argument::Text(text) = argument else { return Err(wrong()) };
        if text.starts_with('+') {
            return Err(wrong());
        }
        u64::from_str_radix(text, 16).map(Some).map_err(|_| wrong())
    }

    /// Returns a required id.
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
    fn call_arguments_are_read_by_type() {
        let given = input(r#"{"key":"AP8=","n":5,"id":"8e9e05c52164694d","on":true,"t":"x"}"#);
        assert_eq!(given.key().unwrap(), [0, 0xff]);
        assert_eq!(given.number("n").unwrap(), Some(5));
        assert_eq!(given.id("id").unwrap(), Some(0x8e9e_05c5_2164_694d));
        assert!(given.flag("on").unwrap());
        assert_eq!(given.required_text("t").unwrap(), "x");
        assert_eq!(given.limit(10, 20).unwrap(), 10);
    }

    #[test]
    fn a_body_with_nested_or_too_many_arguments_is_refused() {
        for body in [
            r#"{"a":{}}"#.to_owned(),
            r#"{"a":[{}]}"#.to_owned(),
            r#"{"a":[["x"]]}"#.to_owned(),
            format!(r#"{{"a":[{}]}}"#, vec![r#""x""#; TEXTS_MAX + 1].join(",")),
            format!("{{{}}}", vec![r#""a":1"#; ARGUMENTS_MAX + 1].join(",")),
        ] {
            assert!(Input::parse(body.as_bytes()).is_err(), "{body}");
        }
        let texts = input(r#"{"a":["x","y"],"b":1,"b":null}"#);
        assert_eq!(texts.texts("a").unwrap(), ["x", "y"]);
        assert_eq!(texts.number("b").unwrap(), None);
    }

    #[test]
    fn an_argument_of_the_wrong_type_is_refused_with_its_name() {
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
