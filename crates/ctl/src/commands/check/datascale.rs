//! `check datascale`: measures how much memory a member uses for a number of keys.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use super::load::{Load, run as put};
use super::{
    AUTO_COMPACT, AUTO_DEFRAG, compact, defragment, delete, load_of, require_empty, tell_errors,
};
use crate::client::http_stream;
use crate::command::Command;
use crate::failure::{Failure, exit};
use crate::flags::Flag;
use crate::security::transport;
use crate::session::Session;

pub(super) const DATASCALE: Command = Command {
    usage: "datascale [options]",
    short: "Check the memory usage of holding data for different workloads on a given server endpoint.",
    long: "If no endpoint is provided, localhost will be used. If multiple endpoints are provided, first endpoint will be used.",
    flags: &[
        Flag::text(
            "load",
            "s",
            "The datascale check's workload model. Accepted workloads: s(small), m(medium), l(large), xl(xLarge)",
        ),
        Flag::text(
            "prefix",
            "/etcdctl-check-datascale/",
            "The prefix for writing the datascale check's keys.",
        ),
        AUTO_COMPACT,
        AUTO_DEFRAG,
    ],
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

/// Number of keys and number of clients for each load size.
const LOADS: [(u64, usize); 4] =
    [(10_000, 50), (100_000, 200), (1_000_000, 500), (3_000_000, 1000)];
const KEY_BYTES: usize = 512;
const VALUE_BYTES: usize = 512;
const METRIC: &str = "process_resident_memory_bytes ";
/// Timeout for reading a member's metrics.
const METRICS_TIME: Duration = Duration::from_secs(30);
/// Maximum size of a response with metrics, in bytes.
const METRICS_BYTES_MAX: u64 = 64 << 20;

async fn run(session: &Session) -> Result<(), Failure> {
    let (count, clients) = LOADS[load_of(session)?];
    let client = session.client().await?;
    require_empty(session, &client, "etcdctl del --prefix PREFIX").await?;
    let before = resident(session, "before").await?;
    let bytes = KEY_BYTES + VALUE_BYTES;
    session.print(&format!(
        "Start data scale check for work load [{count} key-value pairs, {bytes} bytes per key-value, {clients} concurrent clients].\n"
    ))?;
    let load = Load {
        clients,
        count: Some(count),
        per_sec: None,
        time: None,
        key_bytes: KEY_BYTES,
        value_bytes: VALUE_BYTES,
    };
    let summary = put(session, load).await?;
    let after = resident(session, "after").await;
    let revision = delete(session, &client).await?;
    if session.matches.bool("auto-compact") {
        compact(session, &client, revision).await?;
    }
    if session.matches.bool("auto-defrag") {
        defragment(session).await?;
    }
    let after = after?;
    if !summary.errors.is_empty() {
        tell_errors(session, &summary)?;
        return Err(Failure::silent(exit::ERROR));
    }
    let megabytes = (after - before) / f64::from(1 << 20);
    session.print(&format!("PASS: Approximate system memory used : {megabytes:.2} MB.\n"))
}

/// Returns the resident memory of the member at the first endpoint.
async fn resident(session: &Session, when: &str) -> Result<f64, Failure> {
    let reading = tokio::time::timeout(METRICS_TIME, fetch(session)).await;
    match reading.unwrap_or_else(|_| Err("context deadline exceeded".to_owned())) {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            session.print(&format!("fetch error: {error}\n"))?;
            session.print(&format!(
                "FAIL: Could not read process_resident_memory_bytes {when} the put operations.\n"
            ))?;
            Err(Failure::silent(exit::ERROR))
        }
    }
}

async fn fetch(session: &Session) -> Result<f64, String> {
    let message_of = |failure: Failure| failure.message.unwrap_or_default();
    let endpoints = session.endpoints().await.map_err(message_of)?;
    let endpoint = endpoints.first().ok_or("no endpoints available")?;
    let connecting = http_stream(endpoint, &transport(&session.matches)).map_err(message_of)?;
    let mut stream = connecting.connect().await.map_err(|error| error.to_string())?;
    // With HTTP/1.0 the server closes the connection at the end of the response.
    let request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n";
    let sent = stream.write_all(request.as_bytes()).await;
    sent.map_err(|error| error.to_string())?;
    let mut lines = BufReader::new(stream.take(METRICS_BYTES_MAX)).lines();
    while let Some(line) = lines.next_line().await.map_err(|error| error.to_string())? {
        if let Some(value) = line.strip_prefix(METRIC) {
            return value.trim().parse().map_err(|_| format!("not a number: {value}"));
        }
    }
    Err(format!("{endpoint} does not report {}", METRIC.trim()))
}
