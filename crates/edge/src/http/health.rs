//! Health checks: `/health` returns a single result, whereas `/livez` and `/readyz` return a list of checks.
//!
//! Orchestrators use `/livez` to decide on restarts and `/readyz` for routing. Older orchestrators use `/health`. A
//! full backend causes only `/health` to fail, because the member still serves reads, and a restart would not help.

use http::StatusCode;
use http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};

use super::{Endpoints, HealthAlarm, Probe};
use quorate_gotext::quote::go_quote;
use quorate_http_pages::query;
use quorate_http_pages::reply::{self, Reply};
use quorate_telemetry::log;

/// A health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Whether the server can execute reads. The check is named after etcd's check, which performs a serializable read.
    Alive,
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::DataCorruption => "data_corruption",
            Self::Alive | Self::SerializableRead => "serializable_read",
            Self::LinearizableRead => "linearizable_read",
            Self::NonLearner => "non_learner",
        }
    }
}

/// The checks of a path.
#[derive(Clone, Debug)]
pub(super) struct Checks {
    kind: &'static str,
    checks: Vec<Check>,
    /// Whether the path names a single check. If so, the request's `exclude` parameters are ignored.
    is_single: bool,
}

const LIVEZ: &[Check] = &[Check::Alive];
const READYZ: &[Check] =
    &[Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner];

/// Returns the checks of a path, or `None` if there are no checks at this path.
pub(super) fn checks_at(path: &str) -> Option<Checks> {
    [("livez", LIVEZ), ("readyz", READYZ)].into_iter().find_map(|(kind, all)| {
        let rest = path.strip_prefix('/')?.strip_prefix(kind)?;
        if rest.is_empty() {
            return Some(Checks { kind, checks: all.to_vec(), is_single: false });
        }
        let name = rest.strip_prefix('/')?;
        let check = all.iter().copied().find(|check| check.name() == name)?;
        Some(Checks { kind, checks: vec![check], is_single: true })
    })
}

impl<P: Probe> Endpoints<P> {
    /// Answers requests to `/health`.
    pub(super) async fn health(&self, query: Option<&str>) -> Reply {
        let excluded = query::values(query, "exclude");
        let values = query::values(query, "serializable");
        let is_serializable = values.first().is_some_and(|value| value == "true");
        let reason = self.unhealthy(&excluded, is_serializable).await;
        let health = if reason.is_none() { "true" } else { "false" };
        let reason_json = reply::json(reason.as_deref().unwrap_or(""));
        let text = format!("{{\"health\":\"{health}\",\"reason\":{reason_json}}}");
        if reason.is_none() {
            self.metrics.server.health_success.inc();
            log::debug!("/health OK", "status-code" = StatusCode::OK.as_u16());
            return reply::typed(reply::PLAIN_TEXT, text);
        }
        self.metrics.server.health_failures.inc();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        log::warn!("/health error", "output" = text, "status-code" = status.as_u16());
        reply::error(status, &text)
    }

    /// Returns the reason why the member is unhealthy: an alarm, no leader, or a failed read, in this order.
    async fn unhealthy(&self, excluded: &[String], is_serializable: bool) -> Option<String> {
        for alarm in self.probe.alarms() {
            let name = match alarm {
                HealthAlarm::NoSpace => "NOSPACE",
                HealthAlarm::Corrupt => "CORRUPT",
                HealthAlarm::Unknown => "UNKNOWN",
            };
            if !excluded.iter().any(|excluded| excluded == name) {
                log::warn!("serving /health false due to an alarm", "alarm" = name);
                return Some(format!("ALARM {name}"));
            }
        }
        if !is_serializable && !self.probe.has_leader().await {
            log::warn!("serving /health false; no leader");
            return Some("RAFT NO LEADER".to_owned());
        }
        let read = self.probe.read(is_serializable);
        let error = match tokio::time::timeout(self.probe.request_timeout(), read).await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error,
            Err(_) => "context deadline exceeded".to_owned(),
        };
        log::warn!("serving /health false; Range fails", "error" = error);
        Some(format!("RANGE ERROR:{error}"))
    }

    /// Answers requests to `/livez` and `/readyz`, and to the paths of individual checks below them.
    pub(super) async fn check(&self, path: &str, checks: &Checks, query: Option<&str>) -> Reply {
        let mut excluded = query::values(query, "exclude");
        excluded.retain(|name| !name.is_empty() && !checks.is_single);
        let mut lines = String::new();
        let mut all_passed = true;
        for check in &checks.checks {
            let name = check.name();
            if excluded.iter().any(|excluded| excluded == name) {
                excluded.retain(|excluded| excluded != name);
                continue;
            }
            let outcome = self.run(*check).await;
            self.count(checks.kind, name, outcome.is_ok());
            match outcome {
                Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
                Err(error) => {
                    all_passed = false;
                    lines.push_str(&format!("[-]{name} failed: {error}\n"));
                }
            }
        }
        if !excluded.is_empty() {
            let names: Vec<String> = excluded.iter().map(|name| go_quote(name)).collect();
            log::warn!(
                "some health checks cannot be excluded",
                "missing-health-checks" = names.join(",")
            );
        }
        if !all_passed {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            log::error!(
                "Health check error",
                "path" = path,
                "reason" = lines,
                "status-code" = status.as_u16()
            );
            return reply::error(status, &lines);
        }
        if query::values(query, "verbose").is_empty() {
            lines.clear();
        }
        lines.push_str("ok\n");
        let mut answer = reply::typed(reply::PLAIN_TEXT, lines);
        answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer
    }

    async fn run(&self, check: Check) -> Result<(), String> {
        match check {
            Check::DataCorruption if self.probe.alarms().contains(&HealthAlarm::Corrupt) => {
                Err("alarm activated: CORRUPT".to_owned())
            }
            Check::NonLearner if self.probe.is_learner() => {
                Err("not supported for learner".to_owned())
            }
            Check::DataCorruption | Check::NonLearner => Ok(()),
            Check::Alive => self.probe.check_alive().await,
            Check::SerializableRead => self.probe.read(true).await,
            Check::LinearizableRead => self.probe.read(false).await,
        }
    }

    fn count(&self, kind: &str, name: &str, is_success: bool) {
        let status = if is_success { "success" } else { "error" };
        let server = &self.metrics.server;
        server.healthcheck.with(&[name, kind]).set(i64::from(is_success));
        server.healthchecks.with(&[name, status, kind]).inc();
    }
}
