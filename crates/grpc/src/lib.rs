//! gRPC on the wire, for code that serves, relays or generates calls.
//!
//! ```text
//! methods         the services and methods of etcd, and the routing of paths
//! head            the headers of a request, checked as grpc-go does
//! framing         messages with their prefixes, in arbitrary pieces
//! ending          the end of a call: trailers, and the headers of a response
//! until_deadline  a body that ends at the deadline of its call
//! observed        a body that reports the passing data and the end of the call
//! status          names of codes, and the text of a status
//! wording         errors of the gRPC library with grpc-go's texts
//! ```
//!
//! # Not here
//!
//! The codes of a member's errors (`edge::calls::status`), the permissions of methods (`edge::methods`), the
//! messages (`api`), HTTP/2 (`http2`, hyper, and `bench::wire`).

pub mod ending;
pub mod framing;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod head;
pub mod methods;
pub mod observed;
pub mod status;
pub mod until_deadline;
pub mod wording;
