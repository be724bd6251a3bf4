//! Runs the whole tool in a test and captures its output.

use std::io;
use std::sync::{Arc, Mutex};

use quorate_dns::Resolver;

use crate::Terminal;
use crate::discovery::Servers;
use crate::session::Surroundings;

/// Buffer that collects the output streams of a run.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a command with an unreachable endpoint. Returns its exit code and its output.
pub(crate) fn run(words: &[&str], env: &[(&str, &str)]) -> (u8, String) {
    let nowhere = ["--endpoints=127.0.0.1:1", "--command-timeout=1ms", "get", "k"];
    run_with(&[&nowhere, words].concat(), env, Box::new(Resolver::of_system))
}

/// Runs a command with the given DNS servers.
pub(crate) fn run_with(words: &[&str], env: &[(&str, &str)], servers: Servers) -> (u8, String) {
    let printed = Shared::default();
    let terminal = Terminal {
        input: Box::new(io::empty()),
        output: Box::new(printed.clone()),
        errors: Box::new(printed.clone()),
    };
    let args = ["etcdctl"].iter().chain(words).map(std::ffi::OsString::from);
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()));
    let open_file = |_: &std::path::Path| Err("there are no files in tests".to_owned());
    let surroundings = Surroundings { servers, open_file };
    let code = crate::run_with(args, env.collect(), terminal, surroundings);
    let printed = printed.0.lock().unwrap().clone();
    (code, String::from_utf8(printed).unwrap())
}
