//! The state of consensus as JSON, with etcd's keys in etcd's order.

use quorate_requests::ConsensusStatus;

/// Returns the state of consensus on the server with this id.
pub(super) fn json(id: u64, status: &ConsensusStatus) -> String {
    let progress: Vec<String> = status
        .progress
        .iter()
        .map(|one| {
            format!(
                "\"{:x}\":{{\"match\":{},\"next\":{},\"state\":\"{}\"}}",
                one.id, one.match_index, one.next_index, one.state
            )
        })
        .collect();
    format!(
        "{{\"id\":\"{id:x}\",\"term\":{},\"vote\":\"{:x}\",\"commit\":{},\"lead\":\"{:x}\",\"raftState\":\"{}\",\
         \"applied\":{},\"progress\":{{{}}},\"leadtransferee\":\"{:x}\"}}",
        status.term,
        status.vote,
        status.committed,
        status.leader,
        status.role,
        status.applied,
        progress.join(","),
        status.transferee,
    )
}

#[cfg(test)]
mod tests {
    use quorate_requests::MemberProgress;

    use super::*;

    #[test]
    fn the_status_has_the_keys_of_etcd_in_the_same_order() {
        let follower = ConsensusStatus {
            term: 2,
            vote: 0,
            committed: 7,
            applied: 6,
            leader: 0xb,
            role: "StateFollower".to_owned(),
            progress: Vec::new(),
            transferee: 0,
        };
        assert_eq!(
            json(0xa, &follower),
            "{\"id\":\"a\",\"term\":2,\"vote\":\"0\",\"commit\":7,\"lead\":\"b\",\
             \"raftState\":\"StateFollower\",\"applied\":6,\"progress\":{},\"leadtransferee\":\"0\"}"
        );
        let progress = |id, state: &str| MemberProgress {
            id,
            match_index: 5,
            next_index: 6,
            state: state.to_owned(),
        };
        let leader = ConsensusStatus {
            progress: vec![progress(0xa, "StateReplicate"), progress(0xb, "StateProbe")],
            ..follower
        };
        let expected = "\"progress\":{\"a\":{\"match\":5,\"next\":6,\"state\":\"StateReplicate\"},\
                        \"b\":{\"match\":5,\"next\":6,\"state\":\"StateProbe\"}},";
        let text = json(0xa, &leader);
        assert!(text.contains(expected), "{text}");
    }
}
