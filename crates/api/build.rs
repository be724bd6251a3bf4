//! Generates the messages, and with feature `grpc` the stubs, from `proto/`, without a `protoc`.

use prost_types::FileDescriptorSet;

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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut descriptors = protox::compile(FILES, ["proto"])?;
    spell_urls(&mut descriptors);
    let stubs = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure()
        .build_client(stubs)
        .build_server(stubs)
        .build_transport(false)
        .codec_path("crate::codec::Codec")
        .generate_default_stubs(true)
        .bytes(".")
        .extern_path(".mvccpb.KeyValue", "crate::record::KeyValue")
        .compile_fds(descriptors)?;
    Ok(())
}

/// Renames `peerURLs` and `clientURLs`, which the generator would turn into `peer_ur_ls`. Names do not
/// travel on the wire.
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
