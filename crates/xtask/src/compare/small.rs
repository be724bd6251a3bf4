//! Cases that measure the cost of individual operations, most of them on 100,000 keys of 16 bytes with values of 256
//! bytes. Each case runs on new servers.
//!
//! In a cluster of three, the cost of all members is counted, whichever member receives a request.

use serde_json::Value;

use super::Options;
use super::cluster::Cluster;
use super::server::{Programs, Side};
use super::service::{Generator, Service, checked, number};
use super::table::{Row, median};
use crate::say;

/// The load that writes all keys.
const FILL: [&str; 3] = ["fill", "--clients", "1000"];

/// A figure that the table compares, taken from the report of a load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    CpuPerOperation,
    CpuPerEvent,
    ContextSwitches,
    P50,
}

impl Figure {
    fn of(self, report: &Value) -> f64 {
        match self {
            Self::CpuPerOperation => sum(report, "/cpu_us_per_operation"),
            Self::CpuPerEvent => sum(report, "/cpu_us_per_event"),
            Self::ContextSwitches => sum(report, "/context_switches_per_operation"),
            Self::P50 => number(report, "/latency_us/p50"),
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::CpuPerOperation | Self::CpuPerEvent => "",
            Self::ContextSwitches => ", context switches of all members",
            Self::P50 => ", p50 latency",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::CpuPerOperation | Self::CpuPerEvent | Self::P50 => "us",
            Self::ContextSwitches => "",
        }
    }
}

/// Returns the sum of a figure over all servers in a report.
fn sum(report: &Value, pointer: &str) -> f64 {
    let servers = report["servers"].as_array();
    servers.into_iter().flatten().map(|server| number(server, pointer)).sum()
}

/// The server that receives the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A single member.
    Alone,
    /// A single member that requires client certificates.
    Secured,
    /// A single member with authentication. Clients send the token of a user with permissions on all keys.
    Guarded,
    /// A single member with authentication that requires client certificates.
    GuardedAndSecured,
    /// A proxy in front of a single member.
    Proxy,
    /// The leader of three members.
    Leader,
    /// A follower of three members.
    Follower,
    /// The leader of three members that require client certificates and use TLS among each other.
    SecuredLeader,
}

impl Place {
    fn start(self, side: &Side, programs: &Programs) -> Result<Cluster, String> {
        match self {
            Self::Alone => Cluster::start(side, programs, 1),
            Self::Secured => Cluster::start_secured(side, programs, 1),
            Self::SecuredLeader => Cluster::start_secured(side, programs, 3),
            Self::Guarded => Cluster::start(side, programs, 1)?.guarded(),
            Self::GuardedAndSecured => Cluster::start_secured(side, programs, 1)?.guarded(),
            Self::Proxy => Cluster::start(side, programs, 1)?.proxied(),
            Self::Leader | Self::Follower => Cluster::start(side, programs, 3),
        }
    }

    /// Returns whether the cluster has a single member.
    pub(super) const fn is_alone(self) -> bool {
        match self {
            Self::Alone | Self::Secured | Self::Guarded | Self::GuardedAndSecured | Self::Proxy => {
                true
            }
            Self::Leader | Self::Follower | Self::SecuredLeader => false,
        }
    }

    /// Returns whether clients must present certificates.
    pub(super) const fn asks_for_certificates(self) -> bool {
        match self {
            Self::Secured | Self::GuardedAndSecured | Self::SecuredLeader => true,
            Self::Alone | Self::Guarded | Self::Proxy | Self::Leader | Self::Follower => false,
        }
    }

    /// Returns the service at this place. It measures the cost of all members, or only the cost of the proxy.
    fn service(self, cluster: &Cluster) -> Result<Service, String> {
        let position = match self {
            Self::Follower => cluster.follower()?,
            Self::Alone
            | Self::Secured
            | Self::Guarded
            | Self::GuardedAndSecured
            | Self::Proxy
            | Self::Leader
            | Self::SecuredLeader => cluster.leader()?,
        };
        Ok(cluster.service(position))
    }
}

/// One case: a workload and the place where it runs.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    work: &'static str,
    pub(super) place: Place,
    pub(super) by: Generator,
    /// Whether the keys are written before the case begins.
    is_filled: bool,
    /// The arguments of the load generator.
    args: &'static [&'static str],
    /// The number of operations in one measurement. In most cases, etcd takes three to five seconds for them.
    total: u64,
    /// The compared figures, each with its target (the maximum ratio), if there is one.
    figures: &'static [(Figure, Option<f64>)],
}

/// The figures for a single client in a cluster. Most of the cost is due to wake-ups, so context switches are counted.
const LONE_IN_CLUSTER: &[(Figure, Option<f64>)] =
    &[(Figure::CpuPerOperation, None), (Figure::ContextSwitches, None), (Figure::P50, Some(0.9))];

/// The cases, in table order.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "put-100",
        work: "put, 100 clients",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "100"],
        total: 80_000,
        figures: &[(Figure::CpuPerOperation, Some(0.18))],
    },
    Case {
        name: "put-1000",
        work: "put, 1,000 clients",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "1000"],
        total: 80_000,
        figures: &[(Figure::CpuPerOperation, Some(0.42))],
    },
    Case {
        name: "put-1",
        work: "put, 1 client",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "1"],
        total: 8_000,
        figures: &[
            (Figure::CpuPerOperation, Some(0.25)),
            (Figure::ContextSwitches, None),
            (Figure::P50, Some(0.9)),
        ],
    },
    Case {
        name: "get-100",
        work: "get, linearizable, 100 clients",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--clients", "100"],
        total: 120_000,
        figures: &[(Figure::CpuPerOperation, Some(0.12))],
    },
    Case {
        name: "get-serializable-100",
        work: "get, serializable, 100 clients",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--serializable", "--clients", "100"],
        total: 120_000,
        figures: &[(Figure::CpuPerOperation, Some(0.30))],
    },
    Case {
        name: "list-limit-1000",
        work: "list, limit 1,000, range of 50,000 keys",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["list", "--limit", "1000", "--clients", "10"],
        total: 1_000,
        figures: &[(Figure::CpuPerOperation, Some(0.04))],
    },
    Case {
        name: "list-1000",
        work: "list of exactly 1,000 keys",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["list", "--span", "1000", "--clients", "10"],
        total: 3_000,
        figures: &[(Figure::CpuPerOperation, Some(0.15))],
    },
    Case {
        name: "list-10000",
        work: "list of exactly 10,000 keys",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["list", "--span", "10000", "--clients", "10"],
        total: 300,
        figures: &[(Figure::CpuPerOperation, Some(0.08))],
    },
    Case {
        name: "txn-100",
        work: "txn, compare and put, 100 clients",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["txn", "--clients", "100"],
        total: 60_000,
        figures: &[(Figure::CpuPerOperation, Some(0.42))],
    },
    Case {
        name: "mixed-100",
        work: "mixed, 80 % get, 100 clients",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["mixed", "--clients", "100"],
        total: 80_000,
        figures: &[(Figure::CpuPerOperation, Some(0.40))],
    },
    Case {
        name: "watch-burst",
        work: "watch, 10,000 watchers of one key, burst, per event",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: false,
        args: &["watch", "--watchers", "10000", "--clients", "100"],
        total: 400,
        figures: &[(Figure::CpuPerEvent, Some(0.30))],
    },
    Case {
        name: "watch-paced",
        work: "watch, 10,000 watchers of one key, 10 puts/s, per event",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: false,
        args: &["watch", "--watchers", "10000", "--clients", "1", "--rate", "10"],
        total: 50,
        figures: &[(Figure::CpuPerEvent, Some(0.20))],
    },
    Case {
        name: "lease-keepalive",
        work: "lease keepalive, 100 streams",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: false,
        args: &["lease-keepalive", "--clients", "100"],
        total: 300_000,
        figures: &[(Figure::CpuPerOperation, Some(0.15))],
    },
    Case {
        name: "put-100-connections",
        work: "put, 100 clients on 100 connections",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "100", "--connections", "100"],
        total: 80_000,
        figures: &[(Figure::CpuPerOperation, Some(0.20))],
    },
    Case {
        name: "get-100-connections",
        work: "get, linearizable, 100 clients on 100 connections",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--clients", "100", "--connections", "100"],
        total: 120_000,
        figures: &[(Figure::CpuPerOperation, Some(0.16))],
    },
    Case {
        name: "keepalive-100-connections",
        work: "lease keepalive, 100 streams on 100 connections",
        place: Place::Alone,
        by: Generator::Bench,
        is_filled: false,
        args: &["lease-keepalive", "--clients", "100", "--connections", "100"],
        total: 300_000,
        figures: &[(Figure::CpuPerOperation, Some(0.25))],
    },
    Case {
        name: "put-100-tonic",
        work: "put, 100 tasks of a tonic client",
        place: Place::Alone,
        by: Generator::Tonic,
        is_filled: true,
        args: &["put", "--clients", "100"],
        total: 60_000,
        figures: &[(Figure::CpuPerOperation, Some(0.30))],
    },
    Case {
        name: "get-100-tonic",
        work: "get, linearizable, 100 tasks of a tonic client",
        place: Place::Alone,
        by: Generator::Tonic,
        is_filled: true,
        args: &["range", "--clients", "100"],
        total: 80_000,
        figures: &[(Figure::CpuPerOperation, Some(0.28))],
    },
    Case {
        name: "keepalive-100-tonic",
        work: "lease keepalive, 100 streams of a tonic client",
        place: Place::Alone,
        by: Generator::Tonic,
        is_filled: false,
        args: &["lease-keepalive", "--clients", "100"],
        total: 120_000,
        figures: &[(Figure::CpuPerOperation, Some(0.30))],
    },
    Case {
        name: "tls-put-100",
        work: "put with mutual TLS, 100 clients",
        place: Place::Secured,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "100"],
        total: 60_000,
        figures: &[(Figure::CpuPerOperation, Some(0.40))],
    },
    Case {
        name: "tls-get-100",
        work: "get, linearizable, with mutual TLS, 100 clients",
        place: Place::Secured,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--clients", "100"],
        total: 80_000,
        figures: &[(Figure::CpuPerOperation, Some(0.40))],
    },
    Case {
        name: "tls-connect",
        work: "mutual TLS handshakes",
        place: Place::Secured,
        by: Generator::Bench,
        is_filled: false,
        args: &["connect", "--clients", "50", "--rate", "1000"],
        total: 5_000,
        figures: &[(Figure::CpuPerOperation, Some(0.70))],
    },
    Case {
        name: "auth-put-100",
        work: "put with a token, 100 clients",
        place: Place::Guarded,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "100"],
        total: 60_000,
        figures: &[(Figure::CpuPerOperation, Some(0.40))],
    },
    Case {
        name: "auth-get-100",
        work: "get, linearizable, with a token, 100 clients",
        place: Place::Guarded,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--clients", "100"],
        total: 80_000,
        figures: &[(Figure::CpuPerOperation, Some(0.40))],
    },
    Case {
        name: "tls-auth-put-100",
        work: "put with mutual TLS and a token, 100 clients",
        place: Place::GuardedAndSecured,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "100"],
        total: 60_000,
        figures: &[(Figure::CpuPerOperation, Some(0.40))],
    },
    Case {
        name: "tls-auth-get-100",
        work: "get, linearizable, with mutual TLS and a token, 100 clients",
        place: Place::GuardedAndSecured,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--clients", "100"],
        total: 80_000,
        figures: &[(Figure::CpuPerOperation, Some(0.40))],
    },
    Case {
        name: "proxy-put-100",
        work: "put through a proxy, 100 clients",
        place: Place::Proxy,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "100"],
        total: 60_000,
        figures: &[(Figure::CpuPerOperation, Some(0.60))],
    },
    Case {
        name: "proxy-get-100",
        work: "get, linearizable, through a proxy, 100 clients",
        place: Place::Proxy,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--clients", "100"],
        total: 60_000,
        figures: &[(Figure::CpuPerOperation, Some(0.60))],
    },
    Case {
        name: "proxy-get-serializable-100",
        work: "get, serializable, through a proxy, 100 clients, 1,000 keys",
        place: Place::Proxy,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--serializable", "--clients", "100", "--keys", "1000"],
        total: 60_000,
        figures: &[(Figure::CpuPerOperation, Some(0.60))],
    },
    Case {
        name: "proxy-list-1000",
        work: "list of exactly 1,000 keys through a proxy",
        place: Place::Proxy,
        by: Generator::Bench,
        is_filled: true,
        args: &["list", "--span", "1000", "--clients", "10"],
        total: 3_000,
        figures: &[(Figure::CpuPerOperation, Some(0.60))],
    },
    Case {
        name: "proxy-watch",
        work: "watch through a proxy, 1,000 watchers of one key, 50 puts/s, per event",
        place: Place::Proxy,
        by: Generator::Bench,
        is_filled: false,
        args: &["watch", "--watchers", "1000", "--clients", "1", "--rate", "50"],
        total: 250,
        figures: &[(Figure::CpuPerEvent, Some(0.60))],
    },
    Case {
        name: "proxy-watch-keys",
        work: "watch through a proxy, 10,000 keys with a watcher each, 1,000 puts/s, per event",
        place: Place::Proxy,
        by: Generator::Bench,
        is_filled: false,
        args: &[
            "watch",
            "--watchers",
            "10000",
            "--watched-keys",
            "10000",
            "--clients",
            "10",
            "--rate",
            "1000",
        ],
        total: 5_000,
        figures: &[(Figure::CpuPerEvent, Some(0.60))],
    },
    Case {
        name: "cluster-put-100",
        work: "put at the leader, 100 clients",
        place: Place::Leader,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "100"],
        total: 30_000,
        figures: &[(Figure::CpuPerOperation, Some(0.20))],
    },
    Case {
        name: "cluster-put-1000",
        work: "put at the leader, 1,000 clients",
        place: Place::Leader,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "1000"],
        total: 40_000,
        figures: &[(Figure::CpuPerOperation, Some(0.20))],
    },
    Case {
        name: "cluster-put-1",
        work: "put at the leader, 1 client",
        place: Place::Leader,
        by: Generator::Bench,
        is_filled: true,
        args: &["put", "--clients", "1"],
        total: 4_000,
        figures: &[
            (Figure::CpuPerOperation, Some(0.28)),
            (Figure::ContextSwitches, None),
            (Figure::P50, Some(0.9)),
        ],
    },
    Case {
        name: "cluster-get-1",
        work: "get, linearizable, at the leader, 1 client",
        place: Place::Leader,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--clients", "1"],
        total: 8_000,
        figures: LONE_IN_CLUSTER,
    },
    Case {
        name: "cluster-get-follower-1",
        work: "get, linearizable, at a follower, 1 client",
        place: Place::Follower,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--clients", "1"],
        total: 8_000,
        figures: LONE_IN_CLUSTER,
    },
    Case {
        name: "cluster-get-follower",
        work: "get, linearizable, at a follower, 100 clients",
        place: Place::Follower,
        by: Generator::Bench,
        is_filled: true,
        args: &["range", "--clients", "100"],
        total: 80_000,
        figures: &[(Figure::CpuPerOperation, Some(0.25))],
    },
    Case {
        name: "cluster-tls-kubernetes-60",
        work: "Kubernetes API server, 60 requests a second, mutual TLS",
        place: Place::SecuredLeader,
        by: Generator::Bench,
        is_filled: false,
        args: &["kubernetes", "--keys", "1000", "--clients", "20", "--rate", "60"],
        total: 1_800,
        figures: &[(Figure::CpuPerOperation, Some(0.25))],
    },
    Case {
        name: "cluster-tls-kubernetes-1000",
        work: "Kubernetes API server, 1,000 requests a second, mutual TLS",
        place: Place::SecuredLeader,
        by: Generator::Bench,
        is_filled: false,
        args: &["kubernetes", "--keys", "1000", "--clients", "100", "--rate", "1000"],
        total: 20_000,
        figures: &[(Figure::CpuPerOperation, Some(0.25))],
    },
];

/// Runs the selected cases whose place satisfies `belongs`.
pub(super) fn run(
    programs: &Programs,
    options: &Options,
    belongs: fn(Place) -> bool,
) -> Result<Vec<Row>, String> {
    let chosen = CASES.iter().filter(|case| belongs(case.place) && options.wants(case.name));
    let mut rows = Vec::new();
    for case in chosen {
        say(&format!("compare: {}", case.name));
        // Each case starts new servers, because earlier work affects a server's memory and caches.
        let [etcd, quorate] = &programs.sides;
        let clusters = [case.place.start(etcd, programs)?, case.place.start(quorate, programs)?];
        if case.is_filled {
            for cluster in &clusters {
                checked(cluster.service(cluster.leader()?).bench(&FILL)?)?;
            }
        }
        rows.extend(measure(case, &clusters, options)?);
    }
    Ok(rows)
}

fn measure(case: &Case, clusters: &[Cluster; 2], options: &Options) -> Result<Vec<Row>, String> {
    let total = options.amount(case.total).to_string();
    let args = [case.args, &["--total", &total]].concat();
    let mut pairs = Vec::new();
    for _ in 0..options.pairs {
        let [etcd, quorate] = clusters;
        let measured = |cluster| {
            let service = case.place.service(cluster)?;
            checked(service.load(case.by, &args)?)
        };
        pairs.push([measured(etcd)?, measured(quorate)?]);
    }
    let latency = |side: usize, pointer: &str| {
        median(pairs.iter().map(|pair| number(&pair[side], pointer) / 1e3).collect())
    };
    // For a watch, the latency of event delivery is reported.
    let of = if case.args[0] == "watch" { "/events" } else { "" };
    let [p50, p99] = ["p50", "p99"].map(|name| format!("{of}/latency_us/{name}"));
    let latencies = [0, 1].map(|side| [latency(side, &p50), latency(side, &p99)]);
    let row = |(figure, target): &(Figure, Option<f64>)| {
        let figures: Vec<_> =
            pairs.iter().map(|[etcd, quorate]| (figure.of(etcd), figure.of(quorate))).collect();
        let work = format!("{}{}", case.work, figure.suffix());
        Row { latency: Some(latencies), ..Row::of_pairs(work, figure.unit(), &figures, *target) }
    };
    Ok(case.figures.iter().map(row).collect())
}
