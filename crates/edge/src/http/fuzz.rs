//! Fuzz target: a request to the HTTP endpoints.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::header::LOCATION;
use http::{HeaderName, HeaderValue, Request, Version};

use super::{Access, Endpoints, HealthAlarm, Probe, Surface};
use crate::methods;
use quorate_config::{Config, MetricsLevel};
use quorate_telemetry::metrics::Metrics;

/// Sends a request that is built from the lines of the input: a method, a target and headers. A healthy member must
/// answer any request, and a redirect must lead to the same member.
pub fn request(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let (method, target) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut request = Request::builder().method(method).uri(target).version(Version::HTTP_11);
    for line in lines {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            request = request.header(name, value);
        }
    }
    let Ok(request) = request.body(()) else { return };
    for surface in [Surface::Client, Surface::Metrics] {
        let reply = RUNTIME.block_on(ENDPOINTS.answer(&request, surface, false));
        assert!(!reply.status().is_server_error(), "{request:?}: {reply:?}");
        if let Some(location) = reply.headers().get(LOCATION) {
            let location = location.as_bytes();
            assert!(location.starts_with(b"/") && !location.starts_with(b"//"), "{reply:?}");
        }
    }
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without I/O can be built")
});

static ENDPOINTS: LazyLock<Endpoints<Healthy>> = LazyLock::new(|| {
    let metrics = Metrics::new(&methods::counted(), MetricsLevel::Basic);
    let access = Access::new(&Config::default());
    Endpoints::new(Arc::new(Healthy), Arc::new(metrics), access, vec!["quorate".to_owned()])
});

/// Probe of a member without faults.
#[derive(Debug)]
struct Healthy;

impl Probe for Healthy {
    fn alarms(&self) -> Vec<HealthAlarm> {
        Vec::new()
    }

    async fn has_leader(&self) -> bool {
        true
    }

    fn is_learner(&self) -> bool {
        false
    }

    async fn read(&self, _is_serializable: bool) -> Result<(), String> {
        Ok(())
    }

    async fn check_alive(&self) -> Result<(), String> {
        Ok(())
    }

    fn request_timeout(&self) -> Duration {
        Duration::from_secs(7)
    }

    fn server_version(&self) -> String {
        quorate_version::ETCD_VERSION.to_owned()
    }

    fn cluster_version(&self) -> Option<String> {
        None
    }

    fn storage_version(&self) -> Option<String> {
        None
    }

    fn raft_status(&self) -> String {
        "{}".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    #[test]
    fn any_request_is_answered() {
        let health =
            b"GET\n/health?exclude=NOSPACE&serializable=true\nhost:h:2379\norigin:http://x";
        let checks = b"GET\n/readyz/ping?verbose&exclude=a%20b\nhost:h";
        let odd = b"GET\n//a/../%68ealth/./\nhost:h\nhost:i";
        let foreign = b"GET\nhttp://h:1/version\nhost:h";
        let samples = [
            ("health", health.to_vec()),
            ("checks", checks.to_vec()),
            ("odd", odd.to_vec()),
            ("foreign", foreign.to_vec()),
            ("vars", b"OPTIONS\n/debug/vars\nhost:h".to_vec()),
            ("metrics", b"GET\n/metrics\nhost:h".to_vec()),
        ];
        bounded("http_request", &samples, 5000, super::request);
    }
}
