//! Reads the configuration of a member: flags, environment and configuration file, according to etcd's grammar and
//! rules.
//!
//! [`parse`] is a pure function of the arguments and of [`Surroundings`] (environment, files, and the address of the
//! default route). It returns a [`Config`] that has passed every check, or an [`Exit`] with the text to print and the
//! exit code. Log lines are returned rather than written, because the configuration determines the log outputs.
//!
//! # Modules
//!
//! * [`flags`] is the table of flags. Each row has a name, a type, a field in [`Config`], a key in the file, and a help
//!   text. Parsing, help, environment names and file keys are derived from the table. To remove a flag, delete its row.
//! * [`grammar`] parses the command line, [`environment`] the environment, and [`mod@file`] the file, each into
//!   a [`draft`]. [`validate`] converts a draft into a [`Config`]. [`reading`] runs all these steps.
//! * [`absent`] is the table of flags that etcd 3.7 no longer has, each with the reason.
//!
//! # Not here
//!
//! Checks that need the data directory or the network, and the check that the initial cluster contains this member
//! (`server`).

mod absent;
mod auth_token;
mod config;
mod discovery;
mod draft;
mod engine;
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
pub use engine::EngineUrl;
pub use features::{FeatureGate, FeatureGateError, FeatureGates, Stage};
pub use members::{InitialClusterError, InitialMembers};
pub use outcome::{Destination, Exit, Parsed, Pending};
pub use process::ProcessSurroundings;
pub use reading::parse;
pub use security::{Security, TlsVersion, Transport};
pub use start::StartRefusal;
pub use surroundings::Surroundings;
pub use url::{Scheme, Url, UrlError, joined, split_host_port, texts};
pub use usage::{FlagDoc, flag_docs, reference};
pub use validate::RetentionError;

/// Returns the command line for display, with secrets removed.
pub fn without_secrets(arguments: &[String]) -> Vec<String> {
    grammar::redacted(arguments)
}
