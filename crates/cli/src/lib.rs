//! Command lines in the style of etcd's tools: the grammar of flags, the tree of commands, help texts, tables,
//! log lines, and the start of a tool.
//!
//! `etcdctl` and `etcdutl` use the same libraries (pflag, cobra), so scripts and people know one grammar, one
//! layout of help and one wording of errors. A tool declares its commands as constants; `R` is the type of
//! their run functions.
//!
//! # Not here
//!
//! The work of the commands, and exit codes other than that of an invalid command line: each tool has its own.
//! The server's flags, which follow another grammar (`quorate-config`).

pub mod command;
pub mod completion;
pub mod flags;
pub mod gotext;
pub mod help;
pub mod log;
pub mod manual;
pub mod start;
pub mod stop;
pub mod table;
