//! Performs one run, from the command line to the report.

use std::sync::Arc;
use std::time::Duration;

use quorate_api::etcdserverpb::{RangeRequest, RangeResponse};
use quorate_seeded_random::SplitMix64;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::bounds;
use crate::cli::{Cli, KubernetesArgs, ListArgs, Load, Options, OrderName, WatchArgs};
use crate::endpoint::Endpoint;
use crate::engine::{
    Records, Run, Spread, call, log_in, run_dialogues, run_handshakes, run_streams, run_unary,
};
use crate::error::BenchError;
use crate::login::Login;
use crate::pace::Pace;
use crate::progress::Progress;
use crate::pulse::{Pulse, Silence};
use crate::report::{Heading, Meter, Report};
use crate::secret::Secret;
use crate::shuffle::Shuffle;
use crate::template::{KeySpace, Values};
use crate::workload::keyed::{self, Keyed, ListShape, Order};
use crate::workload::kubernetes::{self, Server, Shape};
use crate::workload::lease::{Grants, Leases};
use crate::workload::path;
use crate::workload::watch::{Board, Layout, STAMP_BYTES, Writes, run_watchers};

const DURATION_DEFAULT: Duration = Duration::from_secs(10);
/// The interval at which a run checks whether the setup of watchers is complete.
const LOOK: Duration = Duration::from_millis(20);
const NOT_ENABLED: &str = "etcdserver: authentication is not enabled";
const WATCH_LATENCY_RATE: f64 = 100.0;

/// Runs the load that the command line describes.
pub(crate) fn run(cli: &Cli) -> Result<Report, BenchError> {
    bounds::check(cli)?;
    let session = Session::new(&cli.options)?;
    match &cli.load {
        Load::Put { order } => session.put(*order),
        Load::Fill { order } => session.fill(*order),
        Load::Range { serializable, order } => session.range(*serializable, *order),
        Load::List(args) => session.list(args),
        Load::Txn => session.txn(),
        Load::Mixed { reads, serializable } => session.mixed(*reads, *serializable),
        Load::Kubernetes(args) => session.kubernetes(args),
        Load::Watch(args) => session.watch("watch", args, cli.options.rate),
        Load::WatchLatency => {
            let one = WatchArgs { watchers: 1, streams: 1, watched_keys: 1, watch_connections: 1 };
            let rate = cli.options.rate.or(Some(WATCH_LATENCY_RATE));
            session.watch("watch-latency", &one, rate)
        }
        Load::LeaseGrant { ttl } => session.lease_grant(*ttl),
        Load::Connect => session.connect(),
        Load::LeaseKeepalive { ttl } => session.lease_keepalive(*ttl),
    }
}

/// The results of a run, without the cost.
#[derive(Default)]
struct Done {
    records: Records,
    silence: Option<Silence>,
    /// The reason why the run ended early.
    cut_short: Option<String>,
}

/// Logs in once for each connection before the run, so that logins are not measured. Does nothing if authentication is
/// disabled.
fn tokens(
    login: &Login,
    endpoints: &[Endpoint],
    connections: usize,
) -> Result<Vec<Secret>, BenchError> {
    let positions = (0..connections).map(|index| index % endpoints.len());
    let asked = positions.map(|position| log_in(endpoints, position, login));
    match asked.collect() {
        Err(BenchError::Refused { message, .. }) if message == NOT_ENABLED => Ok(Vec::new()),
        tokens => tokens,
    }
}

/// The watchers of a run and their connections.
struct Audience {
    layout: Layout,
    connections: usize,
    board: Arc<Board>,
}

struct Session<'a> {
    options: &'a Options,
    keys: KeySpace,
    values: Values,
    spread: Spread,
}

impl<'a> Session<'a> {
    fn new(options: &'a Options) -> Result<Self, BenchError> {
        if options.clients == 0 || options.connections == 0 || options.threads == 0 {
            let text = "--clients, --connections and --threads must be at least 1";
            return Err(BenchError::Usage(text.to_owned()));
        }
        let endpoints = options.security().endpoints(&options.endpoints)?;
        let connections = options.connections.min(options.clients);
        let login = Login::of(options.user.as_ref(), options.password.as_ref())?;
        let tokens = match &login {
            Some(login) => tokens(login, &endpoints, connections)?,
            None => Vec::new(),
        };
        Ok(Self {
            options,
            keys: KeySpace::new(&options.prefix, options.key_size, options.keys)?,
            values: Values::new(options.value_size, options.seed),
            spread: Spread {
                endpoints,
                clients: options.clients,
                connections,
                threads: options.threads,
                // An empty list of tokens means that authentication is disabled, so reconnections need no login either.
                login: login.filter(|_| !tokens.is_empty()),
                tokens: tokens.into(),
            },
        })
    }

    fn order(&self, name: OrderName) -> Order {
        let count = self.keys.count;
        match name {
            OrderName::Random => Order::Random { count },
            OrderName::Sequential => Order::Sequential { count },
        }
    }

    fn put(&self, order: OrderName) -> Result<Report, BenchError> {
        let load = Keyed::only(keyed::put(&self.keys, &self.values), self.order(order));
        self.keyed("put", &["put"], load, self.options.total)
    }

    fn fill(&self, order: OrderName) -> Result<Report, BenchError> {
        let order = match order {
            OrderName::Random => Order::Shuffled(Shuffle::new(self.keys.count, self.options.seed)),
            OrderName::Sequential => self.order(order),
        };
        let load = Keyed::only(keyed::put(&self.keys, &self.values), order);
        let total = self.options.total.unwrap_or(u64::MAX).min(self.keys.count);
        self.keyed("fill", &["put"], load, Some(total))
    }

    fn range(&self, serializable: bool, order: OrderName) -> Result<Report, BenchError> {
        let kind = keyed::get(&self.keys, &self.values, serializable);
        let name = if serializable { "range, serializable" } else { "range, linearizable" };
        self.keyed(name, &["range"], Keyed::only(kind, self.order(order)), self.options.total)
    }

    fn list(&self, args: &ListArgs) -> Result<Report, BenchError> {
        if args.span > self.keys.count {
            return Err(BenchError::Usage("--span must not exceed --keys".to_owned()));
        }
        let mut shape = ListShape {
            span: args.span,
            limit: args.limit.into(),
            revision: 0,
            serializable: args.serializable,
            keys_only: args.keys_only,
            count_only: args.count_only,
        };
        let (mut total, mut order) = (self.options.total, Order::Random { count: self.keys.count });
        if args.walk {
            let stride = u64::from(args.limit).max(1);
            let first = args.first_page.min(self.keys.count / stride);
            let pages = self.keys.count.div_ceil(stride).saturating_sub(first).max(1);
            shape.revision = self.revision()?;
            total = total.or(self.options.duration.is_none().then_some(pages));
            order = Order::Pages { first, pages, stride };
        } else if args.span > 0 {
            // Every range must lie completely within the run's keys, so the last `span - 1` keys cannot begin a range.
            order = Order::Random { count: self.keys.count - args.span + 1 };
        }
        let kind = keyed::list(&self.keys, &self.values, shape);
        self.keyed("list", &["list"], Keyed::only(kind, order), total)
    }

    fn txn(&self) -> Result<Report, BenchError> {
        let kind = keyed::txn(&self.keys, &self.values);
        let load = Keyed::only(kind, self.order(OrderName::Random));
        self.keyed("txn", &["txn"], load, self.options.total)
    }

    fn mixed(&self, reads: u64, serializable: bool) -> Result<Report, BenchError> {
        let kinds = vec![
            keyed::get(&self.keys, &self.values, serializable),
            keyed::put(&self.keys, &self.values),
        ];
        let order = self.order(OrderName::Random);
        let load = Keyed { kinds, first_percent: reads, order };
        self.keyed("mixed", &["read", "write"], load, self.options.total)
    }

    fn keyed(
        &self,
        name: &str,
        kinds: &[&'static str],
        load: Keyed,
        total: Option<u64>,
    ) -> Result<Report, BenchError> {
        let seed = self.options.seed;
        self.measured(name, kinds, total, |run| {
            run_unary(&self.spread, run, move |index| {
                load.source(load.clone(), seed ^ (index as u64 + 1) << 32)
            })
        })
    }

    fn lease_grant(&self, ttl_secs: i64) -> Result<Report, BenchError> {
        let grants = Grants::new(ttl_secs);
        self.measured("lease-grant", &["grant"], self.options.total, |run| {
            run_unary(&self.spread, run, move |_| grants.clone())
        })
    }

    fn connect(&self) -> Result<Report, BenchError> {
        self.measured("connect", &["connect"], self.options.total, |run| {
            run_handshakes(&self.spread, run)
        })
    }

    fn lease_keepalive(&self, ttl_secs: i64) -> Result<Report, BenchError> {
        let endpoints = &self.spread.endpoints;
        let leases = Leases::grant(endpoints, self.token(), self.options.clients, ttl_secs)?;
        let requests = leases.keep_alive_requests();
        let report = self.measured("lease-keepalive", &["keepalive"], self.options.total, |run| {
            run_streams(&self.spread, run, path::LEASE_KEEP_ALIVE, requests)
        });
        // An error is ignored, because leases that are not revoked expire.
        drop(leases.revoke(endpoints, self.token()));
        report
    }

    /// Runs `work`, and measures the resources that the server processes use for it.
    fn measured(
        &self,
        name: &str,
        kinds: &[&'static str],
        total: Option<u64>,
        work: impl FnOnce(&Run) -> Result<Records, BenchError>,
    ) -> Result<Report, BenchError> {
        let meter = Meter::start(&self.options.pids)?;
        let done = self.paced(total, self.options.rate, kinds.len(), work)?;
        let cost = meter.stop()?;
        let report = Report::new(self.heading(name), kinds, &done.records, None, &cost);
        Ok(report.with_course(done.silence, done.cut_short))
    }

    fn paced(
        &self,
        total: Option<u64>,
        rate: Option<f64>,
        kinds: usize,
        work: impl FnOnce(&Run) -> Result<Records, BenchError>,
    ) -> Result<Done, BenchError> {
        let duration = match (total, self.options.duration) {
            (None, None) => Some(DURATION_DEFAULT),
            (_, duration) => duration,
        };
        let pace = Arc::new(Pace::start(total.unwrap_or(u64::MAX), duration, rate));
        for signal in [SIGINT, SIGTERM] {
            // A second signal ends the process at once, in case the server does not answer.
            let flag = pace.interruption();
            signal_hook::flag::register_conditional_shutdown(signal, 1, flag.clone())?;
            signal_hook::flag::register(signal, flag)?;
        }
        let _bar = Progress::follow(pace.clone(), total, duration);
        let pulse = Arc::new(Pulse::start());
        let records = work(&Run { pace: pace.clone(), pulse: pulse.clone(), kinds })?;
        Ok(Done { records, silence: pulse.longest_silence(), cut_short: pace.cut_short() })
    }

    fn watch(&self, name: &str, args: &WatchArgs, rate: Option<f64>) -> Result<Report, BenchError> {
        if args.watched_keys == 0 || args.watched_keys > self.keys.count || args.streams == 0 {
            let text = "--watched-keys must be from 1 to --keys, and --streams at least 1";
            return Err(BenchError::Usage(text.to_owned()));
        }
        let layout = Layout {
            watchers: args.watchers,
            watched_keys: args.watched_keys,
            streams: args.streams,
            prefix: None,
        };
        let board = Arc::new(Board::new());
        let writes = Writes {
            template: keyed::put(&self.keys, &self.values).template,
            watched_keys: layout.watched_keys,
            board: board.clone(),
            random: SplitMix64::new(self.options.seed),
        };
        let write = || {
            self.paced(self.options.total, rate, 1, |run| {
                run_unary(&self.spread, run, move |_| writes.clone())
            })
        };
        let written =
            |done: &Done| done.records.iter().map(|record| record.count() - record.errors).sum();
        let audience = Audience { layout, connections: args.watch_connections, board };
        self.watched(name, &["put"], &audience, write, written)
    }

    fn kubernetes(&self, args: &KubernetesArgs) -> Result<Report, BenchError> {
        let prefix = &self.options.prefix;
        if prefix.is_empty() {
            return Err(BenchError::Usage("--prefix must not be empty".to_owned()));
        }
        let board = Arc::new(Board::new());
        let objects = (prefix.as_str(), self.keys.count);
        let values = self.values.clone();
        let shape = Shape::new(objects, values, args.page, args.compact_every, board.clone())?;
        let (shape, seed) = (Arc::new(shape), self.options.seed);
        let kinds = &kubernetes::KINDS;
        let (of_servers, connections) = (shape.clone(), self.spread.connections);
        let ask = || {
            self.paced(self.options.total, self.options.rate, kinds.len(), |run| {
                run_dialogues(&self.spread, run, move |index| {
                    Server::new(of_servers.clone(), (index, connections), seed)
                })
            })
        };
        let layout = Layout {
            watchers: args.watchers,
            watched_keys: 1,
            streams: usize::try_from(args.watchers).unwrap_or(1).max(1),
            prefix: Some(prefix.clone()),
        };
        let audience = Audience { layout, connections: self.spread.connections, board };
        self.watched("kubernetes", kinds, &audience, ask, |_| shape.written())
    }

    /// Runs `work` while the watchers watch, and waits until the watchers have received the events of all writes.
    /// `written` returns the number of writes that `work` has made.
    fn watched(
        &self,
        name: &str,
        kinds: &[&'static str],
        audience: &Audience,
        work: impl FnOnce() -> Result<Done, BenchError>,
        written: impl FnOnce(&Done) -> u64,
    ) -> Result<Report, BenchError> {
        if self.options.value_size < STAMP_BYTES {
            let text = format!("{name} needs a --value-size of at least {STAMP_BYTES}");
            return Err(BenchError::Usage(text));
        }
        let Audience { layout, connections, board } = audience;
        let watchers = {
            let spread = Spread { connections: *connections, ..self.spread.clone() };
            let (layout, keys, board) = (layout.clone(), self.keys.clone(), board.clone());
            std::thread::spawn(move || run_watchers(&spread, &layout, &keys, &board))
        };
        while board.created() < layout.watchers && !board.failed() {
            std::thread::sleep(LOOK);
        }
        let meter = Meter::start(&self.options.pids)?;
        let worked = if board.failed() {
            Ok(Done::default())
        } else {
            board.begin();
            work()
        };
        // Watchers wait for the events of all writes, or for none if writing failed.
        board.expect(layout.events(worked.as_ref().map_or(0, written)));
        let watched = watchers.join().expect("the watchers do not panic")?;
        let done = worked?;
        let cost = meter.stop()?;
        let heading = self.heading(name);
        let report = Report::new(heading, kinds, &done.records, watched.first(), &cost);
        Ok(report.with_course(done.silence, done.cut_short))
    }

    fn heading(&self, load: &str) -> Heading {
        Heading {
            load: load.to_owned(),
            clients: self.spread.clients,
            connections: self.spread.connections,
            value_size: self.options.value_size,
        }
    }

    /// Returns one of the user's tokens, if there is any.
    fn token(&self) -> Option<Secret> {
        self.spread.tokens.first().cloned()
    }

    /// Returns the server's current revision.
    fn revision(&self) -> Result<i64, BenchError> {
        let request = RangeRequest { key: vec![0].into(), ..Default::default() };
        let reply: RangeResponse =
            call(&self.spread.endpoints, self.token(), path::RANGE, &request)?;
        Ok(reply.header.map_or(0, |header| header.revision))
    }
}
