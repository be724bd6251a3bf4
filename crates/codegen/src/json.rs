//! Generates the tables of `quorate-json`: the methods of the published services, and the messages that they use.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::{Failed, Generated};

const FILES: &[&str] = &[
    "etcd/api/etcdserverpb/rpc.proto",
    "etcd/server/etcdserver/api/v3election/v3electionpb/v3election.proto",
    "etcd/server/etcdserver/api/v3lock/v3lockpb/v3lock.proto",
];

/// Generates the file, keyed by name.
pub(crate) fn generate(proto: &Path) -> Result<Generated, Failed> {
    let found = protox::compile(FILES, [proto])?;
    Ok(Generated::from([("schema.rs".to_owned(), tables(&found))]))
}

/// All described messages and enums, keyed by full name.
#[derive(Default)]
struct Described<'a> {
    messages: BTreeMap<String, &'a DescriptorProto>,
    enums: BTreeMap<String, &'a EnumDescriptorProto>,
}

impl<'a> Described<'a> {
    /// Adds the messages of a scope and their nested messages.
    fn collect(&mut self, scope: &str, messages: &'a [DescriptorProto]) {
        for message in messages {
            let name = format!("{scope}.{}", message.name());
            self.collect_enums(&name, &message.enum_type);
            self.collect(&name, &message.nested_type);
            self.messages.insert(name, message);
        }
    }

    fn collect_enums(&mut self, scope: &str, enums: &'a [EnumDescriptorProto]) {
        for one in enums {
            self.enums.insert(format!("{scope}.{}", one.name()), one);
        }
    }
}

fn tables(found: &FileDescriptorSet) -> String {
    let mut described = Described::default();
    for file in &found.file {
        let scope = format!(".{}", file.package());
        described.collect(&scope, &file.message_type);
        described.collect_enums(&scope, &file.enum_type);
    }
    let mut wanted = Wanted { described: &described, names: Vec::new() };
    let mut text = String::from(
        "use super::{Field, Kind, Message, Method};\n\npub(crate) static METHODS: &[Method] = &[\n",
    );
    for file in &found.file {
        for service in &file.service {
            let name = format!("{}.{}", file.package(), service.name());
            for method in &service.method {
                let (input, output) =
                    (wanted.position(method.input_type()), wanted.position(method.output_type()));
                writeln!(
                    text,
                    "Method {{ service: {name:?}, name: {:?}, input: {input}, output: {output} }},",
                    method.name()
                )
                .expect("writing to a String cannot fail");
            }
        }
    }
    text.push_str("];\n");
    let mut messages = String::new();
    let mut next = 0;
    while let Some(name) = wanted.names.get(next).cloned() {
        let message = described.messages[&name];
        let fields = message.field.iter().map(|field| wanted.field(message, field));
        let fields: Vec<_> = fields.collect();
        let name = name.trim_start_matches('.');
        writeln!(messages, "Message {{ name: {name:?}, fields: &[{}] }},", fields.join(", "))
            .expect("writing to a String cannot fail");
        next += 1;
    }
    text + "pub(super) static MESSAGES: &[Message] = &[\n" + &messages + "];\n"
}

/// Reachable messages, in the order in which they were found.
struct Wanted<'a> {
    described: &'a Described<'a>,
    names: Vec<String>,
}

impl Wanted<'_> {
    fn position(&mut self, name: &str) -> usize {
        if let Some(position) = self.names.iter().position(|known| known == name) {
            return position;
        }
        self.names.push(name.to_owned());
        self.names.len() - 1
    }

    fn field(&mut self, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
        let kind = match field.r#type() {
            Type::Bool => "Bool".to_owned(),
            Type::Int64 => "Int64".to_owned(),
            Type::Uint32 => "Uint32".to_owned(),
            Type::Uint64 => "Uint64".to_owned(),
            Type::String => "Text".to_owned(),
            Type::Bytes => "Bytes".to_owned(),
            Type::Message => format!("Message({})", self.position(field.type_name())),
            Type::Enum => {
                let values = &self.described.enums[field.type_name()].value;
                let values =
                    values.iter().map(|one| format!("({:?}, {})", one.name(), one.number()));
                format!("Enum(&[{}])", values.collect::<Vec<_>>().join(", "))
            }
            other => panic!("fields of type {other:?} are not supported as JSON"),
        };
        let choice = field.oneof_index.map(|index| {
            let index = usize::try_from(index).expect("positions are not negative");
            message.oneof_decl[index].name().to_owned()
        });
        format!(
            "Field {{ number: {}, name: {:?}, camel: {:?}, kind: Kind::{kind}, is_list: {}, choice: {choice:?} }}",
            field.number(),
            field.name(),
            camel(field.name()),
            field.label() == Label::Repeated,
        )
    }
}

/// Converts a name such as `range_end` to `rangeEnd`.
fn camel(name: &str) -> String {
    let mut camel = String::new();
    let mut is_first_of_word = false;
    for letter in name.chars() {
        if letter == '_' {
            is_first_of_word = true;
        } else if std::mem::take(&mut is_first_of_word) {
            camel.push(letter.to_ascii_uppercase());
        } else {
            camel.push(letter);
        }
    }
    camel
}
