//! CPU time and memory of processes on this machine, read from `/proc`.

use std::fs;
use std::io;

use serde::Serialize;

use crate::error::BenchError;

/// The unit of CPU time in `/proc`, which is a constant of the Linux interface.
const TICK_MICROS: u64 = 10_000;
/// The tolerated difference between a process's CPU time, as counted in ticks, and the sum of its threads' CPU times.
const TICK_ERROR_MICROS: u64 = 3 * TICK_MICROS;

/// The CPU time and memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) user_micros: u64,
    pub(crate) system_micros: u64,
    /// The CPU time and context switches of the threads that have not ended.
    threads: Threads,
    pub(crate) memory: Memory,
}

/// CPU time and context switches, summed over the threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Threads {
    /// The exact CPU time, in contrast to the process's CPU time in ticks.
    cpu_nanos: u64,
    /// The number of times that a thread has given up the CPU in order to wait.
    voluntary_switches: u64,
}

/// CPU time and context switches between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    pub(crate) user_micros: f64,
    pub(crate) system_micros: f64,
    /// The number of voluntary context switches, each of which puts a thread to sleep.
    pub(crate) context_switches: f64,
}

impl Cpu {
    pub(crate) fn total_micros(self) -> f64 {
        self.user_micros + self.system_micros
    }
}

/// The memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// The current resident memory in bytes.
    pub(crate) resident_bytes: u64,
    /// The peak resident memory since the process started.
    pub(crate) peak_bytes: u64,
    /// The resident memory that the process has allocated.
    pub(crate) anonymous_bytes: u64,
    /// The resident memory that is mapped from files.
    pub(crate) file_bytes: u64,
}

impl Usage {
    /// Returns the CPU time since `earlier`. The total is the sum over the threads, which is exact. If the ticks
    /// contradict this total, because threads ended in the interval, the ticks are used instead. The ticks also
    /// determine the split between user and system time.
    pub(crate) fn cpu_since(&self, earlier: &Self) -> Cpu {
        let user = self.user_micros.saturating_sub(earlier.user_micros);
        let system = self.system_micros.saturating_sub(earlier.system_micros);
        let threads = self.threads.cpu_nanos.saturating_sub(earlier.threads.cpu_nanos);
        let switches =
            self.threads.voluntary_switches.saturating_sub(earlier.threads.voluntary_switches);
        let ticks = user + system;
        let are_ticks_better = ticks == 0 || (threads / 1000).abs_diff(ticks) > TICK_ERROR_MICROS;
        let scale = if are_ticks_better { 1.0 } else { threads as f64 / 1e3 / ticks as f64 };
        Cpu {
            user_micros: user as f64 * scale,
            system_micros: system as f64 * scale,
            context_switches: switches as f64,
        }
    }
}

/// Reads the usage of process `pid`.
pub(crate) fn usage(pid: u32) -> Result<Usage, BenchError> {
    let read = |file: &str| {
        fs::read_to_string(format!("/proc/{pid}/{file}"))
            .map_err(|source| BenchError::Process { pid, source })
    };
    let malformed = || BenchError::Process { pid, source: io::ErrorKind::InvalidData.into() };
    let (user_micros, system_micros) = parse_stat(&read("stat")?).ok_or_else(malformed)?;
    let memory = parse_status(&read("status")?);
    let threads = threads(pid).unwrap_or_default();
    Ok(Usage { user_micros, system_micros, threads, memory })
}

/// Sums the CPU time and context switches of the threads that have not ended.
fn threads(pid: u32) -> io::Result<Threads> {
    let mut total = Threads::default();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        // A thread may end after the directory is listed. Its files are then missing and count as empty.
        let read = |file: &str| fs::read_to_string(thread.join(file)).unwrap_or_default();
        let (schedstat, status) = (read("schedstat"), read("status"));
        total.cpu_nanos += first_number(&schedstat);
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        total.voluntary_switches += line.map_or(0, first_number);
    }
    Ok(total)
}

fn first_number(text: &str) -> u64 {
    text.split_ascii_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    // The second field is the program's name, which is enclosed in parentheses and may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut micros = || fields.next()?.parse::<u64>().ok()?.checked_mul(TICK_MICROS);
    Some((micros()?, micros()?))
}

fn parse_status(status: &str) -> Memory {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, first_number) * 1024
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
    fn proc_files_are_parsed() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 99 0 0 0 250 31 0 0 20 0 9 0 17 1 2";
        assert_eq!(parse_stat(stat), Some((2_500_000, 310_000)));
        assert_eq!(parse_stat("7 (etcd) S 1"), None);
        let status = "Name:\tetcd\nVmHWM:\t   2048 kB\nVmRSS:\t1024 kB\nRssAnon:\t 1000 kB\n";
        let memory = parse_status(status);
        assert_eq!((memory.peak_bytes, memory.resident_bytes), (2_097_152, 1_048_576));
        assert_eq!((memory.anonymous_bytes, memory.file_bytes), (1_024_000, 0));
    }

    #[test]
    fn process_times_replace_thread_times_if_threads_have_ended() {
        let at = |user_micros, system_micros, cpu_nanos| Usage {
            user_micros,
            system_micros,
            threads: Threads { cpu_nanos, voluntary_switches: cpu_nanos / 1_000_000 },
            memory: Memory::default(),
        };
        let start = at(100_000, 0, 100_000_000);
        let exact = at(160_000, 20_000, 184_000_000).cpu_since(&start);
        assert!((exact.total_micros() - 84_000.0).abs() < 0.001);
        assert!((exact.user_micros / exact.system_micros - 3.0).abs() < 0.001);
        assert!((exact.context_switches - 84.0).abs() < 0.001);
        let coarse = at(160_000, 20_000, 40_000_000).cpu_since(&start);
        assert!((coarse.total_micros() - 80_000.0).abs() < 0.001);
    }

    #[test]
    fn memory_and_context_switches_of_a_process_are_read() {
        // A thread that goes to sleep gives up its core, which is a voluntary context switch.
        std::thread::sleep(std::time::Duration::from_millis(1));
        let usage_of_this = usage(std::process::id()).unwrap();
        assert!(usage_of_this.memory.resident_bytes > 0);
        assert!(usage_of_this.threads.voluntary_switches > 0);
        assert!(usage(u32::MAX).is_err());
    }
}
