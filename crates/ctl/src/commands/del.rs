//! `del`: deletes a key or a range of keys.

use std::time::Duration;

use quorate_api::etcdserverpb::DeleteRangeRequest;

use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::flags::{Flag, Matches};
use crate::gotext::quote;
use crate::key_range::KeyRange;
use crate::output::Reply;
use crate::session::Session;

pub(crate) const DEL: Command = Command {
    usage: "del [options] <key> [range_end]",
    short: "Removes the specified key or range of keys [key, range_end)",
    group: Some(group::KEY_VALUE),
    flags: Del::FLAGS,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

/// Time for the user to cancel the deletion of a range if `--range` was not given.
const SECOND_THOUGHT: Duration = Duration::from_secs(2);

/// Options of `del`.
#[derive(Debug)]
pub(crate) struct Del<'a> {
    matches: &'a Matches,
}

impl<'a> Del<'a> {
    pub(crate) const FLAGS: &'static [Flag] = &[
        Flag::bool("prefix", "delete keys with matching prefix"),
        Flag::bool("prev-kv", "return deleted key-value pairs"),
        Flag::bool(
            "from-key",
            "delete keys that are greater than or equal to the given key using byte compare",
        ),
        Flag::bool("range", "delete range of keys"),
    ];

    pub(crate) const fn new(matches: &'a Matches) -> Self {
        Self { matches }
    }

    pub(crate) fn request(&self) -> Result<DeleteRangeRequest, Failure> {
        let (prefix, from_key) = (self.matches.bool("prefix"), self.matches.bool("from-key"));
        let args = &self.matches.args;
        let key = match &args[..] {
            [key] | [key, _] => key.clone(),
            _ => {
                return Err(Failure::bad_args(
                    "del command needs one argument as key and an optional argument as range_end",
                ));
            }
        };
        if prefix && from_key {
            return Err(Failure::bad_args(
                "`--prefix` and `--from-key` cannot be set at the same time, choose one",
            ));
        }
        let range = match args.get(1) {
            Some(_) if prefix || from_key => {
                return Err(Failure::bad_args(
                    "too many arguments, only accept one argument when `--prefix` or `--from-key` is set",
                ));
            }
            Some(end) => KeyRange { key, end: end.clone() },
            None if prefix => KeyRange::prefix(key),
            None if from_key => KeyRange::from(key),
            None => KeyRange { key, end: Vec::new() },
        };
        Ok(DeleteRangeRequest {
            key: range.key.into(),
            range_end: range.end.into(),
            prev_kv: self.matches.bool("prev-kv"),
        })
    }

    /// Returns the warning for the deletion of a range without `--range`.
    pub(crate) fn warning(&self) -> Option<String> {
        let [from, to] = &self.matches.args[..] else { return None };
        let (from, to) = (quote(from), quote(to));
        (!self.matches.bool("range")).then(|| {
            format!(
                "Warning: Keys between {from} and {to} will be deleted. Please interrupt the command \
                 within next 2 seconds to cancel. You can provide `--range` flag to avoid the delay.\n"
            )
        })
    }

    /// Prints the warning, if there is one, and gives the user time to cancel.
    pub(crate) async fn warn(&self, session: &Session) {
        if let Some(warning) = self.warning() {
            session.print_error(&warning);
            tokio::time::sleep(SECOND_THOUGHT).await;
        }
    }
}

async fn run(session: &Session) -> Result<(), Failure> {
    let del = Del::new(&session.matches);
    let request = del.request()?;
    del.warn(session).await;
    let client = session.client().await?;
    let delete = async |channel, request| client.kv(channel).delete_range(request).await;
    let reply = client.call(Some(session.timeout()), Repeat::Never, request, delete).await?;
    session.show(&Reply::Delete(reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(line: &[&str]) -> Matches {
        let line: Vec<_> = line.iter().map(|word| word.as_bytes().to_vec()).collect();
        Matches::parse(Del::FLAGS, &line).unwrap()
    }

    #[test]
    fn deleting_a_range_without_the_range_flag_prints_a_warning() {
        let line = matches(&["a", "c"]);
        assert!(
            Del::new(&line)
                .warning()
                .unwrap()
                .starts_with("Warning: Keys between \"a\" and \"c\" will be deleted.")
        );
        let request = Del::new(&line).request().unwrap();
        assert_eq!((&request.key[..], &request.range_end[..]), (&b"a"[..], &b"c"[..]));
        assert_eq!(Del::new(&matches(&["a", "c", "--range"])).warning(), None);
        assert_eq!(Del::new(&matches(&["a", "--prefix"])).warning(), None);
    }

    #[test]
    fn usage_errors_exit_with_the_bad_arguments_code() {
        for line in
            [&[][..], &["a", "b", "c"], &["a", "b", "--prefix"], &["a", "--prefix", "--from-key"]]
        {
            assert_eq!(Del::new(&matches(line)).request().unwrap_err().code, 128, "{line:?}");
        }
    }
}
