//! Handles of a running member: [`MemberInfo`] for status, [`AccessControl`] for permission checks, [`Reader`] for
//! reads, [`Proposer`] for changes, [`Administrator`] for maintenance, and [`StreamEnds`] to end streams.
//!
//! Every connection runtime may call the handles. No call blocks: long operations are awaited, and the data of the core
//! threads is accessed through messages or published views.
//!
//! # Not here
//!
//! The interface for the services (`data_store`), the member's background work (`housekeeping`), and the modules that
//! use the handles: access to the leader (`leadership`), lease renewal (`lease_holder`), membership changes
//! (`membership`), and agreement on versions (`versions`).

use std::sync::Arc;

use parking_lot::Mutex;
use quorate_core::bootstrap::Identity;
use quorate_peer::Peers;
use quorate_requests::access::{AccessControl, Provider};
use quorate_requests::{HashPermits, Limits, ServerInfo, StreamEnds};
use quorate_state::apply::PublishedState;
use quorate_state::backend::Backend;
use quorate_telemetry::metrics::Metrics;

use crate::requests::administrator::Administrator;
use crate::requests::member_info::MemberInfo;
use crate::requests::proposer::Proposer;
use crate::requests::reader::Reader;
use crate::requests::slow_writes::TracedWrites;
use crate::threads::accepted_compactions::AcceptedCompactions;
use crate::threads::channels::{ApplierHandle, DriverHandle, Order};
use crate::threads::fatal::FaultReports;
use crate::threads::member_status::MemberStatus;
use crate::threads::pending_proposals::PendingProposals;
use crate::threads::request_id::RequestIds;

/// The parts from which a [`Handles`] is created.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) identity: Identity,
    pub(crate) limits: Limits,
    pub(crate) driver: DriverHandle,
    pub(crate) peers: Arc<Peers>,
    pub(crate) applier: ApplierHandle,
    pub(crate) backend_orders: crossbeam_channel::Sender<Order>,
    pub(crate) pending: Arc<PendingProposals>,
    pub(crate) member_status: Arc<MemberStatus>,
    pub(crate) published: PublishedState,
    pub(crate) backend: Backend,
    pub(crate) faults: FaultReports,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) request_ids: Arc<RequestIds>,
    pub(crate) provider: Provider,
    pub(crate) compactions: AcceptedCompactions,
}

/// The handles of one member.
#[derive(Debug)]
pub struct Handles {
    /// The status of the member.
    pub info: Arc<MemberInfo>,
    /// Permission checks for clients' requests.
    pub access_control: Arc<AccessControl>,
    /// Reads of the published state.
    pub reader: Arc<Reader>,
    /// Proposals of changes, which go through the log.
    pub proposer: Arc<Proposer>,
    /// Maintenance operations, which the core threads carry out.
    pub administrator: Arc<Administrator>,
    /// Notifies the streams that must end.
    pub streams: Arc<StreamEnds>,
    /// The transport to the other members.
    pub peers: Arc<Peers>,
    pub(crate) compactions: AcceptedCompactions,
}

impl Handles {
    pub(crate) fn new(parts: Parts) -> Self {
        let published = &parts.published;
        let server = Arc::new(ServerInfo::new(
            (parts.identity.cluster_id, parts.identity.member_id),
            parts.limits,
            published.facts.clone(),
            Arc::clone(&parts.member_status) as _,
            parts.metrics,
        ));
        let admission = Arc::clone(server.admission());
        let access_control = Arc::new(AccessControl::new(
            Arc::clone(&server),
            published.auth.clone(),
            published.leases.clone(),
            parts.provider,
        ));
        let info = Arc::new(MemberInfo {
            server,
            identity: parts.identity,
            member_status: parts.member_status,
            dialer: parts.peers.dialer().clone(),
        });
        let reader = Reader {
            info: Arc::clone(&info),
            published: parts.published.clone(),
            backend: parts.backend.clone(),
            driver: parts.driver.clone(),
            admission: Arc::clone(&admission),
            faults: parts.faults,
        };
        let reader = Arc::new(reader);
        let proposer = Proposer {
            info: Arc::clone(&info),
            access_control: Arc::clone(&access_control),
            driver: parts.driver.clone(),
            pending: parts.pending,
            request_ids: parts.request_ids,
            published: parts.published,
            backend: parts.backend,
            peers: Arc::clone(&parts.peers),
            traced: TracedWrites::default(),
            led_since: Mutex::new(None),
        };
        let administrator = Administrator {
            info: Arc::clone(&info),
            driver: parts.driver,
            applier: parts.applier,
            backend_orders: parts.backend_orders,
            peers: Arc::clone(&parts.peers),
            admission,
            defragmentation_count: Mutex::new(0),
            serving: tokio::sync::watch::Sender::new(true),
            compactions: parts.compactions.clone(),
            hashes: HashPermits::default(),
        };
        Self {
            info,
            access_control,
            reader,
            proposer: Arc::new(proposer),
            administrator: Arc::new(administrator),
            streams: Arc::default(),
            peers: parts.peers,
            compactions: parts.compactions,
        }
    }
}
