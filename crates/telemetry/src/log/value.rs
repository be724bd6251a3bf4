//! The values of log fields, and the conversions from Rust types.
//!
//! A [`Value`] borrows from the caller, so data is copied only when the line is formatted.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use quorate_gotext::duration::SignedDuration;

/// The value of a field.
#[derive(Clone)]
pub enum Value<'a> {
    /// A string.
    Text(Cow<'a, str>),
    /// A signed number.
    Signed(i64),
    /// An unsigned 64-bit number.
    Unsigned(u64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A duration, written in Go's format.
    Duration(SignedDuration),
    /// A point in time, written in the format of the line's own timestamp.
    Time(SystemTime),
    /// A list, written as a JSON array.
    List(Vec<Self>),
    /// Any printable value, written as a string.
    Shown(&'a dyn fmt::Display),
    /// A missing value, whose field is omitted.
    Absent,
}

impl Value<'_> {
    /// Returns the same value without borrowed data.
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Self::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
            Self::Signed(number) => Value::Signed(number),
            Self::Unsigned(number) => Value::Unsigned(number),
            Self::Float(number) => Value::Float(number),
            Self::Bool(flag) => Value::Bool(flag),
            Self::Duration(span) => Value::Duration(span),
            Self::Time(time) => Value::Time(time),
            Self::List(values) => Value::List(values.into_iter().map(Value::into_owned).collect()),
            Self::Shown(shown) => Value::Text(Cow::Owned(shown.to_string())),
            Self::Absent => Value::Absent,
        }
    }
}

/// A type whose values can be log fields.
pub trait Field {
    /// Returns the value to write.
    fn value(&self) -> Value<'_>;
}

/// A value that is written as a string by its `Display` implementation: an id in hex, an error, an address.
#[derive(Clone, Copy, Debug)]
pub struct Shown<T>(pub T);

impl<T: fmt::Display> Field for Shown<T> {
    fn value(&self) -> Value<'_> {
        Value::Shown(&self.0)
    }
}

/// Returns the text of an error followed by the texts of its causes, separated by colons.
///
/// A cause is omitted if the text of its parent already contains it, either literally or in Go's form: in lower case
/// and without the system error number (`no such file or directory`).
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !in_gos_words(&text).contains(&in_gos_words(&next)) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// Returns a system error text in Go's form.
fn in_gos_words(text: &str) -> String {
    let mut words = text.to_lowercase();
    while let Some(start) = words.find(" (os error ")
        && let Some(end) = words[start..].find(')')
    {
        words.replace_range(start..=start + end, "");
    }
    words
}

impl<T: Field + ?Sized> Field for &T {
    fn value(&self) -> Value<'_> {
        (**self).value()
    }
}

impl<T: Field> Field for Option<T> {
    fn value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Absent, Field::value)
    }
}

impl<T: Field> Field for [T] {
    fn value(&self) -> Value<'_> {
        Value::List(self.iter().map(Field::value).collect())
    }
}

impl<T: Field> Field for Vec<T> {
    fn value(&self) -> Value<'_> {
        self.as_slice().value()
    }
}

impl<T: Field, const N: usize> Field for [T; N] {
    fn value(&self) -> Value<'_> {
        self.as_slice().value()
    }
}

impl Field for str {
    fn value(&self) -> Value<'_> {
        Value::Text(Cow::Borrowed(self))
    }
}

impl Field for String {
    fn value(&self) -> Value<'_> {
        self.as_str().value()
    }
}

impl Field for Cow<'_, str> {
    fn value(&self) -> Value<'_> {
        (**self).value()
    }
}

impl Field for Path {
    fn value(&self) -> Value<'_> {
        Value::Text(self.to_string_lossy())
    }
}

impl Field for PathBuf {
    fn value(&self) -> Value<'_> {
        self.as_path().value()
    }
}

impl Field for bool {
    fn value(&self) -> Value<'_> {
        Value::Bool(*self)
    }
}

impl Field for f64 {
    fn value(&self) -> Value<'_> {
        Value::Float(*self)
    }
}

impl Field for SignedDuration {
    fn value(&self) -> Value<'_> {
        Value::Duration(*self)
    }
}

impl Field for Duration {
    fn value(&self) -> Value<'_> {
        Value::Duration((*self).into())
    }
}

impl Field for SystemTime {
    fn value(&self) -> Value<'_> {
        Value::Time(*self)
    }
}

macro_rules! number_fields {
    ($variant:ident: $($type:ty),*) => {
        $(impl Field for $type {
            fn value(&self) -> Value<'_> {
                Value::$variant((*self).into())
            }
        })*
    };
}

number_fields!(Signed: i8, i16, i32, i64);
number_fields!(Unsigned: u8, u16, u32, u64);

impl Field for usize {
    fn value(&self) -> Value<'_> {
        Value::Unsigned(*self as u64)
    }
}

impl Field for std::net::SocketAddr {
    fn value(&self) -> Value<'_> {
        Value::Shown(self)
    }
}
