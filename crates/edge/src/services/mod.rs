//! The gRPC services, one per file. They convert messages into calls on the member's handles.
//!
//! The library calls `guarded`, which authorizes each request and passes it on. Locks and elections use `recipes`, on
//! top of `kv` and `lease`. `watch` and `keep_alive` themselves authorize the messages of their streams.
//!
//! # Not here
//!
//! Code shared by several services (`calls`).

pub(crate) mod auth;
pub(crate) mod cluster;
pub(crate) mod election;
pub(crate) mod guarded;
pub(crate) mod health;
pub(crate) mod keep_alive;
pub(crate) mod kv;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod maintenance;
mod range_stream;
pub(crate) mod recipes;
pub(crate) mod watch;
