//! Reads of published views, and the read barrier that makes them linearizable.
//!
//! A read awaits [`Reader::read_barrier`], then takes a view, which is immutable.

use std::sync::Arc;
use std::time::Instant;

use quorate_api::etcdserverpb::{TxnRequest, TxnResponse};
use quorate_core::{LeadershipState, LeaseView};
use quorate_net::runtime::blocking;
use quorate_node::BarrierFailure;
use quorate_requests::admission::{Admission, Bound, OwnedPermit};
use quorate_requests::{Image, Listed, RequestError, StoreFuture};
use quorate_state::apply::{PublishedState, RequestRefusal, read_txn};
use quorate_state::backend::Backend;
use quorate_state::lease::Leases;
use quorate_state::mvcc::{MvccError, RangeQuery, RangeResult, View};
use quorate_state::units::Millis;
use quorate_state::watch::{HistoryFault, Hub};

use crate::requests::member_info::MemberInfo;
use crate::requests::weight::Weight;
use crate::threads::channels::{DriverHandle, Input, ProcessedBy};
use crate::threads::completion;
use crate::threads::fatal::FaultReports;
use crate::threads::outcome::{AWAITING, Outcome};

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
    /// Returns the bounds on clients' concurrent work.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Returns the backend file.
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Returns the backend file as of the last commit.
    pub fn image(&self) -> Image {
        let version = self.info.member_status().storage_version();
        Image { file: self.backend.db().read(), version }
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

    /// Returns the newest published revision.
    pub fn current_revision(&self) -> i64 {
        self.published.current_revision()
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
        let by = if is_alone { ProcessedBy::Caller } else { ProcessedBy::DriverThread };
        self.driver.request(Input::ReadBarrier(completer), by)?;
        match waiting.await {
            Some(Outcome::Ready) => Ok(()),
            Some(Outcome::BarrierFailed(failure)) => Err(match failure {
                BarrierFailure::LeaderChanged => RequestError::LeaderChanged,
                BarrierFailure::QueueFull => RequestError::TooManyRequests,
                BarrierFailure::TimedOut => RequestError::Timeout,
            }),
            Some(Outcome::Applied(_) | Outcome::ProposalFailed(_) | Outcome::ConfChange(_)) => {
                unreachable!("the slot of a read barrier receives only the outcome of that barrier")
            }
            None => Err(RequestError::Timeout),
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

    /// Reads a range from the newest view. A long read runs on a blocking thread.
    pub(crate) fn range(
        self: &Arc<Self>,
        query: &RangeQuery,
    ) -> StoreFuture<'_, Result<Listed<RangeResult>, RequestError>> {
        let weight = Weight::of_range(query, &self.view());
        if weight.is_small() {
            return StoreFuture::ready(listed(self.range_now(query)));
        }
        let query = query.clone();
        StoreFuture::pending(self.gather(weight, move |reader| reader.range_now(&query)))
    }

    /// Executes a read-only transaction on the newest view. A long read runs on a blocking thread.
    pub(crate) fn txn(
        self: &Arc<Self>,
        request: &Arc<TxnRequest>,
    ) -> StoreFuture<'_, Result<Listed<TxnResponse>, RequestError>> {
        let weight = Weight::of_txn(request, &self.view());
        if weight.is_small() {
            return StoreFuture::ready(listed(self.txn_now(request)));
        }
        let request = Arc::clone(request);
        StoreFuture::pending(self.gather(weight, move |reader| reader.txn_now(&request)))
    }

    /// Waits for the permit for the lists in the response to a transaction that goes through the log. Refuses the
    /// transaction if it would delay the entries after it for too long.
    pub(crate) fn reserve_lists(
        &self,
        request: &TxnRequest,
    ) -> StoreFuture<'_, Result<Option<OwnedPermit>, RequestError>> {
        let weight = Weight::of_txn(request, &self.view());
        if weight.delays_entries() {
            let refusal = RequestRefusal::TooManyOperations.into();
            return StoreFuture::ready(Err(RequestError::Refused(refusal)));
        }
        if weight.list_bytes().is_none() {
            return StoreFuture::ready(Ok(None));
        }
        StoreFuture::pending(self.wait_for_list(weight))
    }

    /// Waits for the permit for a list, if it is long.
    async fn wait_for_list(&self, weight: Weight) -> Result<Option<OwnedPermit>, RequestError> {
        let Some(bytes) = weight.list_bytes() else { return Ok(None) };
        let timeout = self.info.limits().request_timeout;
        Ok(Some(Bound::take_within(&self.admission.lists, bytes, timeout).await?))
    }

    /// Waits for the permit if the list is long, and reads on a blocking thread.
    async fn gather<T: Send + 'static>(
        self: &Arc<Self>,
        weight: Weight,
        read: impl FnOnce(&Self) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<Listed<T>, RequestError> {
        let permit = self.wait_for_list(weight).await?;
        let reader = Arc::clone(self);
        // The permit moves to the blocking thread, because the read continues even if the client disconnects.
        let (result, permit) = blocking(move || (read(&reader), permit)).await;
        Ok(Listed { result: result?, permit })
    }

    fn range_now(&self, query: &RangeQuery) -> Result<RangeResult, RequestError> {
        self.info.metrics().mvcc.range.inc();
        let started = Instant::now();
        let result = self.view().range(query);
        let success = if result.is_ok() { "true" } else { "false" };
        self.info.metrics().server.range_duration.with(&[success]).observe(started.elapsed());
        result.map_err(|error| self.read_error(error))
    }

    fn txn_now(&self, request: &TxnRequest) -> Result<TxnResponse, RequestError> {
        let (outcome, looks) =
            read_txn(&self.view(), request).map_err(|fault| self.fault(fault))?;
        let metrics = &self.info.metrics().mvcc;
        metrics.range.add(looks.ranges);
        metrics.txn.add(looks.txns);
        outcome.map_err(RequestError::Refused)
    }

    /// Converts a read error into the error of a request. If the error is a fault of this machine, stops the member.
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

fn listed<T>(result: Result<T, RequestError>) -> Result<Listed<T>, RequestError> {
    result.map(|result| Listed { result, permit: None })
}

/// The history for watchers cannot be read from the store.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ReadingHistory(pub(crate) HistoryFault);
