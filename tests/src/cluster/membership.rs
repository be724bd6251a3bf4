//! Membership changes.

use quorate_api::etcdserverpb as pb;

use super::{Cluster, Member, QUESTION, TIMEOUT, options};
use crate::{Options, eventually, eventually_ok};

impl Cluster {
    /// Returns a member's id.
    #[must_use]
    pub fn id(&self, member: usize) -> u64 {
        self.members[member].id.expect("the member is in the cluster")
    }

    /// Returns the ids of all members that are in the cluster, ordered by member number.
    #[must_use]
    pub fn ids(&self) -> Vec<u64> {
        self.members.iter().filter_map(|member| member.id).collect()
    }

    /// Returns the member with an id.
    #[must_use]
    pub fn by_id(&self, id: u64) -> Option<usize> {
        self.members.iter().position(|member| member.id == Some(id))
    }

    /// Returns the member list of the cluster.
    pub async fn list(&self) -> Vec<pb::Member> {
        let request = pb::MemberListRequest { linearizable: true };
        let ask = async |client: crate::Client| client.member_list(request).await;
        self.everyone().ask("the members", ask).await.members
    }

    /// Fetches the members' ids. Members are identified by their peer addresses.
    pub(super) async fn learn_ids(&mut self) {
        // A server on a database lists a new server only after it has read the table of servers again.
        let ids = eventually("all members are listed", async || {
            let request = pb::MemberListRequest::default();
            let listed = self.members[0].client.member_list(request).await.unwrap().members;
            let id = |member: &Member| {
                let url = member.server.peer_url();
                listed.iter().find(|one| one.peer_urls.contains(&url)).map(|one| one.id)
            };
            self.members.iter().map(id).collect::<Option<Vec<u64>>>()
        })
        .await;
        for (number, id) in ids.into_iter().enumerate() {
            self.identify(number, id);
        }
    }

    fn identify(&mut self, number: usize, id: u64) {
        self.members[number].id = Some(id);
        if let Some(links) = &self.links {
            links.identify(number, id);
        }
    }

    /// Adds a voter with the default options, and starts it.
    pub async fn add(&mut self) -> usize {
        self.add_with(false, |options| options).await
    }

    /// Adds a learner with the default options, and starts it.
    pub async fn add_learner(&mut self) -> usize {
        self.add_with(true, |options| options).await
    }

    /// Adds a member with its own options, and starts it.
    pub async fn add_with(
        &mut self,
        learner: bool,
        change: impl FnOnce(Options) -> Options,
    ) -> usize {
        let number = self.members.len();
        let options = change(self.template.clone().name(&options::name(number)));
        let mut server = options.prepare();
        if let Some(links) = &self.links {
            server.set_advertised_peer_port(links.add(server.peer_port()));
        }
        self.members.push(Member::new(server));
        self.announce(number, learner).await;
        self.restart(number).await;
        number
    }

    /// Adds a member to the cluster's list before it starts, and passes that list to the member.
    ///
    /// The cluster refuses the change while connections between the members are younger than five seconds, unless
    /// `--strict-reconfig-check=false` is set, so the request is repeated until it succeeds.
    pub async fn announce(&mut self, number: usize, is_learner: bool) {
        let url = self.members[number].server.peer_url();
        let request = pb::MemberAddRequest { peer_urls: vec![url.clone()], is_learner };
        let everyone = self.everyone();
        let listed = eventually_ok(TIMEOUT, "the member is added", async || {
            let listed = self.list().await;
            if listed.iter().any(|member| member.peer_urls.contains(&url)) {
                return Ok(listed);
            }
            let add = async |client: crate::Client| client.member_add(request.clone()).await;
            // After an unknown outcome, the next attempt reads the member list first.
            Err(everyone.try_ask(add).await.map(|_| "accepted, but not yet listed"))
        })
        .await;
        let own = listed.iter().find(|member| member.peer_urls.contains(&url));
        self.identify(number, own.expect("the new member is listed").id);
        let words = self.members.iter().filter(|member| member.id.is_some());
        let words =
            words.map(|member| format!("{}={}", member.server.name(), member.server.peer_url()));
        let words = words.collect::<Vec<_>>().join(",");
        self.members[number].server.set_cluster(words, true);
    }

    /// Removes a member from the cluster. If the process of the member runs, it must notice the removal on its own.
    pub async fn remove(&mut self, number: usize) {
        let id = self.id(number);
        let mut others = self.members();
        others.retain(|other| *other != number);
        let others =
            super::Endpoints::new(others.into_iter().map(|one| self.client(one)).collect());
        eventually_ok(TIMEOUT, "the member is removed", async || {
            let list = pb::MemberListRequest { linearizable: true };
            let list = others.try_ask(async |client| client.member_list(list).await).await;
            if list.map_err(Err)?.members.iter().all(|member| member.id != id) {
                return Ok(());
            }
            let request = pb::MemberRemoveRequest { id };
            // After an unknown outcome, the next attempt reads the member list first.
            let answer = others.try_ask(async |client| client.member_remove(request).await).await;
            Err(answer.map(|_| "accepted, but still listed"))
        })
        .await;
        self.members[number].id = None;
    }

    /// Replaces a stopped member with a new one that has the same name and ports and an empty directory.
    pub async fn replace(&mut self, number: usize) {
        self.remove(number).await;
        if self.server(number).data().exists() {
            self.wipe(number);
        }
        self.announce(number, false).await;
        self.restart(number).await;
    }

    /// Promotes a learner as soon as it has caught up.
    pub async fn promote(&self, number: usize) {
        let id = self.id(number);
        let leader = self.leader().await;
        let client = self.client(leader);
        eventually_ok(TIMEOUT, "the learner is promoted", async || {
            let listed = self.list().await;
            if listed.iter().any(|member| member.id == id && !member.is_learner) {
                return Ok(());
            }
            let request = pb::MemberPromoteRequest { id };
            // The cluster refuses to promote a learner that has not caught up.
            Err(tokio::time::timeout(QUESTION, client.member_promote(request)).await)
        })
        .await;
    }
}
