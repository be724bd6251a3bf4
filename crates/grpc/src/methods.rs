//! The table of etcd's services and methods, and the routing of request paths.
//!
//! Routing, metrics, permissions and the errors for unknown methods use positions in this table.

use quorate_gotext::quote::go_quote_bytes;

/// The audit log's name for a request to the peer port that asks for a member's whole state.
pub const IMAGE_METHOD: &str = "/quorate.Peer/Image";

/// Which sides of a call send a stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One message in each direction.
    Unary,
    /// One request, and a stream of responses.
    ServerStream,
    /// A stream in each direction.
    BidiStream,
}

impl Kind {
    /// Returns the label of this kind in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::ServerStream => "server_stream",
            Self::BidiStream => "bidi_stream",
        }
    }
}

/// A method of a service.
#[derive(Debug)]
pub struct Method {
    /// The name of the method without the service.
    pub name: &'static str,
    /// The path of requests, which contains the service and the method.
    pub path: &'static str,
    /// Which sides of a call send a stream of messages.
    pub kind: Kind,
    /// Whether the method is read-only, so that a call without a response may be repeated.
    pub only_reads: bool,
}

/// A gRPC service.
#[derive(Debug)]
pub struct Service {
    /// The full name of the service.
    pub name: &'static str,
    /// The methods of the service.
    pub methods: &'static [Method],
}

impl Service {
    /// Returns the name of each method, and the metric label of its kind.
    #[must_use]
    pub fn labels(&self) -> Vec<(&'static str, &'static str)> {
        self.methods.iter().map(|method| (method.name, method.kind.label())).collect()
    }
}

macro_rules! service {
    ($name:literal: $($method:literal $kind:ident $only_reads:ident,)*) => {
        Service {
            name: $name,
            methods: &[$(Method {
                name: $method,
                path: concat!("/", $name, "/", $method),
                kind: Kind::$kind,
                only_reads: $only_reads,
            },)*],
        }
    };
}

const READS: bool = true;
const WRITES: bool = false;

/// All services. Other code identifies a service and a method by their positions in this table.
pub const SERVICES: &[Service] = &[
    service! { "etcdserverpb.KV":
        "Range" Unary READS,
        "RangeStream" ServerStream READS,
        "Put" Unary WRITES,
        "DeleteRange" Unary WRITES,
        "Txn" Unary WRITES,
        "Compact" Unary WRITES,
    },
    service! { "etcdserverpb.Watch": "Watch" BidiStream WRITES, },
    service! { "etcdserverpb.Lease":
        "LeaseGrant" Unary WRITES,
        "LeaseRevoke" Unary WRITES,
        "LeaseKeepAlive" BidiStream WRITES,
        "LeaseTimeToLive" Unary READS,
        "LeaseLeases" Unary READS,
    },
    service! { "etcdserverpb.Cluster":
        "MemberAdd" Unary WRITES,
        "MemberRemove" Unary WRITES,
        "MemberUpdate" Unary WRITES,
        "MemberList" Unary READS,
        "MemberPromote" Unary WRITES,
    },
    service! { "etcdserverpb.Maintenance":
        "Alarm" Unary WRITES,
        "Status" Unary READS,
        "Defragment" Unary WRITES,
        "Hash" Unary READS,
        "HashKV" Unary READS,
        "Snapshot" ServerStream READS,
        "MoveLeader" Unary WRITES,
        "Downgrade" Unary WRITES,
    },
    service! { "etcdserverpb.Auth":
        "AuthEnable" Unary WRITES,
        "AuthDisable" Unary WRITES,
        "AuthStatus" Unary READS,
        "Authenticate" Unary WRITES,
        "UserAdd" Unary WRITES,
        "UserGet" Unary READS,
        "UserList" Unary READS,
        "UserDelete" Unary WRITES,
        "UserChangePassword" Unary WRITES,
        "UserGrantRole" Unary WRITES,
        "UserRevokeRole" Unary WRITES,
        "RoleAdd" Unary WRITES,
        "RoleGet" Unary READS,
        "RoleList" Unary READS,
        "RoleDelete" Unary WRITES,
        "RoleGrantPermission" Unary WRITES,
        "RoleRevokePermission" Unary WRITES,
    },
    service! { "v3lockpb.Lock": "Lock" Unary WRITES, "Unlock" Unary WRITES, },
    service! { "v3electionpb.Election":
        "Campaign" Unary WRITES,
        "Proclaim" Unary WRITES,
        "Leader" Unary READS,
        "Observe" ServerStream READS,
        "Resign" Unary WRITES,
    },
    service! { "grpc.health.v1.Health":
        "Check" Unary READS,
        "Watch" ServerStream READS,
        "List" Unary READS,
    },
];

/// The services that a proxy forwards, which are etcd's own services. They have the same positions as in [`SERVICES`].
pub const OF_ETCD: &[Service] = match SERVICES.split_last() {
    Some((_health, of_etcd)) => of_etcd,
    None => &[],
};

/// The result of routing a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// The path names a known method.
    Method {
        /// The position of the service.
        service: usize,
        /// The position of the method in its service.
        method: usize,
        /// Which sides of a call send a stream of messages.
        kind: Kind,
    },
    /// The path names an unknown service.
    UnknownService(&'a str),
    /// The path names a known service, but an unknown method.
    UnknownMethod {
        /// The name of the service.
        service: &'a str,
        /// The name of the method.
        method: &'a str,
    },
    /// The path does not have the form of a method path.
    Malformed(&'a str),
}

/// Finds the method of a request path among these services.
#[must_use]
pub fn route<'a>(services: &[Service], path: &'a str) -> Route<'a> {
    let Some((service_name, method_name)) =
        path.strip_prefix('/').and_then(|rest| rest.rsplit_once('/'))
    else {
        return Route::Malformed(path);
    };
    let Some(service) = services.iter().position(|service| service.name == service_name) else {
        return Route::UnknownService(service_name);
    };
    let methods = services[service].methods;
    let Some(method) = methods.iter().position(|one| one.name == method_name) else {
        return Route::UnknownMethod { service: service_name, method: method_name };
    };
    Route::Method { service, method, kind: methods[method].kind }
}

impl Route<'_> {
    /// Returns grpc-go's text for the Unimplemented error, or `None` for a known method.
    #[must_use]
    pub fn refusal(self) -> Option<String> {
        match self {
            Self::Method { .. } => None,
            Self::UnknownService(service) => Some(format!("unknown service {service}")),
            Self::UnknownMethod { service, method } => {
                Some(format!("unknown method {method} for service {service}"))
            }
            Self::Malformed(path) => {
                Some(format!("malformed method name: {}", go_quote_bytes(path.as_bytes())))
            }
        }
    }
}

/// Returns the method with this path. If the result initialises a constant, an unknown path is a compile error.
///
/// # Panics
///
/// Panics if no method has this path.
#[must_use]
pub const fn named(path: &str) -> &'static Method {
    let mut at = 0;
    while at < SERVICES.len() {
        let methods = SERVICES[at].methods;
        let mut of = 0;
        while of < methods.len() {
            if is_same(methods[of].path, path) {
                return &methods[of];
            }
            of += 1;
        }
        at += 1;
    }
    panic!("no method in SERVICES has this path")
}

/// Compares two strings at compile time.
#[must_use]
pub const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_path_is_routed_and_unknown_paths_return_the_errors_of_grpc_go() {
        for (service, Service { methods, .. }) in SERVICES.iter().enumerate() {
            for (method, Method { path, kind, .. }) in methods.iter().enumerate() {
                assert_eq!(
                    route(SERVICES, path),
                    Route::Method { service, method, kind: *kind },
                    "{path}"
                );
                assert_eq!(named(path).path, *path);
            }
        }
        for (path, text) in [
            ("/etcdserverpb.KV/Frob", "unknown method Frob for service etcdserverpb.KV"),
            ("/a.B/C", "unknown service a.B"),
            ("/x", "malformed method name: \"/x\""),
        ] {
            assert_eq!(route(SERVICES, path).refusal().as_deref(), Some(text));
        }
    }

    #[test]
    fn a_proxy_routes_all_services_except_health() {
        assert_eq!(OF_ETCD.len() + 1, SERVICES.len());
        let health = route(OF_ETCD, "/grpc.health.v1.Health/Check");
        assert_eq!(health, Route::UnknownService("grpc.health.v1.Health"));
        let put = |services| route(services, "/etcdserverpb.KV/Put");
        assert_eq!(put(OF_ETCD), put(SERVICES));
    }
}
