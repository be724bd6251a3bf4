//! The binary: decides which program it is called as, and becomes it.
//!
//! A link named `etcdctl` makes it that tool; otherwise the first argument may name one (`ctl`, `bench`);
//! everything else is the server's command line.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// The commit this was built from, as far as the build knows it.
const COMMIT: Option<&str> = option_env!("QUORATE_GIT_SHA");

/// The programs inside this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Server,
    Ctl,
    Bench,
}

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    match choose(&mut args) {
        Program::Ctl => quorate_ctl::main(args),
        Program::Bench => quorate_bench::main(args),
        Program::Server => {
            // Flags are text; what is none cannot be one of them and is refused as such.
            let lossy = |argument: &OsString| argument.to_string_lossy().into_owned();
            {
                quorate_server::release::built_from(COMMIT);
                quorate_server::main(&args.iter().map(lossy).collect::<Vec<_>>())
            }
        }
    }
}

/// Decides by the program's own name, then by the first argument, which is taken out of `args` if it names
/// a program.
fn choose(args: &mut Vec<OsString>) -> Program {
    let called = args.first().map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str);
    match called {
        Some("etcdctl") => return Program::Ctl,
        Some("etcd") => return Program::Server,
        _ => {}
    }
    let program = match args.get(1).and_then(|argument| argument.to_str()) {
        Some("ctl") => Program::Ctl,
        Some("bench") => Program::Bench,
        _ => return Program::Server,
    };
    args.remove(1);
    program
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
    fn the_name_decides_before_the_first_argument() {
        check("/usr/bin/etcdctl get a", Program::Ctl, "/usr/bin/etcdctl get a");
        check("etcdctl bench", Program::Ctl, "etcdctl bench");
        check("etcd ctl", Program::Server, "etcd ctl");
        check("./quorate ctl get a", Program::Ctl, "./quorate get a");
        check("quorate bench put", Program::Bench, "quorate put");
        check("quorate --name ctl", Program::Server, "quorate --name ctl");
        check("quorate utl", Program::Server, "quorate utl");
        check("quorate", Program::Server, "quorate");
    }
}
