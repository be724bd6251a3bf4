//! A library that is loaded before the C library and intercepts its sync and clock functions.
//!
//! The machine's C compiler compiles it from `shim.c` for each use, and a file that the process maps controls it. It
//! has no effect on programs without the C library.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::Syncs;
use crate::{Options, skipped};

/// One library with its control file, for any number of processes with the same faults.
#[derive(Debug)]
pub struct Shim {
    place: TempDir,
    control: File,
}

/// Syncs that do not return, as `shim.c` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum Held {
    /// All return.
    Nothing = 0,
    /// Those of the backend file do not return.
    Backend = 1,
    /// Nor do those of the log.
    Everything = 2,
}

/// Offsets in the control file.
const SYNCS_FAIL: u64 = 0;
const SYNC_MICROS: u64 = 8;
const CLOCK_SECONDS: u64 = 16;
const HELD: u64 = 24;

impl Shim {
    /// Compiles the library, if there is a compiler.
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

    /// Sets the result of syncs.
    pub fn set_syncs(&self, syncs: Syncs) {
        let (fail, micros) = match syncs {
            Syncs::Work => (0, 0),
            Syncs::Fail => (1, 0),
            Syncs::Take(longer) => (0, i64::try_from(longer.as_micros()).unwrap()),
        };
        self.write(SYNC_MICROS, micros);
        self.write(SYNCS_FAIL, fail);
    }

    /// Holds these syncs from now on. Held syncs that are no longer in the set return.
    pub fn hold(&self, held: Held) {
        self.write(HELD, held as i64);
    }

    /// Sets the offset of the wall clock.
    pub fn set_clock(&self, seconds: i64) {
        self.write(CLOCK_SECONDS, seconds);
    }

    /// The write of a number is atomic, so no process sees half of it.
    #[expect(clippy::host_endian_bytes, reason = "read by a program on this machine")]
    fn write(&self, place: u64, number: i64) {
        self.control.write_all_at(&number.to_ne_bytes(), place).unwrap();
    }
}
