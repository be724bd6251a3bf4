//! Starts the configured observers of clients' calls: the span exporter and the audit log.

use std::sync::Arc;

use quorate_config::Config;
use quorate_edge::{Observers, methods};
use quorate_telemetry::audit::{self, Auditor};
use quorate_telemetry::metrics::Metrics;

use crate::collector::{Collector, CollectorError};

/// Why an observer cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObservingError {
    #[error(transparent)]
    Collector(#[from] CollectorError),
    #[error(transparent)]
    Audit(#[from] audit::OpenError),
    #[error(
        "--audit-rules: there is no service or method {0} (write SERVICE or SERVICE/METHOD, such as KV or KV/Range)"
    )]
    UnknownMethod(String),
}

/// The observers of clients' calls.
#[derive(Debug)]
pub(crate) struct Observing {
    collector: Option<Collector>,
    auditor: Option<Arc<Auditor>>,
}

impl Observing {
    /// Starts the observers.
    pub(crate) fn start(config: &Config, metrics: &Metrics) -> Result<Self, ObservingError> {
        let auditor = match &config.audit {
            None => None,
            Some(settings) => {
                let unknown = settings.rules.methods().find(|name| !methods::is_known(name));
                if let Some(name) = unknown {
                    return Err(ObservingError::UnknownMethod(name.to_string()));
                }
                Some(Arc::new(Auditor::open(settings.clone(), &metrics.audit)?))
            }
        };
        Ok(Self { collector: Collector::start(&config.tracing, metrics)?, auditor })
    }

    /// Returns the observers for the services, or `None` if there are none.
    pub(crate) fn observers(&self) -> Option<Observers> {
        let tracer = self.collector.as_ref().map(Collector::tracer);
        let auditor = self.auditor.clone();
        (tracer.is_some() || auditor.is_some()).then_some(Observers { tracer, auditor })
    }

    /// Returns the audit log, if there is one.
    pub(crate) fn auditor(&self) -> Option<Arc<Auditor>> {
        self.auditor.clone()
    }

    /// Writes out the data that the observers have queued, within their time limits.
    pub(crate) fn finish(self) {
        if let Some(collector) = self.collector {
            collector.finish();
        }
        if let Some(auditor) = self.auditor {
            auditor.finish();
        }
    }
}
