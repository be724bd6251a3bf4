//! Tests of alarms and the quota: the commands that each alarm refuses, listing and deactivating
//! alarms, and the response to an entry that exceeds the quota.

use super::*;
use crate::alarm::Cause;
use quorate_api::etcdserverpb::{AlarmType, alarm_request::AlarmAction};

fn alarm(action: AlarmAction, member_id: u64, kind: AlarmType) -> Command {
    with_cause(action, member_id, kind, Cause::Other)
}

fn with_cause(action: AlarmAction, member_id: u64, kind: AlarmType, cause: Cause) -> Command {
    let request = pb::AlarmRequest { action: action as i32, member_id, alarm: kind as i32 };
    Command::Alarm(AlarmCommand { request, cause })
}

fn alarms(outcome: Result<Response, Refusal>) -> Vec<(u64, i32)> {
    let Ok(Response::Alarm(response)) = outcome else { panic!("{outcome:?}") };
    assert!(response.header.is_some());
    response.alarms.iter().map(|alarm| (alarm.member_id, alarm.alarm)).collect()
}

fn txn(operations: Vec<pb::request_op::Request>) -> Command {
    let operations = operations.into_iter().map(|op| pb::RequestOp { request: Some(op) });
    // The operations are in the branch that is not executed.
    Command::Txn(pb::TxnRequest { failure: operations.collect(), ..pb::TxnRequest::default() })
}

/// Returns each command, and whether it is executed while a NOSPACE alarm or a corruption alarm is
/// raised.
fn commands() -> Vec<(&'static str, Command, bool, bool)> {
    use pb::request_op::Request as Op;
    let grant = Command::LeaseGrant(pb::LeaseGrantRequest { id: 100, ttl: 60 });
    let delete_only = txn(vec![Op::RequestDeleteRange(delete("x", ""))]);
    let inner = pb::TxnRequest {
        success: vec![pb::RequestOp { request: Some(Op::RequestPut(put("x", ""))) }],
        ..pb::TxnRequest::default()
    };
    let compaction = pb::CompactionRequest { revision: 2, physical: false };
    vec![
        ("put", Command::Put(put("x", "")), false, false),
        ("range", Command::Range(range("x", "")), true, false),
        ("delete", Command::DeleteRange(delete("x", "")), true, false),
        ("txn that puts", txn(vec![Op::RequestPut(put("x", ""))]), false, false),
        ("txn that puts inside", txn(vec![Op::RequestTxn(inner)]), false, false),
        ("txn that deletes", delete_only, true, false),
        ("grant", grant, false, false),
        ("revoke", Command::LeaseRevoke(pb::LeaseRevokeRequest { id: 50 }), true, false),
        ("compaction", Command::Compaction(compaction), true, false),
        ("checkpoint", Command::LeaseCheckpoint(pb::LeaseCheckpointRequest::default()), true, true),
        ("alarm", alarm(AlarmAction::Get, 0, AlarmType::None), true, true),
        ("auth status", Command::Auth(AuthCommand::Status), true, true),
        ("nothing", Command::Nothing, true, true),
    ]
}

#[test]
fn a_nospace_alarm_refuses_puts_and_grants_and_a_corruption_alarm_also_reads_and_deletions() {
    let raise = |kind| alarm(AlarmAction::Activate, 3, kind);
    for (name, command, when_full, when_corrupt) in commands() {
        for (kinds, allowed, refusal) in [
            (vec![AlarmType::Nospace], when_full, Refusal::NoSpace),
            (vec![AlarmType::Corrupt], when_corrupt, Refusal::Corrupt),
            (vec![AlarmType::Nospace, AlarmType::Corrupt], when_corrupt, Refusal::Corrupt),
        ] {
            let mut log = Log::new();
            log.put("a", "");
            log.outcome(Command::LeaseGrant(pb::LeaseGrantRequest { id: 50, ttl: 60 })).unwrap();
            for kind in &kinds {
                log.outcome(raise(*kind)).unwrap();
            }
            let applied = log.applied(command.clone());
            let expected = if allowed { None } else { Some(refusal) };
            assert_eq!(applied.outcome.unwrap().err(), expected, "{name} with {kinds:?}");
            assert_ne!(applied.notice, Some(Notice::OutOfSpace));
            for kind in kinds {
                log.outcome(alarm(AlarmAction::Deactivate, 3, kind)).unwrap();
            }
            if !allowed {
                log.outcome(command.clone()).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
            }
        }
    }
}

#[test]
fn alarms_are_listed_and_deactivated_one_by_one() {
    let mut log = Log::new();
    let mut ask = |action, member, kind| alarms(log.outcome(alarm(action, member, kind)));
    use AlarmAction::{Activate, Deactivate, Get};
    assert_eq!(ask(Activate, 1, AlarmType::None), []);
    assert_eq!(ask(Activate, 1, AlarmType::Nospace), [(1, 1)]);
    assert_eq!(ask(Activate, 1, AlarmType::Nospace), [(1, 1)]);
    assert_eq!(ask(Activate, 2, AlarmType::Corrupt), [(2, 2)]);
    assert_eq!(ask(Get, 99, AlarmType::None), [(1, 1), (2, 2)]);
    assert_eq!(ask(Get, 99, AlarmType::Corrupt), [(2, 2)]);
    assert_eq!(ask(Deactivate, 0, AlarmType::Nospace), []);
    assert_eq!(ask(Deactivate, 1, AlarmType::Nospace), [(1, 1)]);
    assert_eq!(ask(Get, 0, AlarmType::None), [(2, 2)]);
    let request = pb::AlarmRequest { action: 17, member_id: 1, alarm: 1 };
    let unknown = AlarmCommand { request, cause: Cause::Other };
    assert_eq!(alarms(log.outcome(Command::Alarm(unknown))), []);
}

#[test]
fn an_entry_that_exceeds_the_quota_is_applied_but_returns_a_no_space_error() {
    let mut log = Log::with(StateOptions { quota_bytes: 1000, ..StateOptions::default() });
    log.file_bytes = 1000 - 258;
    let applied = log.applied(Command::Put(put("a", "")));
    assert_eq!((applied.outcome.unwrap().is_ok(), applied.notice), (true, None));
    let applied = log.applied(Command::Put(put("b", "x")));
    assert_eq!(applied.outcome, Some(Err(Refusal::NoSpace)));
    assert_eq!(applied.notice, Some(Notice::OutOfSpace));
    log.file_bytes = 1000;
    let put_c = pb::request_op::Request::RequestPut(put("c", ""));
    let put_c = pb::RequestOp { request: Some(put_c) };
    let txn = pb::TxnRequest { success: vec![put_c], ..pb::TxnRequest::default() };
    assert_eq!(log.outcome(Command::Txn(txn)), Err(Refusal::NoSpace));
    let grant = Command::LeaseGrant(pb::LeaseGrantRequest { id: 1, ttl: 60 });
    assert_eq!(log.outcome(grant.clone()), Err(Refusal::NoSpace));
    assert_eq!(log.outcome(grant), Err(LeaseRefusal::Exists.into()));
    assert_eq!(log.state.take_tally().lease_ttls, [60], "the lease that exists is counted");
    assert_eq!(log.keys(), ["a", "b", "c"]);
    log.outcome(Command::DeleteRange(delete("a", ""))).unwrap();
}
