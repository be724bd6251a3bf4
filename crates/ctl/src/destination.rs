//! The second cluster of a command that works on two clusters: the flags for its connection, and the mapping of key
//! names.

use crate::failure::Failure;
use crate::flags::{Flag, Kind, Matches};

pub(crate) const PREFIX: Flag = Flag::bytes(
    "dest-prefix",
    "destination prefix to mirror a prefix to a different prefix in the destination cluster",
);
pub(crate) const NO_PREFIX: Flag =
    Flag::bool("no-dest-prefix", "mirror key-values to the root of the destination cluster");
pub(crate) const CERT: Flag = Flag::text(
    "dest-cert",
    "",
    "Identify secure client using this TLS certificate file for the destination cluster",
);
pub(crate) const KEY: Flag =
    Flag::text("dest-key", "", "Identify secure client using this TLS key file");
pub(crate) const CACERT: Flag = Flag::text(
    "dest-cacert",
    "",
    "Verify certificates of TLS enabled secure servers using this CA bundle",
);
pub(crate) const INSECURE_TRANSPORT: Flag = Flag {
    name: "dest-insecure-transport",
    short: None,
    kind: Kind::Bool,
    default: "true",
    usage: "Disable transport security for client connections",
};
pub(crate) const USER: Flag = Flag::text(
    "dest-user",
    "",
    "Destination username[:password] for authentication (prompt if password is not supplied)",
);
pub(crate) const PASSWORD: Flag = Flag::text(
    "dest-password",
    "",
    "Destination password for authentication (if this option is used, --user option shouldn't include password)",
);

/// Maps source keys to destination keys.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) prefix: Vec<u8>,
    pub(crate) replacement: Vec<u8>,
}

impl Names {
    /// Reads the prefix flags. Without a destination prefix, keys keep their names.
    pub(crate) fn of(matches: &Matches) -> Result<Self, Failure> {
        let (prefix, replacement) = (matches.bytes("prefix"), matches.bytes("dest-prefix"));
        let to_root = matches.bool("no-dest-prefix");
        if to_root && !replacement.is_empty() {
            let text =
                "`--dest-prefix` and `--no-dest-prefix` cannot be set at the same time, choose one";
            return Err(Failure::bad_args(text));
        }
        let stays = replacement.is_empty() && !to_root;
        let replacement = if stays { prefix } else { replacement };
        Ok(Self { prefix: prefix.into(), replacement: replacement.into() })
    }

    /// Returns the destination key for a source key.
    pub(crate) fn at_destination(&self, key: &[u8]) -> Vec<u8> {
        [&self.replacement[..], self.rest(key)].concat()
    }

    /// Returns the source key without its prefix. This part of the key is the same on both sides. Every source key has
    /// the prefix, because only keys with the prefix are read.
    pub(crate) fn rest<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key.strip_prefix(&self.prefix[..]).unwrap_or(key)
    }

    /// Returns the destination key without its prefix. This part of the key is the same on both sides.
    pub(crate) fn rest_at_destination<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key.strip_prefix(&self.replacement[..]).unwrap_or(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &[Flag] = &[Flag::bytes("prefix", ""), PREFIX, NO_PREFIX];

    fn names(line: &[&str]) -> Result<Names, Failure> {
        let line: Vec<_> = line.iter().map(|word| word.as_bytes().to_vec()).collect();
        Names::of(&Matches::parse(FLAGS, &line).unwrap())
    }

    #[test]
    fn keys_keep_their_names_or_receive_the_destination_prefix() {
        for (line, key) in [
            (&[][..], "a/a/k"),
            (&["--prefix=a/"], "a/a/k"),
            (&["--prefix=a/", "--dest-prefix=b/"], "b/a/k"),
            (&["--prefix=a/", "--no-dest-prefix"], "a/k"),
            (&["--dest-prefix=b/"], "b/a/a/k"),
        ] {
            let named = names(line).unwrap().at_destination(b"a/a/k");
            assert_eq!(named, key.as_bytes(), "{line:?}");
        }
        assert_eq!(names(&["--dest-prefix=b", "--no-dest-prefix"]).unwrap_err().code, 128);
    }
}
