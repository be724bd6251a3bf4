//! Tests of responses that share a connection in turns.

use super::*;

/// The connection window of a client that never delays a response.
const LARGE_WINDOW: u32 = 1 << 24;

/// A client that receives three large responses.
struct Receiver {
    client: DuplexStream,
    /// The number of bytes received on each stream.
    received: [usize; 8],
    /// Whether the client returns each frame to the connection's window.
    returns_window: bool,
}

impl Receiver {
    /// Requests the responses, and receives a quarter of one.
    async fn start(connection_window: u32) -> Self {
        let mut client = serve(&Echo::default(), SETTINGS);
        let stream_window = [&setting::INITIAL_WINDOW_SIZE.to_be_bytes()[..], &[1, 0, 0, 0]];
        client.write_all(PREFACE).await.unwrap();
        let settings = frame(kind::SETTINGS, 0, 0, &stream_window.concat());
        client.write_all(&settings).await.unwrap();
        let returns_window = connection_window == WINDOW_DEFAULT;
        if !returns_window {
            client.write_all(&room(0, connection_window - WINDOW_DEFAULT)).await.unwrap();
        }
        for stream in [1, 3, 5] {
            client.write_all(&request(stream, "/limited")).await.unwrap();
        }
        let mut receiver = Self { client, received: [0; 8], returns_window };
        while receiver.total() < LIMITED_BYTES / 4 {
            receiver.receive().await;
        }
        receiver
    }

    /// Receives a part of a response. Returns its stream.
    async fn receive(&mut self) -> u32 {
        let (header, payload) = read_until(&mut self.client, kind::DATA).await;
        self.received[header.stream as usize] += payload.len();
        if self.returns_window && !payload.is_empty() {
            let bytes = u32::try_from(payload.len()).unwrap();
            self.client.write_all(&room(0, bytes)).await.unwrap();
        }
        header.stream
    }

    fn total(&self) -> usize {
        self.received.iter().sum()
    }
}

#[tokio::test]
async fn large_responses_progress_at_the_same_pace() {
    for connection_window in [LARGE_WINDOW, WINDOW_DEFAULT] {
        let mut receiver = Receiver::start(connection_window).await;
        while receiver.received.iter().all(|bytes| *bytes < LIMITED_BYTES) {
            receiver.receive().await;
        }
        for stream in [1, 3, 5] {
            let received = receiver.received;
            assert!(received[stream] >= LIMITED_BYTES - 4 * slots::TURN_BYTES, "{received:?}");
        }
    }
}

#[tokio::test]
async fn large_responses_do_not_delay_a_small_one_for_long() {
    for connection_window in [LARGE_WINDOW, WINDOW_DEFAULT] {
        let mut receiver = Receiver::start(connection_window).await;
        let before = receiver.total();
        let call = [request(7, "/whole"), frame(kind::DATA, flag::END_STREAM, 7, b"x")].concat();
        receiver.client.write_all(&call).await.unwrap();
        while receiver.receive().await != 7 {}
        // The output and the pipe may have been full when the request arrived.
        let delayed_by = receiver.total() - before;
        assert!(delayed_by < 2 * OUTPUT_BYTES_MAX, "{delayed_by} bytes precede the response");
    }
}

/// Receives a response while the client opens the stream's window only when it has been used up.
async fn receive_in_large_steps(client: &mut DuplexStream, stream: u32) {
    client.write_all(&request(stream, "/limited")).await.unwrap();
    let (mut received, mut window) = (0, WINDOW_DEFAULT as usize);
    while received < LIMITED_BYTES {
        if window == 0 {
            client.write_all(&room(stream, 1 << 19)).await.unwrap();
            window = 1 << 19;
        }
        let (header, payload) = read_until(client, kind::DATA).await;
        assert_eq!(header.stream, stream);
        (received, window) = (received + payload.len(), window - payload.len());
    }
}

#[tokio::test]
async fn a_response_that_has_waited_for_its_window_continues_after_each_turn() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    client.write_all(&room(0, LARGE_WINDOW)).await.unwrap();
    // The second response uses the slot of the first one.
    for stream in [1, 3] {
        receive_in_large_steps(&mut client, stream).await;
    }
}
