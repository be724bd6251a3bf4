//! Metrics of the process, which are read from the kernel at each scrape.
//!
//! The values are read from `/proc` on Linux. A value that cannot be read is omitted.

use std::fs;

use super::exposition::Kind;
use super::view::View;

/// The number of clock ticks per second in `/proc`, which is always 100 in user space.
const TICKS_PER_SECOND: f64 = 100.0;

/// The kernel's figures for this process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProcessSample {
    cpu_seconds: Option<f64>,
    open_fds: Option<f64>,
    max_fds: Option<f64>,
    virtual_bytes: Option<f64>,
    virtual_max_bytes: Option<f64>,
    resident_bytes: Option<f64>,
    start_time_seconds: Option<f64>,
    received_bytes: Option<f64>,
    sent_bytes: Option<f64>,
}

macro_rules! views {
    ($($kind:ident $field:ident: $name:literal, $help:literal;)*) => {
        pub(super) const VIEWS: &[View<ProcessSample>] = &[$(View {
            kind: Kind::$kind,
            name: $name,
            help: $help,
            read: |process| process.$field,
        }),*];
    };
}

views! {
    Counter cpu_seconds: "process_cpu_seconds_total",
        "User and system CPU time spent in seconds.";
    Gauge open_fds: "process_open_fds",
        "Open file descriptors.";
    Gauge max_fds: "process_max_fds",
        "Maximum number of open file descriptors.";
    Gauge virtual_bytes: "process_virtual_memory_bytes",
        "Virtual memory in bytes.";
    Gauge virtual_max_bytes: "process_virtual_memory_max_bytes",
        "Maximum virtual memory of the process in bytes.";
    Gauge resident_bytes: "process_resident_memory_bytes",
        "Resident memory in bytes.";
    Gauge start_time_seconds: "process_start_time_seconds",
        "Start time of the process, in seconds since 1970.";
    Counter received_bytes: "process_network_receive_bytes_total",
        "Bytes received over the network.";
    Counter sent_bytes: "process_network_transmit_bytes_total",
        "Bytes sent over the network.";
    Gauge open_fds: "os_fd_used",
        "File descriptors in use.";
    Gauge max_fds: "os_fd_limit",
        "Limit on the number of open file descriptors.";
}

impl ProcessSample {
    /// Reads the values of this process from the kernel.
    pub(super) fn read() -> Self {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let address_space = rustix::process::getrlimit(rustix::process::Resource::As);
        let fds = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        let (received_bytes, sent_bytes) = parse_netstat(&file("/proc/self/net/netstat"));
        Self {
            // Listing the directory itself opens a descriptor, which must not be counted.
            open_fds: fds.map(|count| count.saturating_sub(1) as f64),
            max_fds: Some(limits.current.unwrap_or(u64::MAX) as f64),
            virtual_max_bytes: Some(address_space.current.unwrap_or(u64::MAX) as f64),
            received_bytes,
            sent_bytes,
            ..parse_stat(&file("/proc/self/stat"), &file("/proc/stat"))
        }
    }
}

/// Parses times and memory from `/proc/self/stat`, and the boot time from `/proc/stat`.
fn parse_stat(own: &str, system: &str) -> ProcessSample {
    // The process name is in parentheses and may itself contain spaces and parentheses, so the last closing parenthesis
    // ends the name.
    let fields: Vec<&str> = match own.rsplit_once(") ") {
        Some((_, after)) => after.split_ascii_whitespace().collect(),
        None => Vec::new(),
    };
    // Field numbers are the same as in proc(5). The first field after the name is field 3, the state of the process.
    let field =
        |number: usize| fields.get(number.wrapping_sub(3)).and_then(|f| f.parse::<f64>().ok());
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))
        .and_then(|seconds| seconds.trim().parse::<f64>().ok());
    let page_bytes = rustix::param::page_size() as f64;
    ProcessSample {
        cpu_seconds: field(14).zip(field(15)).map(|(user, own)| (user + own) / TICKS_PER_SECOND),
        start_time_seconds: field(22)
            .zip(boot)
            .map(|(ticks, boot)| boot + ticks / TICKS_PER_SECOND),
        virtual_bytes: field(23),
        resident_bytes: field(24).map(|pages| pages * page_bytes),
        ..ProcessSample::default()
    }
}

/// Returns the received and sent octets from the two `IpExt` lines.
fn parse_netstat(text: &str) -> (Option<f64>, Option<f64>) {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return (None, None) };
    let value_of = |wanted: &str| {
        let pairs = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
        pairs.into_iter().find(|(name, _)| *name == wanted).and_then(|(_, v)| v.parse().ok())
    };
    (value_of("InOctets"), value_of("OutOctets"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_metrics_are_found_whatever_the_program_name_contains() {
        let own =
            "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 1000 4096000 25 0";
        let sample = parse_stat(own, "cpu 1 2\nbtime 1700000000\n");
        assert_eq!(sample.cpu_seconds, Some(3.0));
        assert_eq!(sample.start_time_seconds, Some(1_700_000_010.0));
        assert_eq!(sample.virtual_bytes, Some(4_096_000.0));
        assert_eq!(sample.resident_bytes, Some(25.0 * rustix::param::page_size() as f64));
        assert_eq!(parse_stat("", ""), ProcessSample::default());
    }

    #[test]
    fn network_bytes_are_read_from_the_in_octets_and_out_octets_columns() {
        let text = "TcpExt: A\nTcpExt: 1\nIpExt: InX InOctets OutOctets\nIpExt: 1 22 33\n";
        assert_eq!(parse_netstat(text), (Some(22.0), Some(33.0)));
        assert_eq!(parse_netstat("IpExt: InOctets\n"), (None, None));
    }
}
