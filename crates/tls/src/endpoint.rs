//! The scheme of an endpoint, in each form that etcd's clients accept.
//!
//! # Not here
//!
//! The meaning of the schemes, and the format of the rest: the callers differ in what they accept.

/// Splits an endpoint into its scheme, which is empty if the endpoint has none, and the rest. As in etcd, a path may
/// follow `unix:` and `unixs:` with or without `//`.
pub fn split_scheme(endpoint: &str) -> (&str, &str) {
    for scheme in ["unix", "unixs"] {
        let path = endpoint.strip_prefix(scheme).and_then(|rest| rest.strip_prefix(':'));
        if let Some(path) = path {
            return (scheme, path.strip_prefix("//").unwrap_or(path));
        }
    }
    endpoint.split_once("://").unwrap_or(("", endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_split_from_the_rest_and_sockets_need_no_slashes() {
        for (endpoint, expected) in [
            ("a:1", ("", "a:1")),
            ("https://a:1/", ("https", "a:1/")),
            ("unix://s:1", ("unix", "s:1")),
            ("unix:///run/s", ("unix", "/run/s")),
            ("unix:s:1", ("unix", "s:1")),
            ("unix:/run/s", ("unix", "/run/s")),
            ("unixs:/run/s", ("unixs", "/run/s")),
            ("unixs:///run/s", ("unixs", "/run/s")),
            ("unix:a://b", ("unix", "a://b")),
            ("unixt:1", ("", "unixt:1")),
            ("", ("", "")),
        ] {
            assert_eq!(split_scheme(endpoint), expected, "{endpoint}");
        }
    }
}
