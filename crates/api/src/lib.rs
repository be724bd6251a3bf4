//! Everything that Quorate says on the wire or stores as a message.
//!
//! The `.proto` files under `proto/` are the published interface: names and numbers are etcd's, the
//! wording is ours. The Rust types in `generated/` are written from them by `cargo xtask generate`, all `bytes`
//! fields as [`bytes::Bytes`], so that a request's keys and values are slices of the buffer it came in.
//! One message is not generated: [`record::KeyValue`], which stays in its encoded form.
//!
//! Feature `grpc` adds client and server stubs. Nothing here decides anything.

pub mod deep_txn;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod record;
mod secrets;
pub mod shape;

#[cfg(feature = "grpc")]
pub mod code;
#[cfg(feature = "grpc")]
pub mod codec;

macro_rules! generated {
    ($($(#[doc = $doc:literal])* $name:ident = $file:literal;)*) => {
        $(
            $(#[doc = $doc])*
            #[allow(
                clippy::all, clippy::allow_attributes,
                clippy::allow_attributes_without_reason, clippy::use_self, clippy::too_many_lines,
                missing_docs, unused_qualifications, missing_debug_implementations,
                reason = "generated code"
            )]
            pub mod $name {
                include!(concat!("generated/", $file, ".rs"));
            }
        )*
    };
}

generated! {
    /// Users, roles, permissions.
    authpb = "authpb";
    /// The public services and the requests that travel through the log.
    etcdserverpb = "etcdserverpb";
    /// gRPC health checking.
    healthpb = "grpc.health.v1";
    /// Stored leases.
    leasepb = "leasepb";
    /// Membership facts in the log.
    membershippb = "membershippb";
    /// Events; records are [`crate::record::KeyValue`].
    mvccpb = "mvccpb";
    /// Consensus messages, log entries, snapshots.
    raftpb = "raftpb";
    /// The envelope of a `.snap` file.
    snappb = "snappb";
    /// The election service.
    v3electionpb = "v3electionpb";
    /// The lock service.
    v3lockpb = "v3lockpb";
    /// Frames of the write-ahead log.
    walpb = "walpb";
}
