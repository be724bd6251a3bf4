//! Servers whose data is in a PostgreSQL database (`--engine`): killed servers, a crash and a failover of the database,
//! crashes of the workers of a Citus database, and lost links to the database.

use std::time::Duration;

use quorate_tests::postgres::Database;
use quorate_tests::{ClusterOptions, Kind, Links, skipped};

use crate::{Ordeal, on_clusters_of_quorate};

/// Number of servers on the database.
const SERVERS: usize = 3;

on_clusters_of_quorate! {
    servers_on_a_database_survive_kills,
    servers_on_a_database_survive_its_crash,
    servers_on_a_database_survive_crashes_of_its_workers,
    servers_on_a_database_survive_lost_links_to_it,
    servers_on_a_database_follow_its_failover_to_a_synchronous_standby,
}

/// Returns the result of starting a database. Without PostgreSQL, reports that the test is skipped.
fn or_skipped<T>(started: Option<T>) -> Option<T> {
    if started.is_none() {
        skipped("tests on a database (PostgreSQL is missing: set POSTGRES_BIN_DIR)");
    }
    started
}

/// Returns the options of servers with these database URLs.
fn servers(kind: Kind, urls: &[String]) -> ClusterOptions {
    let options = ClusterOptions::new(kind, urls.len());
    let numbered = urls.iter().enumerate();
    numbered.fold(options, |options, (number, url)| {
        options.member(number, |server| server.unguarded().on_database(url))
    })
}

async fn servers_on_a_database_survive_kills(kind: Kind) {
    let Some(database) = or_skipped(Database::start()) else { return };
    Ordeal::run(servers(kind, &vec![database.url(); SERVERS]), async |ordeal| {
        for _ in 0..2 {
            let sequencer = ordeal.cluster.leader().await;
            ordeal.cluster.kill(sequencer);
            ordeal.progress().await;
            ordeal.cluster.restart(sequencer).await;
            let other = ordeal.cluster.follower().await;
            ordeal.cluster.kill(other);
            ordeal.progress().await;
            ordeal.cluster.restart(other).await;
        }
    })
    .await;
}

async fn servers_on_a_database_survive_its_crash(kind: Kind) {
    let Some(mut database) = or_skipped(Database::start()) else { return };
    Ordeal::run(servers(kind, &vec![database.url(); SERVERS]), async |ordeal| {
        for _ in 0..3 {
            database.stop();
            ordeal.load.work(Duration::from_secs(1)).await;
            database.start_again();
            ordeal.progress().await;
        }
    })
    .await;
}

/// While a worker of a Citus database is down, requests for its keys fail, so the load cannot progress.
async fn servers_on_a_database_survive_crashes_of_its_workers(kind: Kind) {
    let Some(mut database) = or_skipped(Database::start()) else { return };
    let worker_count = database.worker_count();
    if worker_count == 0 {
        return skipped("tests of the workers of a database (set QUORATE_CITUS_WORKERS)");
    }
    Ordeal::run(servers(kind, &vec![database.url(); SERVERS]), async |ordeal| {
        for round in 0..2 * worker_count {
            let worker = round % worker_count;
            database.stop_worker(worker);
            ordeal.load.work(Duration::from_secs(2)).await;
            database.start_worker_again(worker);
            ordeal.progress().await;
        }
    })
    .await;
}

async fn servers_on_a_database_survive_lost_links_to_it(kind: Kind) {
    let Some(database) = or_skipped(Database::start()) else { return };
    let (links, ports) = Links::in_front_of(database.port(), SERVERS);
    let urls: Vec<String> = ports.iter().map(|port| database.url_through(*port)).collect();
    Ordeal::run(servers(kind, &urls), async |ordeal| {
        let sequencer = ordeal.cluster.leader().await;
        // The link keeps the statements of the sequencer and delivers them after another server has taken over.
        links.isolate(sequencer);
        ordeal.cluster.leader_among(&ordeal.others(sequencer)).await;
        ordeal.progress().await;
        links.heal();
        ordeal.progress().await;
        let other = ordeal.cluster.follower().await;
        links.isolate(other);
        ordeal.progress().await;
        links.heal();
        links.refuse(ordeal.cluster.leader().await);
        ordeal.progress().await;
        links.heal();
    })
    .await;
}

async fn servers_on_a_database_follow_its_failover_to_a_synchronous_standby(kind: Kind) {
    let Some((mut primary, standby)) = or_skipped(Database::start_with_standby()) else { return };
    let url = primary.url_with_standby(&standby);
    Ordeal::run(servers(kind, &vec![url; SERVERS]), async |ordeal| {
        primary.stop();
        standby.promote();
        ordeal.progress().await;
    })
    .await;
}
