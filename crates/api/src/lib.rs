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
            #[path = $file]
            pub mod $name;
        )*
    };
}

generated! {
    /// Users, roles, permissions.
    authpb = "generated/authpb.rs";
    /// The public services and the requests that travel through the log.
    etcdserverpb = "generated/etcdserverpb.rs";
    /// gRPC health checking.
    healthpb = "generated/grpc.health.v1.rs";
    /// Stored leases.
    leasepb = "generated/leasepb.rs";
    /// Membership facts in the log.
    membershippb = "generated/membershippb.rs";
    /// Events; records are [`crate::record::KeyValue`].
    mvccpb = "generated/mvccpb.rs";
    /// Consensus messages, log entries, snapshots.
    raftpb = "generated/raftpb.rs";
    /// The envelope of a `.snap` file.
    snappb = "generated/snappb.rs";
    /// The election service.
    v3electionpb = "generated/v3electionpb.rs";
    /// The lock service.
    v3lockpb = "generated/v3lockpb.rs";
    /// Frames of the write-ahead log.
    walpb = "generated/walpb.rs";
}
