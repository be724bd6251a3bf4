//! The binary. Its name and its first argument select the program that it runs.
//!
//! Under the name `etcdctl` or `etcdutl`, the binary runs `ctl` or `utl`. Otherwise the first argument may name a
//! program (`ctl`, `utl`, `bench`, `console`, `gateway`, `grpc-proxy`, `manual`). `help` and `version` are equivalent
//! to the flags with these names. Any other first argument that is not a flag is refused. In all other cases the
//! arguments are the server's command line. Under the name `etcd`, only etcd's subcommands (`gateway`, `grpc-proxy`)
//! are recognised, and all other arguments are the server's command line. If the first argument is one of etcd's names
//! or a path that ends in one, the binary acts as if it were called by that name: the container image's entry point is
//! this binary, and commands for etcd's image, which has no entry point, begin with a program.

mod manual;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use quorate_profiler::SamplingAllocator;

/// The system allocator, with sampling for heap profiles.
#[global_allocator]
static ALLOCATOR: SamplingAllocator = SamplingAllocator;

/// The commit from which the program was built, if it was known to the build.
const COMMIT: Option<&str> = option_env!("QUORATE_GIT_SHA");

/// The programs in this binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Server,
    Ctl,
    Utl,
    Bench,
    Gateway,
    Proxy,
    Manual,
    /// The first argument is unknown.
    Unknown,
}

/// The exit code for an invalid command line, which is the same as the server's.
const BAD_LINE: u8 = 2;

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    match choose(&mut args) {
        Program::Ctl => quorate_ctl::main(args, open_keyspace),
        Program::Utl => quorate_utl::main(args),
        Program::Bench => quorate_bench::main(args),
        Program::Gateway => quorate_tcp_gateway::main(args),
        Program::Proxy => quorate_grpc_proxy::main(args),
        Program::Manual => manual::main(&args),
        Program::Unknown => {
            let word = args.get(1).map(|word| word.to_string_lossy()).unwrap_or_default();
            let text = format!(
                "Error: unknown command {word:?} for \"quorate\"\nRun 'quorate help' for usage.\n"
            );
            // An error is ignored, because standard error may be closed.
            drop(std::io::stderr().write_all(text.as_bytes()));
            ExitCode::from(BAD_LINE)
        }
        Program::Server => {
            // Flags are valid UTF-8. An argument with invalid UTF-8 is refused as an unknown flag.
            let lossy = |argument: &OsString| argument.to_string_lossy().into_owned();
            quorate_version::built_from(COMMIT);
            quorate_server::main(&args.iter().map(lossy).collect::<Vec<_>>())
        }
    }
}

/// Opens a snapshot or backend file for the client tool, using the offline tool's code.
fn open_keyspace(path: &Path) -> Result<quorate_ctl::Ranges, String> {
    let file = quorate_utl::KeyspaceFile::open(path).map_err(|error| error.to_string())?;
    Ok(Box::new(move |request| file.range(request).map_err(|error| error.to_string())))
}

/// Chooses the program, by the name of the binary and then by the first argument. Removes the first argument from
/// `args` if it names a program.
fn choose(args: &mut Vec<OsString>) -> Program {
    // The value of a flag may end in such a name, as in `--data-dir=/var/lib/etcd`.
    let is_flag = args.get(1).is_some_and(|word| word.as_encoded_bytes().starts_with(b"-"));
    if file_name(args.first()) == Some("quorate")
        && !is_flag
        && matches!(file_name(args.get(1)), Some("etcd" | "etcdctl" | "etcdutl"))
    {
        args.remove(0);
    }
    match file_name(args.first()) {
        Some("etcdctl") => return Program::Ctl,
        Some("etcdutl") => return Program::Utl,
        Some("etcd") => return etcd_command(args).unwrap_or(Program::Server),
        _ => {}
    }
    // `help ctl` is equivalent to `ctl --help`.
    if args.get(1).is_some_and(|word| word == "help") {
        args.remove(1);
        args.push("--help".into());
    }
    let program = match args.get(1).and_then(|argument| argument.to_str()) {
        Some("version") if args.len() == 2 => {
            args[1] = "--version".into();
            return Program::Server;
        }
        // `console` is a command of the client tool.
        Some("console") => return Program::Ctl,
        Some("ctl") => Program::Ctl,
        Some("bench") => Program::Bench,
        Some("utl") => Program::Utl,
        Some("manual") => Program::Manual,
        Some(word) if word.starts_with('-') => return Program::Server,
        None if args.len() == 1 => return Program::Server,
        Some(_) | None => return etcd_command(args).unwrap_or(Program::Unknown),
    };
    args.remove(1);
    program
}

fn file_name(word: Option<&OsString>) -> Option<&str> {
    word.map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str)
}

/// Returns the program that the first argument names, if it is a subcommand of etcd's server binary.
fn etcd_command(args: &[OsString]) -> Option<Program> {
    match args.get(1).and_then(|argument| argument.to_str()) {
        Some("gateway") => Some(Program::Gateway),
        Some("grpc-proxy") => Some(Program::Proxy),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, program: Program, left: &str) {
        let mut args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        assert_eq!(choose(&mut args), program, "{line}");
        assert_eq!(args, left.split(' ').map(OsString::from).collect::<Vec<_>>(), "{line}");
    }

    #[test]
    fn the_program_name_takes_precedence_over_the_first_argument() {
        check("/usr/bin/etcdctl get a", Program::Ctl, "/usr/bin/etcdctl get a");
        check("etcdctl bench", Program::Ctl, "etcdctl bench");
        check("etcd ctl", Program::Server, "etcd ctl");
        check("./quorate ctl get a", Program::Ctl, "./quorate get a");
        check("quorate bench put", Program::Bench, "quorate put");
        check("quorate --name ctl", Program::Server, "quorate --name ctl");
        check("etcd gateway start", Program::Gateway, "etcd gateway start");
        check("quorate grpc-proxy", Program::Proxy, "quorate grpc-proxy");
        check("etcdutl version", Program::Utl, "etcdutl version");
        check("quorate utl --help", Program::Utl, "quorate --help");
        check("quorate console --listen :0", Program::Ctl, "quorate console --listen :0");
        check("quorate manual ctl", Program::Manual, "quorate ctl");
        check("quorate", Program::Server, "quorate");
        check("quorate help", Program::Server, "quorate --help");
        check("quorate help ctl", Program::Ctl, "quorate --help");
        check("quorate help gateway", Program::Gateway, "quorate gateway --help");
        check("quorate version", Program::Server, "quorate --version");
        check("quorate frobnicate", Program::Unknown, "quorate frobnicate");
        check("etcd help", Program::Server, "etcd help");
    }

    #[test]
    fn the_name_of_an_etcd_program_may_be_the_first_argument() {
        let etcd = "/usr/local/bin/etcd";
        for (line, program, left) in [
            (format!("quorate {etcd} --name a"), Program::Server, format!("{etcd} --name a")),
            (format!("quorate {etcd} gateway"), Program::Gateway, format!("{etcd} gateway")),
            (format!("quorate {etcd}ctl get a"), Program::Ctl, format!("{etcd}ctl get a")),
            ("/usr/bin/quorate etcdutl".to_owned(), Program::Utl, "etcdutl".to_owned()),
        ] {
            check(&line, program, &left);
        }
        let line = "quorate --data-dir=/var/lib/etcd";
        check(line, Program::Server, line);
        check("etcdctl etcd", Program::Ctl, "etcdctl etcd");
    }
}
