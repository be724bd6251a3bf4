//! The result of a run, and its text and JSON forms.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::error::BenchError;
use crate::process::{Cpu, Memory, Usage, usage};
use crate::pulse::Silence;
use crate::record::Record;

/// Reads the usage of the server processes before and after the measured part of a run.
#[derive(Debug)]
pub(crate) struct Meter {
    start: Instant,
    own: Usage,
    servers: Vec<(u32, Usage)>,
}

/// The cost of the measured part of a run.
#[derive(Debug)]
pub(crate) struct Cost {
    elapsed: Duration,
    own: Cpu,
    servers: Vec<ServerCost>,
}

#[derive(Debug)]
struct ServerCost {
    pid: u32,
    /// The resources used; `None` if the process ended, because its usage is then lost.
    used: Option<(Cpu, Memory)>,
}

impl Meter {
    pub(crate) fn start(pids: &[u32]) -> Result<Self, BenchError> {
        let servers = pids.iter().map(|pid| Ok((*pid, usage(*pid)?)));
        let servers = servers.collect::<Result<_, BenchError>>()?;
        Ok(Self { servers, own: usage(std::process::id())?, start: Instant::now() })
    }

    pub(crate) fn stop(self) -> Result<Cost, BenchError> {
        let elapsed = self.start.elapsed();
        let own = usage(std::process::id())?.cpu_since(&self.own);
        let servers = self.servers.iter().map(|(pid, before)| {
            let after = usage(*pid).ok();
            let used = after.map(|after| (after.cpu_since(before), after.memory));
            ServerCost { pid: *pid, used }
        });
        Ok(Cost { elapsed, own, servers: servers.collect() })
    }
}

/// The complete result of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    load: String,
    clients: usize,
    connections: usize,
    value_size: usize,
    seconds: f64,
    /// The figures of all operations; for a watch load, the figures of the writes.
    #[serde(flatten)]
    operations: Part,
    /// The figures of each kind of operation, if there are several kinds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    kinds: BTreeMap<&'static str, Part>,
    /// The events received by watchers, with their latency, which is measured from the write.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<Part>,
    /// The longest time between two successes.
    #[serde(skip_serializing_if = "Option::is_none")]
    longest_silence: Option<Silence>,
    /// The reason why the run ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut_short: Option<String>,
    /// The ids of server processes that ended during the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ended: Vec<u32>,
    generator_cpu_us_per_operation: f64,
    servers: Vec<ServerPart>,
}

/// The figures of one kind of operation.
#[derive(Clone, Debug, Serialize)]
struct Part {
    count: u64,
    errors: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    error_texts: BTreeMap<String, u64>,
    per_second: f64,
    reply_bytes_per_second: f64,
    latency_us: Latency,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Latency {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Clone, Debug, Serialize)]
struct ServerPart {
    pid: u32,
    cpu_seconds: f64,
    cpu_us_per_operation: f64,
    user_us_per_operation: f64,
    system_us_per_operation: f64,
    context_switches_per_operation: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_us_per_event: Option<f64>,
    memory: Memory,
}

/// The parameters of a run that the report repeats.
#[derive(Clone, Debug)]
pub(crate) struct Heading {
    pub(crate) load: String,
    pub(crate) clients: usize,
    pub(crate) connections: usize,
    pub(crate) value_size: usize,
}

impl Report {
    /// Computes the figures of a run. `kinds` names the records, in order.
    pub(crate) fn new(
        heading: Heading,
        kinds: &[&'static str],
        records: &[Record],
        events: Option<&Record>,
        cost: &Cost,
    ) -> Self {
        let mut all = Record::new();
        records.iter().for_each(|record| all.merge(record));
        let seconds = cost.elapsed.as_secs_f64();
        let part = |record: &Record| Part::new(record, seconds);
        let named = kinds.iter().copied().zip(records.iter().map(part));
        let each = |sum: f64| sum / all.count().max(1) as f64;
        let servers = cost.servers.iter().filter_map(|server| {
            let (cpu, memory) = server.used?;
            let cpu_micros = cpu.total_micros();
            Some(ServerPart {
                pid: server.pid,
                cpu_seconds: cpu_micros / 1e6,
                cpu_us_per_operation: each(cpu_micros),
                user_us_per_operation: each(cpu.user_micros),
                system_us_per_operation: each(cpu.system_micros),
                context_switches_per_operation: each(cpu.context_switches),
                cpu_us_per_event: events.map(|events| cpu_micros / events.count().max(1) as f64),
                memory,
            })
        });
        let ended = cost.servers.iter().filter(|server| server.used.is_none());
        Self {
            load: heading.load,
            clients: heading.clients,
            connections: heading.connections,
            value_size: heading.value_size,
            seconds,
            operations: part(&all),
            kinds: if kinds.len() > 1 { named.collect() } else { BTreeMap::new() },
            events: events.map(part),
            longest_silence: None,
            cut_short: None,
            ended: ended.map(|server| server.pid).collect(),
            generator_cpu_us_per_operation: each(cost.own.total_micros()),
            servers: servers.collect(),
        }
    }

    /// Adds the longest time between two successes, and the reason if the run ended early.
    pub(crate) fn with_course(
        self,
        longest_silence: Option<Silence>,
        cut_short: Option<String>,
    ) -> Self {
        Self { longest_silence, cut_short, ..self }
    }

    /// Returns whether every operation succeeded and the run was complete.
    pub(crate) fn clean(&self) -> bool {
        let events = self.events.as_ref().map_or(0, |events| events.errors);
        self.operations.errors == 0 && events == 0 && self.cut_short.is_none()
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a report is plain data with string keys")
    }

    pub(crate) fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _infallible = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let Self { load, clients, connections, value_size, seconds, .. } = self;
        writeln!(
            out,
            "{load}: {clients} clients on {connections} connections, values of {value_size} bytes\n"
        )?;
        if let Some(reason) = &self.cut_short {
            writeln!(out, "  cut short   {reason}; the figures cover the time until then")?;
        }
        let Part { count, errors, per_second, .. } = &self.operations;
        writeln!(
            out,
            "  operations  {count} in {seconds:.2} s, {per_second:.0} per second, {errors} errors"
        )?;
        writeln!(out, "  latency     {}", self.operations.latency_us)?;
        // A kind without operations has no latencies to print.
        for (name, part) in self.kinds.iter().filter(|(_, part)| part.count > 0) {
            writeln!(out, "  {name:<10}  {} operations, {}", part.count, part.latency_us)?;
        }
        if let Some(Part { count, per_second, latency_us, .. }) = &self.events {
            writeln!(out, "  events      {count}, {per_second:.0} per second")?;
            writeln!(out, "  delivery    {latency_us}")?;
        }
        let of_events = self.events.iter().flat_map(|events| &events.error_texts);
        for (text, count) in self.operations.error_texts.iter().chain(of_events) {
            writeln!(out, "  error       {count} times: {text}")?;
        }
        if let Some(silence) = &self.longest_silence {
            let millis = silence.seconds * 1e3;
            writeln!(out, "  silence     at most {millis:.1} ms between two successes")?;
        }
        let own = self.generator_cpu_us_per_operation;
        writeln!(out, "  generator   {own:.1} us of CPU per operation")?;
        for server in &self.servers {
            writeln!(out, "  server      {server}")?;
        }
        for pid in &self.ended {
            writeln!(
                out,
                "  server      process {pid} has ended, so its CPU time and memory are unknown"
            )?;
        }
        Ok(())
    }
}

impl Part {
    fn new(record: &Record, seconds: f64) -> Self {
        Self {
            count: record.count(),
            errors: record.errors,
            error_texts: record.error_texts.clone(),
            // Only successful operations count towards throughput.
            per_second: record.latency.len() as f64 / seconds,
            reply_bytes_per_second: record.reply_bytes as f64 / seconds,
            latency_us: Latency::new(&record.latency),
        }
    }
}

impl Latency {
    fn new(latency: &Histogram<u64>) -> Self {
        let quantile = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            mean: latency.mean() / 1e3,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: latency.max() as f64 / 1e3,
        }
    }
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = [
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p99.9", self.p999),
            ("max", self.max),
            ("mean", self.mean),
        ];
        for (position, (name, micros)) in named.into_iter().enumerate() {
            let gap = if position == 0 { "" } else { "  " };
            if micros < 1000.0 {
                write!(f, "{gap}{name} {micros:.0} us")?;
            } else {
                write!(f, "{gap}{name} {:.2} ms", micros / 1e3)?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for ServerPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "process {}: {:.1} us of CPU per operation ({:.1} user, {:.1} system), {:.1} context \
             switches",
            self.pid,
            self.cpu_us_per_operation,
            self.user_us_per_operation,
            self.system_us_per_operation,
            self.context_switches_per_operation
        )?;
        if let Some(per_event) = self.cpu_us_per_event {
            write!(f, ", {per_event:.2} us per event")?;
        }
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        write!(
            f,
            "; memory {:.0} MB at the end ({:.0} anonymous, {:.0} file-backed), {:.0} MB at its peak",
            megabytes(self.memory.resident_bytes),
            megabytes(self.memory.anonymous_bytes),
            megabytes(self.memory.file_bytes),
            megabytes(self.memory.peak_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Status;

    fn sample() -> Report {
        let mut reads = Record::new();
        reads.add(Duration::from_micros(100), &Status::default(), 10);
        let mut writes = Record::new();
        writes.add(Duration::from_micros(3000), &Status::default(), 10);
        writes.add(Duration::ZERO, &Status { code: 8, message: "no".to_owned() }, 0);
        let memory =
            Memory { resident_bytes: 3_000_000, peak_bytes: 9_000_000, ..Memory::default() };
        let cpu = Cpu { user_micros: 60.0, system_micros: 30.0, context_switches: 6.0 };
        let server = ServerCost { pid: 7, used: Some((cpu, memory)) };
        let gone = ServerCost { pid: 8, used: None };
        let cost = Cost {
            elapsed: Duration::from_secs(2),
            own: Cpu { user_micros: 9.0, ..Cpu::default() },
            servers: vec![server, gone],
        };
        let load = "mixed".to_owned();
        let heading = Heading { load, clients: 2, connections: 1, value_size: 8 };
        let silence = Silence { seconds: 0.0125, began_unix_seconds: 1.5e9 };
        Report::new(heading, &["read", "write"], &[reads, writes], None, &cost)
            .with_course(Some(silence), Some("the run was interrupted".to_owned()))
    }

    #[test]
    fn the_json_report_contains_the_figures_of_operations_errors_and_servers() {
        let json: serde_json::Value = serde_json::from_str(&sample().to_json()).unwrap();
        assert_eq!(json["count"], 3);
        // Two of the three operations succeeded.
        assert_eq!(json["per_second"], 1.0);
        assert_eq!(
            (&json["cut_short"], &json["ended"][0]),
            (&"the run was interrupted".into(), &8.into())
        );
        assert_eq!(json["error_texts"]["no (gRPC code 8)"], 1);
        assert_eq!(json["kinds"]["read"]["count"], 1);
        assert_eq!(json["servers"][0]["cpu_us_per_operation"], 30.0);
        assert_eq!(json["servers"][0]["context_switches_per_operation"], 2.0);
        assert_eq!(json["servers"][0]["memory"]["peak_bytes"], 9_000_000);
        assert_eq!(json["generator_cpu_us_per_operation"], 3.0);
        assert_eq!(json["longest_silence"]["began_unix_seconds"], 1.5e9);
        assert!(json.get("events").is_none());
    }

    #[test]
    fn a_kind_without_operations_is_omitted_from_the_text_report() {
        let mut reads = Record::new();
        reads.add(Duration::from_micros(100), &Status::default(), 10);
        let cost =
            Cost { elapsed: Duration::from_secs(1), own: Cpu::default(), servers: Vec::new() };
        let load = "mixed".to_owned();
        let heading = Heading { load, clients: 1, connections: 1, value_size: 8 };
        let kinds = ["read", "write"];
        let text = Report::new(heading, &kinds, &[reads, Record::new()], None, &cost).to_text();
        assert!(text.contains("\n  read ") && !text.contains("\n  write "), "{text}");
    }

    #[test]
    fn the_text_report_contains_the_figures_of_operations_errors_and_servers() {
        let text = sample().to_text();
        for part in [
            "mixed: 2 clients on 1 connections",
            "cut short   the run was interrupted;",
            "3 in 2.00 s, 1 per second, 1 errors",
            "process 8 has ended",
            "1 times: no (gRPC code 8)",
            "process 7: 30.0 us of CPU per operation (20.0 user, 10.0 system)",
            "memory 3 MB at the end",
            "at most 12.5 ms between two successes",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
