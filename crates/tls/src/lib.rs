//! TLS, on both sides of a connection: with which certificate a listener serves, whose certificates it accepts, and how
//! servers are dialed.
//!
//! The rules are etcd's, as are the words for what goes wrong. Certificates, keys, authorities and revocation lists are
//! files; each handshake goes by what they hold then, or held last while they could be used. Connections that are made
//! stay whatever becomes of the files.
//!
//! # Invariants
//!
//! * TLS 1.2 and 1.3, nothing older.
//! * A client that has to show a certificate is verified in each handshake; there is no way around, none by resuming a
//!   session either.
//! * No key stands in an error, a log line or a `Debug` output.
//!
//! # Not here
//!
//! Flags (`config`), sockets (`net`, `peer`), and what the name in a certificate entitles to.

mod accept;
mod authorities;
mod channel;
mod connect;
mod expiry;
mod greeting;
mod identity;
mod material;
mod names;
mod observed;
mod origin;
mod protocols;
mod revocation;
mod self_signed;
mod suites;
mod told;
mod verify;
mod versions;
mod watched;

pub use accept::{Accepted, Acceptor, AcceptorSettings, ClientCertificate, ClientCheck};
pub use authorities::{ServerCheck, Trust, have_common_authority};
pub use channel::{ChannelConnector, ChannelIo, ChannelStream, Place, host_of_file};
pub use connect::{ConnectError, Connector, ConnectorSettings};
pub use expiry::{Expiry, Part};
pub use greeting::Greeting;
pub use identity::Pair;
pub use material::MaterialError;
pub use names::Allowed;
pub use protocols::{Protocols, SetupError};
pub use self_signed::{SelfSignedError, find_or_make};
pub use suites::{SuiteError, Suites};
pub use tokio_rustls::{client, server};
pub use told::tls_reason;
pub use versions::{Version, Versions};

#[cfg(test)]
mod tests;
