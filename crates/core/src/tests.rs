//! Tests of a member without threads: its four state machines run over a disk that may lose power at any operation. A
//! seed determines the order in which values pass between the machines. Every order that threads could produce is
//! possible.

mod alone;
mod client;
mod cluster;
mod defragmentation;
mod follower;
mod full_disk;
mod member;
mod order;
mod rebuilt;
mod ticks;

use std::time::Duration;

use self::client::Client;
use self::member::{Folder, Member};
use crate::Intervals;

pub(crate) const INTERVALS: Intervals = Intervals {
    tick: Duration::from_millis(100),
    election_timeout: Duration::from_secs(1),
    commit_notice: Duration::from_millis(2),
};

#[test]
fn state_machines_can_be_sent_to_other_threads() {
    fn assert_send<T: Send>() {}
    assert_send::<crate::Consensus<Vec<u64>>>();
    assert_send::<crate::Log>();
    assert_send::<crate::StateMachine<u64>>();
    assert_send::<crate::BackendWriter<u64, u64>>();
}
