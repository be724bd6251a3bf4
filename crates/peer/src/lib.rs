//! The transport between the members of a cluster: etcd's peer protocol.
//!
//! Each member opens two streams to every other member and reads from them. The transport writes to the streams that
//! the other members have opened. A message for which no stream is open is sent as a separate request. Snapshots are
//! always sent as separate requests.
//!
//! ```text
//! consensus thread --send--> peer --> outgoing   --> body of the peer's stream     (frame, wire)
//!                                 \-> pipeline   --> POST /raft
//!                  --send_snapshot--> snapshot_out --> POST /raft/snapshot
//! consensus thread <--Received-- local <-- incoming    <-- streams that this member opened
//!                                       <- service     <-- POST /raft
//!                                       <- snapshot_in <-- POST /raft/snapshot
//! ```
//!
//! All tasks run on the runtime that the member provides. It is separate from the client runtimes, so that heartbeats
//! do not wait for client requests. The transport never blocks the consensus thread. Messages that cannot be sent are
//! dropped and reported ([`Consensus`]).
//!
//! # Terms
//!
//! A *member* is in the cluster according to the membership that this member has applied. A *peer* is another member
//! with which the transport communicates. A *remote* claims to be a member; this member responds to it but opens no
//! streams to it. An *unknown sender* is neither a member nor confirmed as a member, and its messages are dropped. A
//! *contact* holds another member's URLs and status for all connections to it.
//!
//! # Modules
//!
//! `transport` is the interface for the rest of the member, and `service` answers the requests to the peer port; both
//! work on the `table` of peers. `known_members` and `proposal` filter the messages and proposals that reach the core.
//! `response` parses the responses that carry streams. `call` and `pool` make requests for other parts of the member;
//! `dialer` connects. There are no cyclic imports between the modules.
//!
//! # Not here
//!
//! The meaning of messages (`raft`, `node`), the threads of the member, the other paths of the peer port, and
//! certificates (`tls`).

mod backlog;
mod body;
mod body_reader;
pub mod call;
mod consensus;
mod contact;
mod dial;
mod dialer;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handshake;
pub mod image;
mod incoming;
mod known_members;
mod local;
mod origin;
mod outgoing;
mod peer;
mod pipeline;
pub mod pool;
mod probe;
mod proposal;
mod response;
mod service;
mod settings;
mod snapshot_in;
mod snapshot_out;
mod status;
mod table;
mod transport;
pub mod upgrade;
mod urls;
mod wire;

#[cfg(test)]
mod tests;

pub use backlog::Received;
pub use body::PeerBody;
pub use consensus::Consensus;
pub use dialer::Dialer;
pub use origin::OtherOrigin;
pub use snapshot_out::OutgoingSnapshot;
pub use transport::{Parts, Peers, PeersLoad};
