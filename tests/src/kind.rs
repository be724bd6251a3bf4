//! The two servers, and whether they are here.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Which server a test talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ours.
    Quorate,
    /// Debian's build of the original.
    Etcd,
}

impl Kind {
    /// The server's program.
    #[must_use]
    pub fn program(self) -> PathBuf {
        match self {
            Self::Quorate => std::env::var_os("QUORATE_BIN").map_or_else(built, PathBuf::from),
            Self::Etcd => Self::etcd_program("etcd").unwrap_or_default(),
        }
    }

    /// One of the programs that come with etcd, when they are here.
    #[must_use]
    pub fn etcd_program(name: &str) -> Option<PathBuf> {
        let path = PathBuf::from(std::env::var_os("ETCD_BIN_DIR")?).join(name);
        path.is_file().then_some(path)
    }

    /// False when the server is etcd and there is none. Fails when it is Quorate and there is none.
    #[must_use]
    pub fn is_present(self) -> bool {
        match self {
            Self::Quorate => {
                let program = self.program();
                assert!(program.is_file(), "no server at {}: cargo xtask test", program.display());
                true
            }
            Self::Etcd => {
                let present = Self::etcd_program("etcd").is_some();
                if !present {
                    missing("etcd", "no real etcd (ETCD_BIN_DIR): its half of the tests");
                }
                present
            }
        }
    }
}

/// The server as `cargo build --profile blackbox` leaves it: a test runs from `target/debug/deps`.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.ancestors().nth(3).unwrap_or(Path::new("target")).join("blackbox").join("quorate")
}

/// True when the long form of the tests is wanted.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("QUORATE_LONG").is_some_and(|value| value == "1")
}

/// Says that this test does nothing for want of its material. Fails where that is required.
#[track_caller]
pub fn missing(material: &str, text: &str) {
    let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == material), "{material} is required: {text}");
    skipped(text);
}

/// Says that this test does nothing, for `cargo xtask test` to count it.
#[expect(clippy::print_stdout, reason = "it is what the test prints")]
pub fn skipped(text: &str) {
    println!("skipped: {text}");
    notice(&format!("skipped: {text}"));
}

/// Tells the person at the terminal, once, what is not tested. Goes around the test runner, which
/// keeps the output of tests that pass to itself.
pub fn notice(text: &str) {
    static GIVEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut given = GIVEN.lock().unwrap();
    if !given.iter().any(|earlier| earlier == text) {
        given.push(text.to_owned());
        let mut terminal = std::io::stderr();
        terminal.write_all(format!("notice: {text}\n").as_bytes()).unwrap();
    }
}
