//! `completion`: prints shell completion scripts for the tool.

use quorate_cli::completion::script;

use crate::command::Command;
use crate::failure::Failure;
use crate::session::Session;

pub(crate) const COMPLETION: Command = Command {
    usage: "completion [bash|zsh|fish|powershell]",
    short: "Generate completion script",
    long: "\
Prints a shell completion script for the tool. To load it:

  source <(etcdutl completion bash)
  etcdutl completion zsh > \"${fpath[1]}/_etcdutl\"
  etcdutl completion fish | source
  etcdutl completion powershell | Out-String | Invoke-Expression

`quorate ctl` and `quorate utl` print the same script. It completes the command lines of both
tools. To use it, write `quorate utl` instead of `etcdutl` in the commands above, and `quorate` instead of
`etcdutl` in the file names.
",
    run: Some(run),
    ..Command::EMPTY
};

fn run(session: &Session) -> Result<(), Failure> {
    let shell = session.matches.arg(0).unwrap_or_default();
    let script = script(&shell, session.program).ok_or(Failure::Shell(shell))?;
    session.print(&script)
}
