//! A watch stream for a single group that is behind. The stream exists until the group has caught up.
//!
//! The watch delivers history as fast as the member can read it. It has its own stream, because a member reports
//! progress only for a whole stream and only once every watch on it has caught up. Once the group has caught up, it
//! moves to a feed.

use std::sync::Arc;

use bytes::BytesMut;
use http_body::Frame;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;

use super::feed::Feeds;
use super::member::{
    Frames, Members, PAUSE, PAUSE_MAX, PROGRESS_INTERVAL, PROGRESS_INTERVAL_MAX, create_request,
    is_retryable, progress_request, requests, write,
};
use super::watcher_set::{Follower, WatcherSet};
use super::watcher_sets::WatcherSets;
use crate::byte_limit::Share;
use crate::framing::Messages;

/// A group that is catching up, and its stream.
#[derive(Debug)]
pub(super) struct CatchingUp {
    pub(super) members: Arc<Members>,
    pub(super) sets: Arc<WatcherSets>,
    pub(super) feeds: Arc<Feeds>,
    pub(super) set: Arc<WatcherSet>,
    pub(super) group: u64,
    /// The memory of the stream, counted against the limit on watchers. The watcher itself was admitted before.
    pub(super) _bytes: Share,
}

/// Follows the group's watch until the returned value is dropped.
pub(super) fn follow(catching_up: CatchingUp) -> impl Follower {
    Task(tokio::spawn(catching_up.run()).abort_handle())
}

#[derive(Debug)]
struct Task(AbortHandle);

impl Follower for Task {
    /// Does nothing, because the task sends progress requests repeatedly anyway.
    fn ask_progress(&self) {}
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The reason why a stream ended without a fatal error.
enum Ended {
    /// The group has joined another group or has no watchers left, or the member has cancelled its watch.
    NotWanted,
    /// The group has reached the current revision.
    CaughtUp,
    Lost {
        has_received: bool,
    },
}

impl CatchingUp {
    /// Opens the watch, and opens it again at the group's position after each error.
    async fn run(self) {
        let Self { set, group, .. } = &self;
        let mut pause = PAUSE;
        while let Some(start) = set.start(*group) {
            match self.stream(start).await {
                Ok(Ended::NotWanted) => break,
                Ok(Ended::CaughtUp) => {
                    // Replacing the group's follower aborts this task. This is harmless, because the task has nothing
                    // left to do.
                    set.set_follower(*group, Box::new(self.feeds.add(set, *group)));
                    break;
                }
                Ok(Ended::Lost { has_received }) => {
                    if has_received {
                        pause = PAUSE;
                    }
                }
                Err(status) if is_retryable(&status, &set.parameters.caller) => {}
                Err(status) => {
                    set.fail(*group, &status);
                    break;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.sets.remove_if_empty(set);
    }

    async fn stream(&self, start: i64) -> Result<Ended, Status> {
        let (frames, body) = requests();
        let mut first = BytesMut::new();
        write(&mut first, create_request(&self.set.parameters, 0, start));
        // The new channel is empty, so sending the request cannot fail.
        drop(frames.try_send(Ok(Frame::data(first.freeze()))));
        let messages = self.members.open(&self.set.parameters.caller, body).await?;
        self.read(messages, &frames).await
    }

    async fn read(&self, mut messages: Messages, frames: &Frames) -> Result<Ended, Status> {
        let mut has_received = false;
        let mut interval = PROGRESS_INTERVAL;
        let mut next_request = Instant::now();
        loop {
            let response = tokio::select! {
                response = self.members.next(&self.set.parameters.caller, &mut messages) => response?,
                () = sleep_until(next_request), if has_received => {
                    let mut asked = BytesMut::new();
                    write(&mut asked, progress_request());
                    // If the channel is full, a progress request is already queued.
                    drop(frames.try_send(Ok(Frame::data(asked.freeze()))));
                    next_request = Instant::now() + interval;
                    interval = (interval * 2).min(PROGRESS_INTERVAL_MAX);
                    continue;
                }
            };
            let Some(response) = response else { return Ok(Ended::Lost { has_received }) };
            has_received = true;
            if !self.set.deliver(self.group, response) {
                return Ok(Ended::NotWanted);
            }
            if self.set.is_current(self.group) {
                return Ok(Ended::CaughtUp);
            }
        }
    }
}
