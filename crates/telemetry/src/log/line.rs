//! A log line that is not written yet.
//!
//! Configuration is parsed by a pure function before the outputs are known. It returns its log lines, and the
//! program writes them after it has opened the outputs.

use super::{Level, Value};

/// The place in the source that a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The source file, as `file!()` returns it.
    pub file: &'static str,
    /// The line number.
    pub line: u32,
    /// The name of the sub-logger, such as `raft`.
    pub logger: Option<&'static str>,
}

/// A line without its time.
#[derive(Clone, Debug)]
pub struct Line {
    /// The level.
    pub level: Level,
    /// The source.
    pub source: Source,
    /// The message.
    pub message: String,
    /// The fields.
    pub fields: Vec<(&'static str, Value<'static>)>,
}

impl Line {
    /// Writes the line now, if its level is enabled.
    pub fn emit(&self) {
        if super::enabled(self.level) {
            super::write(self.level, self.source, &self.message, &self.fields);
        }
    }

    /// Returns the field with this name, if it is text.
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
