//! Brute-force attacks: a client that guesses tokens and passwords does not delay other clients and uses bounded
//! resources. The log reports the guesses occasionally, without the guessed values.

use quorate_tests::{Client, Kind, Server, key, on_quorate, put};
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::auth::{BAD, WRONG, guard, log_in, options};

on_quorate! {
    alone:
    invented_tokens_do_not_delay_other_clients,
    wrong_passwords_do_not_delay_other_clients,
}

/// Number of the attacker's concurrent calls.
const GUESSES: usize = 3000;
const CONNECTIONS: usize = 30;
const MIB: u64 = 1 << 20;

/// Returns a metric of the member.
fn figure(server: &Server, name: &str) -> u64 {
    let page = server.get("/metrics").text();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value: f64 = line.unwrap().parse().unwrap();
    // A floating-point number represents byte counts and other counts of this size exactly.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the values are small"
    )]
    let value = value as u64;
    value
}

fn lines_with(server: &Server, text: &str) -> usize {
    server.log().lines().filter(|line| line.contains(text)).count()
}

/// Checks that ann's requests are not delayed.
async fn work(ann: &Client) {
    ann.put(put("a1", "v")).await.unwrap();
    ann.range(key("a1")).await.unwrap();
}

async fn invented_tokens_do_not_delay_other_clients(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    guard(&client).await;
    let ann = log_in(&client, "ann").await;
    work(&ann).await;
    let before = figure(&server, "process_resident_memory_bytes");
    let connections: Vec<Client> = (0..CONNECTIONS).map(|_| server.client()).collect();
    let mut guesses = JoinSet::new();
    for number in 0..GUESSES {
        // The token looks as if another member had issued it much later.
        let token = format!("GuessedLetters{number}.{}", 1_000_000_000 + number);
        let guess = connections[number % CONNECTIONS].with_token(&token);
        guesses.spawn(async move { guess.range(key("a1")).await.unwrap_err() });
    }
    let mut refused = 0;
    while let Some(status) = guesses.join_next().await {
        let status: Status = status.unwrap();
        assert_eq!((status.code(), status.message()), (Code::Unauthenticated, BAD));
        refused += 1;
        if refused % 200 == 0 {
            work(&ann).await;
            let waiting = figure(&server, "quorate_reads_waiting");
            assert!(waiting < 200, "{waiting} reads are waiting");
        }
    }
    assert_eq!(refused, GUESSES);
    work(&ann).await;
    let after = figure(&server, "process_resident_memory_bytes");
    assert!(after < before + 256 * MIB, "memory grew from {before} to {after} bytes");
    let logged = lines_with(&server, "\"invalid auth token\"");
    assert!(
        (1..GUESSES / 100).contains(&logged),
        "{logged} of {GUESSES} refused tokens were logged"
    );
    assert_eq!(lines_with(&server, "GuessedLetters"), 0);
}

async fn wrong_passwords_do_not_delay_other_clients(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    guard(&client).await;
    let ann = log_in(&client, "ann").await;
    let before = figure(&server, "process_resident_memory_bytes");
    let connections: Vec<Client> = (0..CONNECTIONS).map(|_| server.client()).collect();
    let mut guesses = JoinSet::new();
    for number in 0..GUESSES {
        let name = ["ann", "root", "MySecretInTheWrongField", "eve"][number % 4];
        let guess = connections[number % CONNECTIONS].clone();
        guesses.spawn(async move {
            let refused = guess.log_in(name, &format!("GuessedWord{number}")).await;
            refused.unwrap_err()
        });
    }
    let mut wrong = 0;
    while let Some(status) = guesses.join_next().await {
        let status = status.unwrap();
        match status.message() {
            WRONG => wrong += 1,
            // The number of waiting logins is limited.
            "etcdserver: too many requests" => {}
            _ => panic!("{status}"),
        }
        if wrong % 50 == 0 {
            work(&ann).await;
        }
    }
    assert!(wrong > 0);
    let after = figure(&server, "process_resident_memory_bytes");
    assert!(after < before + 256 * MIB, "memory grew from {before} to {after} bytes");
    let logged = lines_with(&server, "refused a login");
    let with_address = lines_with(&server, "\"remote-addr\":\"127.0.0.1\"");
    assert!(with_address >= logged, "{with_address} of {logged} lines name the client's address");
    assert!(
        (1..=wrong.min(100)).contains(&logged),
        "{logged} of {wrong} refused logins were logged"
    );
    assert_eq!(lines_with(&server, "GuessedWord") + lines_with(&server, "MySecret"), 0);
    log_in(&client, "ann").await;
}
