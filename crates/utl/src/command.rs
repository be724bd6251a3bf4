//! The type of this tool's commands.

use quorate_cli::command;

use crate::failure::Failure;
use crate::session::Session;

/// The function that runs a command.
pub(crate) type Run = fn(&Session) -> Result<(), Failure>;
/// A command or a group of commands.
pub(crate) type Command = command::Command<Run>;
