//! The registry of all families, and the collection of their samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::exposition::{Format, Head, Kind, Samples};
use super::labelled::Labelled;
use super::own::OwnSample;
use super::primitive::{Counter, Gauge, Histogram};
use super::process::ProcessSample;
use super::state::StateSample;
use super::view::View;

/// The values that each scrape reads once.
#[derive(Clone, Debug, Default)]
pub(super) struct Scrape {
    pub(super) state: StateSample,
    pub(super) process: ProcessSample,
    pub(super) own: OwnSample,
}

/// A set of values from which a table of views is computed.
pub(super) trait Sample: Sized + 'static {
    fn of(scrape: &Scrape) -> &Self;
}

impl Sample for StateSample {
    fn of(scrape: &Scrape) -> &Self {
        &scrape.state
    }
}

impl Sample for ProcessSample {
    fn of(scrape: &Scrape) -> &Self {
        &scrape.process
    }
}

impl Sample for OwnSample {
    fn of(scrape: &Scrape) -> &Self {
        &scrape.own
    }
}

/// The source of a family's samples.
pub(super) trait Collect: Send + Sync {
    fn kind(&self) -> Kind;
    fn collect(&self, scrape: &Scrape, samples: &mut Samples<'_>);

    /// Returns the names of the labels.
    fn label_names(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Returns the number of series whose label values are not fixed.
    fn labelled_series(&self) -> usize {
        0
    }
}

struct Family {
    help: &'static str,
    source: Box<dyn Collect>,
}

/// The declaration of a family, without its samples.
pub(super) struct Declared {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) labels: Vec<&'static str>,
    pub(super) help: &'static str,
}

/// The families by name. All of them are added before the first scrape.
#[derive(Default)]
pub(super) struct Registry {
    families: BTreeMap<&'static str, Family>,
}

impl Registry {
    /// Adds a family whose samples come from `source`.
    pub(super) fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        source: impl Collect + 'static,
    ) {
        let family = Family { help, source: Box::new(source) };
        let before = self.families.insert(name, family);
        assert!(
            before.is_none(),
            "a family is registered once: otherwise the second source would replace the first"
        );
    }

    /// Adds the family of each view in a table.
    pub(super) fn add_views<S: Sample>(&mut self, views: &'static [View<S>]) {
        for view in views {
            self.add(view.name, view.help, view);
        }
    }

    /// Adds a family and returns its handle.
    pub(super) fn share<M>(&mut self, name: &'static str, help: &'static str, metric: M) -> Arc<M>
    where
        M: Send + Sync + 'static,
        Arc<M>: Collect,
    {
        let metric = Arc::new(metric);
        self.add(name, help, Arc::clone(&metric));
        metric
    }

    /// Returns the declarations of all families, including families without samples, sorted by name.
    pub(super) fn declared(&self) -> impl Iterator<Item = Declared> {
        self.families.iter().map(|(name, family)| Declared {
            name,
            kind: family.source.kind(),
            labels: family.source.label_names(),
            help: family.help,
        })
    }

    /// Returns the number of series in the largest family with labels.
    pub(super) fn largest_family_series(&self) -> usize {
        self.families.values().map(|family| family.source.labelled_series()).max().unwrap_or(0)
    }

    pub(super) fn render(&self, scrape: &Scrape, format: Format) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 << 10);
        for (name, family) in &self.families {
            let head = Head { name, help: family.help, kind: family.source.kind() };
            let mut samples = Samples::new(format, &mut out, head);
            family.source.collect(scrape, &mut samples);
            samples.end();
        }
        out
    }
}

/// A metric type that provides the samples of one series.
pub(super) trait Sampled: Send + Sync + 'static {
    const KIND: Kind;
    fn sample(&self, labels: &[(&str, &str)], samples: &mut Samples<'_>);
}

impl Sampled for Counter {
    const KIND: Kind = Kind::Counter;

    fn sample(&self, labels: &[(&str, &str)], samples: &mut Samples<'_>) {
        samples.value(labels, self.value() as f64);
    }
}

impl Sampled for Gauge {
    const KIND: Kind = Kind::Gauge;

    fn sample(&self, labels: &[(&str, &str)], samples: &mut Samples<'_>) {
        samples.value(labels, self.value() as f64);
    }
}

impl Sampled for Histogram {
    const KIND: Kind = Kind::Histogram;

    fn sample(&self, labels: &[(&str, &str)], samples: &mut Samples<'_>) {
        samples.histogram(labels, self);
    }
}

impl<M: Sampled> Collect for Arc<M> {
    fn kind(&self) -> Kind {
        M::KIND
    }

    fn collect(&self, _scrape: &Scrape, samples: &mut Samples<'_>) {
        self.sample(&[], samples);
    }
}

impl<M: Sampled> Collect for Arc<Labelled<M>> {
    fn kind(&self) -> Kind {
        M::KIND
    }

    fn collect(&self, _scrape: &Scrape, samples: &mut Samples<'_>) {
        for (values, series) in self.sorted() {
            let names = self.names().iter().copied();
            let labels: Vec<(&str, &str)> = names.zip(values.iter().map(String::as_str)).collect();
            series.sample(&labels, samples);
        }
    }

    fn label_names(&self) -> Vec<&'static str> {
        self.names().to_vec()
    }

    fn labelled_series(&self) -> usize {
        self.count()
    }
}

impl<S: Sample> Collect for &'static View<S> {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn collect(&self, scrape: &Scrape, samples: &mut Samples<'_>) {
        if let Some(value) = (self.read)(S::of(scrape)) {
            samples.value(&[], value);
        }
    }
}
