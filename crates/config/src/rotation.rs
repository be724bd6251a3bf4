//! The value of `--log-rotation-config-json`: the rotation settings of a log file, as JSON.
//!
//! Keys are case-insensitive, unknown keys are ignored, and null keeps the default, as in Go's JSON decoder. Errors
//! begin with etcd's text. For a syntax error, the text of our own parser follows.

use std::time::Duration;

use quorate_telemetry::log::Rotation;
use serde_json::Value;

/// The default maximum size of a file in megabytes.
const MEGABYTES: u64 = 100;
const DAY_SECS: u64 = 24 * 60 * 60;

/// The reason why the settings are invalid. The error messages are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RotationError {
    #[error("improperly formatted log rotation config: {0}")]
    Malformed(String),
    #[error(
        "invalid log rotation config: json: cannot unmarshal {found} into Go {place} of type \
         {wanted}"
    )]
    Type { found: String, place: &'static str, wanted: &'static str },
    #[error("invalid log rotation config: {0} must not be negative")]
    Negative(&'static str),
}

/// Parses rotation settings in JSON.
pub(super) fn parse(text: &str) -> Result<Rotation, RotationError> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        RotationError::Malformed(if error.is_eof() {
            "unexpected end of JSON input".to_owned()
        } else {
            error.to_string()
        })
    })?;
    let keys = match &value {
        Value::Object(keys) => keys.iter().collect(),
        Value::Null => Vec::new(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(mismatch(&value, "value", "embed.logRotationConfig"));
        }
    };
    let mut rotation = Rotation {
        bytes_max: MEGABYTES << 20,
        age_max: None,
        backups_max: None,
        local_time: false,
        compress: false,
    };
    for (key, value) in keys {
        let Some(key) = Key::find(key) else { continue };
        key.set(&mut rotation, value)?;
    }
    Ok(rotation)
}

/// A key of the settings.
#[derive(Clone, Copy)]
enum Key {
    MaxSize,
    MaxAge,
    MaxBackups,
    LocalTime,
    Compress,
}

impl Key {
    const ALL: [Self; 5] =
        [Self::MaxSize, Self::MaxAge, Self::MaxBackups, Self::LocalTime, Self::Compress];

    const fn name(self) -> &'static str {
        match self {
            Self::MaxSize => "maxsize",
            Self::MaxAge => "maxage",
            Self::MaxBackups => "maxbackups",
            Self::LocalTime => "localtime",
            Self::Compress => "compress",
        }
    }

    /// Returns the name of the field in Go's errors.
    const fn place(self) -> &'static str {
        match self {
            Self::MaxSize => "struct field logRotationConfig.Logger.maxsize",
            Self::MaxAge => "struct field logRotationConfig.Logger.maxage",
            Self::MaxBackups => "struct field logRotationConfig.Logger.maxbackups",
            Self::LocalTime => "struct field logRotationConfig.Logger.localtime",
            Self::Compress => "struct field logRotationConfig.Logger.compress",
        }
    }

    fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name().eq_ignore_ascii_case(name))
    }

    fn set(self, rotation: &mut Rotation, value: &Value) -> Result<(), RotationError> {
        if value.is_null() {
            return Ok(());
        }
        match self {
            Self::MaxSize => {
                let megabytes = match self.count(value)? {
                    0 => MEGABYTES,
                    count => count,
                };
                rotation.bytes_max = megabytes.saturating_mul(1 << 20);
            }
            Self::MaxAge => {
                let days = Some(self.count(value)?).filter(|days| *days > 0);
                rotation.age_max =
                    days.map(|days| Duration::from_secs(days.saturating_mul(DAY_SECS)));
            }
            Self::MaxBackups => {
                let count = Some(self.count(value)?).filter(|count| *count > 0);
                rotation.backups_max =
                    count.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
            }
            Self::LocalTime => rotation.local_time = self.switch(value)?,
            Self::Compress => rotation.compress = self.switch(value)?,
        }
        Ok(())
    }

    fn count(self, value: &Value) -> Result<u64, RotationError> {
        match value.as_i64() {
            Some(number) => u64::try_from(number).map_err(|_| RotationError::Negative(self.name())),
            None => Err(mismatch(value, self.place(), "int")),
        }
    }

    fn switch(self, value: &Value) -> Result<bool, RotationError> {
        value.as_bool().ok_or_else(|| mismatch(value, self.place(), "bool"))
    }
}

fn mismatch(value: &Value, place: &'static str, wanted: &'static str) -> RotationError {
    let found = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if wanted == "int" => format!("number {number}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    };
    RotationError::Type { found, place, wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_keys_are_case_insensitive_and_unknown_keys_are_ignored() {
        let plain = parse(
            r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#,
        );
        assert_eq!(plain, parse("{}"));
        assert_eq!(plain, parse(r#"{"maxsize": 0, "maxage": null}"#));
        let all =
            r#" {"MaxSize":1,"maxAge":2,"maxbackups":3,"localtime":true,"COMPRESS":true,"x":{}}"#;
        assert_eq!(
            parse(all).unwrap(),
            Rotation {
                bytes_max: 1 << 20,
                age_max: Some(Duration::from_secs(2 * DAY_SECS)),
                backups_max: Some(3),
                local_time: true,
                compress: true,
            }
        );
    }

    #[test]
    fn rotation_errors_have_the_messages_of_etcd() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(
            error("{"),
            "improperly formatted log rotation config: unexpected end of JSON input"
        );
        assert!(error("{maxsize}").starts_with("improperly formatted log rotation config: "));
        assert!(error("{} x").starts_with("improperly formatted log rotation config: "));
        let into = "invalid log rotation config: json: cannot unmarshal";
        assert_eq!(
            error(r#"{"maxsize":"1"}"#),
            format!(
                "{into} string into Go struct field logRotationConfig.Logger.maxsize of type int"
            )
        );
        assert_eq!(
            error(r#"{"maxage":1.5}"#),
            format!(
                "{into} number 1.5 into Go struct field logRotationConfig.Logger.maxage of type int"
            )
        );
        assert_eq!(
            error(r#"{"compress":1}"#),
            format!(
                "{into} number into Go struct field logRotationConfig.Logger.compress of type bool"
            )
        );
        assert_eq!(
            error("[]"),
            format!("{into} array into Go value of type embed.logRotationConfig")
        );
        assert_eq!(
            error(r#"{"maxbackups":-1}"#),
            "invalid log rotation config: maxbackups must not be negative"
        );
    }
}
