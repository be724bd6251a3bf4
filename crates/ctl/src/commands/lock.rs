//! `lock`: waits for a lock, and holds it until a signal arrives or a command has finished.
//!
//! # Guarantees
//!
//! * The command does not start if the key of the lock was deleted while the tool waited for the lock.
//! * The lock is released even if the command that runs while the lock is held fails or is killed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use crate::child;
use crate::client::Client;
use crate::command::{Command, group};
use crate::failure::{Failure, exit};
use crate::flags::{Flag, Kind};
use crate::gotext::quote;
use crate::interrupt::Interrupt;
use crate::output::Reply;
use crate::queue::{KeptLease, QueueKey, interrupted};
use crate::session::Session;

pub(crate) const LOCK: Command = Command {
    usage: "lock <lockname> [exec-command arg1 arg2 ...]",
    short: "Acquires a named lock",
    group: Some(group::CONCURRENCY),
    flags: &[Flag {
        name: "ttl",
        short: None,
        kind: Kind::Int,
        default: "10",
        usage: "timeout for session",
    }],
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

const EXPIRED: &str = "session expired";

async fn run(session: &Session) -> Result<(), Failure> {
    let [name, exec @ ..] = &session.matches.args[..] else {
        let text = "lock takes a lock name argument and an optional command to execute";
        return Err(Failure::bad_args(text));
    };
    let client = session.client().await?;
    let mut kept_lease = KeptLease::begin(&client, session.matches.int("ttl")).await?;
    // Before this point, a signal simply ends the process, because the process has no queue key yet and the server may
    // be unreachable.
    let interrupt = Interrupt::listen()?;
    let held = hold(session, (&client, &interrupt), &mut kept_lease, name, exec).await;
    let ended = kept_lease.end().await;
    held.and(ended.map_err(Failure::from))
}

/// Waits for the lock and holds it.
async fn hold(
    session: &Session,
    (client, interrupt): (&Client, &Interrupt),
    kept_lease: &mut KeptLease<'_>,
    name: &[u8],
    exec: &[Vec<u8>],
) -> Result<(), Failure> {
    let mut queue_key = QueueKey::create(kept_lease, name, b"").await?;
    let waiting = async {
        tokio::select! {
            waited = Box::pin(queue_key.wait_for_turn(client)) => waited.map_err(Failure::from),
            () = interrupt.wait() => Err(interrupted()),
        }
    };
    let is_held = kept_lease.during(waiting).await.ok_or_else(|| Failure::error(EXPIRED))??;
    if !is_held {
        return Err(Failure::error("mutex: session is expired"));
    }
    if !exec.is_empty() {
        return kept_lease.beside(execute(exec, &queue_key)).await;
    }
    let own = queue_key.read(client).await?;
    if own.kvs.is_empty() {
        return Err(Failure::error("lock lost on init"));
    }
    session.show(&Reply::Get(own, false))?;
    kept_lease.during(interrupt.wait()).await.ok_or_else(|| Failure::error(EXPIRED))
}

/// Runs the command to completion. Its exit code becomes the tool's exit code.
async fn execute(exec: &[Vec<u8>], queue_key: &QueueKey) -> Result<(), Failure> {
    let mut command = child::command(exec);
    command
        .env("ETCD_LOCK_KEY", OsStr::from_bytes(&queue_key.key))
        .env("ETCD_LOCK_REV", queue_key.revision.to_string());
    let program = &exec[0];
    let status = child::run(command).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound if !program.contains(&b'/') => {
            let program = quote(program);
            Failure::error(format!("exec: {program}: executable file not found in $PATH"))
        }
        _ => Failure::error(format!("{}: {error}", String::from_utf8_lossy(program))),
    })?;
    if status.success() { Ok(()) } else { Err(failed(status)) }
}

fn failed(status: ExitStatus) -> Failure {
    /// Exit code of a Go program whose child process was killed by a signal.
    const SIGNALED: u8 = 255;
    match status.code() {
        Some(code) => {
            let text = format!("exit status {code}");
            Failure::new(u8::try_from(code).unwrap_or(exit::ERROR), text)
        }
        None => {
            let signal = status.signal().unwrap_or_default();
            Failure::new(SIGNALED, format!("signal: {signal}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_of_a_failed_command_is_returned() {
        let ended = |raw| failed(ExitStatus::from_raw(raw));
        assert_eq!(ended(3 << 8), Failure::new(3, "exit status 3"));
        assert_eq!(ended(9), Failure::new(255, "signal: 9"));
    }
}
