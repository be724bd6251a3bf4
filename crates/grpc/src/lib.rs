//! gRPC on the wire, for whoever serves, relays or generates calls.
//!
//! ```text
//! methods   the services and methods of etcd, and where a path leads
//! head      the head of a request, checked as grpc-go checks it
//! framing   messages behind a flag and a length, in whatever pieces they come
//! ending    how a call ends: trailers, and the head of an answer
//! observed  a body that reports what passes and how the call ended
//! status    names of codes, and the text of a status
//! wording   refusals of the library, in grpc-go's words
//! ```
//!
//! # Not here
//!
//! Which error of a member has which code (`edge::calls::status`), what a method needs where authentication is on
//! (`edge::methods`), messages themselves (`api`), HTTP/2 (hyper, and `bench::wire`).

pub mod ending;
pub mod framing;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod head;
pub mod methods;
pub mod observed;
pub mod status;
pub mod wording;
