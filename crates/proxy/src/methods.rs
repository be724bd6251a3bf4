//! The methods that clients may call: all of etcd's, by their positions in one table.

use quorate_telemetry::metrics::GrpcService;

/// One method.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    /// With its service, as requests have it.
    pub(crate) path: &'static str,
    /// As metrics call it.
    kind: &'static str,
    /// Whether nothing comes of asking twice.
    pub(crate) only_reads: bool,
}

/// One service.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) methods: &'static [Method],
}

macro_rules! service {
    ($name:literal: $($method:literal $kind:ident $only_reads:literal,)*) => {
        Service {
            name: $name,
            methods: &[$(Method {
                name: $method,
                path: concat!("/", $name, "/", $method),
                kind: stringify!($kind),
                only_reads: $only_reads,
            },)*],
        }
    };
}

/// All of them.
pub(crate) const SERVICES: &[Service] = &[
    service! { "etcdserverpb.KV":
        "Range" unary true,
        "RangeStream" server_stream true,
        "Put" unary false,
        "DeleteRange" unary false,
        "Txn" unary false,
        "Compact" unary false,
    },
    service! { "etcdserverpb.Watch": "Watch" bidi_stream false, },
    service! { "etcdserverpb.Lease":
        "LeaseGrant" unary false,
        "LeaseRevoke" unary false,
        "LeaseKeepAlive" bidi_stream false,
        "LeaseTimeToLive" unary true,
        "LeaseLeases" unary true,
    },
    service! { "etcdserverpb.Cluster":
        "MemberAdd" unary false,
        "MemberRemove" unary false,
        "MemberUpdate" unary false,
        "MemberList" unary true,
        "MemberPromote" unary false,
    },
    service! { "etcdserverpb.Maintenance":
        "Alarm" unary false,
        "Status" unary true,
        "Defragment" unary false,
        "Hash" unary true,
        "HashKV" unary true,
        "Snapshot" server_stream true,
        "MoveLeader" unary false,
        "Downgrade" unary false,
    },
    service! { "etcdserverpb.Auth":
        "AuthEnable" unary false,
        "AuthDisable" unary false,
        "AuthStatus" unary true,
        "Authenticate" unary false,
        "UserAdd" unary false,
        "UserGet" unary true,
        "UserList" unary true,
        "UserDelete" unary false,
        "UserChangePassword" unary false,
        "UserGrantRole" unary false,
        "UserRevokeRole" unary false,
        "RoleAdd" unary false,
        "RoleGet" unary true,
        "RoleList" unary true,
        "RoleDelete" unary false,
        "RoleGrantPermission" unary false,
        "RoleRevokePermission" unary false,
    },
    service! { "v3lockpb.Lock": "Lock" unary false, "Unlock" unary false, },
    service! { "v3electionpb.Election":
        "Campaign" unary false,
        "Proclaim" unary false,
        "Leader" unary true,
        "Observe" server_stream true,
        "Resign" unary false,
    },
];

/// As the metrics count their calls.
pub(crate) fn counted() -> Vec<GrpcService> {
    let counted = |service: &Service| GrpcService {
        name: service.name,
        methods: service.methods.iter().map(|one| (one.name, one.kind)).collect(),
    };
    SERVICES.iter().map(counted).collect()
}

/// The positions of a method, or why there is none, in grpc-go's words.
pub(crate) fn route(path: &str) -> Result<(usize, usize), String> {
    let Some((service_name, method_name)) =
        path.strip_prefix('/').and_then(|rest| rest.rsplit_once('/'))
    else {
        return Err(format!("malformed method name: {path:?}"));
    };
    let service = SERVICES.iter().position(|service| service.name == service_name);
    let service = service.ok_or_else(|| format!("unknown service {service_name}"))?;
    let method = SERVICES[service].methods.iter().position(|method| method.name == method_name);
    let method =
        method.ok_or_else(|| format!("unknown method {method_name} for service {service_name}"))?;
    Ok((service, method))
}

/// A method that there is.
pub(crate) fn named(path: &str) -> &'static Method {
    let (service, method) = route(path).expect("the program names methods of the table");
    &SERVICES[service].methods[method]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_methods_or_to_grpc_gos_words() {
        for (number, service) in SERVICES.iter().enumerate() {
            for (position, method) in service.methods.iter().enumerate() {
                assert_eq!(route(method.path), Ok((number, position)));
            }
        }
        for (path, text) in [
            ("/etcdserverpb.KV/Frob", "unknown method Frob for service etcdserverpb.KV"),
            ("/grpc.health.v1.Health/Check", "unknown service grpc.health.v1.Health"),
            ("/x", "malformed method name: \"/x\""),
        ] {
            assert_eq!(route(path), Err(text.to_owned()));
        }
    }
}
