//! Competes for the sequencer role, and announces this server to the other servers.
//!
//! Table `sequencer` has one row. It contains the holder of the role, the holder's epoch, and the time
//! at which the holder's lease on the role expires. All times are measured by the database's clock.
//! Once the lease has expired, another server can take over by raising the epoch, and then begins a
//! term. If two servers both act as the sequencer, only the server with the newest epoch can commit
//! (`sequencer`). So an inexact clock or a suspended server can reduce availability, but cannot cause
//! wrong results.
//!
//! # Not here
//!
//! The term itself (`sequencer::term`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quorate_state::members::{Member, Members};
use quorate_state::units::MemberId;
use quorate_telemetry::log;
use tokio::sync::{Notify, watch};
use tokio_postgres::types::ToSql;

use crate::database::{DatabaseFault, Session, Statement};
use crate::error::EngineError;
use crate::secret::Secret;
use crate::sequencer::{Ending, SequencerHandle, TermContext, run_term};
use crate::term_id::TermId;

/// Duration of the lease on the role, in milliseconds. A failed sequencer keeps the role for at most
/// this time.
pub(crate) const ROLE_MILLIS: f64 = 3_000.0;
/// The interval at which a server checks whether the role is free.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The interval at which a server announces itself.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(5);
/// Time in milliseconds after which a server that has not announced itself again is no longer listed.
const ABSENT_MILLIS: i64 = 30_000;

/// The identity of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerIdentity {
    /// The id of the server, which is unique among the servers of the keyspace.
    pub id: u64,
    /// The name of the server.
    pub name: String,
    /// The address at which other servers reach this server. Only the transport interprets the address.
    pub address: String,
    /// The secret that other servers must know to send requests to this server. Only servers with
    /// access to the database can read it.
    pub secret: Secret,
    /// The URLs at which clients reach this server.
    pub client_urls: Vec<String>,
}

/// A server of the keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRow {
    /// The id of the server.
    pub id: u64,
    /// The name of the server.
    pub name: String,
    /// The address at which other servers reach the server.
    pub address: String,
    /// The URLs at which clients reach the server.
    pub client_urls: Vec<String>,
}

/// The address of the sequencer, and the secret that a server must know to send requests to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// The address of the sequencer.
    pub address: String,
    /// The secret of the sequencer.
    pub secret: Secret,
}

/// The holder of the role, as last read from the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) epoch: u64,
    pub(crate) id: u64,
    pub(crate) destination: Destination,
    /// Whether the holder's lease on the role has expired.
    pub(crate) is_expired: bool,
}

/// The role of the sequencer, as this server sees it.
#[derive(Debug)]
pub(crate) struct Role {
    /// The term in which this server is the sequencer, from the time at which the term accepts requests until the term
    /// ends.
    pub(crate) term: watch::Sender<Option<SequencerHandle>>,
    pub(crate) holder: watch::Sender<Holder>,
    servers: Mutex<Vec<ServerRow>>,
    /// Notified when a request must wait until a server is the sequencer. `compete` then reads the role immediately.
    pub(crate) look: Notify,
}

impl Role {
    pub(crate) fn new() -> Self {
        Self {
            term: watch::Sender::new(None),
            holder: watch::Sender::new(Holder::default()),
            servers: Mutex::default(),
            look: Notify::new(),
        }
    }

    pub(crate) fn term(&self) -> Option<SequencerHandle> {
        self.term.borrow().clone()
    }

    pub(crate) fn holder(&self) -> Holder {
        self.holder.borrow().clone()
    }

    /// Returns the servers that have announced themselves recently.
    pub(crate) fn servers(&self) -> Vec<ServerRow> {
        self.servers.lock().clone()
    }
}

/// Competes for the role until the engine stops.
pub(crate) async fn compete(context: TermContext, role: Arc<Role>, server: ServerIdentity) {
    let mut session: Option<Session> = None;
    let mut announced: Option<Instant> = None;
    loop {
        let connected = match session.take() {
            Some(session) => Ok(session),
            None => context.database.connect().await,
        };
        match connected {
            Ok(connected) => {
                let is_due = announced.is_none_or(|at| at.elapsed() >= ANNOUNCE_INTERVAL);
                let taken = step(&connected, &context, &role, &server, is_due).await;
                if is_due && taken.is_ok() {
                    announced = Some(Instant::now());
                }
                match taken {
                    Ok(None) => session = Some(connected),
                    Ok(Some(id)) => {
                        drop(connected);
                        hold(&context, &role, &server, id).await;
                        continue;
                    }
                    Err(fault) => log::warn!(
                        "failed to compete for the sequencer role",
                        "error" = fault.to_string()
                    ),
                }
            }
            Err(fault) => {
                log::warn!("failed to connect to the database", "error" = fault.to_string());
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
            () = role.look.notified() => {}
        }
    }
}

/// Runs a term, and regularly announces this server during the term.
async fn hold(context: &TermContext, role: &Arc<Role>, server: &ServerIdentity, id: TermId) {
    let epoch = id.epoch;
    let destination =
        Destination { address: server.address.clone(), secret: server.secret.clone() };
    let holder = Holder { epoch, id: server.id, destination, is_expired: false };
    role.holder.send_replace(holder);
    let begun = |term| {
        role.term.send_replace(Some(term));
    };
    let ending = tokio::select! {
        ending = run_term(context.clone(), id, begun) => ending,
        () = announce_often(context, role, server) => return,
    };
    role.term.send_replace(None);
    match ending {
        Ending::Replaced => {
            log::warn!("another server has become the sequencer", "epoch" = epoch);
        }
        Ending::Failed(error) => {
            log::error!(
                "the sequencer on this server has failed; competing for the role again",
                "epoch" = epoch,
                "error" = error.to_string()
            );
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

async fn announce_often(context: &TermContext, role: &Role, server: &ServerIdentity) {
    let mut session = None;
    loop {
        tokio::time::sleep(ANNOUNCE_INTERVAL / 5).await;
        let connected = match session.take() {
            Some(session) => session,
            None => match context.database.connect().await {
                Ok(session) => session,
                Err(_) => continue,
            },
        };
        if announce(&connected, context, role, server).await.is_ok() {
            session = Some(connected);
        }
    }
}

/// Reads the role, and takes it if it is free or already belongs to this server. Returns the new term, or `None` if
/// this server has not taken the role.
async fn step(
    session: &Session,
    context: &TermContext,
    role: &Role,
    server: &ServerIdentity,
    announces: bool,
) -> Result<Option<TermId>, EngineError> {
    if announces {
        announce(session, context, role, server).await?;
    }
    let (holder, stored_bytes) = read_holder(session).await?;
    // During a term, the sequencer's tasks keep this count up to date. This server is not in a term now, so it uses the
    // count in the database.
    context.stored_bytes.store(stored_bytes, Ordering::Relaxed);
    let is_free = holder.is_expired || holder.id == server.id;
    role.holder.send_if_modified(|known| {
        let is_new = *known != holder;
        *known = holder;
        is_new
    });
    if !is_free {
        return Ok(None);
    }
    let (secret, nonce) = (server.secret.bytes(), TermId::random_nonce()?);
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&server.id.cast_signed(), &server.address, &ROLE_MILLIS, &secret, &nonce];
    let taken = session.query_opt(Statement::TakeRole, &parameters).await?;
    Ok(taken.map(|row| TermId { epoch: row.get::<_, i64>(0).cast_unsigned(), nonce }))
}

/// Returns the holder of the role, and the number of bytes of all versions in the tables.
async fn read_holder(session: &Session) -> Result<(Holder, u64), DatabaseFault> {
    let row = session.read_opt(Statement::ReadRole, &[]).await?;
    let row = row.ok_or_else(|| DatabaseFault::Content {
        table: "sequencer",
        problem: "the row is missing".to_owned(),
    })?;
    let holder = Holder {
        epoch: row.get::<_, i64>(0).cast_unsigned(),
        id: row.get::<_, i64>(1).cast_unsigned(),
        destination: Destination { address: row.get(2), secret: Secret::from_bytes(row.get(4)) },
        is_expired: row.get(3),
    };
    let stored_bytes = row.get::<_, Option<i64>>(6).unwrap_or(0);
    Ok((holder, u64::try_from(stored_bytes).unwrap_or(0)))
}

async fn announce(
    session: &Session,
    context: &TermContext,
    role: &Role,
    server: &ServerIdentity,
) -> Result<(), DatabaseFault> {
    let client_urls = server.client_urls.join(",");
    let parameters: [&(dyn ToSql + Sync); 4] =
        [&server.id.cast_signed(), &server.name, &server.address, &client_urls];
    session.execute(Statement::AnnounceServer, &parameters).await?;
    let rows = session.query(Statement::ReadServers, &[]).await?;
    let present = rows.iter().filter(|row| row.get::<_, i64>(4) < ABSENT_MILLIS);
    let servers: Vec<ServerRow> = present
        .map(|row| ServerRow {
            id: row.get::<_, i64>(0).cast_unsigned(),
            name: row.get(1),
            address: row.get(2),
            client_urls: split(row.get(3)),
        })
        .collect();
    context.replica.follow_servers(Members::new(servers.iter().map(ServerRow::member), []));
    *role.servers.lock() = servers;
    Ok(())
}

impl ServerRow {
    /// Returns the server as a member of the cluster.
    fn member(&self) -> Member {
        Member {
            name: self.name.clone(),
            client_urls: self.client_urls.clone(),
            ..Member::new(MemberId(self.id), vec![self.address.clone()])
        }
    }
}

fn split(client_urls: &str) -> Vec<String> {
    client_urls.split(',').filter(|url| !url.is_empty()).map(str::to_owned).collect()
}

/// Notifies the other servers of new batches, if the database supports notifications.
pub(crate) async fn notify_servers(context: TermContext, role: Arc<Role>) {
    let mut session: Option<Session> = None;
    loop {
        context.committed.notified().await;
        if role.servers().len() < 2 {
            continue;
        }
        let connected = match session.take() {
            Some(session) => session,
            None => match context.database.connect().await {
                Ok(session) => session,
                Err(_) => continue,
            },
        };
        let text = context.database.text(Statement::Notify);
        // If the database does not support notifications, the other servers poll it.
        match connected.batch(&text).await {
            Ok(()) | Err(DatabaseFault::Statement { .. }) => session = Some(connected),
            Err(_) => {}
        }
    }
}

/// Gives up the role, so that another server can take over immediately.
pub(crate) async fn leave(context: &TermContext, id: TermId) -> Result<(), DatabaseFault> {
    let session = context.database.connect().await?;
    session.execute(Statement::LeaveRole, &[&id.epoch.cast_signed(), &id.nonce]).await?;
    Ok(())
}

/// Removes this server from table `servers`.
pub(crate) async fn retire(context: &TermContext) -> Result<(), DatabaseFault> {
    let session = context.database.connect().await?;
    session.execute(Statement::RemoveServer, &[&context.server_id.cast_signed()]).await?;
    Ok(())
}
