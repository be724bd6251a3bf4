//! A member without threads: the four machines over a disk that may lose power at any operation. A seed draws the order
//! in which values pass between the machines, and it may be any order that threads could produce.

mod alone;
mod client;
mod cluster;
mod follower;
mod member;
mod order;
mod rebuilt;
mod room;

use self::client::Client;
use self::member::{Folder, Member};

#[test]
fn every_machine_may_move_to_another_thread() {
    fn may_be_sent<T: Send>() {}
    may_be_sent::<crate::Consensus<Vec<u64>>>();
    may_be_sent::<crate::Log>();
    may_be_sent::<crate::StateMachine<u64>>();
    may_be_sent::<crate::BackendWriter<u64, u64>>();
}
