//! All messages that Quorate sends or stores.
//!
//! The `.proto` files in `proto/` define the public interface, with etcd's names and numbers and our own
//! comments. `cargo xtask generate` writes the Rust types in `generated/` from them. All `bytes` fields are
//! [`bytes::Bytes`], so a request's keys and values are slices of the buffer it arrived in. One message is
//! written by hand: [`record::KeyValue`], which stays in encoded form.
//!
//! The feature `grpc` adds client and server stubs. This crate contains no logic beyond encoding.

pub mod any_text;
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
    /// The public services, and the requests in the log.
    etcdserverpb = "generated/etcdserverpb.rs";
    /// gRPC health checking.
    healthpb = "generated/grpc.health.v1.rs";
    /// Stored leases.
    leasepb = "generated/leasepb.rs";
    /// Membership requests in the log.
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
