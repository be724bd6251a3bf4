//! Sends messages to a peer that has not opened streams, one request per message.
//!
//! Each peer has several workers, each with its own persistent connection, so that a slow response does not delay later
//! messages. Messages may therefore overtake each other. If the peer has closed an idle connection, the worker opens a
//! new one and sends the message again. Proposals are an exception, because it is unknown whether the peer has received
//! the first request. A proposal is therefore sent once, on a new connection.
//!
//! # Bound
//!
//! At most [`MESSAGES_QUEUED_MAX`] messages are queued, within the peer's limit on bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode, header};
use http_body_util::Full;
use quorate_raft::{Message, MessageKind};
use tokio::sync::{Mutex, mpsc};

use crate::body_reader::BYTES_PER_SECOND_MIN;
use crate::contact::Contact;
use crate::dial::{self, Channel, PostError};
use crate::local::Local;
use crate::outgoing::Allowance;
use crate::status::Attempt;
use crate::wire;

/// Maximum number of waiting messages.
const MESSAGES_QUEUED_MAX: usize = 64;

const WORKER_COUNT: usize = 4;

/// The queue of a pipeline.
#[derive(Debug)]
pub(crate) struct Pipeline {
    sender: mpsc::Sender<Message>,
    allowance: Arc<Allowance>,
}

impl Pipeline {
    /// Creates a pipeline and its workers, which run while they are polled.
    pub(crate) fn new(
        local: &Arc<Local>,
        contact: &Arc<Contact>,
    ) -> (Self, Vec<impl Future<Output = ()> + Send + use<>>) {
        let (sender, receiver) = mpsc::channel(MESSAGES_QUEUED_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        let workers = (0..WORKER_COUNT).map(|_| {
            let worker = Worker {
                local: Arc::clone(local),
                contact: Arc::clone(contact),
                receiver: Arc::clone(&receiver),
                channel: None,
            };
            worker.run()
        });
        (Self { sender, allowance: Arc::clone(&contact.allowance) }, workers.collect())
    }

    /// Adds a message, if there is space.
    pub(crate) fn push(&self, message: Message) -> bool {
        if !self.allowance.reserve(&message) {
            return false;
        }
        match self.sender.try_send(message) {
            Ok(()) => true,
            Err(error) => {
                self.allowance.release(&error.into_inner());
                false
            }
        }
    }
}

struct Worker {
    local: Arc<Local>,
    contact: Arc<Contact>,
    receiver: Arc<Mutex<mpsc::Receiver<Message>>>,
    channel: Option<Channel<Full<Bytes>>>,
}

impl Worker {
    async fn run(mut self) {
        loop {
            // The worker that holds the lock waits for a message; the other workers wait for the lock.
            let next = self.receiver.lock().await.recv().await;
            let Some(message) = next else { return };
            self.contact.allowance.release(&message);
            self.send(message).await;
        }
    }

    async fn send(&mut self, message: Message) {
        let mut body = BytesMut::with_capacity(wire::message_len(&message));
        wire::put_message(&message, &mut body);
        let body = body.freeze();
        let bytes = body.len();
        // A proposal is sent on a new connection, because a message on a reused connection may be sent twice, and a
        // proposal would then be applied twice.
        if message.kind == MessageKind::Propose {
            self.channel = None;
        }
        drop(message);
        let url = self.contact.urls.pick();
        let timeout = self.local.read_timeout
            + self.local.write_timeout
            + Duration::from_secs(bytes as u64 / BYTES_PER_SECOND_MIN);
        let posted = tokio::time::timeout(timeout, self.post(&url, body)).await;
        let network = &self.local.metrics.network;
        match posted.unwrap_or(Err(PostError::Timeout)) {
            Ok(()) => {
                self.contact.status.activate();
                network.peer_sent_bytes.with(&[&self.contact.name]).add(bytes as u64);
            }
            Err(error) => {
                self.channel = None;
                self.contact.urls.failed(&url);
                let attempt = Attempt { source: "pipeline", action: "write" };
                self.contact.status.deactivate(attempt, &error);
                self.local.consensus.report_unreachable(self.contact.id);
                network.peer_sent_failures.with(&[&self.contact.name]).inc();
            }
        }
    }

    async fn post(&mut self, url: &str, body: Bytes) -> Result<(), PostError> {
        if let Some(mut channel) = self.channel.take_if(|channel| channel.is_open_to(url)) {
            match self.exchange(&mut channel, body.clone()).await {
                // The peer closed the idle connection just as it was reused, so the message is sent again on a new
                // connection.
                Err(PostError::Http(_)) => {}
                done => {
                    self.channel = Some(channel);
                    return done;
                }
            }
        }
        let mut channel = Channel::open(&self.local, url, self.local.write_timeout).await?;
        let done = self.exchange(&mut channel, body).await;
        self.channel = Some(channel);
        done
    }

    async fn exchange(
        &self,
        channel: &mut Channel<Full<Bytes>>,
        body: Bytes,
    ) -> Result<(), PostError> {
        let request = Request::post("/raft").header(header::CONTENT_TYPE, "application/protobuf");
        let request = self.local.introduce(request).body(Full::new(body));
        let request = request.expect("our own headers are valid");
        let (head, body) = channel.send(request).await?.into_parts();
        let text = dial::read_answer(body).await?;
        match head.status {
            StatusCode::NO_CONTENT => Ok(()),
            status => Err(dial::refusal(&self.local, &self.contact, status, &head.headers, &text)),
        }
    }
}
