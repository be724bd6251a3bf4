//! A log line that has not been written yet.
//!
//! Configuration is parsed by a pure function before the outputs are known. This function returns its log lines, and
//! the program writes them after opening the outputs.

use super::{Level, Value};

/// The position in the source code from which a line is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The source file, as `file!()` returns it.
    pub file: &'static str,
    /// The line number.
    pub line: u32,
    /// The name of the sub-logger, such as `raft`.
    pub logger: Option<&'static str>,
}

/// A line without its timestamp.
#[derive(Clone, Debug)]
pub struct Line {
    /// The level of the line.
    pub level: Level,
    /// The origin of the line.
    pub source: Source,
    /// The message of the line.
    pub message: String,
    /// The names and values of the line's fields.
    pub fields: Vec<(&'static str, Value<'static>)>,
}

impl Line {
    /// Writes the line, if its level is enabled.
    pub fn emit(&self) {
        if super::enabled(self.level) {
            super::write(self.level, self.source, &self.message, &self.fields);
        }
    }

    /// Returns the value of the field with this name, if it is a string.
    pub fn text_of(&self, key: &str) -> Option<String> {
        let field = self.fields.iter().find(|(name, _)| *name == key);
        field.and_then(|(_, value)| match value {
            Value::Text(text) => Some(text.to_string()),
            _ => None,
        })
    }

    /// Returns the field with this name as JSON, for tests and for callers that inspect a line.
    pub fn field(&self, key: &str) -> Option<String> {
        self.fields.iter().find(|(name, _)| *name == key).map(|(_, value)| format!("{value:?}"))
    }
}
