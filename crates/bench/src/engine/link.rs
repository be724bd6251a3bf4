//! A connection and its socket.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::net::TcpStream;

use super::Part;
use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::wire::connection::{Connection, Event, Replies};

/// What one read takes at most.
const READ_BYTES: usize = 256 << 10;
/// A server that says nothing for so long, while something is awaited, is given up.
const STALL: Duration = Duration::from_secs(60);

/// A connection joined to its socket.
pub(crate) struct Link<T> {
    socket: TcpStream,
    pub(crate) wire: Connection<T>,
    input: Vec<u8>,
    filled: usize,
}

impl<T> Link<T> {
    /// Takes over a part's socket. Must be called on the runtime that will drive it.
    pub(crate) fn new(part: Part) -> Result<Self, BenchError> {
        Self::over(part.socket, &part.endpoint)
    }

    fn over(socket: std::net::TcpStream, endpoint: &Endpoint) -> Result<Self, BenchError> {
        Ok(Self {
            socket: TcpStream::from_std(socket)?,
            wire: Connection::new(endpoint.authority().to_owned()),
            input: vec![0; READ_BYTES],
            filled: 0,
        })
    }

    /// Writes what is to be written, waits for the socket or for `until`, and hands on what came. Returns
    /// after one round, whether or not anything came.
    pub(crate) async fn turn(
        &mut self,
        until: Option<Instant>,
        each: &mut impl FnMut(Event<'_, T>),
    ) -> Result<(), BenchError> {
        self.flush()?;
        let interest = if self.wire.output().is_empty() {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        match until {
            None => {
                let ready = tokio::time::timeout(STALL, self.socket.ready(interest)).await;
                ready.map_err(|_| BenchError::Stalled(STALL.as_secs()))??;
            }
            Some(until) => {
                let until = tokio::time::Instant::from_std(until);
                if let Ok(ready) = tokio::time::timeout_at(until, self.socket.ready(interest)).await
                {
                    ready?;
                }
            }
        }
        self.read(each)
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        while !self.wire.output().is_empty() {
            match self.socket.try_write(self.wire.output()) {
                Ok(count) => self.wire.wrote(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read(&mut self, each: &mut impl FnMut(Event<'_, T>)) -> Result<(), BenchError> {
        match self.socket.try_read(&mut self.input[self.filled..]) {
            Ok(0) => return Err(BenchError::Closed),
            Ok(count) => self.filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let used = self.wire.receive(&self.input[..self.filled], each)?;
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(())
    }
}

/// Runs `work` on a single-threaded runtime of its own, where it may spawn local tasks.
pub(crate) fn on_runtime<R>(
    work: impl Future<Output = Result<R, BenchError>>,
) -> Result<R, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

/// Makes one call on a connection of its own and returns the reply.
pub(crate) fn call<Reply: prost::Message + Default>(
    endpoint: &Endpoint,
    path: &'static str,
    request: &impl prost::Message,
) -> Result<Reply, BenchError> {
    let mut replies = calls(endpoint, path, std::slice::from_ref(request))?;
    Ok(replies.pop().expect("one request has one reply"))
}

/// Makes calls side by side on one connection and returns the replies in the order of the requests.
pub(crate) fn calls<Reply: prost::Message + Default>(
    endpoint: &Endpoint,
    path: &'static str,
    requests: &[impl prost::Message],
) -> Result<Vec<Reply>, BenchError> {
    let socket = endpoint.connect()?;
    on_runtime(async move {
        let mut link = Link::over(socket, endpoint)?;
        let mut replies: Vec<Vec<u8>> = vec![Vec::new(); requests.len()];
        let (mut sent, mut ended, mut refused) = (0, 0, None);
        while ended < requests.len() {
            while sent < requests.len() && link.wire.has_room() {
                link.wire.unary(path, &requests[sent].encode_to_vec(), Replies::Collect, sent);
                sent += 1;
            }
            let mut each = |event: Event<'_, usize>| match event {
                Event::Message { tag, body } => replies[*tag] = body.to_vec(),
                Event::Closed { status, .. } => {
                    ended += 1;
                    if status.code != 0 {
                        refused = Some(status);
                    }
                }
            };
            link.turn(None, &mut each).await?;
        }
        if let Some(status) = refused {
            let (code, message) = (status.code, status.message);
            return Err(BenchError::Refused { call: path, code, message });
        }
        let decode =
            |reply: &Vec<u8>| Reply::decode(&**reply).map_err(|e| BenchError::Answer(path, e));
        replies.iter().map(decode).collect()
    })
}
