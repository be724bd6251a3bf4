//! Reads of published views, and the read barrier that makes them linearizable.
//!
//! A read awaits [`Reader::read_barrier`], then takes a view, which is immutable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb::{ResponseHeader, TxnRequest, TxnResponse};
use quorate_api::record::KeyValue;
use quorate_core::{LeadershipState, LeaseView};
use quorate_state::apply::{PublishedState, read_txn};
use quorate_state::backend::Backend;
use quorate_state::lease::Leases;
use quorate_state::mvcc::{MvccError, RangeQuery, RangeResult, SortOrder, SortTarget, View};
use quorate_state::units::Millis;
use quorate_state::watch::{HistoryFault, Hub};

use crate::error::RequestError;
use crate::requests::admission::{Admission, Bound, OwnedPermit};
use crate::requests::member_info::MemberInfo;
use crate::requests::slow::{self, ReadDone, ReadKind, ReadTimes};
use crate::threads::channels::{DriverHandle, Input};
use crate::threads::completion;
use crate::threads::fatal::FaultReports;
use crate::threads::outcome::{AWAITING, Outcome};

/// Minimum number of records in a list for which the references to the records need a permit before the read.
const LONG_LIST_RECORDS: usize = 16 * 1024;

/// Minimum number of keys for which a read runs on a blocking thread, because it takes milliseconds and would delay
/// other requests on the connection thread.
const LONG_WALK_KEYS: usize = 32 * 1024;

/// The resources that a read needs.
#[derive(Debug)]
pub struct Weight {
    /// Whether the read must not run on a connection thread.
    pub is_long: bool,
    /// The permit for the list that the read returns.
    pub permit: Option<OwnedPermit>,
}

/// Reads published views, after a read barrier if necessary.
#[derive(Debug)]
pub struct Reader {
    pub(crate) info: Arc<MemberInfo>,
    pub(crate) published: PublishedState,
    pub(crate) backend: Backend,
    pub(crate) driver: DriverHandle,
    pub(crate) admission: Arc<Admission>,
    pub(crate) faults: FaultReports,
}

impl Reader {
    /// Returns the bounds on the work that clients may request at one time.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Returns the backend file.
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Returns the hub that serves the watchers.
    pub const fn hub(&self) -> &Hub {
        &self.published.hub
    }

    /// Returns the leases.
    pub const fn leases(&self) -> &Leases {
        &self.published.leases
    }

    /// Returns the newest published view of the keyspace.
    pub fn view(&self) -> Arc<View> {
        self.published.view()
    }

    /// Returns the header of a response at the current revision.
    pub fn current_header(&self) -> ResponseHeader {
        self.info.header(self.view().current_revision())
    }

    /// Waits until a read of the newest view is linearizable.
    pub async fn read_barrier(&self) -> Result<(), RequestError> {
        if self.info.member_status().reads_need_no_barrier() {
            return Ok(());
        }
        let _permit = self.admission.reads.take(1)?;
        let deadline = Instant::now() + self.info.limits().request_timeout;
        let (completer, waiting) =
            completion::wait(&AWAITING, deadline).ok_or(RequestError::Stopped)?;
        let is_alone = self.admission.reads.used() == 1;
        self.driver.request(Input::ReadBarrier(completer), is_alone)?;
        match waiting.await {
            Some(Outcome::Ready) => Ok(()),
            Some(Outcome::BarrierFailed(failure)) => {
                self.info.metrics().server.read_indexes_failed.inc();
                Err(failure.into())
            }
            Some(Outcome::Applied(_) | Outcome::ProposalFailed(_) | Outcome::ConfChange(_)) => {
                unreachable!("the slot of a read barrier receives its outcome")
            }
            None => {
                self.info.metrics().server.slow_read_indexes.inc();
                Err(RequestError::Timeout)
            }
        }
    }

    /// Waits until all entries that are known to be committed are applied, but at most for the apply timeout.
    pub async fn wait_applied(&self) -> Result<(), RequestError> {
        let member_status = self.info.member_status();
        let committed = member_status.committed();
        if member_status.applied() >= committed {
            return Ok(());
        }
        let _permit = self.admission.reads.take(1)?;
        let deadline = Instant::now() + self.info.limits().apply_timeout;
        let (completer, waiting) =
            completion::wait(&AWAITING, deadline).ok_or(RequestError::Stopped)?;
        member_status.when_applied(committed, completer);
        waiting.await.map(drop).ok_or(RequestError::TimeoutWaitingForApply)
    }

    /// Estimates the resources that these queries need, and waits for a permit if the result is long. The estimate is
    /// based on the newest revision, which is close enough for queries at older ones.
    pub async fn weigh<'a>(
        &self,
        queries: impl IntoIterator<Item = &'a RangeQuery>,
    ) -> Result<Weight, RequestError> {
        let (mut returned, mut walked) = (0_usize, 0_usize);
        for query in queries {
            if query.range_end.is_empty() {
                continue;
            }
            let view = self.view();
            let counting = RangeQuery { count_only: true, revision: 0, ..query.clone() };
            let count = view.range(&counting).map_err(|error| self.read_error(error))?.count;
            let bound = if query.count_only {
                0
            } else if query.limit > 0 && limits_the_work(query) {
                query.limit
            } else {
                i64::MAX
            };
            let is_historic = query.revision > 0 && query.revision < view.current_revision();
            let walked_bound = if is_historic { i64::MAX } else { bound };
            let at_most = |bound: i64| usize::try_from(count.min(bound)).unwrap_or(usize::MAX);
            returned = returned.saturating_add(at_most(bound));
            walked = walked.saturating_add(at_most(walked_bound));
        }
        let permit = if returned < LONG_LIST_RECORDS {
            None
        } else {
            let bytes = returned.saturating_mul(size_of::<KeyValue>()) as u64;
            let timeout = self.info.limits().request_timeout;
            Some(Bound::take_within(&self.admission.lists, bytes, timeout).await?)
        };
        Ok(Weight { is_long: permit.is_some() || walked >= LONG_WALK_KEYS, permit })
    }

    /// Reads a range from the newest view.
    pub fn range(&self, query: &RangeQuery) -> Result<RangeResult, RequestError> {
        self.info.metrics().mvcc.range.inc();
        let started = Instant::now();
        let result = self.view().range(query);
        let success = if result.is_ok() { "true" } else { "false" };
        self.info.metrics().server.range_duration.with(&[success]).observe(started.elapsed());
        result.map_err(|error| self.read_error(error))
    }

    /// Executes a read-only transaction on the newest view.
    pub fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, RequestError> {
        let (outcome, looks) =
            read_txn(&self.view(), request).map_err(|fault| self.fault(fault))?;
        let metrics = &self.info.metrics().mvcc;
        metrics.range.add(looks.ranges);
        metrics.txn.add(looks.txns);
        outcome.map_err(RequestError::Refused)
    }

    /// Logs a slow read with the times of its steps. `texts` returns the request and the response as text, and is
    /// called only if the read was slow.
    pub fn note_done<'a>(
        &self,
        kind: ReadKind,
        times: ReadTimes,
        took: Duration,
        texts: impl FnOnce() -> (String, Result<String, &'a RequestError>),
    ) {
        let limits = self.info.limits();
        if slow::is_worth_a_line(took, limits) {
            let (request, response) = texts();
            let read = ReadDone { times, took, kind, request, response };
            slow::log_slow_read(read, limits, self.info.metrics());
        }
    }

    /// Converts an error of a read. A fault of this machine stops the member.
    pub fn read_error(&self, error: MvccError) -> RequestError {
        match error {
            MvccError::Refusal(refusal) => RequestError::Refused(refusal.into()),
            MvccError::Fault(fault) => self.fault(fault),
        }
    }

    /// Reports a fault of this machine, which stops the member.
    pub fn fault(&self, fault: impl std::error::Error + Send + Sync + 'static) -> RequestError {
        let text = Arc::from(fault.to_string());
        self.faults.report("reading the backend file", fault);
        RequestError::Fault(text)
    }

    /// Reports that the history for watchers cannot be read, which stops the member.
    pub fn report_history_fault(&self, fault: HistoryFault) {
        self.faults.report("reading history for watchers", ReadingHistory(fault));
    }
}

impl LeaseView for Reader {
    fn leases(&self) -> &Leases {
        &self.published.leases
    }

    fn now(&self) -> Millis {
        self.info.now()
    }

    fn leadership(&self) -> LeadershipState {
        self.info.member_status().state()
    }
}

/// Returns whether a range reads only the records that it returns. Other sort orders and filters read all records of
/// the range.
fn limits_the_work(query: &RangeQuery) -> bool {
    let in_key_order = query.sort_order == SortOrder::None || query.sort_target == SortTarget::Key;
    let bounds = [
        query.min_mod_revision,
        query.max_mod_revision,
        query.min_create_revision,
        query.max_create_revision,
    ];
    in_key_order && bounds == [0; 4]
}

/// The history for watchers cannot be read from the store.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ReadingHistory(pub(crate) HistoryFault);
