//! Generates the code of `quorate-api`: messages, message shapes, and service stubs, which the feature `grpc` enables.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use tonic_prost_build::Config;

use crate::{Failed, Generated};

const FILES: &[&str] = &[
    "etcd/api/authpb/auth.proto",
    "etcd/api/etcdserverpb/etcdserver.proto",
    "etcd/api/etcdserverpb/raft_internal.proto",
    "etcd/api/etcdserverpb/rpc.proto",
    "etcd/api/membershippb/membership.proto",
    "etcd/api/mvccpb/kv.proto",
    "etcd/server/etcdserver/api/snap/snappb/snap.proto",
    "etcd/server/etcdserver/api/v3election/v3electionpb/v3election.proto",
    "etcd/server/etcdserver/api/v3lock/v3lockpb/v3lock.proto",
    "etcd/server/lease/leasepb/lease.proto",
    "etcd/server/storage/wal/walpb/record.proto",
    "grpc/health/v1/health.proto",
    "raftpb/raft.proto",
];

/// Messages with secret fields; `src/secrets.rs` implements their `Debug`.
const SECRET: &[&str] = &[
    ".authpb.User",
    ".etcdserverpb.AuthUserAddRequest",
    ".etcdserverpb.AuthUserChangePasswordRequest",
    ".etcdserverpb.AuthenticateRequest",
    ".etcdserverpb.AuthenticateResponse",
    ".etcdserverpb.InternalAuthenticateRequest",
];

/// Requests in the log that are allocated separately, because they are rare or large. Otherwise, the message that contains
/// them would be two and a half times as large, and each write constructs, moves and decodes one.
const BOXED: &[&str] = &[
    ".etcdserverpb.InternalRaftRequest.range",
    ".etcdserverpb.InternalRaftRequest.delete_range",
    ".etcdserverpb.InternalRaftRequest.auth_enable",
    ".etcdserverpb.InternalRaftRequest.auth_disable",
    ".etcdserverpb.InternalRaftRequest.auth_status",
    ".etcdserverpb.InternalRaftRequest.authenticate",
    ".etcdserverpb.InternalRaftRequest.auth_user_add",
    ".etcdserverpb.InternalRaftRequest.auth_user_delete",
    ".etcdserverpb.InternalRaftRequest.auth_user_get",
    ".etcdserverpb.InternalRaftRequest.auth_user_change_password",
    ".etcdserverpb.InternalRaftRequest.auth_user_grant_role",
    ".etcdserverpb.InternalRaftRequest.auth_user_revoke_role",
    ".etcdserverpb.InternalRaftRequest.auth_user_list",
    ".etcdserverpb.InternalRaftRequest.auth_role_add",
    ".etcdserverpb.InternalRaftRequest.auth_role_delete",
    ".etcdserverpb.InternalRaftRequest.auth_role_get",
    ".etcdserverpb.InternalRaftRequest.auth_role_grant_permission",
    ".etcdserverpb.InternalRaftRequest.auth_role_revoke_permission",
    ".etcdserverpb.InternalRaftRequest.auth_role_list",
    ".etcdserverpb.InternalRaftRequest.cluster_version_set",
    ".etcdserverpb.InternalRaftRequest.cluster_member_attr_set",
    ".etcdserverpb.InternalRaftRequest.downgrade_info_set",
    ".etcdserverpb.InternalRaftRequest.downgrade_version_test",
];

/// Attribute of the stubs: they are compiled only with the feature `grpc`, which enables their dependencies.
const STUBS_ONLY: &str = "#[cfg(feature = \"grpc\")]";

/// Generates the files, keyed by name.
pub(crate) fn generate(proto: &Path) -> Result<Generated, Failed> {
    let mut descriptors = protox::compile(FILES, [proto])?;
    spell_urls(&mut descriptors);
    let mut generated = Generated::from([("shapes.rs".to_owned(), shapes(&descriptors))]);
    let out = tempfile::tempdir()?;
    let mut config = Config::new();
    config.enable_type_names();
    config.skip_debug(SECRET);
    for field in BOXED {
        config.boxed(field);
    }
    config.out_dir(out.path());
    tonic_prost_build::configure()
        .client_mod_attribute(".", STUBS_ONLY)
        .server_mod_attribute(".", STUBS_ONLY)
        .build_transport(false)
        .codec_path("crate::codec::Codec")
        .generate_default_stubs(true)
        .bytes(".")
        .extern_path(".mvccpb.KeyValue", "crate::record::KeyValue")
        .out_dir(out.path())
        .compile_fds_with_config(descriptors, config)?;
    for file in std::fs::read_dir(out.path())? {
        let file = file?;
        let name = file.file_name().into_string().map_err(|name| format!("{}", name.display()))?;
        generated.insert(name, std::fs::read_to_string(file.path())?);
    }
    Ok(generated)
}

/// Renames `peerURLs` and `clientURLs`, which the generator would turn into `peer_ur_ls`. The wire format does
/// not contain names.
fn spell_urls(descriptors: &mut FileDescriptorSet) {
    for message in descriptors.file.iter_mut().flat_map(|file| &mut file.message_type) {
        for field in &mut message.field {
            match field.name() {
                "peerURLs" => field.name = Some("peer_urls".to_owned()),
                "clientURLs" => field.name = Some("client_urls".to_owned()),
                _ => {}
            }
        }
    }
}

/// Generates the table for `shape`: the wire types of each message's fields.
fn shapes(descriptors: &FileDescriptorSet) -> String {
    let mut messages = BTreeMap::new();
    for file in &descriptors.file {
        collect(file.package(), &file.message_type, &mut messages);
    }
    let position = |name: &str| messages.keys().position(|known| known == name);
    let mut table = String::from(
        "use quorate_protobuf::WireType;\n\nuse super::{Field, Kind, Shape};\n\npub(super) static SHAPES: &[Shape] = &[\n",
    );
    for (name, message) in &messages {
        let fields = message.field.iter().map(|field| shape(field, position));
        let fields: Vec<_> = fields.collect();
        writeln!(table, "Shape {{ name: {name:?}, fields: &[{}] }},", fields.join(", "))
            .expect("writing to a String cannot fail");
    }
    table + "];\n"
}

/// Adds the messages and their nested messages under their full names.
fn collect<'a>(
    scope: &str,
    found: &'a [DescriptorProto],
    messages: &mut BTreeMap<String, &'a DescriptorProto>,
) {
    for message in found {
        let name = format!("{scope}.{}", message.name());
        collect(&name, &message.nested_type, messages);
        messages.insert(name, message);
    }
}

fn shape(field: &FieldDescriptorProto, position: impl Fn(&str) -> Option<usize>) -> String {
    let number = field.number();
    let kind = match field.r#type() {
        Type::Message => {
            let name = field.type_name().trim_start_matches('.');
            let position =
                position(name).expect("the descriptors contain the message type of every field");
            return format!("Field {{ number: {number}, kind: Kind::Message({position}) }}");
        }
        Type::Bytes => return format!("Field {{ number: {number}, kind: Kind::Bytes }}"),
        Type::String => return format!("Field {{ number: {number}, kind: Kind::Text }}"),
        Type::Group => unreachable!("no message contains groups"),
        Type::Double | Type::Fixed64 | Type::Sfixed64 => "Fixed64",
        Type::Float | Type::Fixed32 | Type::Sfixed32 => "Fixed32",
        Type::Int64
        | Type::Uint64
        | Type::Int32
        | Type::Bool
        | Type::Uint32
        | Type::Enum
        | Type::Sint32
        | Type::Sint64 => "Varint",
    };
    let kind_name = if field.label() == Label::Repeated { "Numbers" } else { "Number" };
    format!("Field {{ number: {number}, kind: Kind::{kind_name}(WireType::{kind}) }}")
}
