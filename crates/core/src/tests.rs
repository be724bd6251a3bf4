//! A member without threads: the four machines over a disk that may lose its power at any operation, with the values
//! between them travelling in an order that a seed draws, which may be any that threads could come to.

mod alone;
mod client;
mod cluster;
mod follower;
mod member;
mod order;
mod room;

use self::client::Client;
use self::member::{Folder, Member};
