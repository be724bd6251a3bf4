//! The gRPC services, one file each: from messages to the member's handles, and back.
//!
//! `guarded` is what the library calls: it authorizes each request and hands it on. Locks and elections are `recipes`
//! on top of `kv` and `lease`. The streams of `watch` and `keep_alive` authorize their messages one by one.
//!
//! # Not here
//!
//! What calls of several services need (`calls`).

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
