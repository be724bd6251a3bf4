//! `completion`: prints shell completion scripts for the tool.

use quorate_cli::completion::{SHELLS, script};

use crate::command::{Command, group};
use crate::failure::Failure;
use crate::gotext::quote;
use crate::session::Session;

pub(crate) const COMPLETION: Command = Command {
    usage: "completion [bash|zsh|fish|powershell]",
    short: "Generate completion script",
    long: "\
Prints a shell completion script for the tool. The following commands load it.

Bash, for the current session or for all sessions:

  source <(etcdctl completion bash)
  etcdctl completion bash > /etc/bash_completion.d/etcdctl

Zsh, with `autoload -U compinit; compinit` in ~/.zshrc:

  etcdctl completion zsh > \"${fpath[1]}/_etcdctl\"

Fish, for the current session or for all sessions:

  etcdctl completion fish | source
  etcdctl completion fish > ~/.config/fish/completions/etcdctl.fish

PowerShell, for the current session (for all sessions, save the script to a file and source it from the profile):

  etcdctl completion powershell | Out-String | Invoke-Expression

`quorate ctl` and `quorate utl` print the same script. It completes the command lines of both
tools. To use it, write `quorate ctl` instead of `etcdctl` in the commands above, and `quorate` instead of
`etcdctl` in the file names.
",
    group: Some(group::UTILITY),
    is_local: true,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

async fn run(session: &Session) -> Result<(), Failure> {
    let [shell] = &session.matches.args[..] else {
        let count = session.matches.args.len();
        return Err(Failure::error(format!("accepts 1 arg(s), received {count}")));
    };
    let name = String::from_utf8_lossy(shell);
    let script = script(&name, &session.program).ok_or_else(|| {
        let (word, shells) = (quote(shell), SHELLS.join(", "));
        Failure::error(format!("no completion script for shell {word}: choose one of {shells}"))
    })?;
    session.print(&script)
}
