//! The metrics of gRPC methods. Except for the lock and election services, they are exposed with the value zero before
//! the first call.
//!
//! A service looks up each method once and keeps its [`MethodMetrics`], so that a call costs four or five
//! additions. Dashboards show `started - handled` as open streams, so each finished call must be counted
//! exactly once, with its status code.

use std::sync::Arc;
use std::time::Duration;

use super::exposition::{Kind, Samples};
use super::primitive::{Counter, Histogram};
use super::registry::{Collect, Registry, Scrape};

/// The names of the gRPC codes in Go's spelling, by number.
pub const GRPC_CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// The level of detail of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricsLevel {
    /// All metrics, except for duration histograms of gRPC methods.
    #[default]
    Basic,
    /// All metrics, including duration histograms of gRPC methods.
    Extensive,
}

/// A service whose calls are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcService {
    /// The full name of the service.
    pub name: &'static str,
    /// The methods, each with its type: `unary`, `server_stream` or `bidi_stream`.
    pub methods: Vec<(&'static str, &'static str)>,
}

/// The metrics of one method.
#[derive(Debug)]
pub struct MethodMetrics {
    service: &'static str,
    method: &'static str,
    call_type: &'static str,
    is_shown_from_start: bool,
    /// The number of calls that have started.
    pub started: Counter,
    /// The number of messages received from clients.
    pub received: Counter,
    /// The number of messages sent to clients.
    pub sent: Counter,
    handled: [Counter; GRPC_CODES.len()],
    handling: Option<Histogram>,
}

impl MethodMetrics {
    /// Counts a call that has ended, with its status code and duration.
    #[inline]
    pub fn handled(&self, code: i32, took: Duration) {
        // An invalid code is counted as Unknown, which is 2.
        let index = usize::try_from(code).ok().filter(|code| *code < GRPC_CODES.len()).unwrap_or(2);
        self.handled[index].inc();
        if let Some(handling) = &self.handling {
            handling.observe(took);
        }
    }

    fn is_shown(&self) -> bool {
        self.is_shown_from_start || self.started.value() > 0
    }

    fn labels(&self) -> [(&'static str, &'static str); 3] {
        [
            ("grpc_method", self.method),
            ("grpc_service", self.service),
            ("grpc_type", self.call_type),
        ]
    }
}

/// The numbers of calls of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallCounts {
    /// The full name of the service.
    pub service: &'static str,
    /// The name of the method.
    pub method: &'static str,
    /// The number of calls that have started.
    pub started: u64,
    /// The number of calls that have ended. It is read before `started`, so that it never exceeds `started`.
    pub ended: u64,
    /// The number of calls that have ended with a code other than OK.
    pub failed: u64,
}

/// The call metrics of all methods.
#[derive(Clone, Debug)]
pub struct GrpcMetrics {
    methods: Arc<[MethodMetrics]>,
    /// The index in `methods` of each service's first method.
    positions: Arc<[usize]>,
}

impl GrpcMetrics {
    pub(super) fn new(
        registry: &mut Registry,
        services: &[GrpcService],
        level: MetricsLevel,
    ) -> Self {
        let extensive = level == MetricsLevel::Extensive;
        let mut positions = Vec::new();
        let all = services.iter().enumerate().flat_map(|(at, service)| {
            positions.push(services[..at].iter().map(|before| before.methods.len()).sum::<usize>());
            service.methods.iter().map(|(method, call_type)| MethodMetrics {
                service: service.name,
                method,
                call_type,
                // The lock and election services are exposed only from their first call.
                is_shown_from_start: !service.name.starts_with("v3"),
                started: Counter::default(),
                received: Counter::default(),
                sent: Counter::default(),
                handled: std::array::from_fn(|_| Counter::default()),
                handling: extensive.then(|| {
                    let bounds = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];
                    Histogram::seconds_with_bounds(&bounds)
                }),
            })
        });
        let methods: Arc<[MethodMetrics]> = all.collect();
        for (name, help, part) in FAMILIES {
            if *part != Part::Handling || extensive {
                registry.add(name, help, PerMethod { methods: Arc::clone(&methods), part: *part });
            }
        }
        Self { methods, positions: positions.into() }
    }

    /// Returns the numbers of calls of each method.
    pub fn counts(&self) -> impl Iterator<Item = CallCounts> {
        self.methods.iter().map(|method| {
            let [succeeded, failed @ ..] = &method.handled;
            let failed = failed.iter().map(Counter::value).sum();
            let ended = succeeded.value() + failed;
            let (service, started) = (method.service, method.started.value());
            CallCounts { service, method: method.method, started, ended, failed }
        })
    }

    /// Returns the metrics of a method. The arguments are the positions of the service and the method in the list given
    /// at creation.
    #[must_use]
    pub fn at(&self, service: usize, method: usize) -> &MethodMetrics {
        &self.methods[self.positions[service] + method]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Started,
    Handled,
    Received,
    Sent,
    Handling,
}

const FAMILIES: &[(&str, &str, Part)] = &[
    ("grpc_server_started_total", "Calls started.", Part::Started),
    ("grpc_server_handled_total", "Calls completed, by status code.", Part::Handled),
    ("grpc_server_msg_received_total", "Messages received from clients.", Part::Received),
    ("grpc_server_msg_sent_total", "Messages sent to clients.", Part::Sent),
    ("grpc_server_handling_seconds", "Duration of calls.", Part::Handling),
];

/// A metric family with series for all methods.
struct PerMethod {
    methods: Arc<[MethodMetrics]>,
    part: Part,
}

impl Collect for PerMethod {
    fn kind(&self) -> Kind {
        if self.part == Part::Handling { Kind::Histogram } else { Kind::Counter }
    }

    fn label_names(&self) -> Vec<&'static str> {
        let code = (self.part == Part::Handled).then_some("grpc_code");
        code.into_iter().chain(["grpc_method", "grpc_service", "grpc_type"]).collect()
    }

    fn collect(&self, _scrape: &Scrape, samples: &mut Samples<'_>) {
        if self.part == Part::Handled {
            return self.collect_handled(samples);
        }
        for method in self.shown() {
            let labels = method.labels();
            match self.part {
                Part::Started => samples.value(&labels, method.started.value() as f64),
                Part::Received => samples.value(&labels, method.received.value() as f64),
                Part::Sent => samples.value(&labels, method.sent.value() as f64),
                Part::Handling => {
                    if let Some(handling) = &method.handling {
                        samples.histogram(&labels, handling);
                    }
                }
                Part::Handled => {}
            }
        }
    }
}

impl PerMethod {
    /// Returns the exposed methods, ordered by label value. `grpc_method` comes first, because label names are sorted.
    fn shown(&self) -> Vec<&MethodMetrics> {
        let mut shown: Vec<_> = self.methods.iter().filter(|method| method.is_shown()).collect();
        shown.sort_by_key(|method| method.labels());
        shown
    }

    /// Collects the calls by code. The label name `grpc_code` sorts first, so the outer loop iterates over the codes.
    fn collect_handled(&self, samples: &mut Samples<'_>) {
        let mut codes: Vec<(usize, &str)> = GRPC_CODES.iter().copied().enumerate().collect();
        codes.sort_by_key(|(_, name)| *name);
        for (number, name) in codes {
            for method in self.shown() {
                let [grpc_method, service, call_type] = method.labels();
                let labels = [("grpc_code", name), grpc_method, service, call_type];
                samples.value(&labels, method.handled[number].value() as f64);
            }
        }
    }
}
