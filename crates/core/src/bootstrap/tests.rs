//! Tests of the decision how a member starts, question by question, without a disk or other members.

use quorate_state::members::{cluster_id, member_id};

use super::*;
use crate::start::Start;

const TOKEN: &str = "token";

fn flags(joins: bool) -> Flags {
    Flags {
        name: "a".to_owned(),
        joins,
        is_alone: false,
        is_discovered: false,
        learner_count_max: 1,
        held_version: None,
    }
}

fn url(name: &str) -> Vec<String> {
    vec![format!("http://{name}:2380")]
}

fn initial(names: &[&str]) -> InitialCluster {
    let members = names.iter().map(|name| ((*name).to_owned(), url(name))).collect();
    InitialCluster { members, token: TOKEN.to_owned() }
}

fn id_of(name: &str) -> MemberId {
    member_id(&url(name), TOKEN, None)
}

fn row(name: &str) -> Member {
    Member { name: name.to_owned(), ..Member::new(id_of(name), url(name)) }
}

fn published(name: &str) -> Member {
    Member { client_urls: vec!["http://client:2379".to_owned()], ..row(name) }
}

fn cluster(rows: impl IntoIterator<Item = Member>) -> Cluster {
    Cluster { id: 7, members: rows.into_iter().map(|row| (row.id, row)).collect() }
}

/// The simulated answers: what other members report about the cluster and this member, and how URLs resolve.
#[derive(Default)]
struct World {
    initial: Option<InitialCluster>,
    cluster: Option<Cluster>,
    rows: Vec<Member>,
    /// Pairs of different URL lists that resolve to the same addresses.
    aliases: Vec<(Vec<String>, Vec<String>)>,
    is_incompatible: bool,
}

impl World {
    fn decide(&self, mut step: Step) -> Result<Decision, Refusal> {
        loop {
            step = match step {
                Step::Decided(decision) => return Ok(decision),
                Step::Initial(question) => match &self.initial {
                    Some(initial) => question.answer(initial.clone())?,
                    None => question
                        .go_without()
                        .expect("the member can be started without an initial cluster"),
                },
                Step::Members(question) => {
                    let answer = self.cluster.clone().filter(|_| !question.urls().is_empty());
                    question.answer(answer.ok_or(NoCluster::Unreachable))?
                }
                Step::OwnRow(question) => question.answer(self.rows.clone())?,
                Step::SameUrls(question) => {
                    let (left, right) = question.urls();
                    let resolves = question.comparison() == UrlComparison::Resolved;
                    let alias = (left.to_vec(), right.to_vec());
                    let is_same = left == right || resolves && self.aliases.contains(&alias);
                    let differ = || format!("{} != {}", left[0], right[0]);
                    let compared = if is_same { Ok(()) } else { Err(differ()) };
                    question.answer(compared)?
                }
                Step::Versions(question) if self.is_incompatible => {
                    question.answer(Err(Refusal::Incompatible))?
                }
                Step::Versions(question) => question.answer(Ok(()))?,
            };
        }
    }

    fn create(&self, joins: bool) -> Result<Decision, Refusal> {
        self.decide(flags(joins).create(LogIndex::ZERO)?)
    }

    /// Decides how this member starts with an empty log.
    fn begin_again(&self, joins: bool, identity: Identity) -> Result<Decision, Refusal> {
        self.decide(flags(joins).begin_again(identity, None)?)
    }
}

fn identity(cluster: u64) -> Identity {
    Identity { cluster_id: cluster, member_id: id_of("a").0, name: "a".to_owned() }
}

fn names(members: &[Member]) -> Vec<&str> {
    members.iter().map(|member| member.name.as_str()).collect()
}

fn refusal(decided: Result<Decision, Refusal>) -> String {
    decided.expect_err("the decision is a refusal").to_string()
}

#[test]
fn a_directory_with_the_lost_log_mark_is_accepted_only_with_a_log_and_force_new_cluster() {
    let judge = |is_alone, lost: bool, has_log| {
        let lost = lost.then(|| "why".to_owned());
        Flags { is_alone, ..flags(false) }.classify_directory(lost, has_log).ok()
    };
    assert_eq!(judge(false, false, true), Some(Directory::Used));
    assert_eq!(judge(false, false, false), Some(Directory::New));
    assert_eq!(judge(false, true, true), None);
    assert_eq!(judge(true, true, true), Some(Directory::Used));
    assert_eq!(judge(true, true, false), None);
}

#[test]
fn a_backend_file_without_its_log_is_refused() {
    assert!(matches!(flags(false).create(LogIndex(1)), Err(Refusal::LogMissing(LogIndex(1)))));
    assert!(matches!(flags(true).create(LogIndex(1)), Err(Refusal::LogMissing(_))));
}

#[test]
fn a_member_that_has_published_its_client_urls_cannot_found_the_cluster_again() {
    let mut world = World { initial: Some(initial(&["a", "b", "c"])), ..World::default() };
    world.rows = vec![row("a")];
    let Ok(Decision::Found(founding)) = world.create(false) else {
        panic!("the member did not found the cluster")
    };
    assert_eq!(founding.identity.member_id, id_of("a").0);
    assert_eq!(founding.others().len(), 2);
    world.rows.push(published("a"));
    let refused = refusal(world.create(false));
    assert_eq!(refused, format!("member {} has already been bootstrapped", id_of("a")));
}

#[test]
fn a_member_joins_the_cluster_listed_in_its_flags() {
    let mut world = World {
        initial: Some(initial(&["a", "b"])),
        cluster: Some(cluster([row("a"), published("b")])),
        ..World::default()
    };
    let Ok(Decision::Join(joining)) = world.create(true) else {
        panic!("the member did not join the cluster")
    };
    assert_eq!((joining.identity.cluster_id, joining.identity.member_id), (7, id_of("a").0));
    assert_eq!(names(&joining.others), ["b"]);
    world.is_incompatible = true;
    assert!(matches!(world.create(true), Err(Refusal::Incompatible)));
}

#[test]
fn a_member_that_has_run_before_is_refused_if_its_directory_is_empty() {
    let mut world = World {
        initial: Some(initial(&["a", "b"])),
        cluster: Some(cluster([published("a"), published("b")])),
        ..World::default()
    };
    assert!(matches!(world.create(true), Err(Refusal::Published { id, .. }) if id == id_of("a")));
    // The first member to answer lags behind and does not know the URLs that this member published. Another member
    // does.
    world.cluster = Some(cluster([row("a"), published("b")]));
    world.rows = vec![row("a"), published("a")];
    assert!(matches!(world.create(true), Err(Refusal::Published { .. })));
}

#[test]
fn members_are_matched_by_literal_urls_first_and_then_by_addresses() {
    let named = |url: &str| Member { peer_urls: vec![url.to_owned()], ..row("b") };
    let mut world = World {
        initial: Some(initial(&["a", "b"])),
        cluster: Some(cluster([row("a"), named("http://10.0.0.2:2380")])),
        ..World::default()
    };
    assert_eq!(
        refusal(world.create(true)),
        format!(
            "error validating peerURLs {}: PeerURLs: no match found for existing member ({}, \
             [http://10.0.0.2:2380]), last resolver error (http://10.0.0.2:2380 != http://b:2380)",
            world.cluster.as_ref().unwrap(),
            id_of("b")
        )
    );
    world.aliases.push((vec!["http://10.0.0.2:2380".to_owned()], url("b")));
    assert!(matches!(world.create(true), Ok(Decision::Join(_))));
    world.initial = Some(initial(&["a", "b", "c"]));
    assert!(refusal(world.create(true)).ends_with("member count is unequal"));
    world.initial = Some(initial(&["b", "c"]));
    assert!(matches!(world.create(true), Err(Refusal::NotInitial(name)) if name == "a"));
    world.cluster = None;
    assert!(matches!(world.create(true), Err(Refusal::NoCluster(NoCluster::Unreachable))));
}

#[test]
fn more_learners_than_the_flags_allow_are_refused() {
    let learner = |name| Member { is_learner: true, ..row(name) };
    let world = World {
        initial: Some(initial(&["a", "b", "c"])),
        cluster: Some(cluster([learner("a"), learner("b"), published("c")])),
        ..World::default()
    };
    assert!(matches!(world.create(true), Err(Refusal::TooManyLearners)));
    let members =
        |rows: [Member; 2], removed: &[MemberId]| Members::new(rows, removed.iter().copied());
    let check = |members: &Members| flags(false).check_members(&identity(7), members);
    assert!(check(&members([row("a"), learner("b")], &[])).is_ok());
    let two = members([learner("b"), learner("c")], &[]);
    assert!(matches!(check(&two), Err(Refusal::TooManyLearners)));
    let without = members([row("b"), row("c")], &[id_of("a")]);
    assert!(matches!(check(&without), Err(Refusal::Removed)));
}

#[test]
fn a_member_with_a_held_version_does_not_open_files_of_a_higher_version() {
    let held = Flags { held_version: Some(Version::new(3, 5)), ..flags(false) };
    assert!(held.check_version(None).is_ok());
    assert!(held.check_version(Some(Version::new(3, 5))).is_ok());
    let refused = held.check_version(Some(Version::new(3, 6)));
    assert!(matches!(refused, Err(Refusal::HeldBack { .. })));
}

#[test]
fn a_cluster_whose_members_are_older_than_3_5_is_refused() {
    let check = |minor| flags(false).check_version(Some(Version::new(3, minor)));
    for minor in 1..=4 {
        assert!(matches!(check(minor), Err(Refusal::TooOld { .. })), "3.{minor}");
    }
    for minor in [0, 5, 6, 7] {
        assert!(check(minor).is_ok(), "3.{minor}");
    }
    // A new cluster has version 3.0, whatever the version of its members.
    let joins = |server| check_supported(Version::MINIMUM, Some(server)).is_ok();
    assert!(joins(Version::new(3, 5)) && joins(Version::OWN) && !joins(Version::new(3, 4)));
}

#[test]
fn a_founder_with_an_empty_log_bootstraps_again_only_if_the_flags_describe_the_same_cluster() {
    let founders = ["a", "b", "c"].map(id_of);
    let own = || identity(cluster_id(founders));
    let mut world = World { initial: Some(initial(&["a", "b", "c"])), ..World::default() };
    let found = |world: &World, joins| world.begin_again(joins, own());
    assert!(matches!(found(&world, false), Ok(Decision::Found(_))));
    // If the flags do not describe the same cluster, the member waits for the other members, like a member that joins.
    let waits =
        |decided| matches!(decided, Ok(Decision::Continue { others, .. }) if others.is_empty());
    assert!(waits(found(&world, true)));
    world.initial = Some(initial(&["a", "b", "d"]));
    assert!(waits(found(&world, false)));
    world.initial = None;
    assert!(waits(found(&world, false)));
    let lost = flags(false).begin_again(own(), Some("why".to_owned()));
    assert!(matches!(lost, Err(Refusal::LogMarkedLost(_))));
}

#[test]
fn a_sole_founder_with_an_empty_log_bootstraps_its_cluster_again() {
    let own = || identity(cluster_id([id_of("a")]));
    let mut world = World { initial: Some(initial(&["a"])), ..World::default() };
    for joins in [false, true] {
        assert!(matches!(world.begin_again(joins, own()), Ok(Decision::Found(_))));
    }
    world.initial = Some(initial(&["a", "b"]));
    assert!(matches!(world.begin_again(false, own()), Err(Refusal::OtherFounding { .. })));
    let Ok(Step::Initial(question)) = flags(false).begin_again(own(), None) else {
        panic!("the member did not ask for the initial cluster")
    };
    assert_eq!(question.purpose(), Purpose::FoundAgain);
    assert!(
        question.go_without().is_none(),
        "the founding cannot be repeated without the initial cluster"
    );
}

#[test]
fn a_discovered_sole_founder_with_an_empty_log_bootstraps_its_cluster_again() {
    let discovered = || Flags { is_discovered: true, ..flags(false) };
    let world = World { initial: Some(initial(&["a"])), ..World::default() };
    let begin_again = |identity| world.decide(discovered().begin_again(identity, None)?);
    let sole = identity(cluster_id([id_of("a")]));
    assert!(matches!(begin_again(sole), Ok(Decision::Found(_))));
    // The flags do not list the other founders, so the member waits for them.
    let one_of_two = identity(cluster_id(["a", "b"].map(id_of)));
    assert!(matches!(begin_again(one_of_two), Ok(Decision::Continue { .. })));
}

#[test]
fn a_member_without_a_stored_member_list_requests_the_list_from_its_peers() {
    let go_on = |world: &World| {
        world.decide(flags(true).go_on(identity(7), &Start::default(), &Members::default()))
    };
    let mut world = World {
        initial: Some(initial(&["a", "b"])),
        cluster: Some(cluster([row("a"), published("b")])),
        ..World::default()
    };
    let Ok(Decision::Continue { others, unlearned: None }) = go_on(&world) else {
        panic!("the member did not continue with the other members")
    };
    assert_eq!(names(&others), ["b"]);
    let unlearned = |world: &World| match go_on(world) {
        Ok(Decision::Continue { unlearned, .. }) => unlearned,
        other => panic!("unexpected decision: {other:?}"),
    };
    world.cluster = Some(Cluster { id: 8, ..cluster([row("b")]) });
    assert_eq!(unlearned(&world), Some(Unlearned::OtherCluster(8)));
    world.cluster = None;
    assert_eq!(unlearned(&world), Some(Unlearned::NoCluster(NoCluster::Unreachable)));
    world.initial = None;
    assert_eq!(unlearned(&world), None);
    // The cluster lists client URLs for this member, so this member's files have lost entries.
    world.initial = Some(initial(&["a", "b"]));
    world.cluster = Some(cluster([published("a"), published("b")]));
    assert!(matches!(go_on(&world), Err(Refusal::Published { .. })));
}

#[test]
fn log_metadata_round_trips_and_must_contain_a_member_id() {
    let own = identity(7);
    let metadata = own.to_metadata();
    let read = Identity::from_metadata(Some(&metadata), "b").unwrap();
    assert_eq!((read.cluster_id, read.member_id, read.name.as_str()), (7, own.member_id, "b"));
    for bad in [None, Some(&b""[..]), Some(&Identity { member_id: 0, ..own }.to_metadata()[..])] {
        assert!(matches!(Identity::from_metadata(bad, "b"), Err(Refusal::NoMetadata)));
    }
    assert!(matches!(Identity::from_metadata(Some(&[0xff]), "b"), Err(Refusal::Metadata(_))));
}
