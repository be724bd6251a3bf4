//! The output and the effects of an operator's tool in a cluster of three members. Both must be exactly the same as
//! with etcd.
//!
//! All tests but one run `etcdctl` with the same commands in a cluster of etcd and in a cluster of the kind under test,
//! and compare the outputs. Values that differ between clusters, such as ids and addresses, are replaced with names,
//! and all numbers with a placeholder. A comparison of two etcd clusters verifies that nothing else differs between two
//! runs.

use std::collections::BTreeMap;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Cluster, ClusterOptions, Ctl, Kind, Options, Server, Tool, etcdutl, has_etcd_tools,
    on_both_servers, put,
};

on_both_servers! {
    alone:
    member_list_prints_the_same_as_etcdctl,
    endpoint_commands_print_the_same_as_etcdctl,
    move_leader_prints_the_same_as_etcdctl,
    member_commands_print_the_same_as_etcdctl,
    a_saved_snapshot_can_be_restored_as_a_cluster,
    a_refused_promotion_reports_the_lag_of_the_learner,
}

const FORMATS: [&str; 4] = ["simple", "table", "json", "fields"];

/// Names of members in a transcript. The first name stands for the initial leader.
const PLACES: [&str; 3] = ["first", "second", "third"];
/// A cluster, and the tool's output in it so far.
struct Session {
    cluster: Cluster,
    /// Members in the order of their names.
    members: [usize; 3],
    names: BTreeMap<String, String>,
    said: Vec<String>,
}

impl Session {
    async fn start(kind: Kind) -> Self {
        let options = ClusterOptions::new(kind, 3).flag("--strict-reconfig-check=false");
        let cluster = options.start().await;
        cluster.everyone().ask("a write", async |client| client.put(put("k", "v")).await).await;
        cluster.settle().await;
        let leader = cluster.leader().await;
        let members = [leader, (leader + 1) % 3, (leader + 2) % 3];
        let mut session = Self { cluster, members, names: BTreeMap::new(), said: Vec::new() };
        session.assign_names().await;
        session
    }

    /// Assigns names to all values that are specific to this cluster.
    async fn assign_names(&mut self) {
        let client = self.cluster.client(self.members[0]);
        let status = client.status(pb::StatusRequest {}).await.unwrap();
        self.name_id(status.header.unwrap().cluster_id, "cluster");
        for (place, member) in PLACES.into_iter().zip(self.members) {
            let server = self.cluster.server(member);
            let (url, peer_url) = (server.url(), server.peer_url());
            let (name, id) = (server.name().to_owned(), self.cluster.id(member));
            self.names.insert(url.replace("http://", ""), format!("<address of {place}>"));
            self.names.insert(url, format!("<url of {place}>"));
            self.names.insert(peer_url, format!("<peer url of {place}>"));
            self.names.insert(name, format!("<name of {place}>"));
            self.name_id(id, place);
        }
        for member in self.cluster.list().await {
            if self.cluster.by_id(member.id).is_none() {
                self.name_id(member.id, "newcomer");
            }
        }
    }

    fn name_id(&mut self, id: u64, name: &str) {
        self.names.insert(format!("{id:x}"), format!("<{name}>"));
        self.names.insert(id.to_string(), format!("<{name}>"));
    }

    /// Returns a member's id in the form that the tools expect.
    fn id(&self, place: usize) -> String {
        format!("{:x}", self.cluster.id(self.members[place]))
    }

    /// Returns the id of the added member, which never starts.
    async fn newcomer(&self) -> String {
        let listed = self.cluster.list().await;
        let added = listed.iter().find(|member| self.cluster.by_id(member.id).is_none());
        let added =
            added.unwrap_or_else(|| panic!("no member was added: {}", self.said.join("\n")));
        format!("{:x}", added.id)
    }

    /// Runs the tool against a member and records its output.
    async fn run(&mut self, place: usize, args: &[&str]) {
        let server = self.cluster.server(self.members[place]);
        let ctl = Ctl::of(Tool::Etcdctl, server).expect("the tools are available");
        let ended = ctl.run(args);
        self.assign_names().await;
        let said = self.anonymous(&format!("{}\n{}", ended.stdout, ended.stderr));
        let command = self.anonymous(&args.join(" "));
        self.said.push(format!("$ {command}\n{said}\nends with {:?}\n", ended.code));
    }

    /// Replaces values specific to the cluster with names and placeholders, and sorts lines in an order that does not
    /// depend on ids.
    fn anonymous(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let mut names: Vec<_> = self.names.iter().collect();
        // One value may be part of another, so longer values are replaced first.
        names.sort_by_key(|(known, _)| std::cmp::Reverse(known.len()));
        for (known, name) in names {
            // A number that is replaced with a name becomes a string.
            text = text.replace(&format!(":{known}"), &format!(":\"{name}\""));
            text = text.replace(known, name);
        }
        let lines = text.lines().filter(|line| !line.starts_with("{\"level\""));
        let mut lines: Vec<String> = lines.map(plain).filter(|line| !line.is_empty()).collect();
        lines.sort();
        lines.join("\n")
    }
}

/// Normalises a line, replacing its numbers and column widths, and sorting its lists.
fn plain(line: &str) -> String {
    if let Ok(mut value) = serde_json::from_str::<serde_json::Value>(line) {
        sort(&mut value);
        return unnumbered(&value.to_string());
    }
    if let Some((variable, list)) = line.split_once("CLUSTER=\"") {
        let mut members: Vec<&str> = list.trim_end_matches('"').split(',').collect();
        members.sort_unstable();
        return format!("{variable}CLUSTER={}", members.join(","));
    }
    unnumbered(line)
}

/// Sorts all lists, because their original order depends on ids.
fn sort(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(values) => {
            values.iter_mut().for_each(sort);
            values.sort_by_key(|value| unnumbered(&value.to_string()));
        }
        serde_json::Value::Object(fields) => fields.values_mut().for_each(sort),
        _ => {}
    }
}

/// Replaces each number including its unit, and each run of spaces and table lines, with a placeholder.
fn unnumbered(line: &str) -> String {
    let mut plain = String::new();
    for letter in line.chars() {
        match letter {
            '0'..='9' if !plain.ends_with('#') => plain.push('#'),
            '0'..='9' => {}
            '.' if plain.ends_with('#') => {}
            ' ' | '-' if plain.ends_with(letter) => {}
            _ => plain.push(letter),
        }
    }
    for unit in [" kB", " MB", "ms", "µs"] {
        plain = plain.replace(&format!("#{unit}"), "#");
    }
    plain
}

/// Runs the same commands in a cluster of etcd and in a cluster of the given kind, and compares the outputs.
async fn compare(kind: Kind, doings: impl AsyncFn(&mut Session)) {
    if !has_etcd_tools() || !Kind::Etcd.is_present() {
        return;
    }
    let mut theirs = Session::start(Kind::Etcd).await;
    doings(&mut theirs).await;
    let mut ours = Session::start(kind).await;
    doings(&mut ours).await;
    assert_eq!(ours.said.len(), theirs.said.len());
    for (ours, theirs) in ours.said.iter().zip(&theirs.said) {
        assert!(ours == theirs, "{kind:?} prints:\n{ours}\netcd prints:\n{theirs}");
    }
}

async fn member_list_prints_the_same_as_etcdctl(kind: Kind) {
    compare(kind, async |session| {
        for format in FORMATS {
            session.run(0, &["member", "list", "-w", format]).await;
            session.run(1, &["member", "list", "-w", format]).await;
        }
        session.run(2, &["member", "list", "--hex", "-w", "json"]).await;
    })
    .await;
}

async fn endpoint_commands_print_the_same_as_etcdctl(kind: Kind) {
    compare(kind, async |session| {
        for format in FORMATS {
            for what in ["health", "status", "hashkv"] {
                session.run(1, &["endpoint", what, "--cluster", "-w", format]).await;
            }
            session.run(0, &["endpoint", "status", "-w", format]).await;
            session.run(1, &["endpoint", "status", "-w", format]).await;
        }
        // The killed member no longer answers.
        let last = session.members[2];
        session.cluster.kill(last);
        session.cluster.leader_among(&session.members[..2]).await;
        let status = ["endpoint", "status", "--cluster", "--command-timeout=2s"];
        session.run(0, &status).await;
        session.run(0, &["endpoint", "health", "--cluster", "--command-timeout=2s"]).await;
    })
    .await;
}

async fn move_leader_prints_the_same_as_etcdctl(kind: Kind) {
    compare(kind, async |session| {
        let [first, second, third] = [0, 1, 2].map(|place| session.id(place));
        // Only the leader can transfer leadership.
        session.run(1, &["move-leader", &third]).await;
        session.run(0, &["move-leader", &second]).await;
        let leader = session.cluster.leader_among(&[session.members[1]]).await;
        assert_eq!(leader, session.members[1]);
        session.run(1, &["endpoint", "status", "--cluster"]).await;
        session.run(1, &["move-leader", "123"]).await;
        session.run(1, &["move-leader", "no id"]).await;
        session.run(1, &["move-leader"]).await;
        session.run(1, &["move-leader", &second]).await;
        session.run(0, &["move-leader", &third]).await;
        session.run(1, &["move-leader", &first]).await;
        session.cluster.leader_among(&[session.members[0]]).await;
        session.run(0, &["endpoint", "status", "--cluster", "-w", "table"]).await;
    })
    .await;
}

async fn member_commands_print_the_same_as_etcdctl(kind: Kind) {
    compare(kind, async |session| {
        // Addresses of members that never start. Each is used only once, because a member's id depends on the address
        // and the current second, and the id of a removed member is never accepted again.
        let mut ports = 1..;
        let mut nobody = || format!("--peer-urls=http://127.0.0.1:{}", ports.next().unwrap());
        for format in FORMATS {
            let (url, other, learner_url) = (nobody(), nobody(), nobody());
            session.run(1, &["member", "add", "four", &url, "-w", format]).await;
            session.run(0, &["member", "list", "-w", format]).await;
            let newcomer = session.newcomer().await;
            session.run(2, &["member", "update", &newcomer, &other, "-w", format]).await;
            session.run(1, &["member", "list", "-w", format]).await;
            session.run(1, &["member", "remove", &newcomer, "-w", format]).await;
            session.run(2, &["member", "remove", &newcomer, "-w", format]).await;
            session
                .run(1, &["member", "add", "four", "--learner", &learner_url, "-w", format])
                .await;
            session.run(0, &["member", "list", "-w", format]).await;
            let learner = session.newcomer().await;
            session.run(0, &["member", "promote", &learner, "-w", format]).await;
            session.run(1, &["member", "promote", &learner, "-w", format]).await;
            session.run(0, &["member", "remove", &learner, "-w", format]).await;
        }
        let own = session.id(0);
        session.run(0, &["member", "promote", &own]).await;
        session.run(1, &["member", "promote", &own]).await;
        for command in ["remove", "promote"] {
            session.run(1, &["member", command, "123"]).await;
            session.run(1, &["member", command, "no id"]).await;
            session.run(1, &["member", command]).await;
        }
        session.run(1, &["member", "update", "123", &nobody()]).await;
        session.run(1, &["member", "update", &own]).await;
        session.run(1, &["member", "add", "four"]).await;
        session.run(1, &["member", "add", "four", "--peer-urls=nowhere"]).await;
        let taken = session.cluster.server(session.members[2]).peer_url();
        session.run(1, &["member", "add", "four", &format!("--peer-urls={taken}")]).await;
        session.run(1, &["member", "list"]).await;
    })
    .await;
}

/// This test does not compare transcripts, because `quorate ctl` prints one line more than `etcdctl` after the error.
async fn a_refused_promotion_reports_the_lag_of_the_learner(kind: Kind) {
    let options = ClusterOptions::new(kind, 3).linked().flag("--strict-reconfig-check=false");
    let mut cluster = options.start().await;
    let leader = cluster.leader().await;
    let learner = cluster.add_learner().await;
    // Before it is isolated, the learner receives all existing entries. Its client port remains reachable.
    cluster.settle().await;
    cluster.links().isolate(learner);
    let client = cluster.client(leader);
    for number in 0..500 {
        client.write(format!("k{}", number % 10), "v").await;
    }
    let id = format!("{:x}", cluster.id(learner));
    let promote = |cluster: &Cluster, tool| {
        let ctl = Ctl::of(tool, cluster.server(leader))?;
        let ended = ctl.run(&["member", "promote", &id]);
        assert_eq!((ended.code, &*ended.stdout), (Some(1), ""), "{ended:?}");
        let lines = ended.stderr.lines().filter(|line| !line.starts_with('{'));
        Some(lines.map(str::to_owned).collect::<Vec<_>>())
    };
    let output = promote(&cluster, Tool::QuorateCtl).unwrap();
    let [refusal, progress] = &output[..] else { panic!("{output:?}") };
    if let Some(output) = promote(&cluster, Tool::Etcdctl) {
        assert_eq!(output, std::slice::from_ref(refusal));
    }
    let counts = progress.strip_prefix(&format!("learner {id} is "));
    let counts = counts.unwrap_or_else(|| panic!("{progress}"));
    let behind: u64 = counts.split(' ').next().unwrap().parse().unwrap();
    assert!((500..700).contains(&behind), "{progress}");
    assert!(progress.ends_with("needs 90% to be promoted"), "{progress}");
    cluster.kill(learner);
    let output = promote(&cluster, Tool::QuorateCtl).unwrap();
    assert!(output[1].starts_with(&format!("learner {id} is not responding")), "{output:?}");
}

async fn a_saved_snapshot_can_be_restored_as_a_cluster(kind: Kind) {
    compare(kind, async |session| {
        let client = session.cluster.client(session.members[1]);
        for number in 0..100 {
            client.write(format!("k{number}"), number.to_string()).await;
        }
        let revision = session.cluster.settle().await;
        let file = session.cluster.scratch().join("saved.db");
        let path = file.to_str().unwrap().to_owned();
        session.names.insert(path.clone(), "<file>".to_owned());
        session.run(1, &["snapshot", "save", &path]).await;
        session.run(1, &["snapshot", "status", &path, "-w", "json"]).await;
        session.run(1, &["snapshot", "save", "/nonexistent/saved.db"]).await;
        let hash = client.hash_kv(pb::HashKvRequest { revision }).await.unwrap().hash;
        let restored = restore(session.cluster.server(0).kind(), &path).await;
        for server in &restored {
            assert_eq!(server.client().read("k99").await.unwrap(), b"99");
            let request = pb::HashKvRequest { revision };
            assert_eq!(server.client().hash_kv(request).await.unwrap().hash, hash);
        }
    })
    .await;
}

/// Creates a new cluster from a snapshot, as etcd's disaster recovery guide describes.
async fn restore(kind: Kind, file: &str) -> Vec<Server> {
    let names = ["r0", "r1", "r2"];
    let options = names.map(|name| Options::new(kind).timing(50, 500).name(name));
    let mut servers = options.map(Options::prepare);
    let words = servers.each_ref().map(|server| format!("{}={}", server.name(), server.peer_url()));
    let words = words.join(",");
    for server in &mut servers {
        let cluster = format!("--initial-cluster={words}");
        let peer = format!("--initial-advertise-peer-urls={}", server.peer_url());
        let name = format!("--name={}", server.name());
        let data = format!("--data-dir={}", server.data().display());
        let args = ["snapshot", "restore", file, &name, &cluster, &peer, &data];
        drop(etcdutl(&args).success());
        server.set_cluster(words.clone(), false);
        server.launch();
    }
    for server in &mut servers {
        server
            .ready()
            .await
            .unwrap_or_else(|exit| panic!("{} failed to start: {exit}", server.name()));
    }
    servers.into()
}
