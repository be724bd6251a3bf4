//! CPU time and memory of processes on this machine, as the kernel accounts them in `/proc`.

use std::fs;
use std::io;

use serde::Serialize;

use crate::error::BenchError;

/// Ticks in which `/proc` counts CPU time; a constant of Linux's interface.
const TICK_MICROS: u64 = 10_000;

/// What a process has used and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) user_micros: u64,
    pub(crate) system_micros: u64,
    pub(crate) memory: Memory,
}

/// Resident memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// Now.
    pub(crate) resident_bytes: u64,
    /// The highest since the process began.
    pub(crate) peak_bytes: u64,
    /// Of the resident, what the process has allocated.
    pub(crate) anonymous_bytes: u64,
    /// Of the resident, what mirrors files.
    pub(crate) file_bytes: u64,
}

impl Usage {
    /// CPU time in microseconds since `earlier`: user, system.
    pub(crate) const fn cpu_since(&self, earlier: &Self) -> (u64, u64) {
        (
            self.user_micros.saturating_sub(earlier.user_micros),
            self.system_micros.saturating_sub(earlier.system_micros),
        )
    }
}

/// Reads the figures of process `pid`.
pub(crate) fn usage(pid: u32) -> Result<Usage, BenchError> {
    let read = |file: &str| {
        fs::read_to_string(format!("/proc/{pid}/{file}"))
            .map_err(|source| BenchError::Process { pid, source })
    };
    let malformed = || BenchError::Process { pid, source: io::ErrorKind::InvalidData.into() };
    let (user_micros, system_micros) = parse_stat(&read("stat")?).ok_or_else(malformed)?;
    let memory = parse_status(&read("status")?);
    Ok(Usage { user_micros, system_micros, memory })
}

fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    // The second field is the program's name in parentheses and may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut micros = || fields.next()?.parse::<u64>().ok()?.checked_mul(TICK_MICROS);
    Some((micros()?, micros()?))
}

fn parse_status(status: &str) -> Memory {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or_default() * 1024
    };
    Memory {
        resident_bytes: bytes("VmRSS:"),
        peak_bytes: bytes("VmHWM:"),
        anonymous_bytes: bytes("RssAnon:"),
        file_bytes: bytes("RssFile:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 99 0 0 0 250 31 0 0 20 0 9 0 17 1 2";
        assert_eq!(parse_stat(stat), Some((2_500_000, 310_000)));
        assert_eq!(parse_stat("7 (etcd) S 1"), None);
        let status = "Name:\tetcd\nVmHWM:\t   2048 kB\nVmRSS:\t1024 kB\nRssAnon:\t 1000 kB\n";
        let memory = parse_status(status);
        assert_eq!((memory.peak_bytes, memory.resident_bytes), (2_097_152, 1_048_576));
        assert_eq!((memory.anonymous_bytes, memory.file_bytes), (1_024_000, 0));
    }

    #[test]
    fn this_process_has_figures() {
        assert!(usage(std::process::id()).unwrap().memory.resident_bytes > 0);
        assert!(usage(u32::MAX).is_err());
    }
}
