//! Parses the configuration file into a tree of values: YAML, which includes JSON.
//!
//! etcd reads its file as YAML 1.1: a plain `yes` or `on` is true, `010` is eight, the last of several equal keys
//! applies, `<<` merges entries into the mapping, and lines within brackets or braces have any indentation. Our parser
//! implements YAML 1.2 and returns events with the style of each scalar, so this module converts scalars to values, and
//! indents the lines that the parser refuses.
//!
//! # Invariants
//!
//! * The tree is bounded: aliases that would expand it beyond [`NODE_COUNT_MAX`] are refused.

use std::borrow::Cow;
use std::collections::BTreeMap;

use quorate_gotext::number::{parse_int, parse_uint};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};

/// A value in the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum YamlValue {
    /// Null.
    Null,
    /// True or false.
    Bool(bool),
    /// A number, in the decimal form that it would have in JSON.
    Number(String),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// A mapping, by key.
    Map(BTreeMap<String, Self>),
}

impl YamlValue {
    /// Returns the name of the value's kind in error messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Number(_) => "number",
            Self::Text(_) => "string",
            Self::List(_) => "array",
            Self::Map(_) => "object",
        }
    }

    /// Returns whether the value is equivalent to a missing value.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Null | Self::Bool(false) => true,
            Self::Bool(true) => false,
            Self::Number(number) => number == "0",
            Self::Text(text) => text.is_empty(),
            Self::List(values) => values.iter().all(Self::is_empty),
            Self::Map(entries) => entries.values().all(Self::is_empty),
        }
    }
}

/// The maximum number of values, counted after aliases are expanded.
const NODE_COUNT_MAX: usize = 100_000;
/// The maximum nesting depth.
const DEPTH_MAX: usize = 100;
/// How often lines are indented for the parser. The file is parsed again each time. A file that needs more is refused
/// as invalid.
const INDENTATIONS_MAX: usize = 1_000;
/// The indentation that is added to a line. It is usually sufficient, because few files are nested deeper.
const INDENTATION: &str = "                ";

/// The reason why a file is invalid YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum YamlError {
    /// A syntax error.
    #[error("line {line}: {reason}")]
    Syntax {
        /// The line number, starting at 1.
        line: usize,
        /// The message of the parser.
        reason: String,
    },
    /// An alias refers to an anchor that does not precede it.
    #[error("unknown anchor referenced")]
    UnknownAnchor,
    /// A list or a mapping is used as a key.
    #[error("a mapping key must be a scalar")]
    CompositeKey,
    /// The merged value is neither a mapping nor a list of mappings.
    #[error("map merge requires map or sequence of maps as the value")]
    NoMerge,
    /// The expanded aliases are too large, or the nesting is too deep.
    #[error("document contains excessive aliasing")]
    TooLarge,
}

impl From<ScanError> for YamlError {
    fn from(error: ScanError) -> Self {
        Self::Syntax { line: error.marker().line(), reason: error.info().to_owned() }
    }
}

/// Parses the first document in `text`. Returns null if there is no document.
///
/// As in etcd, the lines of a list in brackets or a mapping in braces may have any indentation. The parser accepts them
/// only if they are indented further than the enclosing mapping. If the parser refuses such a line, the line is
/// indented, and the text is parsed again. The indentation of these lines has no meaning, and line numbers stay the
/// same.
pub(super) fn read(text: &str) -> Result<YamlValue, YamlError> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..INDENTATIONS_MAX {
        let mut reader = Reader::new(&text);
        let outcome = reader.document();
        let Some(index) = reader.unindented else { return outcome };
        let at = text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
        text.to_mut().insert_str(at, INDENTATION);
    }
    Reader::new(&text).document()
}

/// Returns whether the parser has refused a line of a flow collection because of its indentation. The position of the
/// error is then the first character of the line that is not blank.
fn is_unindented(error: &ScanError) -> bool {
    matches!(error.info(), "invalid indentation" | "invalid indentation in flow construct")
}

struct Reader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: BTreeMap<usize, (YamlValue, usize)>,
    node_count: usize,
    /// The position, in characters, at which the parser has refused a line of a flow collection because of its
    /// indentation.
    unindented: Option<usize>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let events = Parser::new_from_str(text);
        Self { events, anchors: BTreeMap::new(), node_count: 0, unindented: None }
    }

    fn document(&mut self) -> Result<YamlValue, YamlError> {
        loop {
            match self.next()? {
                None | Some(Event::StreamEnd) => return Ok(YamlValue::Null),
                Some(Event::DocumentStart(_)) => break,
                Some(_) => {}
            }
        }
        match self.next()? {
            Some(event) => self.node(event, 0),
            None => Ok(YamlValue::Null),
        }
    }

    fn next(&mut self) -> Result<Option<Event<'a>>, YamlError> {
        match self.events.next() {
            None => Ok(None),
            Some(Ok((event, _))) => Ok(Some(event)),
            Some(Err(error)) => {
                self.unindented = is_unindented(&error).then(|| error.marker().index());
                Err(error.into())
            }
        }
    }

    /// Parses the value that begins with this event.
    fn node(&mut self, event: Event<'a>, depth: usize) -> Result<YamlValue, YamlError> {
        let count_before = self.node_count;
        self.count(1)?;
        if depth > DEPTH_MAX {
            return Err(YamlError::TooLarge);
        }
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (resolve(&text, style, tag.as_deref()), anchor)
            }
            Event::SequenceStart(anchor, _) => (self.list(depth)?, anchor),
            Event::MappingStart(anchor, _) => (self.map(depth)?, anchor),
            Event::Alias(anchor) => {
                let (node, count) =
                    self.anchors.get(&anchor).cloned().ok_or(YamlError::UnknownAnchor)?;
                self.count(count)?;
                return Ok(node);
            }
            _ => (YamlValue::Null, 0),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), self.node_count - count_before));
        }
        Ok(node)
    }

    fn count(&mut self, nodes: usize) -> Result<(), YamlError> {
        self.node_count += nodes;
        if self.node_count > NODE_COUNT_MAX { Err(YamlError::TooLarge) } else { Ok(()) }
    }

    fn list(&mut self, depth: usize) -> Result<YamlValue, YamlError> {
        let mut values = Vec::new();
        loop {
            match self.next()? {
                None | Some(Event::SequenceEnd) => return Ok(YamlValue::List(values)),
                Some(event) => values.push(self.node(event, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<YamlValue, YamlError> {
        let mut entries = BTreeMap::new();
        loop {
            let (key, merges) = match self.next()? {
                None | Some(Event::MappingEnd) => break,
                Some(Event::Scalar(text, style, _, tag)) => {
                    let merges = is_merge(&text, style, tag.as_deref());
                    (text.into_owned(), merges)
                }
                Some(_) => return Err(YamlError::CompositeKey),
            };
            let Some(event) = self.next()? else { break };
            let value = self.node(event, depth + 1)?;
            if merges {
                merge(&mut entries, value)?;
            } else {
                entries.insert(key, value);
            }
        }
        Ok(YamlValue::Map(entries))
    }
}

/// Returns whether a key merges the entries of other mappings.
fn is_merge(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> bool {
    text == "<<"
        && match tag {
            None => style == ScalarStyle::Plain,
            Some(tag) => tag.is_yaml_core_schema() && tag.suffix == "merge",
        }
}

/// Merges the entries of a mapping, or of a list of mappings. Earlier mappings in the list take precedence.
fn merge(entries: &mut BTreeMap<String, YamlValue>, value: YamlValue) -> Result<(), YamlError> {
    let sources = match value {
        YamlValue::List(values) => values,
        value => vec![value],
    };
    for source in sources.into_iter().rev() {
        let YamlValue::Map(more) = source else { return Err(YamlError::NoMerge) };
        entries.extend(more);
    }
    Ok(())
}

/// Converts a scalar to a value by the rules of YAML 1.1.
fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> YamlValue {
    let is_text_tag = |tag: &Tag| tag.is_yaml_core_schema() && tag.suffix == "str";
    if style != ScalarStyle::Plain || tag.is_some_and(is_text_tag) {
        return YamlValue::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return YamlValue::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return YamlValue::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return YamlValue::Bool(false);
        }
        _ => {}
    }
    let starts_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    if !starts_number {
        return YamlValue::Text(text.to_owned());
    }
    let plain = text.replace('_', "");
    if let Ok(number) = parse_int(&plain, 0) {
        return YamlValue::Number(number.to_string());
    }
    if let Ok(number) = parse_uint(&plain, 0, u64::MAX) {
        return YamlValue::Number(number.to_string());
    }
    let is_decimal =
        plain.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
    match plain.parse::<f64>() {
        Ok(number) if is_decimal && number.is_finite() => YamlValue::Number(number.to_string()),
        _ => YamlValue::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> YamlValue {
        match read(&format!("key: {text}")) {
            Ok(YamlValue::Map(mut entries)) => entries.remove("key").unwrap(),
            other => panic!("the document is not a mapping: {other:?}"),
        }
    }

    #[test]
    fn plain_scalars_are_parsed_as_in_yaml_1_1() {
        for text in ["yes", "On", "true", "Y"] {
            assert_eq!(value(text), YamlValue::Bool(true));
            assert_eq!(value(&format!("'{text}'")), YamlValue::Text(text.to_owned()));
        }
        assert_eq!(value("off"), YamlValue::Bool(false));
        for text in ["", "~", "null"] {
            assert_eq!(value(text), YamlValue::Null);
        }
        let number = |text: &str| YamlValue::Number(text.to_owned());
        assert_eq!(value("010"), number("8"));
        assert_eq!(value("1_000"), number("1000"));
        assert_eq!(value("-5"), number("-5"));
        assert_eq!(value("18446744073709551615"), number("18446744073709551615"));
        assert_eq!(value("1.5"), number("1.5"));
        assert_eq!(value("1e3"), number("1000"));
        for text in ["http://localhost:2379", "1h", "1.2.3.4", "inf", "0x"] {
            assert_eq!(value(text), YamlValue::Text(text.to_owned()));
        }
        assert_eq!(value("!!str 5"), YamlValue::Text("5".to_owned()));
    }

    #[test]
    fn json_is_parsed_as_yaml() {
        let node = read("{\"a\": [1, \"x\", null], \"b\": {\"c\": true}}").unwrap();
        let text = |text: &str| YamlValue::Text(text.to_owned());
        let inner = BTreeMap::from([("c".to_owned(), YamlValue::Bool(true))]);
        let list = vec![YamlValue::Number("1".to_owned()), text("x"), YamlValue::Null];
        let expected = BTreeMap::from([
            ("a".to_owned(), YamlValue::List(list)),
            ("b".to_owned(), YamlValue::Map(inner)),
        ]);
        assert_eq!(node, YamlValue::Map(expected));
    }

    #[test]
    fn the_last_duplicate_key_wins_and_aliases_are_expanded() {
        let YamlValue::Map(entries) =
            read("a: 1\nb: &x {c: 2}\na: 3\nd: *x\ne:\n  <<: *x\n  f: 4\n").unwrap()
        else {
            panic!("the document is not a mapping")
        };
        assert_eq!(entries["a"], YamlValue::Number("3".to_owned()));
        assert_eq!(entries["d"], entries["b"]);
        let YamlValue::Map(merged) = &entries["e"] else { panic!("the document is not a mapping") };
        assert_eq!(merged.keys().collect::<Vec<_>>(), ["c", "f"]);
    }

    #[test]
    fn a_merge_key_applies_at_its_position_and_earlier_maps_take_precedence() {
        let merged = |lines: &str| {
            let text = format!("a: &a {{k: 1, l: 1}}\nb: &b {{k: 2, m: 2}}\nkey:\n  {lines}\n");
            match read(&text) {
                Ok(YamlValue::Map(mut entries)) => Ok(entries.remove("key").unwrap()),
                other => other,
            }
        };
        let map = |text: &str| read(text);
        assert_eq!(merged("<<: [*a, *b]"), map("{k: 1, l: 1, m: 2}"));
        assert_eq!(merged("<<: [*b, {l: 3}]\n  k: 4"), map("{k: 4, l: 3, m: 2}"));
        assert_eq!(merged("k: 4\n  <<: *b"), map("{k: 2, m: 2}"));
        assert_eq!(merged("<<: *a\n  <<: *b"), map("{k: 2, l: 1, m: 2}"));
        assert_eq!(merged("!!merge '<<': *b"), map("{k: 2, m: 2}"));
        assert_eq!(merged("'<<': 5"), map("{'<<': 5}"));
        for wrong in ["5", "", "text", "[5]", "[[*a]]", "[*a, null]"] {
            assert_eq!(merged(&format!("<<: {wrong}")), Err(YamlError::NoMerge), "{wrong}");
        }
    }

    #[test]
    fn empty_scalars_are_null() {
        assert_eq!(read(""), Ok(YamlValue::Null));
        assert_eq!(read("# nothing\n"), Ok(YamlValue::Null));
    }

    #[test]
    fn syntax_errors_are_refused_with_their_line() {
        let Err(YamlError::Syntax { line, .. }) = read("a: 1\nb: [1\nc: 2\n") else {
            panic!("an invalid document was accepted")
        };
        assert!(line >= 2, "{line}");
    }

    #[test]
    fn lines_of_flow_collections_may_have_any_indentation() {
        let flow = |text: &str| read(&format!("before: 1\n{text}\nafter: 2\n"));
        for (spread, short) in [
            ("key: [\n  \"a\"\n]", "key: [a]"),
            (
                "key: [\n'a',\n# a comment ] with \" quotes\n\"b ] [ # b\"\n]",
                "key: [a, 'b ] [ # b']",
            ),
            ("key: {\n  \"a\": \"b\"\n}", "key: {a: b}"),
            ("key: {\n\"a\": [\n{\n\"b\": 1\n},\n],\n}", "key: {a: [{b: 1}]}"),
            ("key: [\n  TLS_A,\n  TLS_B\n]", "key: [TLS_A, TLS_B]"),
            ("key: [\n]", "key: []"),
            ("key:\n  - {\n\"a\":\n1\n}\n  - 'é': [\n]", "key: [{a: 1}, {é: []}]"),
            (
                "key:\n  inner:\n    deep: [\n  \"a\"\n]\n  next: 3",
                "key: {inner: {deep: [a]}, next: 3}",
            ),
            ("key: [\r\n  \"a\",\r\n]\r", "key: [a]"),
        ] {
            let expected = flow(short);
            assert!(expected.is_ok(), "{short}: {expected:?}");
            assert_eq!(flow(spread), expected, "{spread}");
        }
    }

    #[test]
    fn errors_after_unindented_flow_collections_have_their_line() {
        for (text, expected) in [
            ("a: [\n\"b\"\n]\nc: d: e\n", 4),
            ("a: {\n\"b\": 1\n}\nc: ]\n", 4),
            ("a: |\n  x\n b: 1\n", 3),
            ("a:\n[\n\"b\"\n]\n", 4),
            ("a: [\n---\n]\n", 2),
        ] {
            let Err(YamlError::Syntax { line, .. }) = read(text) else {
                panic!("an invalid document was accepted: {text}")
            };
            assert_eq!(line, expected, "{text}");
        }
    }

    #[test]
    fn the_number_of_indented_lines_is_limited() {
        let list = |count: usize| format!("a: [\n{}]\n", "\"b\",\n".repeat(count));
        // The closing bracket is on a line of its own.
        assert!(read(&list(INDENTATIONS_MAX - 1)).is_ok());
        assert!(read(&list(INDENTATIONS_MAX)).is_err());
    }

    #[test]
    fn alias_expansion_is_limited() {
        let mut text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert_eq!(read(&text), Err(YamlError::TooLarge));
        let deep = "[".repeat(2_000);
        assert!(read(&deep).is_err());
    }

    /// Returns a flow collection whose lines have the given indentation, in turn.
    fn spread(value: &serde_json::Value, widths: &[usize]) -> String {
        let text = serde_json::to_string_pretty(value).unwrap();
        let mut widths = widths.iter().cycle();
        let lines = text.lines().map(|line| {
            let width = widths.next().copied().unwrap_or_default();
            format!("{}{}", " ".repeat(width), line.trim_start())
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            "[-a-z:#{}\\[\\]&*!|>'\" ]{0,8}".prop_map(serde_json::Value::from),
            any::<u16>().prop_map(serde_json::Value::from),
            any::<bool>().prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::btree_map("[a-z ]{1,4}", inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_indentation_of_flow_collections_has_no_meaning(
            value in json(), widths in prop::collection::vec(0..6_usize, 1..6)
        ) {
            let text = |inner: &str| format!("a:\n  b: {inner}\n  c: 1\nd: 2\n");
            let expected = read(&text(&value.to_string()));
            prop_assert!(expected.is_ok(), "{expected:?}");
            prop_assert_eq!(read(&text(spread(&value, &widths).trim_start())), expected);
        }

        #[test]
        fn any_input_is_parsed_or_refused_without_a_panic(text in "[-a-z0-9:#{}\\[\\]&*!|>'\" \n\t]{0,60}") {
            let _outcome = read(&text);
        }
    }
}
