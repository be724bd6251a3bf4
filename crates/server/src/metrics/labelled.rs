//! Families with labels: one series per combination of label values, made when it is first asked for.
//!
//! Finding a series takes a read lock and a walk over the family, which is short. Who updates often keeps
//! the handle.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

/// One series per combination of values of these labels.
pub struct Labelled<M> {
    names: &'static [&'static str],
    series: RwLock<Vec<(Box<[String]>, Arc<M>)>>,
    make: fn() -> M,
}

impl<M> fmt::Debug for Labelled<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Labelled").field("names", &self.names).finish_non_exhaustive()
    }
}

impl<M: Default> Labelled<M> {
    /// A family of counters or gauges with these labels.
    pub(super) fn new(names: &'static [&'static str]) -> Self {
        Self::made_by(names, M::default)
    }
}

impl<M> Labelled<M> {
    /// A family whose series are made by a function.
    pub(super) fn made_by(names: &'static [&'static str], make: fn() -> M) -> Self {
        Self { names, series: RwLock::new(Vec::new()), make }
    }

    /// The series with these label values.
    ///
    /// # Panics
    ///
    /// When there are not as many values as labels, which is a bug of the caller.
    pub fn with(&self, values: &[&str]) -> Arc<M> {
        assert!(values.len() == self.names.len(), "a series has a value for each label");
        if let Some(series) = find(&self.series.read(), values) {
            return series;
        }
        let mut all = self.series.write();
        if let Some(series) = find(&all, values) {
            return series;
        }
        let made = Arc::new((self.make)());
        all.push((values.iter().map(|value| (*value).to_owned()).collect(), Arc::clone(&made)));
        made
    }

    /// Visits every series there is.
    pub fn for_each(&self, mut visit: impl FnMut(&M)) {
        self.series.read().iter().for_each(|(_, series)| visit(series));
    }

    /// Every series with the values of its labels, sorted by them.
    pub(super) fn sorted(&self) -> Vec<(Box<[String]>, Arc<M>)> {
        let mut all = self.series.read().clone();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    pub(super) fn names(&self) -> &'static [&'static str] {
        self.names
    }
}

fn find<M>(all: &[(Box<[String]>, Arc<M>)], values: &[&str]) -> Option<Arc<M>> {
    all.iter()
        .find(|(known, _)| known.iter().zip(values).all(|(known, value)| known == value))
        .map(|(_, series)| Arc::clone(series))
}
