//! Leadership, progress of the members, and comparison of their contents.

use quorate_api::etcdserverpb as pb;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;

use super::{Cluster, QUESTION, TIMEOUT};
use crate::{Client, eventually_ok, eventually_within};

impl Cluster {
    /// Sends all running members the same request at the same time. The answer of a member is `None` if its request
    /// fails.
    pub async fn ask_running<T, F>(&self, ask: impl Fn(Client) -> F) -> Vec<(usize, Option<T>)>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        for number in self.running() {
            let question = ask(self.members[number].client.clone());
            tasks.spawn(async move { (number, timeout(QUESTION, question).await) });
        }
        let mut answers = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            let (number, answer) = ended.unwrap();
            answers.push((number, answer.ok().and_then(Result::ok)));
        }
        answers.sort_by_key(|(number, _)| *number);
        answers
    }

    /// Returns the status of each running member.
    pub async fn statuses(&self) -> Vec<(usize, Option<pb::StatusResponse>)> {
        self.ask_running(|client| async move { client.status(pb::StatusRequest {}).await }).await
    }

    /// Returns the leader that a majority of the cluster's members, including the leader itself, agrees on.
    pub async fn leader_now(&self) -> Option<usize> {
        let statuses = self.statuses().await;
        let statuses: Vec<_> =
            statuses.into_iter().filter_map(|(number, status)| Some((number, status?))).collect();
        let term = statuses.iter().map(|(_, status)| status.raft_term).max()?;
        let leader = |number: usize| self.members[number].id.unwrap_or(0);
        let (number, _) = statuses.iter().find(|(number, status)| {
            status.raft_term == term && status.leader != 0 && status.leader == leader(*number)
        })?;
        let followers = statuses
            .iter()
            .filter(|(_, status)| status.raft_term == term && status.leader == leader(*number));
        (followers.count() * 2 > self.members().len()).then_some(*number)
    }

    /// Waits for a leader that a majority agrees on.
    pub async fn leader(&self) -> usize {
        eventually_within(TIMEOUT, "a leader", async || self.leader_now().await).await
    }

    /// Waits for a leader among some of the members.
    pub async fn leader_among(&self, members: &[usize]) -> usize {
        eventually_within(TIMEOUT, "another leader is elected", async || {
            self.leader_now().await.filter(|leader| members.contains(leader))
        })
        .await
    }

    /// Returns a member that is not the leader: the next one after the leader.
    pub async fn follower(&self) -> usize {
        let leader = self.leader().await;
        let running = self.running();
        let after = running.iter().copied().find(|number| *number > leader);
        after.unwrap_or_else(|| running.into_iter().find(|number| *number != leader).unwrap())
    }

    /// Waits until all running members report the same leader, applied index and revision. Returns the revision.
    pub async fn settle(&self) -> i64 {
        eventually_ok(TIMEOUT, "all members have the same contents", async || {
            let answers: Vec<(usize, Option<Progress>)> = self
                .statuses()
                .await
                .into_iter()
                .map(|(number, status)| (number, status.map(progress)))
                .collect();
            match answers.first() {
                Some((_, Some(first @ (leader, _, revision))))
                    if *leader != 0 && answers.iter().all(|(_, other)| *other == Some(*first)) =>
                {
                    Ok(*revision)
                }
                _ => Err(answers),
            }
        })
        .await
    }

    /// Waits until all running members agree, and checks that their keys, values and history are equal. Returns the
    /// revision.
    pub async fn check_same_content(&self) -> i64 {
        let revision = self.settle().await;
        let request = pb::HashKvRequest { revision };
        let answers = self
            .ask_running(|client| async move { client.hash_kv(request).await })
            .await
            .into_iter()
            .map(|(number, answer)| {
                let answer = answer.unwrap_or_else(|| panic!("m{number} did not return a hash"));
                (number, (answer.hash, answer.compact_revision))
            })
            .collect::<Vec<_>>();
        let first = answers[0].1;
        assert!(
            answers.iter().all(|(_, answer)| *answer == first),
            "members have different contents at revision {revision}: {answers:?}"
        );
        revision
    }
}

/// Leader, applied index and revision that the members agree on.
type Progress = (u64, u64, i64);

fn progress(status: pb::StatusResponse) -> Progress {
    let revision = status.header.map_or(0, |header| header.revision);
    (status.leader, status.raft_applied_index, revision)
}
