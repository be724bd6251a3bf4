//! Collects one sample from all members in parallel, each within a timeout.
//!
//! Each member receives a status request and a member list request, neither of which writes to the log, and a request
//! for `/metrics` on the same listener. Alarms are read from the errors in the status response, because a call that
//! lists alarms would write to the log at each refresh. One member also lists the leases, at most once per
//! `LEASES_PERIOD`.
//!
//! # Guarantees
//!
//! - The member list is read again at each refresh. Requests go to one of the given endpoints if the member answers
//!   there, and otherwise to its advertised client URLs. A response with the id of another member is ignored.
//! - Credentials are never sent to an advertised URL without TLS if the endpoints use TLS (`quorate_client::listed`).
//! - Missing data is omitted. Only the first refresh can fail, and only if no member answers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use quorate_api::etcdserverpb::{
    LeaseLeasesRequest, Member as Listed, MemberListRequest, MemberListResponse, StatusRequest,
    StatusResponse,
};
use quorate_tls::{ChannelConnector, Place};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use super::metrics::Metrics;
use super::sample::{Member, Sample, Standing, Trouble, TroubleKind};
use crate::Cluster;
use crate::client::{Client, Repeat, http_stream};
use crate::failure::Failure;
use crate::listed::{self, Plaintext};

/// The minimum timeout of a request. It applies even if the refresh interval is shorter.
const ANSWER_TIME_MIN: Duration = Duration::from_millis(500);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// The timeout of the first request to a member, which includes the login.
const FIRST_ANSWER_TIME: Duration = Duration::from_secs(5);
/// The maximum size of a `/metrics` response, in bytes.
const METRICS_BYTES_MAX: u64 = 16 << 20;
/// The interval at which leases are counted. Each count requires listing all leases.
const LEASES_PERIOD: Duration = Duration::from_secs(10);
/// The interval at which leases are counted if there are more than [`MANY_LEASES`].
const MANY_LEASES_PERIOD: Duration = Duration::from_secs(120);
/// The number of leases above which they are counted less often.
const MANY_LEASES: u64 = 10_000;

/// The name of a member that has not started yet.
const UNNAMED: &str = "(unnamed)";

/// A target of requests: a member, or an endpoint whose member is not known yet.
struct Target {
    /// The id of the member; 0 for an endpoint whose member is not known yet.
    id: u64,
    name: String,
    is_learner: bool,
    endpoints: Vec<String>,
    peer_urls: Vec<String>,
    client_urls: Vec<String>,
    client: Result<Rc<Client>, Trouble>,
    http: Vec<ChannelConnector>,
    was_asked: Cell<bool>,
    /// Whether the client has logged in, if authentication is enabled.
    is_logged_in: Cell<bool>,
}

/// The responses of one target.
struct Answer {
    target: Rc<Target>,
    at: Duration,
    took: Duration,
    status: Result<StatusResponse, Trouble>,
    list: Option<MemberListResponse>,
    metrics: Option<Metrics>,
}

/// Sends requests to the members, and keeps the connections from one refresh to the next.
pub(super) struct Collector<'a> {
    cluster: &'a Cluster<'a>,
    start: Instant,
    /// The endpoints from the command line.
    given: Vec<String>,
    /// The known ids of the members at the given endpoints, by endpoint.
    owners: BTreeMap<String, u64>,
    members: Vec<Rc<Target>>,
    /// The given endpoints that belong to no known member.
    strays: Vec<Rc<Target>>,
    cluster_id: u64,
    leases: Option<u64>,
    leases_due: Instant,
    /// The member to which reads about the whole cluster are sent, preferably a follower.
    reader: Option<Rc<Target>>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(cluster: &'a Cluster<'a>) -> Self {
        let now = Instant::now();
        let mut collector = Self {
            cluster,
            start: now,
            given: cluster.endpoints.clone(),
            owners: BTreeMap::new(),
            members: Vec::new(),
            strays: Vec::new(),
            cluster_id: 0,
            leases: None,
            leases_due: now,
            reader: None,
        };
        let strays = collector.given.iter();
        collector.strays = strays
            .map(|endpoint| {
                let unknown = Listed { name: endpoint.clone(), ..Listed::default() };
                collector.target(&unknown, Ok(vec![endpoint.clone()]))
            })
            .collect();
        collector
    }

    /// Returns the client of the member to which reads about the whole cluster are sent.
    pub(super) fn reader(&self) -> Option<Rc<Client>> {
        self.reader.as_ref().and_then(|target| target.client.as_ref().ok()).cloned()
    }

    /// Collects one sample. `interval` is the refresh interval.
    pub(super) async fn sample(&mut self, interval: Duration) -> Sample {
        let time_limit = interval.clamp(ANSWER_TIME_MIN, ANSWER_TIME_MAX);
        let asked: Vec<_> = self.members.iter().chain(&self.strays).cloned().collect();
        let (mut answers, leases) =
            tokio::join!(self.ask(asked, time_limit), self.count_leases(time_limit));
        self.keep_leases(leases);
        let known: Vec<_> = self.members.clone();
        self.learn(&answers);
        // Members that have just been found receive their requests in the same round.
        let is_new = |target: &&Rc<Target>| !known.iter().any(|old| Rc::ptr_eq(old, target));
        let new: Vec<_> = self.members.iter().filter(is_new).cloned().collect();
        answers.extend(self.ask(new, time_limit).await);
        self.choose_reader(&answers);
        self.assemble(answers)
    }

    async fn ask(&self, targets: Vec<Rc<Target>>, time_limit: Duration) -> Vec<Answer> {
        let mut asking = JoinSet::new();
        for target in targets {
            asking.spawn_local(ask(target, self.start, time_limit));
        }
        asking.join_all().await
    }

    fn target(&self, listed: &Listed, endpoints: Result<Vec<String>, Plaintext>) -> Rc<Target> {
        let unreachable = |text| Trouble { kind: TroubleKind::Unreachable, text };
        let client = match &endpoints {
            Err(refused) => {
                Err(Trouble { kind: TroubleKind::Plaintext, text: refused.to_string() })
            }
            Ok(none) if none.is_empty() => {
                Err(unreachable("the member has not started yet".to_owned()))
            }
            Ok(endpoints) => match (self.cluster.connect)(endpoints.clone()) {
                Ok(client) => Ok(Rc::new(client.without_warnings().failing_fast())),
                Err(failure) => Err(unreachable(failure.message.unwrap_or_default())),
            },
        };
        let endpoints = endpoints.unwrap_or_default();
        let transport = &self.cluster.transport;
        let http = endpoints.iter().filter_map(|endpoint| http_stream(endpoint, transport).ok());
        let name = if listed.name.is_empty() { UNNAMED } else { &listed.name };
        Rc::new(Target {
            id: listed.id,
            name: name.to_owned(),
            is_learner: listed.is_learner,
            peer_urls: listed.peer_urls.clone(),
            client_urls: listed.client_urls.clone(),
            http: http.collect(),
            endpoints,
            client,
            was_asked: Cell::new(false),
            is_logged_in: Cell::new(false),
        })
    }

    /// Updates the member list and the ids at the given endpoints.
    fn learn(&mut self, answers: &[Answer]) {
        for answer in answers {
            let Ok(status) = &answer.status else { continue };
            let id = status.header.as_ref().map_or(0, |header| header.member_id);
            if let [endpoint] = &answer.target.endpoints[..]
                && self.given.contains(endpoint)
            {
                self.owners.insert(endpoint.clone(), id);
            }
        }
        // The member with the highest term and, in this term, the highest applied index has the newest member list.
        let lists = answers.iter().filter_map(|answer| {
            let status = answer.status.as_ref().ok()?;
            Some(((status.raft_term, status.raft_applied_index), answer.list.as_ref()?))
        });
        let Some((_, list)) = lists.max_by_key(|(progress, _)| *progress) else { return };
        self.cluster_id = list.header.as_ref().map_or(0, |header| header.cluster_id);
        let mut listed: Vec<_> = list.members.iter().collect();
        listed.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
        self.members = listed.into_iter().map(|member| self.member(member)).collect();
        let ids: Vec<u64> = self.members.iter().map(|member| member.id).collect();
        let owners = &self.owners;
        let listens_there = |endpoint: &String| {
            let urls = list.members.iter().flat_map(|member| &member.client_urls);
            urls.into_iter().any(|url| place(url) == place(endpoint))
        };
        self.strays.retain(|stray| {
            let is_owned = owners.get(&stray.name).is_some_and(|owner| ids.contains(owner));
            !is_owned && !listens_there(&stray.name)
        });
    }

    /// Returns the target of a listed member: the previous target, unless the member has changed.
    fn member(&self, listed: &Listed) -> Rc<Target> {
        let endpoints = self.endpoints_of(listed);
        let name = if listed.name.is_empty() { UNNAMED } else { &listed.name };
        let same = self.members.iter().find(|old| {
            old.id == listed.id
                && old.name == name
                && old.is_learner == listed.is_learner
                && old.peer_urls == listed.peer_urls
                && old.client_urls == listed.client_urls
                && endpoints.as_ref().map_or(old.endpoints.is_empty(), |new| old.endpoints == *new)
        });
        same.cloned().unwrap_or_else(|| self.target(listed, endpoints))
    }

    /// Returns the given endpoints at which a listed member answers, and those of its listed URLs to which requests may
    /// be sent.
    fn endpoints_of(&self, listed: &Listed) -> Result<Vec<String>, Plaintext> {
        let own = self.owners.iter().filter(|(_, owner)| **owner == listed.id);
        let mut endpoints: Vec<String> = own.map(|(endpoint, _)| endpoint.clone()).collect();
        let urls = match self.cluster.has_credentials {
            true => {
                listed::for_credentials(&self.given, &listed.client_urls, &self.cluster.transport)
            }
            false => Ok(listed.client_urls.clone()),
        };
        let urls = match urls {
            Err(refused) if endpoints.is_empty() => return Err(refused),
            urls => urls.unwrap_or_default().into_iter(),
        };
        endpoints
            .extend(urls.filter(|url| !self.owners.keys().any(|own| place(own) == place(url))));
        Ok(endpoints)
    }

    fn choose_reader(&mut self, answers: &[Answer]) {
        let serves = |answer: &&Answer| {
            let status = answer.status.as_ref();
            status.is_ok_and(|status| status.leader != 0 && !status.is_learner)
        };
        let is_known = |answer: &&Answer| {
            self.members.is_empty()
                || self.members.iter().any(|target| Rc::ptr_eq(target, &answer.target))
        };
        let leads = |answer: &Answer| {
            answer.status.as_ref().is_ok_and(|status| status.leader == answer.id())
        };
        let able = || answers.iter().filter(serves).filter(is_known);
        let stays = self
            .reader
            .as_ref()
            .is_some_and(|reader| able().any(|answer| Rc::ptr_eq(&answer.target, reader)));
        if !stays {
            let chosen = able().min_by_key(|answer| leads(answer));
            self.reader = chosen.map(|answer| Rc::clone(&answer.target));
        }
    }

    /// Counts the leases if a count is due.
    async fn count_leases(&self, time_limit: Duration) -> Option<u64> {
        let client = self.reader().filter(|_| Instant::now() >= self.leases_due)?;
        let list = async |channel, request| client.lease(channel).lease_leases(request).await;
        let counting = client.call(None, Repeat::Safe, LeaseLeasesRequest {}, list);
        let listed = timeout(time_limit, counting).await.ok()?.ok()?;
        Some(listed.leases.len() as u64)
    }

    fn keep_leases(&mut self, counted: Option<u64>) {
        if let Some(count) = counted {
            let period = if count > MANY_LEASES { MANY_LEASES_PERIOD } else { LEASES_PERIOD };
            (self.leases, self.leases_due) = (Some(count), Instant::now() + period);
        }
    }

    fn assemble(&self, answers: Vec<Answer>) -> Sample {
        let is_shown = |answer: &Answer| {
            self.members.is_empty()
                || self.members.iter().any(|target| Rc::ptr_eq(target, &answer.target))
        };
        let mut members: Vec<_> =
            answers.into_iter().filter(is_shown).map(Answer::member).collect();
        members.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
        let (at, leases) = (self.start.elapsed(), self.leases);
        Sample { at, cluster_id: self.cluster_id, members, leases }
    }
}

impl Sample {
    /// Returns an error if no member answered.
    pub(super) fn require_an_answer(&self) -> Result<(), Failure> {
        let is_silent = |trouble: &Trouble| trouble.kind == TroubleKind::Unreachable;
        let mut troubles = self.members.iter().map(|member| member.standing.as_ref().err());
        match troubles.next() {
            Some(Some(first))
                if is_silent(first) && troubles.all(|trouble| trouble.is_some_and(is_silent)) =>
            {
                Err(Failure::error(format!("no endpoint responded: {}", first.text)))
            }
            _ => Ok(()),
        }
    }
}

impl Answer {
    fn id(&self) -> u64 {
        let header = self.status.as_ref().ok().and_then(|status| status.header.as_ref());
        header.map_or(self.target.id, |header| header.member_id)
    }

    fn member(self) -> Member {
        let id = self.id();
        let standing = match &self.status {
            Ok(_) if self.target.id != 0 && self.target.id != id => Err(Trouble {
                kind: TroubleKind::Unreachable,
                text: format!("this address belongs to a different member ({id:x})"),
            }),
            Ok(status) => Ok(Standing::of(status)),
            Err(trouble) => Err(trouble.clone()),
        };
        let is_refusal = |trouble: &Trouble| trouble.kind == TroubleKind::Refusal;
        let own = standing.is_ok() || standing.as_ref().is_err_and(is_refusal);
        Member {
            id: if self.target.id == 0 { id } else { self.target.id },
            name: self.target.name.clone(),
            is_learner: self.target.is_learner,
            peer_urls: self.target.peer_urls.clone(),
            client_urls: self.target.client_urls.clone(),
            standing,
            took: self.took,
            at: self.at,
            metrics: self.metrics.filter(|_| own),
        }
    }
}

/// Returns an endpoint without its scheme, so that two spellings of an endpoint compare equal.
fn place(endpoint: &str) -> &str {
    let (_, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    rest.trim_end_matches('/')
}

async fn ask(target: Rc<Target>, start: Instant, time_limit: Duration) -> Answer {
    let late = || Err(Status::deadline_exceeded("no response in time"));
    let time_limit = if target.was_asked.replace(true) { time_limit } else { FIRST_ANSWER_TIME };
    let client = match &target.client {
        Ok(client) => Rc::clone(client),
        Err(trouble) => {
            let (status, at) = (Err(trouble.clone()), start.elapsed());
            return Answer { target, at, took: Duration::ZERO, status, list: None, metrics: None };
        }
    };
    let asking = async {
        // A failed login is ignored, because a learner refuses logins but answers status requests.
        if !target.is_logged_in.get() && client.log_in().await.is_ok() {
            target.is_logged_in.set(true);
        }
        let begun = Instant::now();
        let status = async |channel, request| client.maintenance(channel).status(request).await;
        let status = client.call(None, Repeat::Safe, StatusRequest {}, status).await?;
        let took = begun.elapsed();
        let list = async |channel, request| client.cluster(channel).member_list(request).await;
        let request = MemberListRequest { linearizable: false };
        let list = client.call(None, Repeat::Safe, request, list).await.ok();
        Ok((status, took, list))
    };
    let asking = async { timeout(time_limit, asking).await.unwrap_or_else(|_| late()) };
    let reading = async { timeout(time_limit, read_metrics(&target.http)).await.ok().flatten() };
    let (asked, metrics) = tokio::join!(asking, reading);
    let at = start.elapsed();
    let (status, took, list) = match asked {
        Ok((status, took, list)) => (Ok(status), took, list),
        Err(status) => (Err(trouble(&status)), Duration::ZERO, None),
    };
    Answer { target, at, took, status, list, metrics }
}

/// Returns the reason why a response is missing, in a few words.
fn trouble(status: &Status) -> Trouble {
    let kind = match status.code() {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal => TroubleKind::Unreachable,
        _ => TroubleKind::Refusal,
    };
    let message = status.message();
    let connecting = message.strip_prefix("connection error: desc = \"");
    let text = connecting.map_or(message, |reason| reason.trim_end_matches('"'));
    let text = text.strip_prefix("transport: ").unwrap_or(text);
    let text = text.strip_prefix("Error while dialing: ").unwrap_or(text);
    Trouble { kind, text: text.to_owned() }
}

async fn read_metrics(places: &[ChannelConnector]) -> Option<Metrics> {
    for place in places {
        if let Some(metrics) = read_metrics_of(place).await {
            return Some(metrics);
        }
    }
    None
}

async fn read_metrics_of(place: &ChannelConnector) -> Option<Metrics> {
    let host = match place.place() {
        Place::Host(authority) => authority.as_str(),
        Place::File(_) => "localhost",
    };
    let mut stream = place.clone().connect().await.ok()?;
    // With HTTP/1.0, the server closes the connection at the end of the response.
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\nAccept: text/plain\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.take(METRICS_BYTES_MAX).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_there = head.split(' ').nth(1) == Some("200");
    is_there.then(|| {
        let mut metrics = Metrics::read(body);
        metrics.clock = clock_of(head);
        metrics
    })
}

/// Returns the time at which the server wrote a response head, in seconds since 1970.
fn clock_of(head: &str) -> Option<f64> {
    let is_date = |name: &str| name.eq_ignore_ascii_case("date");
    let (_, date) =
        head.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| is_date(name))?;
    let time = httpdate::parse_http_date(date.trim()).ok()?;
    Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_shortened_to_a_few_words() {
        let text = "connection error: desc = \"transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused\"";
        let short = trouble(&Status::unavailable(text));
        assert_eq!(short.text, "dial tcp 127.0.0.1:1: connect: connection refused");
        assert_eq!(short.kind, TroubleKind::Unreachable);
        let denied = trouble(&Status::permission_denied("etcdserver: permission denied"));
        assert_eq!(denied.kind, TroubleKind::Refusal);
    }

    #[test]
    fn the_clock_of_a_member_is_read_from_the_response_head() {
        let head = "HTTP/1.0 200 OK\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\nServer: x";
        assert_eq!(clock_of(head), Some(784_111_777.0));
        assert_eq!(clock_of("HTTP/1.0 200 OK\r\nDate: today"), None);
    }

    #[test]
    fn endpoints_compare_equal_with_and_without_a_scheme() {
        assert_eq!(place("http://a:1/"), place("a:1"));
        assert_ne!(place("https://a:1"), place("a:2"));
    }
}
