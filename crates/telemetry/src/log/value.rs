//! What a log field may hold, and how Rust values become one.
//!
//! A [`Value`] borrows from the caller: nothing is copied until the line is formatted.

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
    /// A number below or above zero.
    Signed(i64),
    /// A number that may use all 64 bits.
    Unsigned(u64),
    /// A number with a fraction.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A span of time, written as Go writes it.
    Duration(SignedDuration),
    /// A moment, written as the line's own time is.
    Time(SystemTime),
    /// A list, written as a JSON array.
    List(Vec<Self>),
    /// Anything that prints, written as a string.
    Shown(&'a dyn fmt::Display),
    /// Nothing: the field is left out.
    Absent,
}

impl Value<'_> {
    /// The same value, owning everything it needs.
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

/// A type whose values can stand in a log field.
pub trait Field {
    /// The value to be written.
    fn value(&self) -> Value<'_>;
}

/// Writes anything that prints as a string: ids in hex, errors, addresses.
#[derive(Clone, Copy, Debug)]
pub struct Shown<T>(pub T);

impl<T: fmt::Display> Field for Shown<T> {
    fn value(&self) -> Value<'_> {
        Value::Shown(&self.0)
    }
}

/// The text of an error followed by those of its causes, each after a colon.
///
/// A cause that its parent's text already has is not repeated, also where the parent has it in Go's words: in lower case and without
/// the system's number (`no such file or directory`).
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

/// A text of the system's as Go has it.
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
