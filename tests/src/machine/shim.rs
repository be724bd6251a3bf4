//! A library that is loaded before the C library and intercepts its sync and clock functions.
//!
//! The machine's C compiler builds it from `shim.c` for each use. A file that the process maps into memory controls the
//! library. The library has no effect on programs that do not use the C library.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::Syncs;
use crate::{Options, skipped};

/// One library and its control file, for any number of processes that share the same faults.
#[derive(Debug)]
pub struct Shim {
    place: TempDir,
    control: File,
}

/// Syncs that never return. `shim.c` uses the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum Held {
    /// All syncs return.
    Nothing = 0,
    /// Syncs of the backend file do not return.
    Backend = 1,
    /// Syncs of the backend file and of the log do not return.
    Everything = 2,
}

/// Offset in the control file of the flag that makes syncs fail.
const SYNCS_FAIL: u64 = 0;
const SYNC_MICROS: u64 = 8;
const CLOCK_SECONDS: u64 = 16;
const HELD: u64 = 24;

impl Shim {
    /// Compiles the library. Returns `None` if there is no compiler.
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
            skipped("tests with failing syncs and clock jumps (no C compiler is installed)");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = place.path().join("control");
        std::fs::write(&path, [0; 32]).unwrap();
        let control = File::options().write(true).open(path).unwrap();
        Some(Self { place, control })
    }

    /// Returns the options of a process that loads the library.
    #[must_use]
    pub fn prepare(&self, options: Options) -> Options {
        let path = |name: &str| self.place.path().join(name).display().to_string();
        options
            .environment("LD_PRELOAD", &path("shim.so"))
            .environment("QUORATE_TESTS_SHIM", &path("control"))
    }

    /// Sets how syncs behave.
    pub fn set_syncs(&self, syncs: Syncs) {
        let (fail, micros) = match syncs {
            Syncs::Work => (0, 0),
            Syncs::Fail => (1, 0),
            Syncs::Take(longer) => (0, i64::try_from(longer.as_micros()).unwrap()),
        };
        self.write(SYNC_MICROS, micros);
        self.write(SYNCS_FAIL, fail);
    }

    /// Blocks the syncs in this set from now on. Blocked syncs that are not in the new set return.
    pub fn hold(&self, held: Held) {
        self.write(HELD, held as i64);
    }

    /// Sets the offset of the wall clock.
    pub fn set_clock(&self, seconds: i64) {
        self.write(CLOCK_SECONDS, seconds);
    }

    /// Writes a number to the control file. The write is atomic, so no process sees part of it.
    #[expect(clippy::host_endian_bytes, reason = "read by a program on this machine")]
    fn write(&self, place: u64, number: i64) {
        self.control.write_all_at(&number.to_ne_bytes(), place).unwrap();
    }
}
