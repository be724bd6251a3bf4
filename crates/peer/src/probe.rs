//! Probes a peer every few seconds to measure the round-trip time and the clock difference.
//!
//! etcd has two probes for each peer: one uses a persistent connection, like its pipeline, and the other opens a new
//! connection for each probe, like its streams. Both send the same request to the same addresses. Here, a single probe
//! serves both reports. It opens a new connection after every [`PROBES_PER_CONNECTION`] probes, because a TLS handshake
//! costs each side about half a millisecond of CPU time.
//!
//! The reports have their own timer, so that a probe that hangs is still reported.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use parking_lot::Mutex;
use quorate_net::ticks::shared_ticks;
use serde::Deserialize;

use crate::contact::Contact;
use crate::dial::{self, Channel, PostError};
use crate::local::Local;
use quorate_telemetry::log;

/// The path of probes.
pub(crate) const PROBE_PATH: &str = "/raft/probing";

/// The intervals of probes and reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The time between two probes.
    pub(crate) probe: Duration,
    /// The interval of reports while the peer is healthy.
    pub(crate) healthy: Duration,
    /// The interval of reports while the peer is unhealthy, and the time before the first report.
    pub(crate) unhealthy: Duration,
}

impl Pace {
    /// Returns about the same intervals as in etcd.
    pub(crate) fn new(read_timeout: Duration) -> Self {
        // The probe interval must be shorter than the time after which the peer closes an idle connection, even if it
        // is rounded up by `shared_ticks`.
        let probe = read_timeout.saturating_sub(Duration::from_millis(1024));
        Self {
            probe: probe.max(Duration::from_millis(100)),
            healthy: Duration::from_secs(30),
            unhealthy: Duration::from_secs(5),
        }
    }
}

/// Maximum number of probes over one connection. With the default read timeout, these probes take about as long as the
/// report interval of a healthy peer.
const PROBES_PER_CONNECTION: u32 = 8;

/// Clock difference above which a warning is logged.
const CLOCK_DRIFT_MAX: Duration = Duration::from_secs(1);

/// The names of etcd's two probes, under which the results are reported.
const REPORTED_NAMES: [&str; 2] = ["ROUND_TRIPPER_SNAPSHOT", "ROUND_TRIPPER_RAFT_MESSAGE"];

/// The response to a probe.
#[derive(Debug, Deserialize)]
struct Alive {
    #[serde(rename = "OK")]
    is_ok: bool,
    #[serde(rename = "Now")]
    now: String,
}

/// Returns the body of this member's response to a probe.
pub(crate) fn answer() -> String {
    format!("{{\"OK\":true,\"Now\":\"{}\"}}\n", jiff::Timestamp::now())
}

#[derive(Debug)]
struct Findings {
    round_trip: Duration,
    /// The absolute difference between the two clocks.
    clock_drift: Duration,
    error: Option<String>,
}

impl Findings {
    /// Returns the findings before the first probe. The peer counts as unhealthy until a probe succeeds.
    fn none() -> Self {
        let error = Some("no probe has received a response yet".to_owned());
        Self { round_trip: Duration::ZERO, clock_drift: Duration::ZERO, error }
    }
}

/// Probes the peer and reports the results while the future is polled.
pub(crate) async fn keep_probing(local: Arc<Local>, contact: Arc<Contact>, pace: Pace) {
    let findings = Mutex::new(Findings::none());
    let measuring = async {
        let mut ticks = shared_ticks(pace.probe);
        let mut channel = None;
        for number in 1u32.. {
            ticks.tick().await;
            measure(&local, &contact, &mut channel, &findings).await;
            if number.is_multiple_of(PROBES_PER_CONNECTION) {
                channel = None;
            }
        }
    };
    let reporting = async {
        let mut pause = pace.unhealthy;
        loop {
            tokio::time::sleep(pause).await;
            let healthy = report(&local, &contact, &findings.lock());
            pause = if healthy { pace.healthy } else { pace.unhealthy };
        }
    };
    tokio::join!(measuring, reporting);
}

async fn measure(
    local: &Local,
    contact: &Contact,
    channel: &mut Option<ProbeChannel>,
    findings: &Mutex<Findings>,
) {
    let url = contact.urls.pick();
    let limit = local.dial_timeout + local.read_timeout;
    let probed = tokio::time::timeout(limit, probe(local, &url, channel)).await;
    match probed.unwrap_or(Err(PostError::Timeout)) {
        Ok((round_trip, clock_drift)) => {
            let mut findings = findings.lock();
            findings.round_trip = smoothed(findings.round_trip, round_trip);
            (findings.clock_drift, findings.error) = (clock_drift, None);
        }
        Err(error) => {
            findings.lock().error = Some(error.to_string());
            *channel = None;
        }
    }
}

type ProbeChannel = Channel<Empty<Bytes>>;

async fn probe(
    local: &Local,
    url: &str,
    channel: &mut Option<ProbeChannel>,
) -> Result<(Duration, Duration), PostError> {
    let request = || Request::get(PROBE_PATH).body(Empty::new()).expect("a constant path is valid");
    let mut started = Instant::now();
    let reused = match channel.take_if(|channel| channel.is_open_to(url)) {
        // The peer may have closed the idle connection, so after an error the request is sent again over a new one.
        Some(mut open) => open.send(request()).await.ok().map(|answer| (open, answer)),
        None => None,
    };
    let (open, answer) = match reused {
        Some(answered) => answered,
        None => {
            started = Instant::now();
            let mut open = ProbeChannel::open(local, url, local.write_timeout).await?;
            let answer = open.send(request()).await?;
            (open, answer)
        }
    };
    let (head, body) = answer.into_parts();
    let text = dial::read_answer(body).await?;
    let round_trip = started.elapsed();
    *channel = Some(open);
    match serde_json::from_str::<Alive>(&text) {
        Ok(alive) if head.status == StatusCode::OK && alive.is_ok => {
            let theirs = alive.now.parse::<jiff::Timestamp>().map(SystemTime::from);
            let drift = theirs
                .map_or(Duration::ZERO, |theirs| apart(SystemTime::now(), theirs + round_trip / 2));
            Ok((round_trip, drift))
        }
        _ => Err(PostError::Status(head.status)),
    }
}

fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|error| error.duration())
}

/// Smooths the round-trip time: the first value is used unchanged, and each later value has a weight of one eighth.
fn smoothed(before: Duration, measured: Duration) -> Duration {
    if before.is_zero() { measured } else { before * 7 / 8 + measured / 8 }
}

/// Reports the findings under both names. Returns whether the peer is healthy.
fn report(local: &Local, contact: &Contact, findings: &Findings) -> bool {
    let round_trips = &local.metrics.network.peer_round_trip_time;
    for name in REPORTED_NAMES {
        if let Some(error) = &findings.error {
            log::warn!(
                "prober detected unhealthy status",
                "round-tripper-name" = name,
                "remote-peer-id" = contact.name,
                "rtt" = findings.round_trip,
                "error" = error
            );
        }
        if findings.clock_drift > CLOCK_DRIFT_MAX {
            log::warn!(
                "prober found high clock drift",
                "round-tripper-name" = name,
                "remote-peer-id" = contact.name,
                "clock-drift" = findings.clock_drift,
                "rtt" = findings.round_trip
            );
        }
        round_trips.with(&[&contact.name]).observe(findings.round_trip);
    }
    findings.error.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_to_a_probe_is_parsed_by_the_prober() {
        let alive: Alive = serde_json::from_str(answer().trim_end()).unwrap();
        let now = SystemTime::from(alive.now.parse::<jiff::Timestamp>().unwrap());
        assert!(alive.is_ok && apart(SystemTime::now(), now) < Duration::from_secs(3600));
        // A response from etcd.
        let alive: Alive =
            serde_json::from_str(r#"{"OK":true,"Now":"2026-11-21T02:37:29.123456Z"}"#).unwrap();
        assert!(alive.now.parse::<jiff::Timestamp>().is_ok());
    }

    #[test]
    fn a_single_slow_response_barely_changes_the_round_trip_time() {
        let milli = Duration::from_millis(1);
        assert_eq!(smoothed(Duration::ZERO, milli), milli);
        assert_eq!(smoothed(8 * milli, 16 * milli), 9 * milli);
    }
}
