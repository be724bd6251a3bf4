//! The permissions that each gRPC method of the client port requires when authentication is on, the methods counted in
//! metrics, and the methods that audit rules may name.
//!
//! The table of methods itself is `grpc::methods`. Compilation fails if a method has no entry here.

use quorate_grpc::methods::{IMAGE_METHOD, SERVICES, Service, is_same};
use quorate_telemetry::audit::MethodName;
use quorate_telemetry::metrics::GrpcService;

/// Access requirement of a method when authentication is on. The requirement is checked when the headers of a call
/// arrive, and again when the message is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// No requirement. A token is ignored.
    Nothing,
    /// Any authenticated user.
    User,
    /// An administrator.
    Admin,
    /// Permissions that every member checks when it applies the request. A token is not required, but if there is one,
    /// it must be valid.
    Judged,
    /// A requirement that depends on the messages, for example on the keys in them. The service checks it.
    Message,
}

use Needs::{Admin, Judged, Message, Nothing, User};

/// The requirement of each method, grouped by service like [`SERVICES`].
const NEEDS: &[(&str, &[(&str, Needs)])] = &[
    (
        "etcdserverpb.KV",
        &[
            ("Range", Message),
            ("RangeStream", Message),
            ("Put", Judged),
            ("DeleteRange", Judged),
            ("Txn", Message),
            ("Compact", Admin),
        ],
    ),
    ("etcdserverpb.Watch", &[("Watch", Message)]),
    (
        "etcdserverpb.Lease",
        &[
            ("LeaseGrant", Message),
            ("LeaseRevoke", Judged),
            ("LeaseKeepAlive", Message),
            ("LeaseTimeToLive", Message),
            ("LeaseLeases", Message),
        ],
    ),
    (
        "etcdserverpb.Cluster",
        &[
            ("MemberAdd", Message),
            ("MemberRemove", Admin),
            ("MemberUpdate", Admin),
            ("MemberList", User),
            ("MemberPromote", Admin),
        ],
    ),
    (
        "etcdserverpb.Maintenance",
        &[
            ("Alarm", Message),
            ("Status", User),
            ("Defragment", Admin),
            ("Hash", Admin),
            ("HashKV", Admin),
            ("Snapshot", Admin),
            ("MoveLeader", Admin),
            ("Downgrade", Admin),
        ],
    ),
    (
        "etcdserverpb.Auth",
        &[
            ("AuthEnable", Judged),
            ("AuthDisable", Judged),
            ("AuthStatus", Judged),
            ("Authenticate", Nothing),
            ("UserAdd", Judged),
            ("UserGet", Judged),
            ("UserList", Judged),
            ("UserDelete", Judged),
            ("UserChangePassword", Judged),
            ("UserGrantRole", Judged),
            ("UserRevokeRole", Judged),
            ("RoleAdd", Judged),
            ("RoleGet", Judged),
            ("RoleList", Judged),
            ("RoleDelete", Judged),
            ("RoleGrantPermission", Judged),
            ("RoleRevokePermission", Judged),
        ],
    ),
    ("v3lockpb.Lock", &[("Lock", Message), ("Unlock", Message)]),
    (
        "v3electionpb.Election",
        &[
            ("Campaign", Message),
            ("Proclaim", Message),
            ("Leader", Message),
            ("Observe", Message),
            ("Resign", Message),
        ],
    ),
    ("grpc.health.v1.Health", &[("Check", Nothing), ("Watch", Nothing), ("List", Nothing)]),
];

const _: () = assert!(is_complete(), "NEEDS must list every method, in the order of SERVICES");

const fn is_complete() -> bool {
    let mut at = 0;
    while at < NEEDS.len() && at < SERVICES.len() {
        let ((service, lines), Service { name, methods }) = (&NEEDS[at], &SERVICES[at]);
        if !is_same(service, name) || lines.len() != methods.len() {
            return false;
        }
        let mut of = 0;
        while of < lines.len() {
            if !is_same(lines[of].0, methods[of].name) {
                return false;
            }
            of += 1;
        }
        at += 1;
    }
    NEEDS.len() == SERVICES.len()
}

/// Returns the requirement of the method at this position in [`SERVICES`].
pub(crate) const fn needs_at((service, method): (usize, usize)) -> Needs {
    NEEDS[service].1[method].1
}

/// Returns the requirement of a method. Compilation fails if the method has no entry.
pub(crate) const fn needs_of(service: &str, method: &str) -> Needs {
    let mut at = 0;
    while at < NEEDS.len() {
        let (name, lines) = &NEEDS[at];
        let mut of = 0;
        while of < lines.len() {
            if is_same(name, service) && is_same(lines[of].0, method) {
                return lines[of].1;
            }
            of += 1;
        }
        at += 1;
    }
    panic!("NEEDS has no entry for this method")
}

/// Returns the services whose calls the metrics count.
pub fn counted() -> Vec<GrpcService> {
    let counted = |service: &Service| GrpcService { name: service.name, methods: service.labels() };
    SERVICES.iter().map(counted).collect()
}

/// Returns whether a name in an audit rule is the name of an existing service or method.
#[must_use]
pub fn is_known(name: &MethodName) -> bool {
    let all = SERVICES.iter().flat_map(|of| of.methods.iter().map(|one| (of.name, one.name)));
    let image = IMAGE_METHOD.trim_start_matches('/').split_once('/');
    all.chain(image).any(|(service, method)| name.fits(service, method))
}

#[cfg(test)]
mod tests {
    use quorate_telemetry::audit::Rules;

    use super::*;

    #[test]
    fn only_listed_methods_can_be_called_without_a_user() {
        let all = NEEDS.iter().flat_map(|(service, methods)| {
            methods.iter().map(move |(method, needs)| (format!("{service}/{method}"), *needs))
        });
        let open: Vec<String> =
            all.filter(|(_, needs)| *needs == Nothing).map(|(name, _)| name).collect();
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
    fn method_names_in_audit_rules_must_exist() {
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
}
