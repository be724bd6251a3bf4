//! A library that is loaded before the C library and intercepts its syncs and clocks.
//!
//! It is compiled by the machine's C compiler from `shim.c`, for each use, and controlled through a
//! file that the process maps. It has no effect on programs that go without the C library.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::Syncs;
use crate::{Options, skipped};

/// One library with its control, for any number of processes that share their fate.
#[derive(Debug)]
pub struct Shim {
    place: TempDir,
    control: File,
}

/// Syncs that do not come back, as `shim.c` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum Held {
    /// All come back.
    Nothing = 0,
    /// Those of the backend file.
    Backend = 1,
    /// Those of the log, too.
    Everything = 2,
}

/// Places in the control file.
const SYNCS_FAIL: u64 = 0;
const SYNC_MICROS: u64 = 8;
const CLOCK_SECONDS: u64 = 16;
const HELD: u64 = 24;

impl Shim {
    /// Compiles the library, when there is a compiler.
    #[must_use]
    pub fn build() -> Option<Self> {
        let place = TempDir::new().unwrap();
        let source = place.path().join("shim.c");
        std::fs::write(&source, include_str!("shim.c")).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(place.path().join("shim.so"))
            .arg(&source)
            .stdin(Stdio::null())
            .output();
        let Ok(output) = compiled else {
            skipped("no C compiler: failing syncs and jumping clocks");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = place.path().join("control");
        std::fs::write(&path, [0; 32]).unwrap();
        let control = File::options().write(true).open(path).unwrap();
        Some(Self { place, control })
    }

    /// Options of a process that loads the library.
    #[must_use]
    pub fn prepare(&self, options: Options) -> Options {
        let path = |name: &str| self.place.path().join(name).display().to_string();
        options
            .environment("LD_PRELOAD", &path("shim.so"))
            .environment("QUORATE_TESTS_SHIM", &path("control"))
    }

    /// From now on, syncs go like this.
    pub fn set_syncs(&self, syncs: Syncs) {
        let (fail, micros) = match syncs {
            Syncs::Work => (0, 0),
            Syncs::Fail => (1, 0),
            Syncs::Take(longer) => (0, i64::try_from(longer.as_micros()).unwrap()),
        };
        self.write(SYNC_MICROS, micros);
        self.write(SYNCS_FAIL, fail);
    }

    /// From now on, these syncs do not come back. Those that are held and are not any more do.
    pub fn hold(&self, held: Held) {
        self.write(HELD, held as i64);
    }

    /// From now on, the wall clock is ahead by this, or behind.
    pub fn set_clock(&self, seconds: i64) {
        self.write(CLOCK_SECONDS, seconds);
    }

    /// A number is written at once, so no process sees half of it.
    #[expect(clippy::host_endian_bytes, reason = "read by a program on this machine")]
    fn write(&self, place: u64, number: i64) {
        self.control.write_all_at(&number.to_ne_bytes(), place).unwrap();
    }
}
