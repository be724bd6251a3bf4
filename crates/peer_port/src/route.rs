//! Routes requests on the peer port.

use http::Method;

use quorate_member::lease_holder::{RENEW_PATH, TIME_TO_LIVE_PATH};
use quorate_member::membership::PROMOTE_PATH;
use quorate_member::versions::VERSION_PATH;

/// An endpoint of the peer port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Members,
    /// Promotes a learner. The string is the learner's id, as in the path.
    Promote(String),
    HashKv,
    Versions,
    DowngradeEnabled,
    RenewLease,
    LeaseTimeToLive,
}

/// The result of routing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Routed {
    To(Endpoint),
    /// The path exists but does not support this method. Only some paths report the allowed method.
    NotAllowed {
        allowed: Option<Method>,
    },
    Nowhere,
}

/// Returns whether a path belongs to the consensus transport.
pub(super) fn is_consensus(path: &str) -> bool {
    path.strip_prefix("/raft").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(super) fn route(method: &Method, path: &str) -> Routed {
    let endpoint = match path {
        "/members" => Endpoint::Members,
        "/members/hashkv" => Endpoint::HashKv,
        "/downgrade/enabled" => Endpoint::DowngradeEnabled,
        VERSION_PATH => Endpoint::Versions,
        RENEW_PATH => Endpoint::RenewLease,
        TIME_TO_LIVE_PATH => Endpoint::LeaseTimeToLive,
        _ => match path.strip_prefix(PROMOTE_PATH) {
            Some(id) => Endpoint::Promote(id.to_owned()),
            None => return Routed::Nowhere,
        },
    };
    let (wanted, names_method) = match &endpoint {
        Endpoint::Members | Endpoint::HashKv | Endpoint::Versions | Endpoint::DowngradeEnabled => {
            (Method::GET, true)
        }
        Endpoint::Promote(_) => (Method::POST, true),
        Endpoint::RenewLease | Endpoint::LeaseTimeToLive => (Method::POST, false),
    };
    if *method == wanted {
        Routed::To(endpoint)
    } else {
        Routed::NotAllowed { allowed: names_method.then_some(wanted) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_path_accepts_one_method() {
        let get = Some(Method::GET);
        for (path, endpoint, method, allowed) in [
            ("/members", Endpoint::Members, Method::GET, get.clone()),
            ("/members/hashkv", Endpoint::HashKv, Method::GET, get.clone()),
            ("/version", Endpoint::Versions, Method::GET, get.clone()),
            ("/downgrade/enabled", Endpoint::DowngradeEnabled, Method::GET, get),
            (
                "/members/promote/17",
                Endpoint::Promote("17".to_owned()),
                Method::POST,
                Some(Method::POST),
            ),
            ("/leases", Endpoint::RenewLease, Method::POST, None),
            ("/leases/internal", Endpoint::LeaseTimeToLive, Method::POST, None),
        ] {
            assert_eq!(route(&method, path), Routed::To(endpoint), "{path}");
            assert_eq!(route(&Method::PUT, path), Routed::NotAllowed { allowed }, "{path}");
        }
        for path in
            ["/", "/members/", "/members/promote", "/leases/", "/metrics", "/health", "/v3/"]
        {
            assert_eq!(route(&Method::GET, path), Routed::Nowhere, "{path}");
        }
    }

    #[test]
    fn raft_paths_are_routed_to_consensus() {
        assert!(is_consensus("/raft") && is_consensus("/raft/stream/message/1"));
        assert!(!is_consensus("/rafts") && !is_consensus("/members/raft"));
    }
}
