//! The configuration file: YAML or JSON, with one key for each flag.
//!
//! Unknown keys are ignored with a warning. A value of the wrong type is an error with the text of Go's decoder.
//! Durations are whole nanoseconds. URLs, origins, host names and gates are comma-separated strings in the file, as in
//! flags. Other lists are YAML lists.
//!
//! Keys without effect (unknown keys, and keys of former etcd versions) are reported in a warning, so that operators do
//! not rely on them. In sections with security settings, every key either takes effect or is refused. A key of former
//! versions that decides which cluster the member joins is also refused.

use std::collections::BTreeMap;

use quorate_telemetry::log;

use super::absent;
use super::draft::Draft;
use super::flags::{FILE_ONLY, FLAGS, FileKey, Flag};
use super::outcome::{Pending, Stop};
use super::setting::Setting;
use super::yaml::{self, YamlValue};

/// The Go type into which etcd decodes plain fields. Fields with their own text form are decoded separately.
const PLAIN: &str = "configYAML.Config";
const CODED: &str = "configYAML.configJSON";

/// The sections of the file, by path, each with its type name in Go's errors.
const SECTIONS: &[(&str, &str)] = &[
    ("socket-options", "transport.SocketOpts"),
    ("discovery-config", "v3discovery.DiscoveryConfig"),
    ("discovery-config.client", "clientv3.ConfigSpec"),
    ("discovery-config.client.secure", "clientv3.SecureConfig"),
    ("discovery-config.client.auth", "clientv3.AuthConfig"),
    ("client-transport-security", "embed.securityConfig"),
    ("peer-transport-security", "embed.securityConfig"),
];

/// The sections in which unknown keys are refused.
const SECURING: &[&str] = &[
    "discovery-config.client.secure",
    "discovery-config.client.auth",
    "client-transport-security",
    "peer-transport-security",
];

/// Parses the file, and stores its values in the draft.
pub(super) fn read(bytes: &[u8], draft: &mut Draft, lines: &mut Vec<Pending>) -> Result<(), Stop> {
    let unreadable =
        |reason: String| Stop::Refused(format!("error converting YAML to JSON: yaml: {reason}"));
    let text = std::str::from_utf8(bytes)
        .map_err(|_| unreadable("control characters are not allowed".to_owned()))?;
    let top = match yaml::read(text).map_err(|error| unreadable(error.to_string()))? {
        YamlValue::Null => BTreeMap::new(),
        YamlValue::Map(top) => top,
        other => return Err(mismatch(&other, "value of type embed.configYAML")),
    };
    let mut unknown = Vec::new();
    let coded = decode(&top, draft, &mut unknown)?;
    draft.explicit.extend(top.keys().cloned());
    apply_gates(&coded, draft)?;
    if top.get("peer-transport-security") == Some(&YamlValue::Null) {
        return Err(Stop::Refused("invalid peer-transport-security".to_owned()));
    }
    name_what_is_passed_over(&top, &unknown, lines);
    apply_urls(&coded, draft)?;
    apply_lists(&coded, draft)?;
    let years = &mut draft.config.security.self_signed_cert_validity;
    *years = (*years).max(1);
    if draft.initial_cluster_state.is_empty() {
        "new".clone_into(&mut draft.initial_cluster_state);
    }
    Ok(())
}

/// Stores every value of a plain type, and returns the strings that need further parsing.
fn decode<'a>(
    top: &'a BTreeMap<String, YamlValue>,
    draft: &mut Draft,
    unknown: &mut Vec<String>,
) -> Result<BTreeMap<&'static str, &'a str>, Stop> {
    let mut coded = BTreeMap::new();
    for (key, node) in top {
        if let Some(flag) = flag_of_key(top, key) {
            decode_one(flag, key, node, draft, &mut coded)?;
        } else if let Some(section) = section_at(key) {
            unknown.extend(decode_section(section, node, draft, &mut coded)?);
        } else if let Some(place) = nested_place(key)
            && !node.is_empty()
        {
            return Err(Stop::Refused(format!("{key}: unknown key; write it as {place}")));
        } else if let Some(absent) = absent::of_key(key) {
            if absent.decides_cluster && !node.is_empty() {
                return Err(Stop::Refused(format!("{key}: {}", absent.reason)));
            }
        } else {
            unknown.push(key.clone());
        }
    }
    Ok(coded)
}

/// Returns the flag that a key sets. Case is ignored, unless another key in the same section is spelled exactly like
/// the flag.
fn flag_of_key(siblings: &BTreeMap<String, YamlValue>, key: &str) -> Option<&'static Flag> {
    let in_file = || FLAGS.iter().filter(|flag| flag.file == FileKey::Name);
    in_file().find(|flag| flag.name == key).or_else(|| {
        in_file()
            .find(|flag| flag.name.eq_ignore_ascii_case(key) && !siblings.contains_key(flag.name))
    })
}

/// Returns the correct path of a security flag that was set by a top-level key with its name. etcd would ignore such a
/// key.
fn nested_place(key: &str) -> Option<&'static str> {
    let flag = FLAGS.iter().find(|flag| flag.name.eq_ignore_ascii_case(key))?;
    match flag.file {
        FileKey::Nested(place) if place.contains("-transport-security.") => Some(place),
        FileKey::Nested(_) | FileKey::Name | FileKey::None => None,
    }
}

/// Returns the path and type of a section. Case is ignored.
fn section_at(path: &str) -> Option<(&'static str, &'static str)> {
    SECTIONS.iter().find(|(section, _)| section.eq_ignore_ascii_case(path)).copied()
}

/// Returns the flag with this path in a section. Case is ignored.
fn flag_at(path: &str) -> Option<&'static Flag> {
    let is_there = |flag: &&Flag| match flag.file {
        FileKey::Nested(place) => place.eq_ignore_ascii_case(path),
        FileKey::Name | FileKey::None => false,
    };
    FLAGS.iter().chain(FILE_ONLY).find(is_there)
}

/// Stores the values of a section, and returns the paths of unknown keys.
fn decode_section<'a>(
    (section, type_name): (&str, &str),
    node: &'a YamlValue,
    draft: &mut Draft,
    coded: &mut BTreeMap<&'static str, &'a str>,
) -> Result<Vec<String>, Stop> {
    let mut unknown = Vec::new();
    let entries = match node {
        YamlValue::Map(entries) => entries,
        YamlValue::Null => return Ok(unknown),
        other => {
            let root = root_of(section);
            let place = format!("struct field {root}.{section} of type {type_name}");
            return Err(mismatch(other, &place));
        }
    };
    for (key, value) in entries {
        let path = format!("{section}.{key}");
        if let Some(flag) = flag_at(&path) {
            decode_one(flag, &path, value, draft, coded)?;
        } else if let Some(inner) = section_at(&path) {
            unknown.extend(decode_section(inner, value, draft, coded)?);
        } else if SECURING.contains(&section) && !value.is_empty() {
            let known = keys_of(section).join(", ");
            return Err(Stop::Refused(format!(
                "{path}: unknown key; sections with security settings must not contain unknown keys \
                 (known keys: {known})"
            )));
        } else {
            unknown.push(path);
        }
    }
    Ok(unknown)
}

/// Returns the known keys of a section.
fn keys_of(section: &str) -> Vec<&'static str> {
    let flags = FLAGS.iter().chain(FILE_ONLY);
    let in_section = flags.filter_map(|flag| match flag.file {
        FileKey::Nested(place) => place.strip_prefix(section)?.strip_prefix('.'),
        FileKey::Name | FileKey::None => None,
    });
    in_section.filter(|key| !key.contains('.')).collect()
}

fn decode_one<'a>(
    flag: &Flag,
    path: &str,
    node: &'a YamlValue,
    draft: &mut Draft,
    coded: &mut BTreeMap<&'static str, &'a str>,
) -> Result<(), Stop> {
    if matches!(node, YamlValue::Null) {
        return Ok(());
    }
    let (of_type, type_name) = go_type(&flag.setting);
    let root = if root_of(path) == CODED { CODED } else { of_type };
    let wrong = || mismatch(node, &format!("struct field {root}.{path} of type {type_name}"));
    let wrong_number = |number: &str| {
        let place = format!("struct field {root}.{path} of type {type_name}");
        Stop::Refused(decode_error(&format!("number {number}"), &place))
    };
    match (flag.setting, node) {
        (
            Setting::Urls(_) | Setting::Origins(_) | Setting::Hosts(_) | Setting::Gates(_),
            YamlValue::Text(text),
        ) => {
            coded.insert(flag.name, text.as_str());
        }
        (Setting::Text(place) | Setting::OneOf(_, place), YamlValue::Text(text)) => {
            text.clone_into(place(draft));
        }
        (Setting::Bool(place), YamlValue::Bool(value)) => *place(draft) = *value,
        (Setting::Uint(place) | Setting::Uint64(place), YamlValue::Number(number)) => {
            *place(draft) = number.parse().map_err(|_| wrong_number(number))?;
        }
        (Setting::Uint32(place), YamlValue::Number(number)) => {
            *place(draft) = number.parse().map_err(|_| wrong_number(number))?;
        }
        (Setting::Int(place) | Setting::Int64(place), YamlValue::Number(number)) => {
            *place(draft) = number.parse().map_err(|_| wrong_number(number))?;
        }
        (Setting::Duration(place), YamlValue::Number(number)) => {
            let nanos = number.parse().map_err(|_| wrong_number(number))?;
            *place(draft) = quorate_gotext::duration::SignedDuration::from_nanos(nanos);
        }
        (Setting::Texts(place) | Setting::UniqueTexts(place), YamlValue::List(values)) => {
            let mut texts = Vec::with_capacity(values.len());
            for value in values {
                match value {
                    YamlValue::Text(text) => texts.push(text.clone()),
                    YamlValue::Null => texts.push(String::new()),
                    other => {
                        let place = format!("struct field {root}.{path} of type string");
                        return Err(mismatch(other, &place));
                    }
                }
            }
            *place(draft) = texts;
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

/// Returns the Go type that contains a section.
fn root_of(path: &str) -> &'static str {
    let is_secured = path
        .split('.')
        .next()
        .is_some_and(|section| section.to_ascii_lowercase().ends_with("-transport-security"));
    if is_secured { CODED } else { PLAIN }
}

/// Returns the Go type that contains a flag of this type, and the name of the flag's type in Go.
fn go_type(setting: &Setting) -> (&'static str, &'static str) {
    match setting {
        Setting::Urls(_) | Setting::Origins(_) | Setting::Hosts(_) | Setting::Gates(_) => {
            (CODED, "string")
        }
        Setting::Text(_) | Setting::OneOf(..) => (PLAIN, "string"),
        Setting::Bool(_) | Setting::Ignored => (PLAIN, "bool"),
        Setting::Uint(_) => (PLAIN, "uint"),
        Setting::Uint64(_) => (PLAIN, "uint64"),
        Setting::Uint32(_) => (PLAIN, "uint32"),
        Setting::Int(_) => (PLAIN, "int"),
        Setting::Int64(_) => (PLAIN, "int64"),
        Setting::Duration(_) => (PLAIN, "time.Duration"),
        Setting::Texts(_) | Setting::UniqueTexts(_) | Setting::SomeOf(..) => (PLAIN, "[]string"),
    }
}

fn mismatch(node: &YamlValue, place: &str) -> Stop {
    Stop::Refused(decode_error(node.kind(), place))
}

fn decode_error(kind: &str, place: &str) -> String {
    let reason = format!("json: cannot unmarshal {kind} into Go {place}");
    format!("error unmarshaling JSON: while decoding JSON: {reason}")
}

/// Sets the feature gates, in the order in which etcd checks them.
fn apply_gates(coded: &BTreeMap<&'static str, &str>, draft: &mut Draft) -> Result<(), Stop> {
    for (flag, text) in coded_flags(coded) {
        if matches!(flag.setting, Setting::Gates(_)) {
            flag.setting.set(draft, text).map_err(Stop::Refused)?;
        }
    }
    Ok(())
}

/// Sets the URLs, in the order in which etcd checks them. An invalid URL ends the program immediately, with a message
/// on standard error instead of a log line.
fn apply_urls(coded: &BTreeMap<&'static str, &str>, draft: &mut Draft) -> Result<(), Stop> {
    const ORDER: [&str; 7] = [
        "listen-peer-urls",
        "listen-client-urls",
        "listen-client-http-urls",
        "initial-advertise-peer-urls",
        "advertise-client-urls",
        "listen-metrics-urls",
        "listen-console-url",
    ];
    for name in ORDER {
        let found = coded_flags(coded).find(|(flag, _)| flag.name == name);
        if let Some((flag, text)) = found {
            // etcd's text names the wrong flag here. The text is kept, because people search for it.
            let said = if name == "advertise-client-urls" { "advertise-peer-urls" } else { name };
            flag.setting.set(draft, text).map_err(|reason| {
                Stop::Printed(format!("unexpected error setting up {said}: {reason}\n"))
            })?;
        }
    }
    Ok(())
}

fn apply_lists(coded: &BTreeMap<&'static str, &str>, draft: &mut Draft) -> Result<(), Stop> {
    for (flag, text) in coded_flags(coded) {
        match flag.setting {
            Setting::Hosts(_) | Setting::Origins(_) => {
                flag.setting.set(draft, text).map_err(|reason| {
                    let name = flag.name;
                    Stop::Printed(format!("unexpected error setting up {name}: {reason}\n"))
                })?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the flags whose strings are not empty. An empty string keeps the default.
fn coded_flags<'a>(
    coded: &'a BTreeMap<&'static str, &str>,
) -> impl Iterator<Item = (&'static Flag, &'a str)> {
    coded
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .filter_map(|(name, text)| super::flags::find(name).map(|flag| (flag, *text)))
}

/// Warns about removed and unknown keys, which are ignored.
fn name_what_is_passed_over(
    top: &BTreeMap<String, YamlValue>,
    unknown: &[String],
    lines: &mut Vec<Pending>,
) {
    let former = top.keys().filter_map(|key| Some((key, absent::of_key(key)?.reason.to_string())));
    let never = unknown.iter().map(|key| (key, reason_of_unknown(key)));
    lines.extend(former.chain(never).map(|(key, reason)| {
        Pending::configured(log::pending!(
            Warn,
            "ignoring configuration key that has no effect in this version",
            "key" = key.clone(),
            "reason" = reason
        ))
    }));
}

/// Returns the reason why a key has no effect.
fn reason_of_unknown(key: &str) -> String {
    let flag = FLAGS.iter().find(|flag| flag.name.eq_ignore_ascii_case(key));
    match flag.map(|flag| flag.file) {
        Some(FileKey::None) => "this flag has no key in the file".to_owned(),
        Some(FileKey::Nested(place)) => format!("unknown key; write it as {place}"),
        Some(FileKey::Name) | None => "unknown key".to_owned(),
    }
}
