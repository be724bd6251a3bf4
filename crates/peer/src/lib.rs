//! Talking to the other members of a cluster: etcd's peer protocol.
//!
//! Each member dials two streams to every other and reads from them; it writes on those that the others have
//! dialed. What finds no stream is sent as a request of its own, and a snapshot always is.
//!
//! ```text
//! consensus thread --send--> peer --> outgoing   --> body of the peer's stream     (frame, wire)
//!                                 \-> pipeline   --> POST /raft
//!                  --send_snapshot--> snapshot_out --> POST /raft/snapshot
//! consensus thread <--Received-- local <-- incoming    <-- streams dialed here
//!                                       <- service     <-- POST /raft
//!                                       <- snapshot_in <-- POST /raft/snapshot
//! ```
//!
//! Everything runs on the runtime that is handed in, which is no client's, so that heartbeats do not wait behind
//! clients. Nothing here blocks the consensus thread, and what cannot be sent is dropped and reported
//! ([`Consensus`]).
//!
//! # Names
//!
//! A *member* is in the cluster as applied here. A *peer* is another member as it is talked to, a *remote* somebody who
//! says to be one and is answered without being trusted with streams, a *stranger* somebody whose messages are not
//! listened to. A *contact* is where another one is and whether it can be reached, whatever way is taken.
//!
//! # Where
//!
//! `transport` is what the rest of a member holds, `service` what the peer port answers; both work on the `table` of
//! peers. `acquaintance` and `proposal` decide what comes through to the core. `call` and `pool` are for requests of
//! other parts of a member; `dialer` is the way there. Imports run one way.
//!
//! # Not here
//!
//! What is said and what follows from it (`raft`, `node`); the threads of the member; the peer port's other paths; certificates (`tls`).

mod acquaintance;
mod backlog;
mod body;
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
mod local;
mod origin;
mod outgoing;
mod peer;
mod pipeline;
pub mod pool;
mod probe;
mod proposal;
mod service;
mod settings;
mod snapshot_in;
mod snapshot_out;
mod status;
mod table;
mod transport;
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
