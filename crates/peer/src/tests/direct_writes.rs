//! Tests of messages that are written to the connection by the thread that sends them.

use super::*;

#[test]
fn short_messages_are_written_by_the_sending_thread() {
    let (one, two) = pair();
    // The streams of the first member are idle after these messages have arrived.
    one.peers.send(vec![append(1, 2, 0, 100), answer(1, 2, 0)]);
    two.receive(2);
    // A blocked task keeps all tasks of the first member from running until the next messages have arrived.
    let (release, released) = blocking_mpsc::channel::<()>();
    let (blocked, is_blocked) = blocking_mpsc::channel();
    let blocking = one.peers.local.runtime.spawn(async move {
        blocked.send(()).unwrap();
        _ = released.recv();
    });
    is_blocked.recv().unwrap();
    let sent = vec![append(1, 2, 1, 100), append(1, 2, 2, 100)];
    one.peers.send(sent.clone());
    assert_eq!(two.receive(2), sent);
    drop(release);
    block_on(blocking).unwrap();
    // The stream's task then continues where the sending thread stopped writing.
    let sent: Vec<Message> = (3..6).map(|index| append(1, 2, index, 1 << 20)).collect();
    one.peers.send(sent.clone());
    assert!(two.receive(3) == sent);
}

#[test]
fn messages_of_each_concurrent_thread_arrive_once_and_in_order() {
    const COUNT: u64 = 400;
    let (one, two) = pair();
    let received = std::thread::scope(|scope| {
        for thread in 0..3 {
            let peers = &one.peers;
            scope.spawn(move || {
                for number in 0..COUNT {
                    // Most messages are short, and some are left to the task of the stream.
                    let payload = if number % 50 == thread { 40 << 10 } else { 100 };
                    peers.send(vec![append(1, 2, thread << 32 | number, payload)]);
                }
            });
        }
        two.receive(3 * usize::try_from(COUNT).unwrap())
    });
    for thread in 0..3 {
        let of_thread = received.iter().map(|message| message.index.get());
        let of_thread = of_thread.filter(|index| index >> 32 == thread);
        assert!(of_thread.eq((0..COUNT).map(|number| thread << 32 | number)), "thread {thread}");
    }
}
