//! The methods of every gRPC service on the client port: their kinds, and what each needs where authentication is
//! on.
//!
//! Routing, metrics, the "unknown method" answers and the gate read this one table. A method without a line is not
//! known, and a line without a need does not compile.

use quorate_telemetry::audit::MethodName;
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

/// What a method needs before it does anything, where authentication is on. It is checked when the head of a call
/// arrives, and again when its message has been decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing; a token is not looked at.
    Nothing,
    /// A user, whatever he may.
    User,
    /// Somebody who administers.
    Admin,
    /// What every member judges alike, when it applies the request. A token that is shown has to be good.
    Judged,
    /// What its messages say: rights to keys, or more for some than for others. The service asks.
    Message,
}

/// One method.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) needs: Needs,
}

/// One service.
#[derive(Debug)]
pub(crate) struct ServiceMethods {
    pub(crate) name: &'static str,
    pub(crate) methods: &'static [Method],
}

const fn method(name: &'static str, kind: Kind, needs: Needs) -> Method {
    Method { name, kind, needs }
}

use Kind::{BidiStream, ServerStream, Unary};
use Needs::{Admin, Judged, Message, Nothing, User};

/// All services. Elsewhere a service and a method are named by their positions here.
pub(crate) const SERVICES: &[ServiceMethods] = &[
    ServiceMethods {
        name: "etcdserverpb.KV",
        methods: &[
            method("Range", Unary, Message),
            method("RangeStream", ServerStream, Message),
            method("Put", Unary, Judged),
            method("DeleteRange", Unary, Judged),
            method("Txn", Unary, Message),
            method("Compact", Unary, Admin),
        ],
    },
    ServiceMethods { name: "etcdserverpb.Watch", methods: &[method("Watch", BidiStream, Message)] },
    ServiceMethods {
        name: "etcdserverpb.Lease",
        methods: &[
            method("LeaseGrant", Unary, Message),
            method("LeaseRevoke", Unary, Judged),
            method("LeaseKeepAlive", BidiStream, Message),
            method("LeaseTimeToLive", Unary, Message),
            method("LeaseLeases", Unary, Message),
        ],
    },
    ServiceMethods {
        name: "etcdserverpb.Cluster",
        methods: &[
            method("MemberAdd", Unary, Message),
            method("MemberRemove", Unary, Admin),
            method("MemberUpdate", Unary, Admin),
            method("MemberList", Unary, User),
            method("MemberPromote", Unary, Admin),
        ],
    },
    ServiceMethods {
        name: "etcdserverpb.Maintenance",
        methods: &[
            method("Alarm", Unary, Message),
            method("Status", Unary, User),
            method("Defragment", Unary, Admin),
            method("Hash", Unary, Admin),
            method("HashKV", Unary, Admin),
            method("Snapshot", ServerStream, Admin),
            method("MoveLeader", Unary, Admin),
            method("Downgrade", Unary, Admin),
        ],
    },
    ServiceMethods {
        name: "etcdserverpb.Auth",
        methods: &[
            method("AuthEnable", Unary, Judged),
            method("AuthDisable", Unary, Judged),
            method("AuthStatus", Unary, Judged),
            method("Authenticate", Unary, Nothing),
            method("UserAdd", Unary, Judged),
            method("UserGet", Unary, Judged),
            method("UserList", Unary, Judged),
            method("UserDelete", Unary, Judged),
            method("UserChangePassword", Unary, Judged),
            method("UserGrantRole", Unary, Judged),
            method("UserRevokeRole", Unary, Judged),
            method("RoleAdd", Unary, Judged),
            method("RoleGet", Unary, Judged),
            method("RoleList", Unary, Judged),
            method("RoleDelete", Unary, Judged),
            method("RoleGrantPermission", Unary, Judged),
            method("RoleRevokePermission", Unary, Judged),
        ],
    },
    ServiceMethods {
        name: "v3lockpb.Lock",
        methods: &[method("Lock", Unary, Message), method("Unlock", Unary, Message)],
    },
    ServiceMethods {
        name: "v3electionpb.Election",
        methods: &[
            method("Campaign", Unary, Message),
            method("Proclaim", Unary, Message),
            method("Leader", Unary, Message),
            method("Observe", ServerStream, Message),
            method("Resign", Unary, Message),
        ],
    },
    ServiceMethods {
        name: "grpc.health.v1.Health",
        methods: &[
            method("Check", Unary, Nothing),
            method("Watch", ServerStream, Nothing),
            method("List", Unary, Nothing),
        ],
    },
];

/// What a method needs. It does not compile for a method that has no line.
pub(crate) const fn needs_of(service: &str, method: &str) -> Needs {
    let mut at = 0;
    while at < SERVICES.len() {
        let ServiceMethods { name, methods } = &SERVICES[at];
        let mut of = 0;
        while of < methods.len() {
            if is_same(name, service) && is_same(methods[of].name, method) {
                return methods[of].needs;
            }
            of += 1;
        }
        at += 1;
    }
    panic!("the table of methods has no such line")
}

/// Whether two texts are the same, at compile time.
const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// The services as the metrics count their calls.
pub fn counted() -> Vec<GrpcService> {
    let counted = |service: &ServiceMethods| GrpcService {
        name: service.name,
        methods: service.methods.iter().map(|one| (one.name, one.kind.label())).collect(),
    };
    SERVICES.iter().map(counted).collect()
}

/// Whether a rule of the audit log names a service, or a method of one.
#[must_use]
pub fn is_known(name: &MethodName) -> bool {
    let all = SERVICES.iter().flat_map(|of| of.methods.iter().map(|one| (of.name, one.name)));
    let image = IMAGE_METHOD.trim_start_matches('/').split_once('/');
    all.chain(image).any(|(service, method)| name.fits(service, method))
}

/// The name in the audit log of a member's request for the whole state of another, on the peer port.
pub(crate) const IMAGE_METHOD: &str = "/quorate.Peer/Image";

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
    let Some(method) = methods.iter().position(|one| one.name == method_name) else {
        return Route::UnknownMethod { service: service_name, method: method_name };
    };
    Route::Method { service, method, kind: methods[method].kind }
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
    use quorate_telemetry::audit::Rules;

    use super::*;

    #[test]
    fn only_these_answer_whoever_asks() {
        let mut open = Vec::new();
        for service in SERVICES {
            for one in service.methods.iter().filter(|one| one.needs == Nothing) {
                open.push(format!("{}/{}", service.name, one.name));
            }
        }
        assert_eq!(
            open,
            [
                "etcdserverpb.Auth/Authenticate",
                "grpc.health.v1.Health/Check",
                "grpc.health.v1.Health/Watch",
                "grpc.health.v1.Health/List"
            ]
        );
    }

    #[test]
    fn rules_name_methods_that_there_are() {
        let known = |text: &str| {
            let rules = Rules::parse(&format!("exclude method={text}")).unwrap();
            rules.methods().all(is_known)
        };
        for text in ["KV", "etcdserverpb.KV/Range", "KV/Range,Auth/Authenticate", "v3lockpb.Lock"] {
            assert!(known(text), "{text}");
        }
        for text in ["kv", "KV/", "KV/Frob", "etcdserverpb", "KV,Frob"] {
            assert!(!known(text), "{text}");
        }
    }

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
