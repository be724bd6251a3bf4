//! The way to a peer that has not dialed: one request per message.
//!
//! Some workers per peer, each with a connection that it keeps, so that a slow answer does not hold up what
//! comes behind it; messages may overtake each other. A connection that turns out to have been closed as idle
//! is replaced and the message sent again, except for proposals: there is no telling whether the other end has
//! seen the first one, so they get a new connection and one attempt.
//!
//! # Bound
//!
//! [`MESSAGES_QUEUED_MAX`] messages wait, within the bytes that the peer is allowed in all.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode, header};
use http_body_util::Full;
use quorate_raft::{Message, MessageKind};
use tokio::sync::{Mutex, mpsc};

use crate::contact::Contact;
use crate::dial::{self, Channel, PostError};
use crate::local::Local;
use crate::outgoing::Allowance;
use crate::status::Attempt;
use crate::wire;

/// Messages that may wait.
const MESSAGES_QUEUED_MAX: usize = 64;

const WORKER_COUNT: usize = 4;

/// What the slowest link that is put up with carries in a second.
const BYTES_PER_SECOND_MIN: usize = 1 << 20;

/// The queue of a pipeline.
#[derive(Debug)]
pub(crate) struct Pipeline {
    sender: mpsc::Sender<Message>,
    allowance: Arc<Allowance>,
}

impl Pipeline {
    /// Makes a pipeline and its workers, which run for as long as they are polled.
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

    /// Adds a message, if there is room.
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
            // Whoever holds the lock waits for a message, the others for the lock.
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
        // What is proposed twice is done twice.
        if message.kind == MessageKind::Propose {
            self.channel = None;
        }
        drop(message);
        let url = self.contact.urls.pick();
        let patience = self.local.read_timeout
            + self.local.write_timeout
            + Duration::from_secs((bytes / BYTES_PER_SECOND_MIN) as u64);
        let posted = tokio::time::timeout(patience, self.post(&url, body)).await;
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
                // The other end has closed it as idle, just when it was used again.
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
