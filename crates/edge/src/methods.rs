//! The methods of every gRPC service on the client port, and their kinds.
//!
//! Routing, metrics and the "unknown method" answers read this one table.

use quorate_telemetry::metrics::GrpcService;

/// Which side of a call streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unary,
    ServerStream,
    BidiStream,
}

impl Kind {
    /// The name the metrics use.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::ServerStream => "server_stream",
            Self::BidiStream => "bidi_stream",
        }
    }
}

/// One service.
#[derive(Debug)]
pub(crate) struct ServiceMethods {
    pub(crate) name: &'static str,
    pub(crate) methods: &'static [(&'static str, Kind)],
}

use Kind::{BidiStream, ServerStream, Unary};

/// All services. Elsewhere a service and a method are named by their positions here.
pub(crate) const SERVICES: &[ServiceMethods] = &[
    ServiceMethods {
        name: "etcdserverpb.KV",
        methods: &[
            ("Range", Unary),
            ("RangeStream", ServerStream),
            ("Put", Unary),
            ("DeleteRange", Unary),
            ("Txn", Unary),
            ("Compact", Unary),
        ],
    },
    ServiceMethods { name: "etcdserverpb.Watch", methods: &[("Watch", BidiStream)] },
    ServiceMethods {
        name: "etcdserverpb.Lease",
        methods: &[
            ("LeaseGrant", Unary),
            ("LeaseRevoke", Unary),
            ("LeaseKeepAlive", BidiStream),
            ("LeaseTimeToLive", Unary),
            ("LeaseLeases", Unary),
        ],
    },
    ServiceMethods {
        name: "etcdserverpb.Cluster",
        methods: &[
            ("MemberAdd", Unary),
            ("MemberRemove", Unary),
            ("MemberUpdate", Unary),
            ("MemberList", Unary),
            ("MemberPromote", Unary),
        ],
    },
    ServiceMethods {
        name: "etcdserverpb.Maintenance",
        methods: &[
            ("Alarm", Unary),
            ("Status", Unary),
            ("Defragment", Unary),
            ("Hash", Unary),
            ("HashKV", Unary),
            ("Snapshot", ServerStream),
            ("MoveLeader", Unary),
            ("Downgrade", Unary),
        ],
    },
    ServiceMethods {
        name: "etcdserverpb.Auth",
        methods: &[
            ("AuthEnable", Unary),
            ("AuthDisable", Unary),
            ("AuthStatus", Unary),
            ("Authenticate", Unary),
            ("UserAdd", Unary),
            ("UserGet", Unary),
            ("UserList", Unary),
            ("UserDelete", Unary),
            ("UserChangePassword", Unary),
            ("UserGrantRole", Unary),
            ("UserRevokeRole", Unary),
            ("RoleAdd", Unary),
            ("RoleGet", Unary),
            ("RoleList", Unary),
            ("RoleDelete", Unary),
            ("RoleGrantPermission", Unary),
            ("RoleRevokePermission", Unary),
        ],
    },
    ServiceMethods { name: "v3lockpb.Lock", methods: &[("Lock", Unary), ("Unlock", Unary)] },
    ServiceMethods {
        name: "v3electionpb.Election",
        methods: &[
            ("Campaign", Unary),
            ("Proclaim", Unary),
            ("Leader", Unary),
            ("Observe", ServerStream),
            ("Resign", Unary),
        ],
    },
    ServiceMethods {
        name: "grpc.health.v1.Health",
        methods: &[("Check", Unary), ("Watch", ServerStream), ("List", Unary)],
    },
];

/// The services as the metrics count their calls.
pub fn counted() -> Vec<GrpcService> {
    let counted = |service: &ServiceMethods| GrpcService {
        name: service.name,
        methods: service.methods.iter().map(|(name, kind)| (*name, kind.label())).collect(),
    };
    SERVICES.iter().map(counted).collect()
}

/// Where a path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// Positions in [`SERVICES`] and in the service's methods.
    Method {
        service: usize,
        method: usize,
        kind: Kind,
    },
    UnknownService(&'a str),
    UnknownMethod {
        service: &'a str,
        method: &'a str,
    },
    Malformed(&'a str),
}

/// Finds the method of a request path.
pub(crate) fn route(path: &str) -> Route<'_> {
    let Some((service_name, method_name)) =
        path.strip_prefix('/').and_then(|rest| rest.rsplit_once('/'))
    else {
        return Route::Malformed(path);
    };
    let Some(service) = SERVICES.iter().position(|service| service.name == service_name) else {
        return Route::UnknownService(service_name);
    };
    let methods = SERVICES[service].methods;
    let Some(method) = methods.iter().position(|(name, _)| *name == method_name) else {
        return Route::UnknownMethod { service: service_name, method: method_name };
    };
    Route::Method { service, method, kind: methods[method].1 }
}

impl Route<'_> {
    /// The text of the Unimplemented answer, or `None` for a known method.
    pub(crate) fn refusal(self) -> Option<String> {
        match self {
            Self::Method { .. } => None,
            Self::UnknownService(service) => Some(format!("unknown service {service}")),
            Self::UnknownMethod { service, method } => {
                Some(format!("unknown method {method} for service {service}"))
            }
            Self::Malformed(path) => Some(format!("malformed method name: {path:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_methods_or_to_grpc_gos_words() {
        assert_eq!(
            route("/etcdserverpb.KV/Put"),
            Route::Method { service: 0, method: 2, kind: Unary }
        );
        for (path, text) in [
            ("/etcdserverpb.KV/Frob", "unknown method Frob for service etcdserverpb.KV"),
            ("/a.B/C", "unknown service a.B"),
            ("/x", "malformed method name: \"/x\""),
        ] {
            assert_eq!(route(path).refusal().as_deref(), Some(text));
        }
    }
}
