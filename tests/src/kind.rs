//! The two kinds of server, and whether each is installed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Quorate.
    Quorate,
    /// Debian's build of etcd.
    Etcd,
}

impl Kind {
    /// Returns the server's program.
    #[must_use]
    pub fn program(self) -> PathBuf {
        match self {
            Self::Quorate => std::env::var_os("QUORATE_BIN").map_or_else(built, PathBuf::from),
            Self::Etcd => Self::etcd_program("etcd").unwrap_or_default(),
        }
    }

    /// Returns a program of etcd's package, if it is installed.
    #[must_use]
    pub fn etcd_program(name: &str) -> Option<PathBuf> {
        let path = PathBuf::from(std::env::var_os("ETCD_BIN_DIR")?).join(name);
        path.is_file().then_some(path)
    }

    /// Returns whether the server is installed. Fails if the server is Quorate and is missing.
    #[must_use]
    pub fn is_present(self) -> bool {
        match self {
            Self::Quorate => {
                let program = self.program();
                assert!(
                    program.is_file(),
                    "no server at {}; `cargo xtask test` builds it",
                    program.display()
                );
                true
            }
            Self::Etcd => {
                let present = Self::etcd_program("etcd").is_some();
                if !present {
                    missing("etcd", "tests against etcd (etcd is missing: set ETCD_BIN_DIR)");
                }
                present
            }
        }
    }
}

/// Returns the path of the server built by `cargo build --profile blackbox`, relative to the running test in
/// `target/debug/deps`.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.ancestors().nth(3).unwrap_or(Path::new("target")).join("blackbox").join("quorate")
}

/// Returns whether the long form of the tests is requested.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("QUORATE_LONG").is_some_and(|value| value == "1")
}

/// Reports that this test is skipped because something that it needs is missing. Fails if `QUORATE_REQUIRE` lists the
/// missing material.
#[track_caller]
pub fn missing(material: &str, text: &str) {
    let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == material), "{material} is required: {text}");
    skipped(text);
}

/// Reports that this test is skipped, so that `cargo xtask test` counts it.
#[expect(clippy::print_stdout, reason = "the test runner reads this line")]
pub fn skipped(text: &str) {
    println!("skipped: {text}");
    notice(&format!("skipped: {text}"));
}

/// Prints a text on the terminal, unless this process has printed it before. The text bypasses the test runner, which
/// captures the output of passing tests.
pub fn notice(text: &str) {
    static GIVEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut given = GIVEN.lock().unwrap();
    if !given.iter().any(|earlier| earlier == text) {
        given.push(text.to_owned());
        let mut terminal = std::io::stderr();
        terminal.write_all(format!("notice: {text}\n").as_bytes()).unwrap();
    }
}
