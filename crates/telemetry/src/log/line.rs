//! A log line that is not written yet.
//!
//! Configuration is parsed before the outputs are known, and as a pure function: it hands back the
//! lines that its work deserves, and the program writes them once it knows where.

use super::{Level, Value};

/// The place in the source that a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The source file, as `file!()` gives it.
    pub file: &'static str,
    /// The line in it.
    pub line: u32,
    /// The name of the sub-logger, such as `raft`.
    pub logger: Option<&'static str>,
}

/// A line with everything but its time.
#[derive(Clone, Debug)]
pub struct Line {
    /// How much it matters.
    pub level: Level,
    /// Where it comes from.
    pub source: Source,
    /// What happened.
    pub message: String,
    /// The circumstances.
    pub fields: Vec<(&'static str, Value<'static>)>,
}

impl Line {
    /// Writes the line now, if its level is enabled.
    pub fn emit(&self) {
        if super::enabled(self.level) {
            super::write(self.level, self.source, &self.message, &self.fields);
        }
    }

    /// The field of that name, if it is text.
    pub fn text_of(&self, key: &str) -> Option<String> {
        let field = self.fields.iter().find(|(name, _)| *name == key);
        field.and_then(|(_, value)| match value {
            Value::Text(text) => Some(text.to_string()),
            _ => None,
        })
    }

    /// The field of that name as JSON, for tests and for callers that look into a line.
    pub fn field(&self, key: &str) -> Option<String> {
        self.fields.iter().find(|(name, _)| *name == key).map(|(_, value)| format!("{value:?}"))
    }
}
