//! The path of a client's request between the ports and the data store, and the interface to the data store.
//!
//! ```text
//! edge (services) ──► ServerHandles: AccessControl, Writer, Accounts, StreamEnds ──► DataStore
//!                                                                                       ▲
//!                                                                            member ────┘
//! ```
//!
//! The services of the client ports use [`ServerHandles`], and do not know which data store they use. The [`DataStore`]
//! executes requests, and its [`Status`] shows its progress. The other handles do not depend on the data store: the
//! bounds on the work of clients (`admission`), authentication and authorisation (`access`), the checks before a write
//! (`writer`), logins (`accounts`, `passwords`), errors, and the log lines about slow requests.
//!
//! # Not here
//!
//! gRPC and HTTP (`edge`), and the data store itself (`member`).

pub mod access;
pub mod accounts;
pub mod admission;
pub mod bound;
mod data_store;
mod error;
mod handles;
mod hash_permits;
mod limits;
mod passwords;
pub mod request_text;
mod server_info;
pub mod slow;
pub mod slow_apply;
mod snapshot_stream;
mod status;
mod store_future;
mod stream_ends;
mod writer;

pub use data_store::{
    DataStore, Defragmented, Image, Listed, Sizes, StoreResult, Write, probe_query,
};
pub use error::RequestError;
pub use handles::ServerHandles;
pub use hash_permits::{HashPermit, HashPermits};
pub use limits::Limits;
pub use passwords::PasswordsLoad;
pub use quorate_core::request::{Ask, Ready};
pub use server_info::ServerInfo;
pub use snapshot_stream::{STREAM_BYTES, SnapshotStream};
pub use status::{ConsensusStatus, MemberProgress, Progress, Status};
pub use store_future::{StoreFuture, WriteFuture};
pub use stream_ends::{StreamEnd, StreamEnds};
pub use writer::Writer;
