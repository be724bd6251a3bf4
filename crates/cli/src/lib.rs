//! Command lines in the style of etcd's tools: the grammar of flags, the command tree, help texts, shell completion,
//! manual pages, tables, log lines, and the start and end of programs.
//!
//! `etcdctl` and `etcdutl` use the same libraries (pflag, cobra), so both have the same grammar, the same help layout
//! and the same error texts, which scripts and users rely on. A tool declares its commands as constants. `R` is the
//! type of their run functions.
//!
//! # Not here
//!
//! The implementation of the commands, and all exit codes except the default code for an invalid command line and the
//! code for an end by a signal, because each tool has its own exit codes. The server's flags, which follow another
//! grammar (`quorate-config`).

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
