//! Command lines as etcd's tools have them: the grammar of flags, the tree of commands, its help, tables, log lines, and how
//! a tool begins.
//!
//! `etcdctl` and `etcdutl` are built from the same libraries (pflag, cobra), so scripts and people know one grammar,
//! one layout of help and one wording of mistakes for both. A tool declares its commands as constants; `R` is whatever
//! runs one.
//!
//! # Not here
//!
//! What a command does, and its other exit codes than those of a line that is wrong: each tool's own. The server's flags, which follow another grammar
//! (`quorate-config`).

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
