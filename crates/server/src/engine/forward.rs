//! The sending side of the connection between servers: requests to the sequencer, over its peer port.
//!
//! A server has one connection to the current sequencer. All waiting requests are written together, and responses
//! arrive in any order. The receiver executes each request as the user that the request names, so it admits only
//! senders that know its secret (`frames`).
//!
//! # Invariants
//!
//! * A frame is never sent twice, because the sequencer would execute the frame's write twice. If a connection fails
//!   after the frame may have been sent, the outcome is unknown.
//! * A stopping server reports how many frames it has accepted, so that the other frames can be sent to its successor.
//!
//! # Bounds
//!
//! At most [`WAITING_BYTES_MAX`] bytes of frames wait for a response. Further frames are refused, and their clients
//! receive "too many requests".

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use quorate_engine::{BoxFuture, Destination, Forward, ForwardError};
use quorate_peer::Dialer;
use quorate_peer::upgrade::{UpgradeError, upgrade};
use quorate_telemetry::log;
use quorate_telemetry::throttle::LogThrottle;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Notify, mpsc, oneshot};

use super::frames::{FRAME_BYTES_MAX, Opener, Sealer, introduce};

/// The path at which a server accepts the connection.
pub(super) const PATH: &str = "/quorate/engine";

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "quorate-engine-1";

/// Number of the frame with which a server reports that it accepts no more frames. The payload is the number of the
/// first frame that the server did not accept.
pub(super) const GOODBYE: u64 = u64::MAX;

/// Maximum number of bytes of frames that wait for the sequencer's responses.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Maximum number of frames that are queued for the connection.
const QUEUE_MAX: usize = 1_024;

/// Maximum time for establishing a connection, including the proof of the secret.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);

/// Maximum time for which sent data may stay unacknowledged before the connection is closed.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Sends frames to other servers.
pub(super) struct PeerForward {
    dialer: Dialer,
    failures: LogThrottle,
    waiting_bytes: Arc<AtomicUsize>,
    /// The connection to the current sequencer.
    link: tokio::sync::Mutex<Option<Link>>,
}

/// A connection to another server.
struct Link {
    to: Destination,
    jobs: mpsc::Sender<Job>,
}

/// A frame that is queued for the connection.
struct Job {
    frame: Bytes,
    waiting: Waiting,
}

/// The sender of a frame, which waits for the response.
struct Waiting {
    answer: oneshot::Sender<Result<Bytes, ForwardError>>,
    _held: Held,
}

/// Bytes that count as waiting until this value is dropped.
struct Held {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    fn new(total: &Arc<AtomicUsize>, bytes: usize) -> Option<Self> {
        let before = total.fetch_add(bytes, Ordering::Relaxed);
        let held = Self { total: Arc::clone(total), bytes };
        (before.saturating_add(bytes) <= WAITING_BYTES_MAX).then_some(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Waiting {
    fn finish(self, answer: Result<Bytes, ForwardError>) {
        // The sender may have stopped waiting.
        let (Ok(()) | Err(_)) = self.answer.send(answer);
    }
}

/// The reason why a connection could not be established.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
    #[error("{0}")]
    Proof(#[from] io::Error),
    #[error("the server did not answer in time")]
    Timeout,
}

impl PeerForward {
    pub(super) fn new(dialer: Dialer) -> Self {
        Self {
            dialer,
            failures: LogThrottle::default(),
            waiting_bytes: Arc::default(),
            link: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the number of bytes of frames that wait for responses.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    async fn send(&self, to: &Destination, frame: Bytes) -> Result<Bytes, ForwardError> {
        let held = Held::new(&self.waiting_bytes, frame.len()).ok_or(ForwardError::TooMany)?;
        let jobs = match self.link_to(to).await {
            Ok(jobs) => jobs,
            Err(error) => {
                self.log_failure(&to.address, &error);
                return Err(ForwardError::NotSent);
            }
        };
        let (answer, answered) = oneshot::channel();
        let job = Job { frame, waiting: Waiting { answer, _held: held } };
        jobs.send(job).await.map_err(|_| ForwardError::NotSent)?;
        answered.await.unwrap_or(Err(ForwardError::Lost))
    }

    /// Returns the queue of the connection to a server. If there is no connection, all senders wait until one of them
    /// has established it.
    async fn link_to(&self, to: &Destination) -> Result<mpsc::Sender<Job>, ConnectError> {
        let mut link = self.link.lock().await;
        if let Some(known) = &*link
            && known.to == *to
            && !known.jobs.is_closed()
        {
            return Ok(known.jobs.clone());
        }
        // The former connection ends when its last response has arrived.
        *link = None;
        let connecting = tokio::time::timeout(CONNECT_TIME_MAX, self.connect(to));
        let jobs = connecting.await.map_err(|_| ConnectError::Timeout)??;
        *link = Some(Link { to: to.clone(), jobs: jobs.clone() });
        Ok(jobs)
    }

    async fn connect(&self, to: &Destination) -> Result<mpsc::Sender<Job>, ConnectError> {
        let (base, limits) = (to.address.as_str(), (CONNECT_TIME_MAX, SILENCE_MAX));
        let mut stream = upgrade((base, PATH), PROTOCOL, &self.dialer, limits).await?;
        let keys = introduce(&mut stream, &to.secret).await?;
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let (reading, writing) = tokio::io::split(stream);
        let answers = Opener::new(BufReader::new(reading), keys.to_sender);
        tokio::spawn(run(answers, (writing, Sealer::new(keys.to_receiver)), queue));
        Ok(jobs)
    }

    fn log_failure(&self, address: &str, error: &ConnectError) {
        if let Some(left_out) = self.failures.admits() {
            log::warn!(
                "failed to connect to the sequencer",
                "url" = address,
                "error" = error.to_string(),
                "left-out" = left_out
            );
        }
    }
}

impl Forward for PeerForward {
    fn forward<'a>(
        &'a self,
        to: &'a Destination,
        frame: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, ForwardError>> {
        Box::pin(self.send(to, frame))
    }
}

/// The sent frames without a response, by frame number.
#[derive(Default)]
struct Sent {
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    /// Notified when the receiver accepts no more frames.
    goodbye: Notify,
}

/// Runs a connection until it ends.
async fn run<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    answers: Opener<R>,
    frames: (W, Sealer),
    mut queue: mpsc::Receiver<Job>,
) {
    let sent = Sent::default();
    let ended = tokio::select! {
        ended = read_answers(answers, &sent) => ended,
        ended = write_frames(frames, &mut queue, &sent) => ended,
    };
    if let Err(error) = ended {
        log::debug!("the connection to the sequencer has ended", "error" = error.to_string());
    }
    refuse_queued(&mut queue).await;
    // The senders of the remaining frames learn that the connection was lost, because `sent` is dropped.
}

/// Reports to the senders of queued frames that the frames were not sent.
async fn refuse_queued(queue: &mut mpsc::Receiver<Job>) {
    queue.close();
    while let Some(job) = queue.recv().await {
        job.waiting.finish(Err(ForwardError::NotSent));
    }
}

/// Reads responses until the connection ends.
async fn read_answers<R: AsyncRead + Unpin>(mut answers: Opener<R>, sent: &Sent) -> io::Result<()> {
    while let Some(head) = answers.head().await? {
        let payload = answers.payload(head).await?;
        if head.number == GOODBYE {
            let first: [u8; 8] = payload[..]
                .try_into()
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "malformed farewell"))?;
            let refused = sent.waiting.lock().split_off(&u64::from_be_bytes(first));
            for waiting in refused.into_values() {
                waiting.finish(Err(ForwardError::NotSent));
            }
            sent.goodbye.notify_one();
            continue;
        }
        let waiting = sent.waiting.lock().remove(&head.number);
        if let Some(waiting) = waiting {
            waiting.finish(Ok(payload));
        }
    }
    Ok(())
}

/// Writes frames until another connection replaces this one or the receiver accepts no more frames. Then waits for the
/// end of the connection.
async fn write_frames<W: AsyncWrite + Unpin>(
    (mut writing, mut sealer): (W, Sealer),
    queue: &mut mpsc::Receiver<Job>,
    sent: &Sent,
) -> io::Result<()> {
    let (mut jobs, mut sealed) = (Vec::new(), BytesMut::new());
    let mut number = 0;
    loop {
        let count = tokio::select! {
            biased;
            () = sent.goodbye.notified() => 0,
            count = queue.recv_many(&mut jobs, QUEUE_MAX) => count,
        };
        if count == 0 {
            break;
        }
        for Job { frame, waiting } in jobs.drain(..) {
            if frame.len() > FRAME_BYTES_MAX {
                waiting.finish(Err(ForwardError::TooMany));
                continue;
            }
            sealer.seal(number, &frame, &mut sealed);
            sent.waiting.lock().insert(number, waiting);
            number += 1;
        }
        writing.write_all_buf(&mut sealed).await?;
        writing.flush().await?;
    }
    refuse_queued(queue).await;
    writing.shutdown().await?;
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac::{HMAC_SHA256, Key};
    use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};

    use super::*;

    fn key() -> Key {
        Key::new(HMAC_SHA256, &[1; 32])
    }

    /// The receiving end of a connection.
    struct Receiver {
        frames: Opener<ReadHalf<DuplexStream>>,
        answers: (WriteHalf<DuplexStream>, Sealer),
    }

    impl Receiver {
        async fn frame(&mut self) -> (u64, Bytes) {
            let head = self.frames.head().await.unwrap().unwrap();
            (head.number, self.frames.payload(head).await.unwrap())
        }

        async fn answer(&mut self, number: u64, payload: &[u8]) {
            let (writing, sealer) = &mut self.answers;
            let mut sealed = BytesMut::new();
            sealer.seal(number, payload, &mut sealed);
            writing.write_all_buf(&mut sealed).await.unwrap();
        }
    }

    fn connected() -> (mpsc::Sender<Job>, Receiver) {
        let (near, far) = duplex(1 << 16);
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let (reading, writing) = split(near);
        tokio::spawn(run(Opener::new(reading, key()), (writing, Sealer::new(key())), queue));
        let (reading, writing) = split(far);
        let frames = Opener::new(reading, key());
        (jobs, Receiver { frames, answers: (writing, Sealer::new(key())) })
    }

    type Answered = oneshot::Receiver<Result<Bytes, ForwardError>>;

    async fn send(jobs: &mpsc::Sender<Job>, frame: &'static str) -> Answered {
        let held = Held::new(&Arc::default(), frame.len()).unwrap();
        let (answer, answered) = oneshot::channel();
        let frame = Bytes::from_static(frame.as_bytes());
        jobs.send(Job { frame, waiting: Waiting { answer, _held: held } }).await.unwrap();
        answered
    }

    #[tokio::test]
    async fn answers_that_arrive_out_of_order_reach_the_right_senders() {
        let (jobs, mut receiver) = connected();
        let (one, two) = (send(&jobs, "one").await, send(&jobs, "two").await);
        assert_eq!(receiver.frame().await, (0, "one".into()));
        assert_eq!(receiver.frame().await, (1, "two".into()));
        receiver.answer(1, b"second").await;
        assert_eq!(two.await.unwrap().unwrap(), "second");
        receiver.answer(0, b"first").await;
        assert_eq!(one.await.unwrap().unwrap(), "first");
    }

    #[tokio::test]
    async fn frames_that_a_stopping_server_has_not_accepted_are_reported_as_not_sent() {
        let (jobs, mut receiver) = connected();
        let (one, two) = (send(&jobs, "one").await, send(&jobs, "two").await);
        receiver.frame().await;
        receiver.answer(GOODBYE, &1_u64.to_be_bytes()).await;
        assert!(matches!(two.await.unwrap(), Err(ForwardError::NotSent)));
        receiver.answer(0, b"first").await;
        assert_eq!(one.await.unwrap().unwrap(), "first");
        jobs.closed().await;
    }

    #[tokio::test]
    async fn frames_without_an_answer_are_reported_as_lost() {
        let (jobs, mut receiver) = connected();
        let one = send(&jobs, "one").await;
        receiver.frame().await;
        drop(receiver);
        assert!(one.await.is_err(), "the sender treats a dropped answer as lost");
        jobs.closed().await;
    }

    #[test]
    fn bytes_that_wait_for_the_sequencer_are_bounded() {
        let total = Arc::default();
        let held = Held::new(&total, WAITING_BYTES_MAX).unwrap();
        assert!(Held::new(&total, 1).is_none());
        drop(held);
        assert!(Held::new(&total, 1).is_some());
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }
}
