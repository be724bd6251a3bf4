//! Encodes a profile as `perftools.profiles.Profile`, compressed with gzip, for `pprof`.
//!
//! Each string is stored once, in a table whose first entry is the empty string. Ids of other kinds start at 1.

use std::collections::HashMap;
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use quorate_protobuf::{put_bytes, put_number, put_varint};

/// The type of a value, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueType {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
}

/// The mapped code of a binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) file_offset: u64,
    pub(crate) file: String,
    pub(crate) build_id: String,
    /// Whether functions in this mapping have names.
    pub(crate) has_functions: bool,
}

/// A location in the code, with the ids of its mapping and function. An id of 0 means that the mapping or the function
/// is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) mapping: u64,
    pub(crate) address: u64,
    pub(crate) function: u64,
}

/// The name of a function, and its linker symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FunctionNames {
    pub(crate) name: String,
    pub(crate) symbol: String,
}

/// The values of one stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The ids of the locations, innermost first.
    pub(crate) locations: Vec<u64>,
    /// One value for each value type.
    pub(crate) values: Vec<u64>,
    pub(crate) labels: Vec<(&'static str, String)>,
}

/// A profile to be encoded.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) types: Vec<ValueType>,
    pub(crate) rows: Vec<Row>,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) locations: Vec<Location>,
    pub(crate) functions: Vec<FunctionNames>,
    pub(crate) began: SystemTime,
    pub(crate) lasted: Duration,
    /// The type of the sampling period, and the period.
    pub(crate) period: Option<(ValueType, u64)>,
    pub(crate) comments: Vec<String>,
    /// The value type that readers show by default; if it is `None`, they show the last value type.
    pub(crate) shown_first: Option<&'static str>,
}

/// The table of strings.
#[derive(Debug, Default)]
struct Texts {
    numbers: HashMap<String, u64>,
    all: Vec<String>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.all.len() as u64;
        self.all.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

impl Profile {
    /// Encodes the profile.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder
            .write_all(&self.message())
            .and_then(|()| encoder.finish())
            .expect("writing to memory cannot fail")
    }

    fn message(&self) -> Vec<u8> {
        let (mut texts, mut out) = (Texts::default(), Vec::new());
        texts.number("");
        for value in &self.types {
            put_bytes(1, &value_type(*value, &mut texts), &mut out);
        }
        for row in &self.rows {
            put_bytes(2, &row_message(row, &mut texts), &mut out);
        }
        for (index, mapping) in self.mappings.iter().enumerate() {
            put_bytes(3, &mapping_message(index, mapping, &mut texts), &mut out);
        }
        for (index, location) in self.locations.iter().enumerate() {
            put_bytes(4, &location_message(index, *location), &mut out);
        }
        for (index, function) in self.functions.iter().enumerate() {
            put_bytes(5, &function_message(index, function, &mut texts), &mut out);
        }
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX >> 1);
        put_number(9, nanos(self.began.duration_since(UNIX_EPOCH).unwrap_or_default()), &mut out);
        put_number(10, nanos(self.lasted), &mut out);
        if let Some((of, period)) = self.period {
            put_bytes(11, &value_type(of, &mut texts), &mut out);
            put_number(12, period, &mut out);
        }
        for comment in &self.comments {
            put_number(13, texts.number(comment), &mut out);
        }
        if let Some(shown_first) = self.shown_first {
            put_number(14, texts.number(shown_first), &mut out);
        }
        for text in &texts.all {
            put_bytes(6, text.as_bytes(), &mut out);
        }
        out
    }
}

fn value_type(value: ValueType, texts: &mut Texts) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(1, texts.number(value.what), &mut out);
    put_number(2, texts.number(value.unit), &mut out);
    out
}

fn row_message(row: &Row, texts: &mut Texts) -> Vec<u8> {
    let packed = |numbers: &[u64]| {
        let mut out = Vec::new();
        for number in numbers {
            put_varint(*number, &mut out);
        }
        out
    };
    let mut out = Vec::new();
    put_bytes(1, &packed(&row.locations), &mut out);
    put_bytes(2, &packed(&row.values), &mut out);
    for (key, text) in &row.labels {
        let mut label = Vec::new();
        put_number(1, texts.number(key), &mut label);
        put_number(2, texts.number(text), &mut label);
        put_bytes(3, &label, &mut out);
    }
    out
}

fn mapping_message(index: usize, mapping: &Mapping, texts: &mut Texts) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(1, index as u64 + 1, &mut out);
    put_number(2, mapping.start, &mut out);
    put_number(3, mapping.end, &mut out);
    put_number(4, mapping.file_offset, &mut out);
    put_number(5, texts.number(&mapping.file), &mut out);
    put_number(6, texts.number(&mapping.build_id), &mut out);
    put_number(7, u64::from(mapping.has_functions), &mut out);
    out
}

fn location_message(index: usize, location: Location) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(1, index as u64 + 1, &mut out);
    put_number(2, location.mapping, &mut out);
    put_number(3, location.address, &mut out);
    if location.function > 0 {
        let mut line = Vec::new();
        put_number(1, location.function, &mut line);
        put_bytes(4, &line, &mut out);
    }
    out
}

fn function_message(index: usize, function: &FunctionNames, texts: &mut Texts) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(1, index as u64 + 1, &mut out);
    put_number(2, texts.number(&function.name), &mut out);
    put_number(3, texts.number(&function.symbol), &mut out);
    out
}

#[cfg(test)]
pub(crate) mod tests;
