//! Scarce resources: disk space, file descriptors, and the time that clients and a stopping member may take.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Kind, Options, RawHttp2, Server, SmallDisk, Watch, call_head, delete, eventually, get,
    on_both_servers, on_quorate, prefix, put, watch_prefix, within,
};

on_both_servers! {
    alone:
    a_file_descriptor_limit_that_is_too_low_prevents_the_start,
    the_soft_limit_on_file_descriptors_is_raised_to_the_hard_limit,
    no_stream_limit_is_announced_unless_one_is_configured,
}

on_quorate! {
    alone:
    a_member_starts_on_a_disk_without_space_for_a_segment,
    a_member_on_a_nearly_full_disk_starts_and_frees_space,
    a_member_with_few_file_descriptors_serves_and_logs_a_warning,
    probes_are_answered_while_all_client_connections_are_in_use,
    a_locked_directory_is_reported_at_once,
    a_failed_start_logs_its_cause_once,
    connections_from_one_address_are_limited,
    open_streams_end_at_once_when_the_member_stops,
    a_busy_keepalive_stream_ends_at_once_when_the_member_stops,
    a_client_can_leave_thousands_of_small_responses_unread,
    an_active_range_stream_ends_when_the_member_stops,
    a_member_that_waits_for_a_quorum_stops_on_a_signal,
}

/// Overwrites a key, so that most of the written space can be freed.
async fn write_history(client: &Client, count: usize, size: usize) {
    let value = vec![b'v'; size];
    for number in 0..count {
        client.put(put(format!("k{}", number % 10), &value)).await.unwrap();
    }
}

/// Deletes, compacts and defragments, as an operator with a full disk does.
async fn free_space(client: &Client) {
    client.delete_range(delete("k", "l")).await.unwrap();
    let revision = client.revision().await;
    client.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    client.defragment(pb::DefragmentRequest {}).await.unwrap();
}

async fn a_member_starts_on_a_disk_without_space_for_a_segment(kind: Kind) {
    for megabytes in [40, 10, 1] {
        let Some(disk) = SmallDisk::new(megabytes) else { return };
        let mut server = disk.prepare(Options::new(kind)).start().await;
        assert!(server.log().contains("no disk space to preallocate"), "{megabytes} MB");
        write_history(&server.client(), 20, 5_000).await;
        free_space(&server.client()).await;
        server.kill();
        server.start_again().await;
        assert_eq!(server.client().read("k1").await, None);
        server.client().write("after", "v").await;
    }
}

async fn a_member_on_a_nearly_full_disk_starts_and_frees_space(kind: Kind) {
    for megabytes in [40, 10, 1, 0] {
        let Some(disk) = SmallDisk::new(300) else { return };
        let mut server = disk.prepare(Options::new(kind)).start().await;
        write_history(&server.client(), 200, 50_000).await;
        // The clean stop ensures that no segment was preallocated before the disk became full.
        server.stop().await;
        disk.fill_but(megabytes);
        server.start_again().await;
        let client = server.client();
        free_space(&client).await;
        client.write("after", "v").await;
        eventually("the backend file is smaller", async || {
            let status = client.status(pb::StatusRequest {}).await.ok()?;
            (status.db_size < 2_000_000).then_some(())
        })
        .await;
        server.kill();
        server.start_again().await;
        assert!(server.client().read("after").await.is_some(), "{megabytes} MB");
    }
}

async fn connections_from_one_address_are_limited(kind: Kind) {
    // This port is reserved for a server that never starts.
    let metrics = Options::new(kind).prepare();
    let server = Options::new(kind)
        .unguarded()
        .flag("--max-connections-per-address=5")
        .flag(format!("--listen-metrics-urls=http://127.0.0.1:{}", metrics.port()))
        .start()
        .await;
    let connect = || {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let is_answered = stream.read(&mut [0; 256]).is_ok_and(|count| count > 0);
        (stream, is_answered)
    };
    let mut held: Vec<(TcpStream, bool)> = (0..5).map(|_| connect()).collect();
    assert!(held.iter().all(|(_, is_answered)| *is_answered));
    for _ in 0..3 {
        assert!(!connect().1, "a connection beyond the limit was answered");
    }
    assert_eq!(get(metrics.port(), "/livez").status, 200, "the limit is for client listeners");
    held.pop();
    eventually("a connection is accepted after another has closed", async || {
        connect().1.then_some(())
    })
    .await;
    let line = "an address has reached its connection limit";
    eventually("a log line about the limit", async || server.log().contains(line).then_some(()))
        .await;
    assert_eq!(server.log().matches(line).count(), 1, "{}", server.log());
    // The request uses an existing connection, because a new connection might exceed the limit.
    let (stream, _) = &mut held[0];
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let series = "\nquorate_connections_over_address_limit_total ";
    let refused = metrics.split_once(series).and_then(|(_, rest)| rest.lines().next());
    let refused: f64 = refused.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap();
    assert!(refused >= 3.0, "{refused}");
}

/// Returns the options of a server with this limit on open files.
fn limited(kind: Kind, limit: &str) -> Options {
    let script = format!("{limit}; exec \"$@\"");
    Options::new(kind).wrapper(&["bash", "-c", &script, "limited"])
}

async fn a_file_descriptor_limit_that_is_too_low_prevents_the_start(kind: Kind) {
    for limit in ["ulimit -n 60", "ulimit -n 150"] {
        let exit = limited(kind, limit).try_start().await.unwrap_err();
        assert_eq!(exit.status.and_then(|status| status.code()), Some(1), "{exit}");
        let text = "file descriptor limit of etcd process is too low; please set higher";
        assert!(exit.log.contains(text), "{exit}");
        let number = limit.rsplit(' ').next().unwrap();
        assert!(exit.log.contains(&format!("\"limit\":{number}")), "{exit}");
    }
}

async fn the_soft_limit_on_file_descriptors_is_raised_to_the_hard_limit(kind: Kind) {
    let server = limited(kind, "ulimit -Sn 100; ulimit -Hn 3000").start().await;
    server.client().write("k", "v").await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    // etcd built with a newer release of Go sets the soft limit to one below the hard limit.
    assert!((2999..=3000).contains(&soft), "{line}");
}

async fn a_member_with_few_file_descriptors_serves_and_logs_a_warning(kind: Kind) {
    let server = limited(kind, "ulimit -n 200").start().await;
    server.wait_for_log("the file descriptor limit is low").await;
    // Connections beyond the limit wait, and are served when other connections close.
    let mut held: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(("127.0.0.1", server.port())).unwrap()).collect();
    eventually("a warning", async || {
        server.log().contains("the connection limit is reached").then_some(())
    })
    .await;
    held.clear();
    within("an answer", server.client().write("k", "v")).await;
}

async fn probes_are_answered_while_all_client_connections_are_in_use(kind: Kind) {
    // This port is reserved for a server that never starts.
    let metrics = Options::new(kind).prepare();
    let url = format!("--listen-metrics-urls=http://127.0.0.1:{}", metrics.port());
    let server = limited(kind, "ulimit -n 200").unguarded().flag(url).start().await;
    let held: Vec<RawHttp2> = (0..100)
        .map(|_| {
            let mut connection = RawHttp2::connect(server.port());
            // A connection with a call in progress is not closed to make room for another one.
            connection.open(&call_head("/etcdserverpb.Watch/Watch"));
            connection
        })
        .collect();
    eventually("all client connections are in use", async || {
        server.log().contains("the connection limit is reached").then_some(())
    })
    .await;
    assert_eq!(get(metrics.port(), "/livez").status, 200);
    let text = get(metrics.port(), "/metrics").text();
    assert!(text.contains("\nquorate_metrics_connections 1\n"), "{text}");
    drop(held);
}

async fn a_locked_directory_is_reported_at_once(kind: Kind) {
    let mut holder = Server::start(kind).await;
    let mut waiting = Options::new(kind).data(holder.data()).prepare();
    waiting.launch();
    eventually("a log line about the directory", async || {
        waiting.log().contains("another process is using this data directory").then_some(())
    })
    .await;
    assert!(!waiting.log().contains("taking too long"), "this line is logged only after 10 s");
    holder.stop().await;
    eventually("the second server starts", async || {
        waiting.log().contains("ready to serve client requests").then_some(())
    })
    .await;
}

async fn a_failed_start_logs_its_cause_once(kind: Kind) {
    let other = Server::start(kind).await;
    let taken = format!("--listen-metrics-urls=http://127.0.0.1:{}", other.port());
    let no_key = "--auth-token=jwt,sign-method=HS256,priv-key=/nonexistent/key".to_owned();
    for (flag, cause) in [(taken, "address already in use"), (no_key, "no such file or directory")]
    {
        let mut server = Options::new(kind).flag(flag).prepare();
        let exit = server.try_start_again().await.unwrap_err();
        let fatal = exit.log.lines().find(|line| line.contains("\"level\":\"fatal\""));
        let fatal = fatal.unwrap_or_else(|| panic!("the log has no line of level fatal: {exit}"));
        assert!(fatal.contains("\"msg\":\"failed to start etcd\""), "{fatal}");
        assert_eq!(fatal.to_lowercase().matches(cause).count(), 1, "{fatal}");
    }
}

/// Returns the limit on concurrent streams in the server's first frame.
fn announced_streams(server: &Server) -> Option<u32> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "the first frame of the server is SETTINGS");
    let mut payload = vec![0; usize::from(head[2])];
    stream.read_exact(&mut payload).unwrap();
    let limit = payload.chunks(6).find_map(|setting| setting.strip_prefix(&[0, 3]))?;
    Some(u32::from_be_bytes(limit.try_into().unwrap()))
}

async fn no_stream_limit_is_announced_unless_one_is_configured(kind: Kind) {
    let server = Server::start(kind).await;
    assert_eq!(announced_streams(&server), None);
    let server = Options::new(kind).flag("--max-concurrent-streams=7").start().await;
    assert_eq!(announced_streams(&server), Some(7));
}

async fn open_streams_end_at_once_when_the_member_stops(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.create(watch_prefix("k")).await;
    let status = server.stop().await;
    assert_eq!(status.signal(), Some(15), "{status}");
    let ended = watch.try_next().await.unwrap_err();
    // etcd clients reopen the stream after this code.
    assert_eq!(ended.code(), tonic::Code::Unavailable, "{ended}");
    assert_eq!(ended.message(), "etcdserver: server stopped");
    assert!(
        !server.log().contains("closing connections with unfinished requests"),
        "{}",
        server.log()
    );
}

/// From version 0.4.16 on, h2 closes a connection on which many small DATA frames wait for the application.
async fn a_client_can_leave_thousands_of_small_responses_unread(kind: Kind) {
    const RESPONSES: u32 = 30_000;
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    let requests = tokio_stream::iter(std::iter::repeat(pb::LeaseKeepAliveRequest { id: 5 }));
    let answers = client.lease().lease_keep_alive(client.signed(requests)).await.unwrap();
    let mut answers = answers.into_inner();
    eventually("the renewals are counted", async || {
        let renewed = server.metric("etcd_debugging_lease_renewed_total")?;
        (renewed >= f64::from(RESPONSES)).then_some(())
    })
    .await;
    for _ in 0..RESPONSES {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!((answer.id, answer.ttl), (5, 60));
    }
}

async fn a_busy_keepalive_stream_ends_at_once_when_the_member_stops(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    // The requests of this stream never end, so the server always has a response to send.
    let requests = tokio_stream::iter(std::iter::repeat(pb::LeaseKeepAliveRequest { id: 5 }));
    let answers = client.lease().lease_keep_alive(client.signed(requests)).await.unwrap();
    let mut answers = answers.into_inner();
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!((first.id, first.ttl), (5, 60));
    let reader = tokio::spawn(async move {
        loop {
            if let Err(status) = answers.message().await {
                return status;
            }
        }
    });
    server.stop().await;
    let ended = within("the end of the stream", reader).await.unwrap();
    assert_eq!(
        (ended.code(), ended.message()),
        (tonic::Code::Unavailable, "etcdserver: server stopped")
    );
    assert!(
        !server.log().contains("closing connections with unfinished requests"),
        "{}",
        server.log()
    );
}

async fn an_active_range_stream_ends_when_the_member_stops(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    // The values are far larger than the bytes that a connection can have in transit.
    for number in 0..40 {
        client.write(format!("k{number}"), vec![0; 1 << 20]).await;
    }
    let mut stream =
        client.kv().range_stream(client.signed(prefix("k"))).await.unwrap().into_inner();
    stream.message().await.unwrap().expect("the stream contains a first chunk");
    server.signal("TERM");
    eventually("the stop begins", async || {
        server.log().contains("closing etcd server").then_some(())
    })
    .await;
    // The status that ends the stream may be lost when the connection closes, because the status may still be in
    // flight.
    while let Ok(message) = stream.message().await {
        assert!(message.is_some(), "the stream ended without an error");
    }
    server.stop().await;
    assert!(
        !server.log().contains("closing connections with unfinished requests"),
        "{}",
        server.log()
    );
}

async fn a_member_that_waits_for_a_quorum_stops_on_a_signal(kind: Kind) {
    let mut server = Options::new(kind).prepare();
    let cluster = format!("default={},other=http://127.0.0.1:2", server.peer_url());
    server.set_cluster(cluster, false);
    server.launch();
    eventually("the member starts an election", async || {
        server.log().contains("is starting a new election").then_some(())
    })
    .await;
    let status = server.stop().await;
    assert_eq!(status.signal(), Some(15), "{status}");
    let log = server.log();
    assert!(log.contains("received signal; shutting down"), "{log}");
    assert!(log.contains("closed etcd server"), "{log}");
}
