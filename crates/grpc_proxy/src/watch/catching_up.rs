//! A group that is told of the past: a stream for its watch alone, until it has caught up.
//!
//! It tells as fast as the member can read, and whether it has come to an end a member says only of a whole stream. Once it
//! has, the group goes on with the others, on a feed.

use std::sync::Arc;

use bytes::BytesMut;
use http_body::Frame;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;

use super::feed::Feeds;
use super::member::{
    Frames, Members, PAUSE, PAUSE_MAX, QUESTION, QUESTION_MAX, create_request, is_passing,
    progress_request, requests, write,
};
use super::room::{Follower, Room};
use super::rooms::Rooms;
use crate::framing::Messages;

/// See the module.
#[derive(Debug)]
pub(super) struct CatchingUp {
    pub(super) members: Arc<Members>,
    pub(super) rooms: Arc<Rooms>,
    pub(super) feeds: Arc<Feeds>,
    pub(super) room: Arc<Room>,
    pub(super) group: u64,
}

/// Follows the group's watch, as long as what is returned is there.
pub(super) fn follow(catching_up: CatchingUp) -> impl Follower {
    Task(tokio::spawn(catching_up.run()).abort_handle())
}

#[derive(Debug)]
struct Task(AbortHandle);

impl Follower for Task {
    /// It asks by itself, again and again.
    fn ask_progress(&self) {}
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How a stream ended that did not fail for good.
enum Ended {
    /// The group has joined others, or all have left it.
    NotWanted,
    /// It is where the store is.
    CaughtUp,
    Lost {
        has_told: bool,
    },
}

impl CatchingUp {
    /// Begins the watch, and again where it has got to whenever a member is lost.
    async fn run(self) {
        let Self { room, group, .. } = &self;
        let mut pause = PAUSE;
        while let Some(start) = room.start(*group) {
            match self.stream(start).await {
                Ok(Ended::NotWanted) => break,
                Ok(Ended::CaughtUp) => {
                    // With the follower that was there this task is ended, which is done.
                    room.followed_by(*group, Box::new(self.feeds.seat(room, *group)));
                    break;
                }
                Ok(Ended::Lost { has_told }) => {
                    if has_told {
                        pause = PAUSE;
                    }
                }
                Err(status) if is_passing(&status, &room.wish.asker) => {}
                Err(status) => {
                    room.fail(*group, &status);
                    break;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.rooms.tidy(room);
    }

    async fn stream(&self, start: i64) -> Result<Ended, Status> {
        let (frames, body) = requests();
        let mut first = BytesMut::new();
        write(&mut first, create_request(&self.room.wish, 0, start));
        // There is room for one.
        drop(frames.try_send(Ok(Frame::data(first.freeze()))));
        let messages = self.members.open(&self.room.wish.asker, body).await?;
        self.read(messages, &frames).await
    }

    async fn read(&self, mut messages: Messages, frames: &Frames) -> Result<Ended, Status> {
        let mut has_told = false;
        let mut question = QUESTION;
        let mut next_question = Instant::now();
        loop {
            let response = tokio::select! {
                response = self.members.next(&self.room.wish.asker, &mut messages) => response?,
                () = sleep_until(next_question), if has_told => {
                    let mut asked = BytesMut::new();
                    write(&mut asked, progress_request());
                    // Where there is no room, one waits to be asked.
                    drop(frames.try_send(Ok(Frame::data(asked.freeze()))));
                    next_question = Instant::now() + question;
                    question = (question * 2).min(QUESTION_MAX);
                    continue;
                }
            };
            let Some(response) = response else { return Ok(Ended::Lost { has_told }) };
            has_told = true;
            if !self.room.deliver(self.group, response) {
                return Ok(Ended::NotWanted);
            }
            if self.room.is_current(self.group) {
                return Ok(Ended::CaughtUp);
            }
        }
    }
}
