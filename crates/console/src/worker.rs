//! The console's thread, which owns the connections to the cluster and answers all API calls.
//!
//! All calls share one thread, so that a console uses at most one core and its state needs no locks.
//!
//! # API
//!
//! The API serves only the page of the same version, so it may change in any version. Each call is a `POST` to
//! `/api/v1/NAME` with the headers `Content-Type: application/json` and `X-Quorate-Console: 1`. The header
//! `X-Quorate-Token` contains the user's token, and `X-Quorate-Secret` the console's secret, if the console has one.
//! The body is a flat JSON object of at most 2 MiB (`input`); an empty body means no arguments. In the tables below, a
//! name with `?` is optional.
//!
//! A response has the status 200 and a JSON object of at most 1 MB, or an error status and
//! `{"error": {"code", "message", "grpc", "advice"}}`. `refusal` lists the codes with their statuses. Any call can fail
//! with `refused_host`, `refused_origin`, `missing_header`, `bad_request`, `busy`, `unavailable`, `timeout` or
//! `too_large`, and any call but the first two with `login_required`, `token_expired`, `authentication_off` or
//! `permission_denied`.
//!
//! Keys, prefixes, separators and values are in base64. Ids of members and leases are hexadecimal strings. Revisions,
//! counts and sizes are numbers, times end in `_unix_ms`, durations in `_secs`, and sizes in `_bytes`. A value that is
//! unknown is null.
//!
//! | name | arguments | response | errors of this call |
//! |---|---|---|---|
//! | `session` | | the console's version, listener, endpoints and limits; whether a login is needed and possible | |
//! | `login` | `user`, `password` | `token`, `user` | `login_failed`, `plaintext_login` |
//! | `whoami` | `user?` | `user`, `roles`, `is_root`, `permissions` | |
//! | `overview` | | `sequence`, `age_secs`, `cluster`, `members`, `requests`, `alarms`, `certificates`, `problems` | |
//! | `keys/tree` | `prefix?`, `separator?`, `revision?`, `limit?` (200), `cursor?` | `revision`, `entries` (keys and prefixes with counts), `next` | `compacted`, `future_revision` |
//! | `keys/list` | `prefix?`, `revision?`, `limit?` (500), `cursor?` | `revision`, `count`, `entries`, `next` | `compacted`, `future_revision` |
//! | `keys/get` | `key`, `revision?` | the key's revisions, version, lease, `value`, `size`, `truncated`, `too_large` | `not_found`, `compacted`, `future_revision` |
//! | `keys/history` | `key`, `limit?` (40), `before?`, or `search` | `revision`, `entries`, `next`, `end` (why the history ends) | `compacted` |
//! | `keys/watch` | `key?` or `prefix?`, `start_revision?`, `previous?`, `value_bytes?` | a stream of `created`, `events`, `dropped` and `ping` | `compacted`, `authentication_changed` |
//! | `keys/prefixes` | `prefix?`, `separator?`, `depth?` | a stream of `prefixes` every 2 s | `authentication_changed` |
//! | `leases/list` | `limit?` (100), `cursor?` | `total`, `entries`, `next` | |
//! | `leases/get` | `id` | `ttl_secs`, `granted_ttl_secs`, `keys`, `key_count` | `not_found` |
//! | `auth/list` | | `enabled`, `revision`, `users` with their roles, `roles`, `omitted` | |
//! | `auth/role` | `name` | `name`, `permissions` | |
//! | `snapshot_progress` | `id` | `state`, `sent_bytes`, `total_bytes`, `error` | `not_found` |
//!
//! The number after `limit?` is its maximum. A page of a list has a `next` cursor if more entries follow; the next call
//! passes it as `cursor`. A stream has one JSON object with a `type` per line. Its last line is
//! `{"type": "end", "error"}`.
//!
//! The calls below need `--allow-writes` (on a member, `--console-allow-writes`); otherwise they fail with `read_only`.
//! Each response contains the `revision` of the store. Calls that name a member fail with `not_found` if there is no
//! such member, and with `plaintext_member` if all its client URLs lack TLS although the endpoints have it.
//!
//! | name | arguments | further fields of the response |
//! |---|---|---|
//! | `write/put` | `key`, `value`, `if_mod_revision` (0: the key must not exist), `lease?` or `keep_lease?` | fails with `changed` and the `current` record if the key has another revision |
//! | `write/delete` | `key`, `if_mod_revision` | as for `write/put` |
//! | `write/lease_grant` | `ttl_secs` | `id` |
//! | `write/lease_revoke` | `id` | |
//! | `write/compact` | `revision`, `physical?` | |
//! | `write/defragment` | `member` | `db_bytes_before`, `db_bytes_after` |
//! | `write/move_leader` | `to` | |
//! | `write/alarm_disarm` | `member`, `name` | |
//! | `write/member_add` | `peer_urls`, `learner?` | `id` |
//! | `write/member_update` | `id`, `peer_urls` | |
//! | `write/member_promote`, `write/member_remove` | `id` | |
//! | `write/user_add` | `name`, `password?` | |
//! | `write/user_password` | `name`, `password` | |
//! | `write/user_delete`, `write/role_add`, `write/role_delete` | `name` | |
//! | `write/user_grant`, `write/user_revoke` | `user` or, to revoke, `name`; `role` | |
//! | `write/role_grant` | `name`, `type` (read, write or readwrite), `key?`, `range_end?` | |
//! | `write/role_revoke` | `name`, `key?`, `range_end?` | |
//! | `write/auth_enable`, `write/auth_disable` | | |
//! | `write/snapshot` | `member?` | no `revision`, but `id`, `path` and `file` of a download |
//!
//! `GET /download/ID` begins a download. It works once, within a minute, and needs no token. All other paths are files
//! of the page (`assets`).

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use quorate_client::credentials::Token;
use quorate_client::failure::Failure;
use quorate_client::key_range::KeyRange;
use quorate_telemetry::threads;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};

use crate::access::{Access, Mode};
use crate::clients::{Client, Users};
use crate::cluster::{Caller, Cluster};
use crate::guard::{Guard, Needed};
use crate::input::Input;
use crate::keys::{self, Large, VALUE_BYTES_SHOWN};
use crate::live::{self, Lines, Watch, shape_of};
use crate::members::Members;
use crate::overview::{INTERVAL, Overview};
use crate::refusal::{Kind, Refusal};
use crate::reply::{self, Reply};
use crate::service::Job;
use crate::settings::Settings;
use crate::snapshots::Downloads;
use crate::{accounts, history, leases, operations};

/// Maximum length of a value in a put, in bytes. In base64, a value of this length still fits into a request body.
const VALUE_BYTES_PUT: usize = 1 << 20;

/// The name of the thread.
const NAME: &str = "console";

/// The state shared by all calls.
struct Context {
    settings: Settings,
    cluster: Rc<Cluster>,
    /// The client with the connections to the cluster, without a user.
    connections: quorate_client::Client,
    members: Members,
    access: Rc<Access>,
    overview: Rc<Overview>,
    downloads: Downloads,
    large: Large,
}

/// Starts the thread. The thread ends once all senders of jobs are dropped.
pub(crate) fn start(
    settings: Settings,
    jobs: mpsc::Receiver<Job>,
    users: Arc<Users>,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name(NAME.to_owned());
    threads::spawn(thread, move || {
        let client = match settings.cluster.connect(settings.cluster.endpoints.clone()) {
            Ok(client) => client,
            // The settings were checked when the console was started, so the likely cause of this error is that a
            // certificate file has been removed since then.
            Err(failure) => {
                quorate_telemetry::log::error!(
                    "the console cannot create a client for the cluster",
                    "error" = failure.message.unwrap_or_default()
                );
                return;
            }
        };
        let context = Rc::new(Context {
            cluster: Rc::new(settings.cluster.clone()),
            connections: client,
            members: Members::new(settings.cluster.clone()),
            access: Rc::new(Access::new(settings.rules(), users)),
            overview: Rc::new(Overview::new()),
            downloads: Downloads::default(),
            large: Large::new(),
            settings,
        });
        LocalSet::new().block_on(&runtime, work(context, jobs));
    })?;
    Ok(())
}

/// Checks that a client can be created from these settings.
pub(crate) fn check(settings: &Settings) -> Result<(), Failure> {
    settings.cluster.connect(settings.cluster.endpoints.clone()).map(drop)
}

async fn work(context: Rc<Context>, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        let context = Rc::clone(&context);
        spawn_local(async move { context.answer(job).await });
    }
}

impl Context {
    /// Answers a call. The call is cancelled if its client disconnects.
    async fn answer(self: &Rc<Self>, job: Job) {
        let Job { name, is_download, body, token, knows_secret, client, slot, mut reply } = job;
        let answering = async {
            let answered = match is_download {
                true => self.download(&name).await,
                false => Box::pin(self.call(&name, &body, (token, client), knows_secret)).await,
            };
            answered.unwrap_or_else(|refused| Answer::whole(reply::refusal(&refused)))
        };
        let answer = tokio::select! {
            answer = answering => answer,
            () = reply.closed() => return,
        };
        // Sending fails if the client has disconnected. The stream then ends immediately.
        drop(reply.send(answer.reply));
        if let Some(stream) = answer.stream {
            stream.await;
        }
        drop(slot);
    }

    async fn download(&self, id: &str) -> Result<Answer, Refusal> {
        let (file, parts, fetching) = self.downloads.begin(id).await?.split();
        Ok(Answer { reply: reply::file(&file, parts), stream: Some(Box::pin(fetching)) })
    }

    async fn call(
        self: &Rc<Self>,
        name: &str,
        body: &[u8],
        (token, client): (Option<Token>, Client),
        knows_secret: bool,
    ) -> Result<Answer, Refusal> {
        let input = Input::parse(body)?;
        let anonymous = self.caller(None);
        match name {
            "session" => {
                return Ok(Answer::of(&self.session(&anonymous, token, knows_secret).await?));
            }
            "login" => {
                return Ok(Answer::of(&self.access.log_in(&anonymous, &client, &input).await?));
            }
            _ => {}
        }
        self.access.admit(token.is_some(), knows_secret, &anonymous).await?;
        let caller = self.caller(token.clone());
        if let Some(name) = name.strip_prefix("write/") {
            return Ok(Answer::of(
                &Box::pin(self.write(name, (caller, token, client), &input)).await?,
            ));
        }
        let value = match name {
            "overview" => {
                self.access.confirm(&caller, token.as_ref()).await?;
                let mut figures = self.overview.latest(&self.cluster, token).await?;
                figures["authentication"] = json!(self.authentication(&anonymous).await);
                figures
            }
            "whoami" => accounts::who_am_i(&caller, &input).await?,
            "keys/tree" => Box::pin(keys::tree(&caller, &input)).await?,
            "keys/list" => keys::list(&caller, &input).await?,
            "keys/get" => keys::get(&caller, &input, &self.large).await?,
            "keys/history" => Box::pin(history::history(&caller, &input, &self.large)).await?,
            "keys/watch" => {
                let (watch, (lines, parts)) = (Watch::of(&input)?, Lines::new());
                let guard = self.guard(token, Needed::Read(watch.range())).await?;
                let watching = async move { watch.run(&caller, &guard, lines).await };
                return Ok(Answer { reply: reply::lines(parts), stream: Some(Box::pin(watching)) });
            }
            "keys/prefixes" => {
                self.access.confirm(&caller, token.as_ref()).await?;
                let (shape, (lines, parts)) = (shape_of(&input)?, Lines::new());
                let range = KeyRange::prefix(shape.base.clone());
                let guard = self.guard(token, Needed::Read(range)).await?;
                let measuring = live::measure(caller, guard, shape, lines);
                return Ok(Answer {
                    reply: reply::lines(parts),
                    stream: Some(Box::pin(measuring)),
                });
            }
            "leases/list" => leases::list(&caller, &input).await?,
            "leases/get" => leases::get(&caller, &input).await?,
            "auth/list" => accounts::list(&caller).await?,
            "auth/role" => accounts::role(&caller, &input).await?,
            "snapshot_progress" => self.downloads.progress(&input)?,
            _ => return Err(Refusal::new(Kind::NotFound, "there is no API call with this name")),
        };
        Ok(Answer::of(&value))
    }

    async fn write(
        self: &Rc<Self>,
        name: &str,
        (caller, token, client): (Caller, Option<Token>, Client),
        input: &Input,
    ) -> Result<Value, Refusal> {
        if !self.settings.allows_writes {
            return Err(Refusal::new(Kind::ReadOnly, "this console is read-only").advising(
                "Start it with --allow-writes (on a member, --console-allow-writes) to change the cluster.",
            ));
        }
        if name == "snapshot" {
            let guard = self.guard(token, Needed::Root).await?;
            return self.downloads.prepare(&self.members, (caller, guard, client), input).await;
        }
        let done = operations::operate(&self.members, &caller, name, input).await?;
        if name.starts_with("auth_") {
            self.access.forget_mode();
        }
        Ok(done)
    }

    /// Returns a caller that uses the console's connections, with this token or without a user.
    fn caller(&self, token: Option<Token>) -> Caller {
        let is_logged_in = token.is_some();
        let token = self.cluster.token_of(token);
        Caller { client: self.connections.for_user(token), is_logged_in }
    }

    /// Creates the guard of a stream for the caller with this token.
    async fn guard(&self, token: Option<Token>, needed: Needed) -> Result<Guard, Refusal> {
        let user = token.map(|token| self.caller(Some(token)));
        Guard::begin(&self.access, self.caller(None), user, needed).await
    }

    async fn authentication(&self, anonymous: &Caller) -> &'static str {
        match self.access.mode(anonymous).await {
            Ok(Mode::On) => "on",
            Ok(Mode::Off) => "off",
            Err(_) => "unknown",
        }
    }

    /// Describes the console. The version, the name of the member and the endpoints are returned only to callers that
    /// may use the cluster.
    async fn session(
        &self,
        anonymous: &Caller,
        token: Option<Token>,
        knows_secret: bool,
    ) -> Result<Value, Refusal> {
        let authentication = self.authentication(anonymous).await;
        let is_admitted = knows_secret
            || (authentication != "unknown"
                && self.access.admit(token.is_some(), knows_secret, anonymous).await.is_ok()
                && self.access.confirm(&self.caller(token.clone()), token.as_ref()).await.is_ok());
        let login_refused = self.access.check_login().err();
        let login: &[&str] = if login_refused.is_some() { &[] } else { &["password"] };
        let exposure = self.settings.exposure;
        Ok(json!({
            "version": is_admitted.then_some(quorate_version::QUORATE_VERSION),
            "on_member": self.settings.member.as_ref().filter(|_| is_admitted),
            "writes": self.settings.allows_writes,
            "authentication": authentication,
            "login": login,
            "login_refused": login_refused.as_ref().map(Refusal::json),
            "listener": {
                "loopback": exposure.is_loopback,
                "tls": exposure.is_secured,
                "verifies_clients": exposure.verifies_clients,
                "client_certificate": null,
            },
            "endpoints": is_admitted.then_some(&self.cluster.endpoints),
            "limits": {
                "value_bytes_shown": VALUE_BYTES_SHOWN,
                "value_bytes_put": VALUE_BYTES_PUT,
                "page_max": keys::LIST_MAX,
                "interval_ms": u64::try_from(INTERVAL.as_millis()).unwrap_or(u64::MAX),
            },
        }))
    }
}

/// A response, and the task that produces its stream, if it has one.
struct Answer {
    reply: Reply,
    stream: Option<std::pin::Pin<Box<dyn Future<Output = ()>>>>,
}

impl Answer {
    fn whole(reply: Reply) -> Self {
        Self { reply, stream: None }
    }

    fn of(value: &Value) -> Self {
        Self::whole(reply::answer(value))
    }
}
