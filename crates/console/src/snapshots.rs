//! Downloads of snapshots. The page requests a snapshot with an API call, and receives an id under which the browser
//! then downloads it, because a browser cannot save a stream that it receives in response to an API call. The id can be
//! used only once, and only for a short time. The id gives no other access to the cluster, because it identifies one
//! snapshot that the user was permitted to request.
//!
//! # Guarantees
//!
//! * A download that is incomplete or has a wrong digest is aborted, so that the browser reports a failed download.
//!
//! # Bound
//!
//! * At most [`DOWNLOADS_MAX`] downloads are remembered, and at most [`OWN_DOWNLOADS_MAX`] of one client. A client at
//!   its own limit replaces one of its ended downloads, or is refused if none has ended. Other downloads beyond the
//!   limit are refused until a remembered one is dropped. Each download keeps at most [`PARTS_MAX`] parts in memory.
//! * A download that the browser does not start within [`BEGIN_TIME`] fails. An ended download that was not replaced is
//!   dropped from the list [`KEEP_TIME`] after its end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use quorate_api::etcdserverpb::{SnapshotRequest, SnapshotResponse};
use quorate_client::as_grpc_go;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tonic::{Status, Streaming};

use crate::clients::{Client, Holder};
use crate::cluster::Caller;
use crate::guard::Guard;
use crate::input::Input;
use crate::members::Members;
use crate::refusal::{Kind, Refusal};
use crate::reply::{Part, Parts};

const DOWNLOADS_MAX: usize = 32;
const OWN_DOWNLOADS_MAX: usize = 4;
const PARTS_MAX: usize = 16;

/// Maximum time until the browser starts a download.
const BEGIN_TIME: Duration = Duration::from_secs(60);

/// Time for which the outcome of a download stays available.
const KEEP_TIME: Duration = Duration::from_secs(60);

/// Maximum time for the member to send the next part, and for the browser to read it.
const PART_TIME: Duration = Duration::from_secs(60);

const SECTOR_BYTES: u64 = 512;
const DIGEST_BYTES: usize = 32;

/// The downloads of a console.
#[derive(Default)]
pub(crate) struct Downloads(RefCell<VecDeque<Rc<Download>>>);

/// A download of a snapshot.
pub(crate) struct Download {
    id: String,
    owner: Holder,
    file: String,
    asked: Instant,
    state: RefCell<State>,
}

struct State {
    /// The caller and the guard of the download, until the download starts.
    caller: Option<(Caller, Guard)>,
    name: &'static str,
    ended: Option<Instant>,
    sent: u64,
    total: Option<u64>,
    error: Option<Refusal>,
}

impl State {
    const fn waiting(caller: Option<(Caller, Guard)>) -> Self {
        Self { caller, name: "waiting", ended: None, sent: 0, total: None, error: None }
    }
}

impl Downloads {
    /// Registers a download, and returns the path at which the browser can start it.
    pub(crate) async fn prepare(
        &self,
        members: &Members,
        (caller, guard, client): (Caller, Guard, Client),
        input: &Input,
    ) -> Result<Value, Refusal> {
        let mut name = "cluster".to_owned();
        let caller = match input.id("member")? {
            None => caller,
            Some(id) => {
                let listed = caller.members().await?;
                let found = listed.into_iter().find(|member| member.id == id);
                name = found.map(|member| member.name).unwrap_or_default();
                members.of(&caller, id).await?
            }
        };
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random).map_err(|error| {
            Refusal::new(Kind::Cluster, format!("cannot obtain random numbers: {error}"))
        })?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let download = Rc::new(Download {
            id: id.clone(),
            owner: client.holder(),
            file: file_name(&name, SystemTime::now()),
            asked: Instant::now(),
            state: RefCell::new(State::waiting(Some((caller, guard)))),
        });
        let answer = json!({ "id": id, "path": format!("/download/{id}"), "file": download.file });
        self.keep(download)?;
        Ok(answer)
    }

    /// Adds a download to the list, unless its client has too many unfinished downloads or the list is full.
    fn keep(&self, download: Rc<Download>) -> Result<(), Refusal> {
        let mut all = self.0.borrow_mut();
        all.retain(|known| !known.is_forgotten());
        let own = |known: &Rc<Download>| known.owner == download.owner;
        if all.iter().filter(|known| own(known)).count() >= OWN_DOWNLOADS_MAX {
            let ended = all.iter().position(|known| own(known) && known.has_ended());
            let busy = || {
                let text = format!("this client has {OWN_DOWNLOADS_MAX} unfinished downloads");
                Refusal::new(Kind::Busy, text)
                    .advising("Wait until one has finished, or cancel one.")
            };
            all.remove(ended.ok_or_else(busy)?);
        }
        if all.len() >= DOWNLOADS_MAX {
            let text = "the console is already serving too many downloads";
            return Err(Refusal::new(Kind::Busy, text).advising("Try again in a minute."));
        }
        all.push_back(download);
        Ok(())
    }

    fn find(&self, id: &str) -> Result<Rc<Download>, Refusal> {
        let all = self.0.borrow();
        let found = all.iter().find(|download| download.id == id);
        found
            .cloned()
            .ok_or_else(|| Refusal::new(Kind::NotFound, "there is no download with this id"))
    }

    /// Returns the progress of a download.
    pub(crate) fn progress(&self, input: &Input) -> Result<Value, Refusal> {
        let download = self.find(input.required_text("id")?)?;
        download.expire();
        let state = download.state.borrow();
        Ok(json!({
            "state": state.name,
            "sent_bytes": state.sent,
            "total_bytes": state.total,
            "error": state.error.as_ref().map(Refusal::json),
        }))
    }

    /// Starts a download. Returns the download's file name, its data, and the task that fetches the data.
    pub(crate) async fn begin(&self, id: &str) -> Result<Begun, Refusal> {
        let download = self.find(id)?;
        download.expire();
        let (caller, guard) = {
            let mut state = download.state.borrow_mut();
            let caller = state.caller.take();
            let gone = || {
                Refusal::new(Kind::NotFound, "this download was already started, or has expired")
            };
            let caller = caller.ok_or_else(gone)?;
            state.name = "running";
            caller
        };
        match open(&caller).await {
            Ok(stream) => {
                let (sender, parts) = mpsc::channel(PARTS_MAX);
                let file = download.file.clone();
                Ok(Begun { file, parts, download, caller, guard, stream, sender })
            }
            Err(refused) => {
                download.end(&Err(refused.clone()));
                Err(refused)
            }
        }
    }
}

/// A download in progress.
pub(crate) struct Begun {
    pub(crate) file: String,
    pub(crate) parts: Parts,
    download: Rc<Download>,
    caller: Caller,
    guard: Guard,
    stream: Streaming<SnapshotResponse>,
    sender: mpsc::Sender<io::Result<Part>>,
}

impl Begun {
    /// Splits the download into the data for the response and the task that fetches the data.
    pub(crate) fn split(self) -> (String, Parts, impl Future<Output = ()>) {
        let Self { file, parts, download, caller, guard, stream, sender } = self;
        let fetching = async move {
            let fetched = tokio::select! {
                fetched = fetch(&download, &caller, stream, &sender) => fetched,
                refused = guard.lost() => Err(refused),
            };
            download.end(&fetched);
            match fetched {
                Ok(()) => {}
                Err(refused) => {
                    // Sending fails if the browser has disconnected or does not read.
                    let error = Err(io::Error::other(refused.message));
                    drop(sender.send_timeout(error, PART_TIME).await);
                }
            }
        };
        (file, parts, fetching)
    }
}

impl Download {
    /// Records the outcome of the download.
    fn end(&self, outcome: &Result<(), Refusal>) {
        let mut state = self.state.borrow_mut();
        state.caller = None;
        state.ended = Some(Instant::now());
        state.name = if outcome.is_ok() { "done" } else { "failed" };
        state.error = outcome.as_ref().err().cloned();
    }

    /// Fails the download if the browser has not started it in time.
    fn expire(&self) {
        let is_waiting = self.state.borrow().name == "waiting";
        if is_waiting && self.asked.elapsed() > BEGIN_TIME {
            let text = "the browser did not start the download in time";
            self.end(&Err(Refusal::new(Kind::Timeout, text)));
            self.state.borrow_mut().ended = Some(self.asked + BEGIN_TIME);
        }
    }

    fn has_ended(&self) -> bool {
        self.expire();
        self.state.borrow().ended.is_some()
    }

    fn is_forgotten(&self) -> bool {
        self.expire();
        self.state.borrow().ended.is_some_and(|ended| ended.elapsed() > KEEP_TIME)
    }
}

async fn open(caller: &Caller) -> Result<Streaming<SnapshotResponse>, Refusal> {
    let failed = |status: &Status| caller.refusal(status);
    let opening = async {
        let connection = caller.client.connect(None).await.map_err(|status| failed(&status))?;
        let request = caller.client.stream_request(SnapshotRequest {}).await;
        let request = request.map_err(|status| failed(&status))?;
        let opened = caller.client.maintenance(connection.channel.clone()).snapshot(request).await;
        opened.map_err(|status| {
            let status = as_grpc_go(status);
            caller.client.leave(&connection, &status);
            failed(&status)
        })
    };
    match timeout(PART_TIME, opening).await {
        Ok(opened) => Ok(opened?.into_inner()),
        Err(_) => Err(Refusal::no_answer()),
    }
}

async fn fetch(
    download: &Download,
    caller: &Caller,
    mut stream: Streaming<SnapshotResponse>,
    sender: &mpsc::Sender<io::Result<Part>>,
) -> Result<(), Refusal> {
    let gone = || Refusal::new(Kind::Timeout, "the browser aborted the download");
    let mut checked = Checked::default();
    loop {
        let part = match timeout(PART_TIME, stream.message()).await {
            Ok(part) => part.map_err(|status| caller.refusal(&as_grpc_go(status)))?,
            Err(_) => return Err(Refusal::no_answer()),
        };
        let Some(part) = part else { return checked.verdict() };
        checked.add(&part.blob);
        let data = Part { data: part.blob, space: None };
        sender.send_timeout(Ok(data), PART_TIME).await.map_err(|_| gone())?;
        let mut state = download.state.borrow_mut();
        state.sent = checked.len;
        state.total = Some(checked.len.saturating_add(part.remaining_bytes)).max(state.total);
    }
}

/// Computes the digest of the received data. The final bytes are excluded, because they are the digest sent by the
/// member.
#[derive(Default)]
struct Checked {
    len: u64,
    digest: Sha256,
    end: Vec<u8>,
}

impl Checked {
    fn add(&mut self, part: &[u8]) {
        self.len += part.len() as u64;
        self.end.extend_from_slice(part);
        let settled = self.end.len().saturating_sub(DIGEST_BYTES);
        self.digest.update(&self.end[..settled]);
        self.end.drain(..settled);
    }

    /// Checks the digest. A snapshot without a digest is refused as incomplete.
    fn verdict(self) -> Result<(), Refusal> {
        let broken = |text: &str| Err(Refusal::new(Kind::Cluster, text));
        if self.len % SECTOR_BYTES != DIGEST_BYTES as u64 {
            return broken("the member sent an incomplete snapshot");
        }
        if self.digest.finalize()[..] != self.end[..] {
            return broken("the snapshot does not match its digest");
        }
        Ok(())
    }
}

/// Returns a file name built from the member's name and the time. Characters of the member's name that are unsafe in a
/// file name are left out.
fn file_name(member: &str, now: SystemTime) -> String {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    let name: String = member.chars().filter(|letter| safe(*letter)).take(64).collect();
    let secs = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("quorate-{}-{secs}.db", if name.is_empty() { "member" } else { &name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::tests::anonymous;

    #[test]
    fn only_a_complete_snapshot_with_its_digest_is_accepted() {
        let data = [7_u8; 1024];
        let digest = Sha256::digest(data);
        let verdict = |parts: &[&[u8]]| {
            let mut checked = Checked::default();
            parts.iter().for_each(|part| checked.add(part));
            checked.verdict().is_ok()
        };
        assert!(verdict(&[&data[..100], &data[100..], &digest]));
        assert!(!verdict(&[&data[..100], &digest]));
        assert!(!verdict(&[&data, &[0; 32]]));
        assert!(!verdict(&[&data]));
    }

    fn download(id: usize, number: u8) -> Rc<Download> {
        Rc::new(Download {
            id: id.to_string(),
            owner: anonymous(number).holder(),
            file: String::new(),
            asked: Instant::now(),
            state: RefCell::new(State::waiting(None)),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn downloads_beyond_the_limit_are_refused_and_unfinished_downloads_are_kept() {
        let downloads = Downloads::default();
        for id in 0..OWN_DOWNLOADS_MAX {
            downloads.keep(download(id, 1)).unwrap();
        }
        let refused = downloads.keep(download(100, 1)).unwrap_err();
        assert_eq!(refused.kind, Kind::Busy);
        assert!(refused.message.contains("4 unfinished downloads"), "{}", refused.message);
        downloads.keep(download(101, 2)).unwrap();
        // A finished download makes room for another download of the same client.
        downloads.find("2").unwrap().end(&Ok(()));
        downloads.keep(download(102, 1)).unwrap();
        assert!(downloads.find("0").is_ok() && downloads.find("2").is_err());
        let all: Vec<_> =
            (0..200).map(|id| downloads.keep(download(id, 10 + (id / 4) as u8))).collect();
        assert_eq!(all.iter().filter(|kept| kept.is_ok()).count(), DOWNLOADS_MAX - 5);
        assert_eq!(all.last().unwrap().as_ref().unwrap_err().kind, Kind::Busy);
    }

    #[tokio::test(start_paused = true)]
    async fn a_download_that_is_not_started_in_time_fails_and_is_dropped() {
        let downloads = Downloads::default();
        for id in 0..OWN_DOWNLOADS_MAX {
            downloads.keep(download(id, 1)).unwrap();
        }
        tokio::time::advance(BEGIN_TIME + Duration::from_secs(1)).await;
        let input = Input::parse(br#"{"id":"0"}"#).unwrap();
        assert_eq!(downloads.progress(&input).unwrap()["state"], "failed");
        assert_eq!(downloads.begin("0").await.err().unwrap().kind, Kind::NotFound);
        downloads.keep(download(9, 1)).unwrap();
        tokio::time::advance(KEEP_TIME + Duration::from_secs(1)).await;
        downloads.keep(download(10, 1)).unwrap();
        assert_eq!(downloads.0.borrow().len(), 2, "only the last two downloads are remembered");
    }

    #[test]
    fn the_file_name_of_a_snapshot_contains_only_safe_characters() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        assert_eq!(file_name("m/1\"\r\n..", at), "quorate-m1-5.db");
        assert_eq!(file_name("", at), "quorate-member-5.db");
    }
}
