//! `watch`: prints events as they happen, and runs a command for each event if a command is given.
//!
//! # Not here
//!
//! Resuming a watch at another endpoint (`quorate_client::events`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::poll_fn;
use std::os::unix::ffi::OsStrExt as _;
use std::pin::Pin;
use std::task::Poll;

use quorate_api::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchResponse};
use quorate_api::mvccpb::Event;
use tokio::sync::mpsc;

use crate::child;
use crate::client::Client;
use crate::command::{Command, group};
use crate::events::{Events, Leader, cancel_text, is_progress};
use crate::failure::{Failure, exit, status_text, system_text};
use crate::flags::{Flag, FlagError, Matches};
use crate::gotext::quote;
use crate::key_range::KeyRange;
use crate::output::{Reply, event_name};
use crate::session::Session;
use crate::words;

pub(crate) const WATCH: Command = Command {
    usage: "watch [options] [key or prefix] [range_end] [--] [exec-command arg1 arg2 ...]",
    short: "Watches events stream on keys or prefixes",
    group: Some(group::KEY_VALUE),
    flags: FLAGS,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

const FLAGS: &[Flag] = &[
    Flag::bool("interactive", "Interactive mode").short('i'),
    Flag::bool("prefix", "Watch on a prefix if prefix is set"),
    Flag::int("rev", "Revision to start watching"),
    Flag::bool("prev-kv", "get the previous key-value pair before the event happens"),
    Flag::bool("progress-notify", "get periodic watch progress notification from server"),
];

const TWO_RANGES: &str = "`range_end` and `--prefix` are mutually exclusive";

/// A watch request, and the command to run on each event.
#[derive(Clone, Debug, PartialEq)]
struct Watch {
    create: WatchCreateRequest,
    exec: Vec<Vec<u8>>,
}

impl Watch {
    fn new(matches: &Matches, env: &BTreeMap<String, OsString>) -> Result<Self, Failure> {
        let from_env = |name: &str| env.get(name).filter(|value| !value.is_empty());
        let before = matches.args_before_dashes.unwrap_or(matches.args.len());
        let (keys, exec) = matches.args.split_at(before);
        if matches.args_before_dashes.is_some() && exec.is_empty() {
            let text = "bad number of arguments (found separator --, but no commands)";
            return Err(Failure::bad_args(text));
        }
        let mut keys = keys.to_vec();
        if let Some(key) = from_env("ETCDCTL_WATCH_KEY") {
            if !keys.is_empty() {
                let text = "bad number of arguments (found conflicting environment key)";
                return Err(Failure::bad_args(text));
            }
            keys.push(key.as_bytes().to_vec());
            keys.extend(from_env("ETCDCTL_WATCH_RANGE_END").map(|end| end.as_bytes().to_vec()));
        }
        let prefix = matches.bool("prefix");
        let range = match &keys[..] {
            [] => return Err(Failure::bad_args("bad number of arguments")),
            [_, _] if prefix => return Err(two_ranges()),
            [key, end] => KeyRange { key: key.clone(), end: end.clone() },
            [key, ..] if prefix => KeyRange::prefix(key.clone()),
            [key, ..] => KeyRange { key: key.clone(), end: Vec::new() },
        };
        let create = WatchCreateRequest {
            key: range.key.into(),
            range_end: range.end.into(),
            start_revision: matches.int("rev"),
            prev_kv: matches.bool("prev-kv"),
            progress_notify: matches.bool("progress-notify"),
            ..Default::default()
        };
        Ok(Self { create, exec: exec.to_vec() })
    }
}

/// Returns the error for a watch with both kinds of range. In interactive mode, only this error does not end the tool.
fn two_ranges() -> Failure {
    Failure::bad_args(TWO_RANGES)
}

async fn run(session: &Session) -> Result<(), Failure> {
    let end = session.env.get("ETCDCTL_WATCH_RANGE_END").filter(|end| !end.is_empty());
    if let Some(end) = end
        && session.env.get("ETCDCTL_WATCH_KEY").is_none_or(|key| key.is_empty())
    {
        let end = quote(end.as_bytes());
        let text = format!("ETCDCTL_WATCH_KEY is empty but got ETCDCTL_WATCH_RANGE_END={end}");
        return Err(Failure::bad_args(text));
    }
    if session.matches.bool("interactive") {
        return interactive(session).await;
    }
    let watch = Watch::new(&session.matches, &session.env)?;
    let client = session.client().await?;
    let (_nobody, progress) = mpsc::unbounded_channel();
    follow(session, &client, watch, progress).await?;
    Err(Failure::new(exit::INTERRUPTED, "watch is canceled by the server"))
}

/// Prints the events of a watch until the watch ends. Sends a progress request for each message on `progress`.
async fn follow(
    session: &Session,
    client: &Client,
    watch: Watch,
    mut progress: mpsc::UnboundedReceiver<()>,
) -> Result<(), Failure> {
    let mut events = Events::new(client, watch.create, Leader::Required);
    loop {
        let next = tokio::select! {
            next = events.next() => next,
            Some(()) = progress.recv() => {
                events.ask_progress();
                continue;
            }
        };
        let response = match next {
            Ok(response) => response,
            Err(status) => {
                session.print_error(&format!("watch was canceled ({})\n", status_text(&status)));
                return session.show(&Reply::Watch(closed()));
            }
        };
        show(session, &response, &watch.exec).await?;
        if response.canceled {
            return Ok(());
        }
    }
}

/// Returns the response that is printed when a watch ends because its stream has ended.
fn closed() -> WatchResponse {
    WatchResponse { header: Some(ResponseHeader::default()), canceled: true, ..Default::default() }
}

async fn show(
    session: &Session,
    response: &WatchResponse,
    exec: &[Vec<u8>],
) -> Result<(), Failure> {
    if response.created && !response.canceled {
        return Ok(());
    }
    if response.canceled {
        session.print_error(&format!("watch was canceled ({})\n", cancel_text(response)));
    }
    let revision = response.header.as_ref().map_or(0, |header| header.revision);
    if is_progress(response) {
        session.print(&format!("progress notify: {revision}\n"))?;
    }
    // If the server refuses to create a watch, etcdctl prints the same response as for an ended stream.
    let shown = if response.created { closed() } else { response.clone() };
    session.show(&Reply::Watch(shown))?;
    if exec.is_empty() {
        return Ok(());
    }
    for event in &response.events {
        execute(session, exec, revision, event).await?;
    }
    Ok(())
}

/// Runs the command for one event to completion.
async fn execute(
    session: &Session,
    exec: &[Vec<u8>],
    revision: i64,
    event: &Event,
) -> Result<(), Failure> {
    let record = event.kv.clone().unwrap_or_default();
    let fields = record.fields();
    let mut command = child::command(exec);
    command
        .env("ETCD_WATCH_REVISION", revision.to_string())
        .env("ETCD_WATCH_EVENT_TYPE", quote(event_name(event.r#type).as_bytes()))
        .env("ETCD_WATCH_KEY", quote(fields.key))
        .env("ETCD_WATCH_VALUE", quote(fields.value));
    let reason = match child::run(command).await {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => match status.code() {
            Some(code) => format!("exit status {code}"),
            None => status.to_string(),
        },
        Err(error) => not_started(&exec[0], &error),
    };
    let command: Vec<_> = exec.iter().map(|word| quote(word)).collect();
    session.print_error(&format!("command [{}] error ({reason})\n", command.join(" ")));
    Err(Failure::silent(exit::ERROR))
}

/// Explains why a command could not be started, in Go's wording.
fn not_started(program: &[u8], error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound if !program.contains(&b'/') => {
            format!("exec: {}: executable file not found in $PATH", quote(program))
        }
        _ => {
            let program = String::from_utf8_lossy(program);
            format!("fork/exec {program}: {}", system_text(&error.to_string()))
        }
    }
}

type Following<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// Reads lines, each with a new watch or a progress request, and prints the events of all watches as they arrive.
async fn interactive(session: &Session) -> Result<(), Failure> {
    let client = session.client().await?;
    let mut lines = read_lines(session);
    let mut watches: Vec<Following<'_>> = Vec::new();
    let mut progress = Vec::new();
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            failure = first_failure(&mut watches) => return Err(failure),
        };
        let Some(line) = line else {
            let text = "error reading watch request line: EOF";
            return Err(Failure::new(exit::INVALID_INPUT, text));
        };
        let shown = String::from_utf8_lossy(&line).into_owned();
        let words = words::split(&line)?;
        match words.split_first() {
            None => session
                .print_error(&format!("Invalid command: {shown} (watch and progress supported)\n")),
            Some((name, _)) if name == b"progress" => {
                // A watch that has ended no longer receives progress requests.
                progress.retain(|watch: &mpsc::UnboundedSender<()>| watch.send(()).is_ok());
            }
            Some((name, args)) if name == b"watch" => {
                if args.is_empty() && !session.env.contains_key("ETCDCTL_WATCH_KEY") {
                    session.print_error(&format!(
                        "Invalid command {shown} (command type or key is not provided)\n"
                    ));
                    continue;
                }
                let matches = Matches::parse(FLAGS, args).map_err(|error| match error {
                    FlagError::Help => Failure::bad_args("pflag: help requested"),
                    FlagError::Wrong(text) => Failure::bad_args(text),
                })?;
                let watch = match Watch::new(&matches, &session.env) {
                    Err(failure) if failure == two_ranges() => {
                        session.print_error(&format!("Invalid command {shown} ({TWO_RANGES})\n"));
                        continue;
                    }
                    watch => watch?,
                };
                let (sender, receiver) = mpsc::unbounded_channel();
                progress.push(sender);
                watches.push(Box::pin(follow(session, &client, watch, receiver)));
            }
            Some(_) => {
                session.print_error(&format!("Invalid command {shown} (only support watch)\n"));
            }
        }
    }
}

/// Runs the watches until one of them fails. Removes watches that end without an error.
async fn first_failure(watches: &mut Vec<Following<'_>>) -> Failure {
    poll_fn(|context| {
        let mut failure = None;
        watches.retain_mut(|watch| match watch.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(error)) => {
                failure = Some(error);
                false
            }
        });
        failure.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Returns the lines of standard input, which a separate thread reads until the end of the input.
fn read_lines(session: &Session) -> mpsc::UnboundedReceiver<Vec<u8>> {
    let mut input = session.take_input();
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        loop {
            let mut line = Vec::new();
            match input.read_until(b'\n', &mut line) {
                Ok(_) if line.pop_if(|last| *last == b'\n').is_some() => {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(line: &[&str], env: &[(&str, &str)]) -> Result<Watch, Failure> {
        let line: Vec<_> = line.iter().map(|word| word.as_bytes().to_vec()).collect();
        let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        Watch::new(&Matches::parse(FLAGS, &line).unwrap(), &env)
    }

    #[test]
    fn keys_are_read_from_arguments_or_the_environment() {
        let parsed = watch(&["a", "--rev", "5", "c", "--", "echo", "--prefix"], &[]).unwrap();
        assert_eq!((&parsed.create.key[..], &parsed.create.range_end[..]), (&b"a"[..], &b"c"[..]));
        assert_eq!((parsed.create.start_revision, parsed.exec.len()), (5, 2));
        let env = [("ETCDCTL_WATCH_KEY", "k"), ("ETCDCTL_WATCH_RANGE_END", "l")];
        let parsed = watch(&["--", "echo"], &env).unwrap();
        assert_eq!((&parsed.create.key[..], &parsed.create.range_end[..]), (&b"k"[..], &b"l"[..]));
        assert_eq!(&watch(&["a", "--prefix"], &[]).unwrap().create.range_end[..], b"b");
    }

    #[test]
    fn usage_errors_exit_with_the_bad_arguments_code() {
        let env = [("ETCDCTL_WATCH_KEY", "k")];
        for (line, env, text) in [
            (&[][..], &[][..], "bad number of arguments"),
            (&["a", "--"], &[], "bad number of arguments (found separator --, but no commands)"),
            (&["a"], &env, "bad number of arguments (found conflicting environment key)"),
            (&["a", "b", "--prefix"], &[], "`range_end` and `--prefix` are mutually exclusive"),
        ] {
            assert_eq!(watch(line, env).unwrap_err(), Failure::bad_args(text), "{line:?}");
        }
    }

    #[test]
    fn a_missing_command_is_reported_as_in_go() {
        let none = std::io::Error::from_raw_os_error(2);
        let text = |program: &[u8]| not_started(program, &none);
        assert_eq!(text(b"none"), "exec: \"none\": executable file not found in $PATH");
        assert_eq!(text(b"/a/none"), "fork/exec /a/none: no such file or directory");
    }
}
