//! The types of flags, which determine how a value is parsed and where it is stored.

use std::collections::BTreeSet;

use quorate_gotext::duration::SignedDuration;
use quorate_gotext::number::{parse_bool, parse_int, parse_uint};
use quorate_gotext::quote::go_quote;

use super::draft::Draft;
use super::features::FeatureGates;
use super::url::{self, Url};

/// The field of the draft that stores a value.
pub(super) type Place<T> = fn(&mut Draft) -> &mut T;

/// The type of a flag, and the field that stores its value.
///
/// There is a type for each of Go's number types, because the names of these types appear in error messages about the
/// file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Setting {
    /// A string.
    Text(Place<String>),
    /// A boolean.
    Bool(Place<bool>),
    /// An unsigned number; `uint` in Go.
    Uint(Place<u64>),
    /// An unsigned number; `uint64` in Go.
    Uint64(Place<u64>),
    /// An unsigned number; `uint32` in Go.
    Uint32(Place<u32>),
    /// A signed number; `int` in Go.
    Int(Place<i64>),
    /// A signed number; `int64` in Go.
    Int64(Place<i64>),
    /// A duration.
    Duration(Place<SignedDuration>),
    /// Comma-separated URLs. An empty string has no effect.
    Urls(Place<Vec<Url>>),
    /// Comma-separated strings in the given order, without empty strings.
    Texts(Place<Vec<String>>),
    /// Comma-separated strings, sorted and without duplicates.
    UniqueTexts(Place<Vec<String>>),
    /// A set of comma-separated strings.
    Hosts(Place<BTreeSet<String>>),
    /// Comma-separated origins, or `*`.
    Origins(Place<BTreeSet<String>>),
    /// One of these strings.
    OneOf(&'static [&'static str], Place<String>),
    /// Comma-separated strings from this list. A repeated flag adds its values to the earlier ones.
    SomeOf(&'static [&'static str], Place<Vec<String>>),
    /// Feature gates. A repeated flag adds its gates to the earlier ones.
    Gates(Place<FeatureGates>),
    /// A flag that accepts any value and ignores it.
    Ignored,
}

impl Setting {
    /// Returns whether the flag takes no value.
    pub(super) fn is_bool(&self) -> bool {
        matches!(self, Self::Bool(_) | Self::Ignored)
    }

    /// Parses `text`, and stores the value in the draft.
    ///
    /// # Errors
    ///
    /// The text is invalid. The error is the reason, worded to follow `invalid value "V" for flag -NAME:`.
    pub(super) fn set(&self, draft: &mut Draft, text: &str) -> Result<(), String> {
        match *self {
            Self::Text(place) => text.clone_into(place(draft)),
            Self::Bool(place) => {
                *place(draft) = parse_bool(text).ok_or_else(|| "parse error".to_owned())?;
            }
            Self::Uint(place) | Self::Uint64(place) => {
                *place(draft) =
                    parse_uint(text, 0, u64::MAX).map_err(|e| e.flag_reason().to_owned())?;
            }
            Self::Uint32(place) => {
                let value = parse_uint(text, 0, u64::from(u32::MAX)).map_err(|error| {
                    let reason = error.strconv_reason();
                    format!("strconv.ParseUint: parsing {}: {reason}", go_quote(text))
                })?;
                *place(draft) = u32::try_from(value).expect("the maximum was checked");
            }
            Self::Int(place) | Self::Int64(place) => {
                *place(draft) = parse_int(text, 0).map_err(|e| e.flag_reason().to_owned())?;
            }
            Self::Duration(place) => {
                *place(draft) = text.parse().map_err(|_| "parse error".to_owned())?;
            }
            Self::Urls(place) => {
                if !text.is_empty() {
                    *place(draft) = url::parse_list(text).map_err(|error| error.to_string())?;
                }
            }
            Self::Texts(place) => *place(draft) = text.split(',').map(str::to_owned).collect(),
            Self::UniqueTexts(place) => {
                let unique: BTreeSet<&str> = text.split(',').collect();
                *place(draft) = unique.into_iter().map(str::to_owned).collect();
            }
            Self::Hosts(place) => *place(draft) = text.split(',').map(str::to_owned).collect(),
            Self::Origins(place) => set_origins(place(draft), text)?,
            Self::OneOf(choices, place) => {
                if !choices.contains(&text) {
                    return Err("invalid value".to_owned());
                }
                text.clone_into(place(draft));
            }
            Self::SomeOf(choices, place) => {
                for word in text.split(',') {
                    if !choices.contains(&word) {
                        return Err(format!("invalid value {}", go_quote(word)));
                    }
                    place(draft).push(word.to_owned());
                }
            }
            Self::Gates(place) => place(draft).set(text).map_err(|error| error.to_string())?,
            Self::Ignored => {}
        }
        Ok(())
    }

    /// Returns the value in the draft, as shown in the help text.
    pub(super) fn shown(&self, draft: &mut Draft) -> String {
        match *self {
            Self::Text(place) | Self::OneOf(_, place) => place(draft).clone(),
            Self::Bool(place) => place(draft).to_string(),
            Self::Uint(place) | Self::Uint64(place) => place(draft).to_string(),
            Self::Uint32(place) => place(draft).to_string(),
            Self::Int(place) | Self::Int64(place) => place(draft).to_string(),
            Self::Duration(place) => place(draft).to_string(),
            Self::Urls(place) => url::joined(place(draft)),
            Self::Texts(place) | Self::UniqueTexts(place) | Self::SomeOf(_, place) => {
                place(draft).join(",")
            }
            Self::Hosts(place) | Self::Origins(place) => {
                place(draft).iter().map(String::as_str).collect::<Vec<_>>().join(",")
            }
            Self::Gates(place) => place(draft).to_string(),
            Self::Ignored => String::new(),
        }
    }
}

/// Sets the accepted origins. `*` is added to them, whereas a list of URLs replaces them.
pub(super) fn set_origins(origins: &mut BTreeSet<String>, text: &str) -> Result<(), String> {
    if text == "*" {
        origins.insert(text.to_owned());
    } else if !origins.contains(text) {
        let urls = url::parse_list(text).map_err(|error| error.to_string())?;
        *origins = urls.iter().map(ToString::to_string).collect();
    }
    Ok(())
}
