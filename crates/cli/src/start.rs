//! Starts a tool: finds and parses its command, or prints help or an error.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;

use crate::command::{Command, Found, find};
use crate::completion::{self, ASK, ASK_NAMES};
use crate::flags::{FlagError, Matches};
use crate::help;

/// The exit code for an invalid command line.
const MISTAKE: u8 = 1;

/// The exit code if the reader of the output has closed the pipe. A shell reports the same code for SIGPIPE.
pub const BROKEN_PIPE: u8 = 141;

/// The names of a tool.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The name of the corresponding etcd tool, used if this tool is called by that name.
    pub of_etcd: &'static str,
    /// The tool's own name.
    pub own: &'static str,
}

/// A command that is ready to run.
#[derive(Debug)]
pub struct Begun<R: 'static> {
    /// The name under which the tool was called.
    pub program: &'static str,
    /// The command to run.
    pub found: Found<R>,
    /// The flags and arguments.
    pub matches: Matches,
    /// The run function of the command.
    pub run: R,
}

/// Finds and parses the command to run. If there is no command to run, prints help or an error and returns the exit
/// code. The first argument is the tool's name. `unknown` formats the error for an unknown command.
pub fn begin<R: Copy>(
    names: Names,
    root: &'static Command<R>,
    args: impl IntoIterator<Item = OsString>,
    unknown: impl FnOnce(&str, &str) -> String,
    (output, errors): (&mut dyn Write, &mut dyn Write),
) -> Result<Begun<R>, u8> {
    let mut args = args.into_iter();
    let program = names.for_path(args.next().as_ref());
    let line: Vec<Vec<u8>> = args.map(OsStringExt::into_vec).collect();
    if let [ask, words @ ..] = &line[..]
        && [ASK, ASK_NAMES].iter().any(|word| word.as_bytes() == ask)
    {
        say(output, &completion::answer(root, words, ask == ASK.as_bytes()));
        return Err(0);
    }
    let found = find(root, &line).map_err(|word| {
        let text = unknown(program, &word);
        say(errors, &format!("Error: {text}\nRun '{program} --help' for usage.\n"));
        root.failure_code.unwrap_or(MISTAKE)
    })?;
    let matches = match Matches::parse(&found.flags(), &found.line) {
        Err(FlagError::Wrong(text)) => {
            let usage = help::usage(program, &found);
            say(errors, &format!("Error: {text}\n{usage}\n"));
            return Err(found.failure_code().unwrap_or(MISTAKE));
        }
        Ok(matches) => Some(matches),
        Err(FlagError::Help) => None,
    };
    // The command line names a group but no command in it, which some tools treat as an error unless `--help` is given.
    let code = matches.as_ref().and(found.failure_code()).unwrap_or(0);
    let (Some(matches), Some(run)) = (matches, found.command().run) else {
        say(if code == 0 { output } else { errors }, &help::help(program, &found));
        return Err(code);
    };
    Ok(Begun { program, found, matches, run })
}

/// The names of the server program in help texts.
const SERVER: Names = Names { of_etcd: "etcd", own: "quorate" };

impl Names {
    /// Returns the name of the program that was started with this path.
    fn for_path(self, path: Option<&OsString>) -> &'static str {
        match path.map(Path::new).and_then(Path::file_name) {
            Some(name) if name == self.of_etcd => self.of_etcd,
            _ => self.own,
        }
    }
}

/// Finds and parses a subcommand of the server program. Differs from [`begin`] in the streams to which help and errors
/// are printed, as in etcd.
pub fn begin_of_server<R: Copy>(
    root: &'static Command<R>,
    args: impl IntoIterator<Item = OsString>,
    (output, errors): (&mut dyn Write, &mut dyn Write),
) -> Result<(Matches, R), ExitCode> {
    let mut args = args.into_iter();
    let program = SERVER.for_path(args.next().as_ref());
    let line: Vec<Vec<u8>> = args.map(OsStringExt::into_vec).collect();
    let Ok(found) = find(root, &line) else {
        say(errors, &format!("unknown command for \"{program}\"\n"));
        return Err(ExitCode::FAILURE);
    };
    match (Matches::parse(&found.flags(), &found.line), found.command().run) {
        (Ok(matches), Some(run)) => Ok((matches, run)),
        (Ok(_), None) | (Err(FlagError::Help), _) => {
            say(output, &help::help(program, &found));
            Err(ExitCode::SUCCESS)
        }
        (Err(FlagError::Wrong(text)), _) => {
            say(output, &format!("{}\n", help::usage(program, &found)));
            say(errors, &format!("{text}\n"));
            Err(ExitCode::FAILURE)
        }
    }
}

/// Ends the process with `code`. For [`BROKEN_PIPE`], ends it with SIGPIPE, as is usual for a tool in a pipe.
pub fn end(code: u8) -> ExitCode {
    if code == BROKEN_PIPE {
        // If the signal does not end the process, the process exits with the code that a shell reports for the signal.
        drop(signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE));
    }
    ExitCode::from(code)
}

/// Writes to a stream. Errors are ignored, because the reader may have closed the stream.
fn say(stream: &mut dyn Write, text: &str) {
    drop(stream.write_all(text.as_bytes()).and_then(|()| stream.flush()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Command<u8> = Command {
        usage: "tool",
        children: &[
            &Command { usage: "cmp", failure_code: Some(2), run: Some(1), ..Command::EMPTY },
            &Command { usage: "put <key>", run: Some(7), ..Command::EMPTY },
        ],
        ..Command::EMPTY
    };
    const NAMES: Names = Names { of_etcd: "etcdtool", own: "quorate tool" };

    /// Returns the result of a command line (the run function or the exit code) and the printed text.
    fn check(line: &str) -> (Result<(&'static str, u8), u8>, String) {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let args = line.split(' ').map(OsString::from);
        let unknown = |program: &str, word: &str| format!("no {word} in {program}");
        let begun = begin(NAMES, &ROOT, args, unknown, (&mut output, &mut errors));
        let said = String::from_utf8([output, errors].concat()).unwrap();
        (begun.map(|begun| (begun.program, begun.run)), said)
    }

    #[test]
    fn a_tool_may_have_its_own_exit_code_for_usage_errors() {
        const STRICT: Command<u8> = Command { failure_code: Some(9), ..ROOT };
        let check = |line: &str| {
            let (mut output, mut errors) = (Vec::new(), Vec::new());
            let args = line.split(' ').map(OsString::from);
            let unknown = |_: &str, word: &str| format!("no {word}");
            let begun = begin(NAMES, &STRICT, args, unknown, (&mut output, &mut errors));
            (begun.err(), output.is_empty(), errors.is_empty())
        };
        for line in ["x get", "x put --none", "x"] {
            assert_eq!(check(line), (Some(9), true, false), "{line}");
        }
        assert_eq!(check("x cmp --none").0, Some(2));
        assert_eq!(check("x --help"), (Some(0), false, true));
        assert_eq!(check("x put a").0, None);
    }

    #[test]
    fn a_command_line_is_parsed_into_a_command_a_help_text_or_an_error() {
        assert_eq!(check("x put a"), (Ok(("quorate tool", 7)), String::new()));
        assert_eq!(check("/usr/bin/etcdtool put a"), (Ok(("etcdtool", 7)), String::new()));
        let (code, said) = check("etcdtool get a");
        assert_eq!(code, Err(1));
        assert_eq!(said, "Error: no get in etcdtool\nRun 'etcdtool --help' for usage.\n");
        let (code, said) = check("x put --none");
        assert_eq!(code, Err(1));
        assert!(said.starts_with("Error: unknown flag: --none\n"), "{said}");
        assert_eq!(check("x cmp --none").0, Err(2));
        assert_eq!(check("x __complete p"), (Err(0), "put\n:4\n".to_owned()));
        for help in ["x", "x put --help"] {
            let (code, said) = check(help);
            assert_eq!(code, Err(0), "{help}: {said}");
            assert!(said.contains("quorate tool"), "{help}: {said}");
        }
    }
}
