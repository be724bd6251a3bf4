//! What the operator asked for: flags, environment and configuration file, by etcd's grammar and
//! rules.
//!
//! [`parse`] is a pure function of the arguments and of [`Surroundings`] (environment, files, the
//! default route's address). It gives either a [`Config`] that has passed every check, or an
//! [`Exit`] that says what to print and how to end. Log lines are returned, not written, because
//! where they go is part of the answer.
//!
//! # How it is laid out
//!
//! * [`flags`] is the one table: each flag with its name, type, place in [`Config`], key in the
//!   file and help. Parsing, help, environment names and file keys derive from it. To drop a flag,
//!   delete its row.
//! * [`grammar`] reads the command line, [`environment`] the environment, [`mod@file`] the file, each
//!   into a [`draft`]; [`validate`] turns a draft into a [`Config`]; [`reading`] is the whole course.
//! * [`absent`] is the other table: etcd's flags of before 3.7, and how each is met.
//!
//! # Not here
//!
//! What needs the data directory or the network (`server`), and reading the initial cluster
//! against a member's own name (`members`).

mod absent;
mod auth_token;
mod config;
mod discovery;
mod draft;
mod environment;
mod features;
mod file;
mod flags;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod grammar;
mod members;
mod outcome;
mod process;
mod reading;
mod rotation;
mod security;
mod setting;
mod start;
mod surroundings;
mod url;
mod usage;
mod validate;
mod yaml;

#[cfg(test)]
mod tests;

pub use quorate_telemetry::metrics::MetricsLevel;

pub use auth_token::{AuthToken, AuthTokenFault, Jwt};
pub use config::{ClusterState, CompactionMode, Config, FreelistType, Retention, Tracing};
pub use discovery::Discovery;
pub use features::{FeatureGateError, FeatureGates, Gate, Stage};
pub use members::{InitialClusterError, InitialMembers};
pub use outcome::{Destination, Exit, Parsed, Pending};
pub use process::ProcessSurroundings;
pub use reading::parse;
pub use security::{Security, TlsVersion, Transport};
pub use start::StartRefusal;
pub use surroundings::Surroundings;
pub use url::{Scheme, Url, UrlError, joined, split_host_port, texts};
pub use usage::{ToldFlag, reference, told_flags};
pub use validate::RetentionError;

/// The command line as it may be shown: without what is secret.
pub fn without_secrets(arguments: &[String]) -> Vec<String> {
    grammar::told(arguments)
}
