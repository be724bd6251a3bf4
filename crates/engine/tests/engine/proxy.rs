//! A proxy between the engine and PostgreSQL that injects faults into selected statements.
//!
//! The proxy reads the messages of the client and remembers the text of each prepared statement, so a
//! fault can select statements by a part of their text.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The effect of a fault on a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The connection is closed before the server receives the statement.
    CutBefore,
    /// The connection is closed after the server has executed the statement, and the client does not
    /// receive the response.
    CutAfter,
    /// The statement fails with a serialization failure, and the server does not receive it.
    Conflict,
    /// The statement does not reach the server until the fault is removed.
    Hold,
    /// The statement reaches the server after this many milliseconds.
    Delay(u64),
    /// The statement is only counted.
    Count,
}

/// A fault in the statements whose text contains `text`. A fault with period 1 is injected into every such statement,
/// and a fault with period 2 into every second such statement.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) text: &'static str,
    pub(crate) action: Action,
    pub(crate) period: u64,
}

#[derive(Debug, Default)]
struct Plan {
    faults: watch::Sender<Vec<Fault>>,
    /// While this is true, no byte passes in either direction, but the connections stay open.
    frozen: watch::Sender<bool>,
    seen: AtomicU64,
    injected: AtomicU64,
    /// The number of bytes that the server has sent.
    answered_bytes: AtomicU64,
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    plan: Arc<Plan>,
    /// Whether connections are open. When this becomes false, existing connections are closed, and new
    /// connections are refused.
    open: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let plan = Arc::<Plan>::default();
        let open = watch::Sender::new(true);
        let (accepted_plan, accepted_open) = (Arc::clone(&plan), open.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !*accepted_open.borrow() {
                    continue;
                }
                let plan = Arc::clone(&accepted_plan);
                let mut open = accepted_open.subscribe();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
                        return;
                    };
                    client.set_nodelay(true).unwrap();
                    server.set_nodelay(true).unwrap();
                    tokio::select! {
                        _ = relay(client, server, &plan) => {}
                        _ = open.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { port, plan, open }
    }

    pub(crate) fn set_faults(&self, faults: Vec<Fault>) {
        self.plan.faults.send_replace(faults);
    }

    pub(crate) fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }

    /// Stops all traffic without closing a connection, as a suspended process does.
    pub(crate) fn freeze(&self) {
        self.plan.frozen.send_replace(true);
    }

    /// Returns the number of bytes that the server has sent.
    pub(crate) fn answered_bytes(&self) -> u64 {
        self.plan.answered_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of injected faults.
    pub(crate) fn injected(&self) -> u64 {
        self.plan.injected.load(Ordering::Relaxed)
    }
}

impl Plan {
    fn action(&self, text: &str) -> Option<Action> {
        let faults = self.faults.borrow();
        let fault = faults.iter().find(|fault| text.contains(fault.text))?;
        let number = self.seen.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(fault.period) {
            return None;
        }
        self.injected.fetch_add(1, Ordering::Relaxed);
        Some(fault.action)
    }

    /// Waits until no fault holds this statement.
    async fn released(&self, text: &str) {
        let holds = |fault: &Fault| fault.action == Action::Hold && text.contains(fault.text);
        let mut faults = self.faults.subscribe();
        faults.wait_for(|faults| !faults.iter().any(holds)).await.unwrap();
    }

    async fn thawed(&self) {
        self.frozen.subscribe().wait_for(|frozen| !frozen).await.unwrap();
    }
}

/// Whether the responses of the server are withheld from the client.
#[derive(Debug, Default)]
struct Withheld {
    is_withholding: bool,
}

async fn relay(client: TcpStream, server: TcpStream, plan: &Plan) -> std::io::Result<()> {
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let to_client = Arc::new(tokio::sync::Mutex::new(to_client));
    let withheld = Arc::<Mutex<Withheld>>::default();
    let answered = Arc::new(tokio::sync::Notify::new());
    let answers = relay_answers(
        from_server,
        Arc::clone(&to_client),
        Arc::clone(&withheld),
        Arc::clone(&answered),
        plan,
    );
    let startup = read_body(&mut from_client).await?;
    to_server.write_all(&startup).await?;
    let requests = async {
        let mut texts: HashMap<Vec<u8>, String> = HashMap::new();
        loop {
            let kind = from_client.read_u8().await?;
            let body = read_body(&mut from_client).await?;
            let text = text_of(kind, &body[4..], &mut texts);
            plan.thawed().await;
            match text.as_deref().and_then(|text| plan.action(text)) {
                Some(Action::CutBefore) => return Ok(()),
                Some(Action::CutAfter) => {
                    withheld.lock().is_withholding = true;
                    send(&mut to_server, kind, &body).await?;
                    forward_until_sync(kind, &mut from_client, &mut to_server).await?;
                    answered.notified().await;
                    return Ok(());
                }
                Some(Action::Conflict) => {
                    skip_until_sync(kind, &mut from_client).await?;
                    refuse(&mut *to_client.lock().await).await?;
                }
                Some(Action::Hold) => {
                    plan.released(text.as_deref().unwrap_or_default()).await;
                    plan.thawed().await;
                    send(&mut to_server, kind, &body).await?;
                }
                Some(Action::Delay(millis)) => {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    send(&mut to_server, kind, &body).await?;
                }
                Some(Action::Count) | None => send(&mut to_server, kind, &body).await?,
            }
        }
    };
    tokio::select! {
        done = requests => done,
        done = answers => done,
    }
}

async fn relay_answers(
    mut from_server: OwnedReadHalf,
    to_client: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    withheld: Arc<Mutex<Withheld>>,
    answered: Arc<tokio::sync::Notify>,
    plan: &Plan,
) -> std::io::Result<()> {
    loop {
        let kind = from_server.read_u8().await;
        // While traffic is stopped, the client must not notice that the server has closed the
        // connection.
        plan.thawed().await;
        let kind = kind?;
        let body = read_body(&mut from_server).await?;
        plan.answered_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        if withheld.lock().is_withholding {
            // `Z` means that the server has completed the statement, including its commit.
            if kind == b'Z' {
                answered.notify_one();
            }
            continue;
        }
        send(&mut *to_client.lock().await, kind, &body).await?;
    }
}

/// Returns the text of the statement that a message executes.
fn text_of(kind: u8, body: &[u8], texts: &mut HashMap<Vec<u8>, String>) -> Option<String> {
    let mut parts = body.split(|byte| *byte == 0);
    match kind {
        b'Q' => Some(String::from_utf8_lossy(parts.next()?).into_owned()),
        b'P' => {
            let (name, text) = (parts.next()?.to_vec(), parts.next()?);
            texts.insert(name, String::from_utf8_lossy(text).into_owned());
            None
        }
        b'B' => {
            let (_, name) = (parts.next()?, parts.next()?);
            texts.get(name).cloned()
        }
        _ => None,
    }
}

/// Reads the length of a message and its body. The result begins with the length.
async fn read_body(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let len = from.read_u32().await?;
    let mut body = len.to_be_bytes().to_vec();
    body.resize(len as usize, 0);
    from.read_exact(&mut body[4..]).await?;
    Ok(body)
}

async fn send(to: &mut OwnedWriteHalf, kind: u8, body: &[u8]) -> std::io::Result<()> {
    let mut message = vec![kind];
    message.extend_from_slice(body);
    to.write_all(&message).await
}

async fn forward_until_sync(
    mut kind: u8,
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
) -> std::io::Result<()> {
    while kind != b'S' && kind != b'Q' {
        kind = from.read_u8().await?;
        let body = read_body(from).await?;
        send(to, kind, &body).await?;
    }
    Ok(())
}

async fn skip_until_sync(mut kind: u8, from: &mut OwnedReadHalf) -> std::io::Result<()> {
    while kind != b'S' && kind != b'Q' {
        kind = from.read_u8().await?;
        read_body(from).await?;
    }
    Ok(())
}

/// Sends the response of a server that refuses a statement because of a concurrent transaction.
async fn refuse(to: &mut OwnedWriteHalf) -> std::io::Result<()> {
    let fields = b"SERROR\0VERROR\0C40001\0Minjected serialization failure\0\0";
    let len = u32::try_from(fields.len() + 4).unwrap();
    let mut message = vec![b'E'];
    message.extend_from_slice(&len.to_be_bytes());
    message.extend_from_slice(fields);
    message.extend_from_slice(b"Z\0\0\0\x05I");
    to.write_all(&message).await
}
