//! `put`: writes a key.

use quorate_api::etcdserverpb::PutRequest;

use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::flags::{Flag, Matches};
use crate::gotext::parse_int;
use crate::output::Reply;
use crate::session::Session;

pub(crate) const PUT: Command = Command {
    usage: "put [options] <key> <value> (<value> can also be given from stdin)",
    short: "Puts the given key into the store",
    long: "\
Puts the given key into the store.

A <value> that begins with '-' would be parsed as a flag. Put '--' before it:

$ put <key> -- <value>
$ put -- <key> <value>

Without a <value> and without '--ignore-value', the value is read from standard input,
so that

$ cat file | put <key>

stores the content of the file under <key>.",
    group: Some(group::KEY_VALUE),
    flags: Put::FLAGS,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

const USAGE_ERROR: &str = "put command needs 1 argument and input from stdin or 2 arguments";

/// Options of `put`.
#[derive(Debug)]
pub(crate) struct Put<'a> {
    matches: &'a Matches,
}

impl<'a> Put<'a> {
    pub(crate) const FLAGS: &'static [Flag] = &[
        Flag::text("lease", "0", "lease ID (in hexadecimal) to attach to the key"),
        Flag::bool("prev-kv", "return the previous key-value pair before modification"),
        Flag::bool("ignore-value", "updates the key using its current value"),
        Flag::bool("ignore-lease", "updates the key using its current lease"),
    ];

    pub(crate) const fn new(matches: &'a Matches) -> Self {
        Self { matches }
    }

    /// Returns the request. `read` supplies the value if it is not an argument.
    pub(crate) fn request(
        &self,
        read: impl FnOnce() -> Result<Vec<u8>, Failure>,
    ) -> Result<PutRequest, Failure> {
        let args = &self.matches.args;
        let key = args.first().ok_or_else(|| Failure::bad_args(USAGE_ERROR))?;
        let ignore_value = self.matches.bool("ignore-value");
        if ignore_value && args.len() > 1 {
            let text = "put command needs only 1 argument when 'ignore-value' is set";
            return Err(Failure::bad_args(text));
        }
        let value = match args.get(1) {
            _ if ignore_value => Vec::new(),
            Some(value) => value.clone(),
            None => {
                let value = read()?;
                if value.is_empty() {
                    return Err(Failure::bad_args(USAGE_ERROR));
                }
                value
            }
        };
        let lease = parse_int(self.matches.text("lease"), 16).map_err(|error| {
            Failure::bad_args(format!("bad lease ID ({error}), expecting ID in Hex"))
        })?;
        Ok(PutRequest {
            key: key.clone().into(),
            value: value.into(),
            lease,
            prev_kv: self.matches.bool("prev-kv"),
            ignore_value,
            ignore_lease: self.matches.bool("ignore-lease"),
        })
    }
}

async fn run(session: &Session) -> Result<(), Failure> {
    let request = Put::new(&session.matches).request(|| session.read_input())?;
    let client = session.client().await?;
    let put = async |channel, request| client.kv(channel).put(request).await;
    let reply = client.call(Some(session.timeout()), Repeat::Never, request, put).await?;
    session.show(&Reply::Put(reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &[&str], input: &[u8]) -> Result<PutRequest, Failure> {
        let line: Vec<_> = line.iter().map(|word| word.as_bytes().to_vec()).collect();
        let matches = Matches::parse(Put::FLAGS, &line).unwrap();
        Put::new(&matches).request(|| Ok(input.to_vec()))
    }

    #[test]
    fn the_value_is_read_from_an_argument_or_the_input() {
        let put = request(&["k", "v", "--lease", "7b", "--prev-kv"], b"").unwrap();
        assert_eq!((&put.key[..], &put.value[..], put.lease), (&b"k"[..], &b"v"[..], 123));
        assert!(put.prev_kv);
        let put = request(&["k"], b"line\n").unwrap();
        assert_eq!(&put.value[..], b"line\n");
        let put = request(&["k", "--", "-v"], b"").unwrap();
        assert_eq!(&put.value[..], b"-v");
        assert_eq!(request(&["k", ""], b"x").unwrap().value.len(), 0);
    }

    #[test]
    fn usage_errors_exit_with_the_bad_arguments_code() {
        assert_eq!(request(&[], b"x").unwrap_err(), Failure::bad_args(USAGE_ERROR));
        assert_eq!(request(&["k"], b"").unwrap_err(), Failure::bad_args(USAGE_ERROR));
        assert!(request(&["k", "v", "--ignore-value"], b"").is_err());
        assert_eq!(
            request(&["k", "v", "--lease", "x"], b"").unwrap_err().message.unwrap(),
            "bad lease ID (strconv.ParseInt: parsing \"x\": invalid syntax), expecting ID in Hex"
        );
    }
}
