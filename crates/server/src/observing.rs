//! Who is told of clients' calls: a collector of spans and the audit log, where the flags ask for them.

use std::sync::Arc;

use quorate_config::Config;
use quorate_edge::{Observers, methods};
use quorate_telemetry::audit::{self, Auditor};
use quorate_telemetry::metrics::Metrics;

use crate::collector::{Collector, CollectorError};

/// Why somebody cannot be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObservingError {
    #[error(transparent)]
    Collector(#[from] CollectorError),
    #[error(transparent)]
    Audit(#[from] audit::OpenError),
    #[error("--audit-rules: there is no service or method {0} (they are named as KV and KV/Range)")]
    UnknownMethod(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Observing {
    collector: Option<Collector>,
    auditor: Option<Arc<Auditor>>,
}

impl Observing {
    /// Begins to tell whoever is to be told.
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

    /// What the services tell, if anybody listens.
    pub(crate) fn observers(&self) -> Option<Observers> {
        let tracer = self.collector.as_ref().map(Collector::tracer);
        let auditor = self.auditor.clone();
        (tracer.is_some() || auditor.is_some()).then_some(Observers { tracer, auditor })
    }

    /// The audit log, if there is one.
    pub(crate) fn auditor(&self) -> Option<Arc<Auditor>> {
        self.auditor.clone()
    }

    /// Tells what is not told yet, for as long as it may take.
    pub(crate) fn finish(self) {
        if let Some(collector) = self.collector {
            collector.finish();
        }
        if let Some(auditor) = self.auditor {
            auditor.finish();
        }
    }
}
