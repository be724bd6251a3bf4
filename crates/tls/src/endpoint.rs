//! The scheme of an endpoint, in each form that etcd's clients accept, and the authority in requests to a Unix socket.
//!
//! # Not here
//!
//! The meaning of the schemes, and the format of the rest: the callers differ in what they accept.

use std::ffi::OsStr;
use std::path::Path;

use http::uri::Authority;

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

/// Returns the authority in requests to a server on a Unix socket. As in etcd, this is the name of the file. If the name
/// cannot be an authority, the result is `localhost`.
pub fn authority_of_file(path: &Path) -> &str {
    let name = path.file_name().and_then(OsStr::to_str);
    let is_valid = |name: &&str| !name.contains('@') && name.parse::<Authority>().is_ok();
    name.filter(is_valid).unwrap_or("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_of_a_socket_is_its_file_name() {
        for (path, expected) in [
            ("localhost:20000", "localhost:20000"),
            ("/run/etcd/m.sock", "m.sock"),
            ("/run/etcd/", "etcd"),
            ("/run/a b", "localhost"),
            ("/run/a@b", "localhost"),
            ("/", "localhost"),
            ("", "localhost"),
        ] {
            assert_eq!(authority_of_file(Path::new(path)), expected, "{path}");
        }
    }

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
