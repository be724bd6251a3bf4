//! Members as JSON, byte for byte as Go writes them in their bucket, in conf changes and in `.snap`
//! files.
//!
//! The encoder is hand-written because the bytes are part of the file format: the order of fields,
//! the omission of empty fields, and Go's escapes. The decoder is as lenient as Go's: keys match
//! regardless of case, unknown keys are skipped, and `null` means empty.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::Member;
use crate::units::MemberId;

/// The text is not JSON, or the JSON does not describe a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid member JSON: {0}")]
pub struct JsonError(String);

/// The context of a conf change: a member, and whether the change is a promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeContext {
    /// The member.
    pub member: Member,
    /// Whether the change makes a learner a voter.
    pub is_promote: bool,
}

impl Member {
    /// Returns the member's JSON, as stored in its bucket.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = format!("{{\"id\":{},", self.id.0);
        self.write_raft_attributes(&mut json);
        if !self.name.is_empty() || !self.client_urls.is_empty() {
            json.push(',');
            self.write_attributes(&mut json);
        }
        json.push('}');
        json
    }

    /// Returns the attributes that consensus needs, as JSON.
    #[must_use]
    pub fn raft_attributes_json(&self) -> String {
        let mut json = String::from("{");
        self.write_raft_attributes(&mut json);
        json.push('}');
        json
    }

    /// Returns the attributes that the member publishes itself, as JSON.
    #[must_use]
    pub fn attributes_json(&self) -> String {
        let mut json = String::from("{");
        self.write_attributes(&mut json);
        json.push('}');
        json
    }

    /// Decodes a member.
    pub fn from_json(json: &[u8]) -> Result<Self, JsonError> {
        ChangeContext::from_json(json).map(|context| context.member)
    }

    fn write_raft_attributes(&self, json: &mut String) {
        json.push_str("\"peerURLs\":");
        // Go distinguishes unset lists from empty ones, but etcd never sets an empty list.
        if self.peer_urls.is_empty() {
            json.push_str("null");
        } else {
            write_list(json, &self.peer_urls);
        }
        if self.is_learner {
            json.push_str(",\"isLearner\":true");
        }
    }

    fn write_attributes(&self, json: &mut String) {
        if !self.name.is_empty() {
            json.push_str("\"name\":");
            write_string(json, &self.name);
        }
        if !self.client_urls.is_empty() {
            if !self.name.is_empty() {
                json.push(',');
            }
            json.push_str("\"clientURLs\":");
            write_list(json, &self.client_urls);
        }
    }
}

impl ChangeContext {
    /// Returns the context of a conf change that promotes a learner, as JSON.
    #[must_use]
    pub fn promotion_json(id: MemberId) -> String {
        format!("{{\"id\":{},\"peerURLs\":null,\"isPromote\":true}}", id.0)
    }

    /// Decodes the context of a conf change.
    pub fn from_json(json: &[u8]) -> Result<Self, JsonError> {
        let object: Map<String, Value> =
            serde_json::from_slice(json).map_err(|error| JsonError(error.to_string()))?;
        let mut context = Self { member: Member::new(MemberId(0), Vec::new()), is_promote: false };
        let member = &mut context.member;
        for (key, value) in object {
            match key.to_ascii_lowercase().as_str() {
                "id" => member.id = MemberId(number(&key, &value)?),
                "peerurls" => member.peer_urls = list(&key, value)?,
                "islearner" => member.is_learner = boolean(&key, &value)?,
                "name" => member.name = string(&key, value)?,
                "clienturls" => member.client_urls = list(&key, value)?,
                "ispromote" => context.is_promote = boolean(&key, &value)?,
                _ => {}
            }
        }
        Ok(context)
    }
}

fn wrong(key: &str) -> JsonError {
    JsonError(format!("{key} has the wrong type"))
}

fn number(key: &str, value: &Value) -> Result<u64, JsonError> {
    if value.is_null() { Ok(0) } else { value.as_u64().ok_or_else(|| wrong(key)) }
}

fn boolean(key: &str, value: &Value) -> Result<bool, JsonError> {
    if value.is_null() { Ok(false) } else { value.as_bool().ok_or_else(|| wrong(key)) }
}

fn string(key: &str, value: Value) -> Result<String, JsonError> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Err(wrong(key)),
    }
}

fn list(key: &str, value: Value) -> Result<Vec<String>, JsonError> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => values.into_iter().map(|value| string(key, value)).collect(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Err(wrong(key)),
    }
}

fn write_list(json: &mut String, values: &[String]) {
    for (position, value) in values.iter().enumerate() {
        json.push(if position == 0 { '[' } else { ',' });
        write_string(json, value);
    }
    json.push(']');
}

/// Writes a string with Go's escapes, which include the special characters of HTML.
pub(super) fn write_string(json: &mut String, value: &str) {
    json.push('"');
    for character in value.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write!(json, "\\u{:04x}", u32::from(character))
                    .expect("writing to a string cannot fail");
            }
            other => json.push(other),
        }
    }
    json.push('"');
}
