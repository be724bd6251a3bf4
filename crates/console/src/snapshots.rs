//! Downloads of snapshots. The page asks for one, and then lets the browser fetch it under an id that works once and for
//! a short time, because a browser cannot save a stream that it receives in answer to an API call. The id is no
//! credential of the cluster: it stands for one snapshot that a user has already been allowed to ask for.
//!
//! # Guarantees
//!
//! * A download that is not complete, or whose digest is wrong, is broken off, so that the browser reports it as failed.
//!
//! # Bound
//!
//! * [`DOWNLOADS_MAX`] downloads are remembered. Each has [`PARTS_MAX`] parts in memory.

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

use crate::cluster::Caller;
use crate::input::Input;
use crate::members::Members;
use crate::refusal::{Kind, Refusal};
use crate::reply::{Part, Parts};

const DOWNLOADS_MAX: usize = 32;
const PARTS_MAX: usize = 16;

/// Time in which the browser must begin a download.
const BEGIN_TIME: Duration = Duration::from_secs(60);

/// Time in which the member must send the next part, and the browser must take it.
const PART_TIME: Duration = Duration::from_secs(60);

const SECTOR_BYTES: u64 = 512;
const DIGEST_BYTES: usize = 32;

/// The downloads of a console.
#[derive(Default)]
pub(crate) struct Downloads(RefCell<VecDeque<Rc<Download>>>);

/// A download.
pub(crate) struct Download {
    id: String,
    file: String,
    asked: Instant,
    state: RefCell<State>,
}

struct State {
    /// The caller, until the download begins.
    caller: Option<Caller>,
    name: &'static str,
    sent: u64,
    total: Option<u64>,
    error: Option<Refusal>,
}

impl State {
    const fn waiting(caller: Option<Caller>) -> Self {
        Self { caller, name: "waiting", sent: 0, total: None, error: None }
    }
}

impl Downloads {
    /// Prepares a download.
    pub(crate) async fn prepare(
        &self,
        members: &Members,
        caller: Caller,
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
        getrandom::fill(&mut random)
            .map_err(|error| Refusal::new(Kind::Cluster, format!("no random numbers: {error}")))?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let download = Rc::new(Download {
            id: id.clone(),
            file: file_name(&name, SystemTime::now()),
            asked: Instant::now(),
            state: RefCell::new(State::waiting(Some(caller))),
        });
        let answer = json!({ "id": id, "path": format!("/download/{id}"), "file": download.file });
        self.keep(download);
        Ok(answer)
    }

    fn keep(&self, download: Rc<Download>) {
        let mut all = self.0.borrow_mut();
        if all.len() == DOWNLOADS_MAX {
            all.pop_front();
        }
        all.push_back(download);
    }

    fn find(&self, id: &str) -> Result<Rc<Download>, Refusal> {
        let all = self.0.borrow();
        let found = all.iter().find(|download| download.id == id);
        found.cloned().ok_or_else(|| Refusal::new(Kind::NotFound, "there is no such download"))
    }

    /// Returns the progress of a download.
    pub(crate) fn progress(&self, input: &Input) -> Result<Value, Refusal> {
        let download = self.find(input.required_text("id")?)?;
        let state = download.state.borrow();
        Ok(json!({
            "state": state.name,
            "sent_bytes": state.sent,
            "total_bytes": state.total,
            "error": state.error.as_ref().map(Refusal::json),
        }))
    }

    /// Begins a download. Returns the name of its file, its data, and the task that fetches it.
    pub(crate) async fn begin(&self, id: &str) -> Result<Begun, Refusal> {
        let download = self.find(id)?;
        let caller = {
            let mut state = download.state.borrow_mut();
            let is_late = download.asked.elapsed() > BEGIN_TIME;
            let caller = state.caller.take().filter(|_| !is_late);
            let gone = || Refusal::new(Kind::NotFound, "this download has begun or is too old");
            let caller = caller.ok_or_else(gone)?;
            state.name = "running";
            caller
        };
        match open(&caller).await {
            Ok(stream) => {
                let (sender, parts) = mpsc::channel(PARTS_MAX);
                Ok(Begun { file: download.file.clone(), parts, download, caller, stream, sender })
            }
            Err(refused) => {
                download.fail(&refused);
                Err(refused)
            }
        }
    }
}

/// A download that has begun.
pub(crate) struct Begun {
    pub(crate) file: String,
    pub(crate) parts: Parts,
    download: Rc<Download>,
    caller: Caller,
    stream: Streaming<SnapshotResponse>,
    sender: mpsc::Sender<io::Result<Part>>,
}

impl Begun {
    /// Separates the data for the answer from the task that produces it.
    pub(crate) fn split(self) -> (String, Parts, impl Future<Output = ()>) {
        let Self { file, parts, download, caller, stream, sender } = self;
        let fetching = async move {
            let fetched = fetch(&download, &caller, stream, &sender).await;
            match fetched {
                Ok(()) => download.state.borrow_mut().name = "done",
                Err(refused) => {
                    download.fail(&refused);
                    // The browser may be gone, or may not read.
                    let error = Err(io::Error::other(refused.message));
                    drop(sender.send_timeout(error, PART_TIME).await);
                }
            }
        };
        (file, parts, fetching)
    }
}

impl Download {
    fn fail(&self, refused: &Refusal) {
        let mut state = self.state.borrow_mut();
        (state.name, state.error) = ("failed", Some(refused.clone()));
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
    let gone = || Refusal::new(Kind::Timeout, "the browser has broken off the download");
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

/// The digest of all received bytes except the last ones, which are the digest that the member sent.
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

    /// Checks the digest. A snapshot without one is accepted, because older servers do not send it.
    fn verdict(self) -> Result<(), Refusal> {
        let broken = |text: &str| Err(Refusal::new(Kind::Cluster, text));
        if self.len % SECTOR_BYTES != DIGEST_BYTES as u64 {
            return broken("the member sent an incomplete snapshot");
        }
        if self.digest.finalize()[..] != self.end[..] {
            return broken("the digest of the snapshot is wrong");
        }
        Ok(())
    }
}

/// Returns a file name with the member's name, as far as it is safe in a file name, and the time.
fn file_name(member: &str, now: SystemTime) -> String {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    let name: String = member.chars().filter(|letter| safe(*letter)).take(64).collect();
    let secs = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("quorate-{}-{secs}.db", if name.is_empty() { "member" } else { &name })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_oldest_download_is_forgotten_at_the_limit() {
        let downloads = Downloads::default();
        for number in 0..=DOWNLOADS_MAX {
            downloads.keep(Rc::new(Download {
                id: number.to_string(),
                file: String::new(),
                asked: Instant::now(),
                state: RefCell::new(State::waiting(None)),
            }));
        }
        assert_eq!(downloads.find("0").err().unwrap().kind, Kind::NotFound);
        assert!(downloads.find("1").is_ok());
    }

    #[test]
    fn the_name_of_a_file_contains_no_letter_with_a_meaning() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        assert_eq!(file_name("m/1\"\r\n..", at), "quorate-m1-5.db");
        assert_eq!(file_name("", at), "quorate-member-5.db");
    }
}
