//! TLS for both sides of a connection: the certificates that listeners present, the client certificates that they
//! accept, and connections to servers.
//!
//! The rules and the error messages are etcd's. Certificates, keys, authorities and revocation lists are files. Each
//! handshake uses their current contents, or their last valid contents if they are now invalid. Changed files do not
//! affect existing connections.
//!
//! # Invariants
//!
//! * Only TLS 1.2 and 1.3 are supported.
//! * A client that must present a certificate is verified in every handshake. Sessions are never resumed.
//! * Private keys never appear in errors, log lines or `Debug` output.
//!
//! # Not here
//!
//! Flags (`config`), sockets (`net`, `peer`), and the permissions of users named in certificates.

mod accept;
mod authorities;
mod chain;
mod channel;
mod connect;
mod end_entity;
mod endpoint;
mod errors;
mod expiry;
mod facts;
mod greeting;
mod identity;
mod material;
mod names;
mod observed;
mod origin;
mod protocols;
mod revocation;
mod self_signed;
mod staggered;
mod suites;
mod verify;
mod versions;
mod watched;

pub use accept::{Accepted, Acceptor, AcceptorSettings, ClientCertificate, ClientCheck};
pub use authorities::{ServerCheck, Trust, have_common_authority};
pub use channel::{ChannelConnector, ChannelIo, ChannelStream, Place, host_of_file};
pub use connect::{ConnectError, Connector, ConnectorSettings};
pub use endpoint::{authority_of_file, split_scheme};
pub use errors::tls_reason;
pub use expiry::{Expiry, Part};
pub use facts::CertificateFacts;
pub use greeting::Greeting;
pub use identity::Pair;
pub use material::MaterialError;
pub use names::Allowed;
pub use protocols::{Protocols, SetupError};
pub use self_signed::{SelfSignedError, find_or_make};
pub use staggered::first_success;
pub use suites::{SuiteError, Suites};
pub use tokio_rustls::{client, server};
pub use versions::{Version, Versions};

#[cfg(test)]
mod tests;
