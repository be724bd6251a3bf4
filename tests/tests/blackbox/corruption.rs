//! A member whose file differs from the other members' files is detected by its own check before it serves, by the
//! leader's periodic check, or by the comparison of compaction hashes. Mixed clusters raise no false alarm, whichever
//! program leads.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Cluster, ClusterOptions, Kind, Options, delete, eventually, on_both_servers, on_quorate, put,
    put_op, refused, txn, write_op,
};
use tonic::Code;

on_both_servers! {
    alone:
    a_corrupt_member_does_not_start,
    a_leader_detects_a_corrupt_member,
    compaction_hashes_identify_the_corrupt_member,
}

on_quorate! {
    alone:
    an_etcd_leader_detects_a_corrupt_quorate_member,
    a_quorate_leader_detects_a_corrupt_etcd_member,
    members_without_corruption_never_raise_an_alarm,
    a_key_deleted_and_put_in_one_entry_survives_a_compaction,
}

const CORRUPT: &str = "etcdserver: corrupt cluster";

/// The value that is changed. Only one key has this value.
pub(crate) const VALUE: &[u8] = b"a value that is nowhere else in the file";

pub(crate) const INITIAL: Check = Check {
    ours: &["--feature-gates=InitialCorruptCheck=true"],
    of_3_5: &["--experimental-initial-corrupt-check=true"],
};
pub(crate) const PERIODIC: Check = Check {
    ours: &["--corrupt-check-time=300ms"],
    of_3_5: &["--experimental-corrupt-check-time=300ms"],
};
const COMPACTIONS: Check = Check {
    ours: &["--feature-gates=CompactHashCheck=true", "--compact-hash-check-time=300ms"],
    of_3_5: &[
        "--experimental-compact-hash-check-enabled=true",
        "--experimental-compact-hash-check-time=300ms",
    ],
};

/// Flags that enable a check.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) ours: &'static [&'static str],
    pub(crate) of_3_5: &'static [&'static str],
}

impl Check {
    const fn flags(self, kind: Kind) -> &'static [&'static str] {
        match kind {
            Kind::Quorate => self.ours,
            Kind::Etcd => self.of_3_5,
        }
    }

    fn add(self, options: Options, kind: Kind) -> Options {
        self.flags(kind).iter().fold(options, |options, flag| options.flag(*flag))
    }
}

async fn start(kinds: [Kind; 3], checks: &[Check]) -> Cluster {
    options(kinds, checks).start().await
}

/// Returns the options of members of these kinds, with frequent checks.
pub(crate) fn options(kinds: [Kind; 3], checks: &[Check]) -> ClusterOptions {
    let mut options = ClusterOptions::new(Kind::Quorate, 3);
    let is_mixed = kinds.contains(&Kind::Etcd) && kinds.contains(&Kind::Quorate);
    for (number, kind) in kinds.into_iter().enumerate() {
        options = options.member(number, |member| {
            let member = member.flag("--snapshot-count=5");
            let member = checks.iter().fold(member.kind(kind), |one, check| check.add(one, kind));
            let is_held = is_mixed && kind == Kind::Quorate;
            if is_held { member.flag("--hold-cluster-version=3.5") } else { member }
        });
    }
    options
}

/// Stops a member once all members have the same data, and changes a value in its file.
pub(crate) async fn corrupt(cluster: &mut Cluster, member: usize) {
    cluster.client(0).put(put("k", VALUE)).await.unwrap();
    cluster.settle().await;
    cluster.stop(member).await;
    change(&cluster.server(member).backend());
}

fn change(backend: &Path) {
    let bytes = std::fs::read(backend).unwrap();
    let file = File::options().write(true).open(backend).unwrap();
    let places: Vec<usize> =
        (0..bytes.len() - VALUE.len()).filter(|at| bytes[*at..].starts_with(VALUE)).collect();
    assert!(!places.is_empty(), "the value is in the file");
    // A free page may contain another copy of the value, so every copy is changed.
    for place in places {
        file.write_all_at(b"X", place as u64).unwrap();
    }
}

pub(crate) async fn alarms(cluster: &Cluster, member: usize) -> Vec<(u64, i32)> {
    let listed = cluster.client(member).alarm(pb::AlarmRequest::default()).await.unwrap();
    listed.alarms.iter().map(|alarm| (alarm.member_id, alarm.alarm)).collect()
}

/// Waits until the alarm names the member, and checks that writes are refused.
async fn wait_for_corrupt_alarm(cluster: &Cluster, member: usize, by: Kind) {
    let sound = (member + 1) % 3;
    let raised = eventually("an alarm is raised", async || {
        Some(alarms(cluster, sound).await).filter(|alarms| !alarms.is_empty())
    })
    .await;
    let corrupt = |id: u64| vec![(id, i32::from(pb::AlarmType::Corrupt))];
    // etcd 3.5 takes the id from the header of the response, where the id is empty.
    let is_raised = raised == corrupt(cluster.id(member));
    assert!(is_raised || by == Kind::Etcd && raised == corrupt(0), "{raised:?}");
    let answer = cluster.client(sound).put(put("k", "v")).await;
    refused(answer, Code::DataLoss, CORRUPT);
    assert!(cluster.server(sound).get("/health").text().contains("ALARM CORRUPT"));
}

/// Makes this member the leader.
pub(crate) async fn lead(cluster: &Cluster, member: usize) {
    eventually("another leader is elected", async || {
        let leader = cluster.leader().await;
        if leader == member {
            return Some(());
        }
        let target_id = cluster.id(member);
        // The transfer may be refused, or aborted while the target is behind.
        drop(cluster.client(leader).move_leader(pb::MoveLeaderRequest { target_id }).await);
        None
    })
    .await;
}

async fn a_corrupt_member_does_not_start(kind: Kind) {
    let mut cluster = start([kind; 3], &[]).await;
    // A starting member of etcd 3.5 knows the other members only from a snapshot, so enough keys are written to cause a
    // snapshot.
    for number in 0..10 {
        cluster.client(0).put(put("k", format!("{number}"))).await.unwrap();
    }
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    cluster.server_mut(member).set_flags(INITIAL.flags(kind));
    cluster.launch(member);
    let exit = cluster.try_ready(member).await.unwrap_err();
    assert_eq!(exit.status.and_then(|status| status.code()), Some(1), "{exit}");
    assert!(exit.log.contains("found different hash values from remote peer"), "{exit}");
    let line = format!("{:x} found data inconsistency with peers", cluster.id(member));
    assert!(exit.log.contains(&line), "{exit}");
    if kind == Kind::Quorate {
        assert!(exit.log.contains("etcdctl member remove"), "{exit}");
    }
    // Without the check, the corrupt member starts and serves. A member with correct data then fails the check, too,
    // because one of its peers is corrupt.
    cluster.server_mut(member).set_flags(&[]);
    cluster.restart(member).await;
    let sound = (member + 1) % 3;
    cluster.stop(sound).await;
    // The check fails although two of the three members have equal data.
    cluster.server_mut(sound).set_flags(INITIAL.flags(kind));
    cluster.launch(sound);
    let exit = cluster.try_ready(sound).await.unwrap_err();
    assert!(exit.log.contains("found data inconsistency with peers"), "{exit}");
}

async fn a_leader_detects_a_corrupt_member(kind: Kind) {
    let mut cluster = start([kind; 3], &[PERIODIC]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    assert_eq!(alarms(&cluster, (member + 1) % 3).await, [], "a stopped member raises no alarm");
    cluster.restart(member).await;
    wait_for_corrupt_alarm(&cluster, member, kind).await;
}

/// Writes a key and compacts the whole history.
async fn compact(cluster: &Cluster, member: usize) {
    let revision = cluster.client(member).put(put("other", "v")).await.unwrap();
    cluster.settle().await;
    cluster.client(member).compact_to(revision.header.unwrap().revision).await;
}

async fn compaction_hashes_identify_the_corrupt_member(kind: Kind) {
    let mut cluster = start([kind; 3], &[COMPACTIONS]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    cluster.restart(member).await;
    compact(&cluster, (member + 1) % 3).await;
    wait_for_corrupt_alarm(&cluster, member, kind).await;
}

async fn an_etcd_leader_detects_a_corrupt_quorate_member(ours: Kind) {
    each_check_detects([Kind::Etcd, ours, ours]).await;
}

async fn a_quorate_leader_detects_a_corrupt_etcd_member(ours: Kind) {
    each_check_detects([ours, Kind::Etcd, ours]).await;
}

/// Tests that each kind of check detects a corrupt member. The first member leads, and the second is corrupt.
async fn each_check_detects(kinds: [Kind; 3]) {
    if !Kind::Etcd.is_present() {
        return;
    }
    for by_compactions in [false, true] {
        let check = if by_compactions { COMPACTIONS } else { PERIODIC };
        let mut cluster = start(kinds, &[check]).await;
        lead(&cluster, 0).await;
        corrupt(&mut cluster, 1).await;
        cluster.restart(1).await;
        lead(&cluster, 0).await;
        if by_compactions {
            compact(&cluster, 0).await;
        }
        wait_for_corrupt_alarm(&cluster, 1, kinds[0]).await;
    }
}

async fn members_without_corruption_never_raise_an_alarm(ours: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let kinds = [Kind::Etcd, ours, ours];
    let cluster = start(kinds, &[PERIODIC, COMPACTIONS]).await;
    for leader in [0, 1] {
        lead(&cluster, leader).await;
        let (client, before) = (cluster.client(leader), log_lines(&cluster, leader));
        let mut revision = 0;
        // Repeat until a compaction and the keyspace have been compared on all members.
        eventually("compaction hashes are compared on all members", async || {
            for number in 0..20 {
                let key = format!("k{}", number % 7);
                client.put(put(&key, "v")).await.unwrap();
                let deletion =
                    pb::DeleteRangeRequest { key: key.into(), ..pb::DeleteRangeRequest::default() };
                revision = client.delete_range(deletion).await.unwrap().header.unwrap().revision;
                client.put(put("stays", format!("{number}"))).await.unwrap();
            }
            client.compact_to(revision).await;
            let said = cluster.server(leader).log();
            let said: Vec<&str> = said.lines().skip(before).collect();
            let count = |text: &str| said.iter().filter(|line| line.contains(text)).count();
            let compared = count("successfully checked hash on whole cluster");
            let looked = count("\"finished peer corruption check\",\"number-of-peers-checked\":2");
            (compared >= 3 && looked >= 3).then_some(())
        })
        .await;
        assert_eq!(alarms(&cluster, leader).await, []);
    }
}

async fn a_key_deleted_and_put_in_one_entry_survives_a_compaction(ours: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let kinds = [Kind::Etcd, ours, ours];
    let cluster = start(kinds, &[PERIODIC, COMPACTIONS]).await;
    lead(&cluster, 0).await;
    let ours = cluster.client(1);
    ours.put(put("a", "before")).await.unwrap();
    // The range is open-ended, so the check for duplicate keys does not notice that it contains the key of the put.
    let everything = write_op(delete("a", "\0"));
    let entry = ours.txn(txn(vec![everything, put_op("a", "after")])).await.unwrap();
    let revision = entry.header.unwrap().revision;
    cluster.settle().await;
    ours.compact_to(revision).await;
    // The hashes of the members must also be equal, because a check may compare them at the compacted revision.
    cluster.check_same_content().await;
    ours.put(put("b", "v")).await.unwrap();
    for member in cluster.members() {
        assert_eq!(cluster.client(member).read("a").await.unwrap(), b"after", "m{member}");
    }
    let before = log_lines(&cluster, 0);
    eventually("the keyspace is checked after the compaction", async || {
        let said = cluster.server(0).log();
        let mut said = said.lines().skip(before);
        said.any(|line| line.contains("finished peer corruption check")).then_some(())
    })
    .await;
    assert_eq!(alarms(&cluster, 1).await, []);
    cluster.check_same_content().await;
}

fn log_lines(cluster: &Cluster, member: usize) -> usize {
    cluster.server(member).log().lines().count()
}
