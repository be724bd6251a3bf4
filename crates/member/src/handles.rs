//! The member as others use it, in handles: [`MemberInfo`] to look at, [`AccessControl`] to be passed by clients' requests,
//! [`Reader`] to read, [`Proposer`] to change, [`Accounts`] to log in by, [`Administrator`] to give orders,
//! [`StreamEnds`] to be told when a stream has to end.
//!
//! Everything here may be called from any connection runtime. Nothing blocks: what takes long is awaited,
//! and what the core threads own is reached by messages or read from published views. A service takes the
//! handles that it needs, and no others.
//!
//! # Not here
//!
//! gRPC and HTTP (`edge`), what the member does by itself (`housekeeping`), and what is built on the
//! handles: who leads (`leadership`), renewing leases (`lease_holder`), changing the members (`membership`),
//! agreeing on versions (`versions`).

use std::sync::Arc;

use parking_lot::Mutex;
use quorate_core::bootstrap::Identity;
use quorate_peer::Peers;
use quorate_state::apply::Readers;
use quorate_state::backend::Backend;
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::throttle::LogThrottle;

use crate::requests::access::{AccessControl, Provider};
use crate::requests::accounts::Accounts;
use crate::requests::administrator::Administrator;
use crate::requests::admission::Admission;
use crate::requests::limits::Limits;
use crate::requests::member_info::MemberInfo;
use crate::requests::passwords::Passwords;
use crate::requests::proposer::Proposer;
use crate::requests::reader::Reader;
use crate::requests::slow::TracedWrites;
use crate::requests::stream_ends::StreamEnds;
use crate::threads::accepted_compactions::AcceptedCompactions;
use crate::threads::batch_queue;
use crate::threads::channels::{DriverHandle, Job, Order};
use crate::threads::clock::Clock;
use crate::threads::fatal::FaultReports;
use crate::threads::member_status::MemberStatus;
use crate::threads::pending_proposals::PendingProposals;
use crate::threads::request_id::RequestIds;

/// Everything a [`Handles`] is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) identity: Identity,
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    pub(crate) driver: DriverHandle,
    pub(crate) peers: Arc<Peers>,
    pub(crate) applier: batch_queue::Sender<Job>,
    pub(crate) backend_orders: crossbeam_channel::Sender<Order>,
    pub(crate) pending: Arc<PendingProposals>,
    pub(crate) member_status: Arc<MemberStatus>,
    pub(crate) readers: Readers,
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
    /// To look at.
    pub info: Arc<MemberInfo>,
    /// To be passed by requests of clients.
    pub access_control: Arc<AccessControl>,
    /// To read.
    pub reader: Arc<Reader>,
    /// To change.
    pub proposer: Arc<Proposer>,
    /// To log in by, and to change users.
    pub accounts: Arc<Accounts>,
    /// To give orders to the threads.
    pub administrator: Arc<Administrator>,
    /// To be told when a stream has to end.
    pub streams: Arc<StreamEnds>,
    /// The other members.
    pub peers: Arc<Peers>,
    pub(crate) compactions: AcceptedCompactions,
}

impl Handles {
    pub(crate) fn new(parts: Parts) -> Self {
        let admission = Arc::new(Admission::default());
        let info = Arc::new(MemberInfo {
            identity: parts.identity,
            limits: parts.limits,
            clock: parts.clock,
            member_status: parts.member_status,
            readers: parts.readers.clone(),
            metrics: parts.metrics,
            dialer: parts.peers.dialer().clone(),
        });
        let access_control = Arc::new(AccessControl {
            info: Arc::clone(&info),
            readers: parts.readers.clone(),
            provider: parts.provider,
            admission: Arc::clone(&admission),
            refusals: LogThrottle::default(),
        });
        let reader = Reader {
            info: Arc::clone(&info),
            readers: parts.readers.clone(),
            backend: parts.backend.clone(),
            driver: parts.driver.clone(),
            admission: Arc::clone(&admission),
            faults: parts.faults,
        };
        let reader = Arc::new(reader);
        let proposer = Proposer {
            info: Arc::clone(&info),
            access_control: Arc::clone(&access_control),
            reader: Arc::clone(&reader),
            driver: parts.driver.clone(),
            pending: parts.pending,
            request_ids: parts.request_ids,
            readers: parts.readers,
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
        };
        let proposer = Arc::new(proposer);
        let accounts = Accounts {
            info: Arc::clone(&info),
            access_control: Arc::clone(&access_control),
            reader: Arc::clone(&reader),
            proposer: Arc::clone(&proposer),
            passwords: Passwords::new(info.limits().bcrypt_cost),
            refusals: LogThrottle::default(),
        };
        Self {
            info,
            access_control,
            reader,
            proposer,
            accounts: Arc::new(accounts),
            administrator: Arc::new(administrator),
            streams: Arc::default(),
            peers: parts.peers,
            compactions: parts.compactions,
        }
    }
}
