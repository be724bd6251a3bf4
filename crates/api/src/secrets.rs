//! `Debug` implementations without secrets, for messages with passwords, password hashes or tokens.
//!
//! A generated implementation would print every field, and a message can easily be printed as part of an assertion or
//! an error. `quorate-codegen` lists the messages with secrets. Compilation fails if a listed message has no
//! implementation in this module.

use std::fmt;

use crate::{authpb, etcdserverpb as pb};

impl fmt::Debug for pb::AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for pb::AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateResponse").field("header", &self.header).finish_non_exhaustive()
    }
}

impl fmt::Debug for pb::AuthUserAddRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AuthUserAddRequest");
        shown.field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}

impl fmt::Debug for pb::AuthUserChangePasswordRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AuthUserChangePasswordRequest");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for pb::InternalAuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("InternalAuthenticateRequest");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for authpb::User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("User");
        shown.field("name", &self.name).field("roles", &self.roles);
        shown.field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_contains_user_names_but_no_secrets() {
        let (name, password) = ("ann".to_owned(), "SECRET".to_owned());
        let (hashed_password, token) = (password.clone(), password.clone());
        let messages: [&dyn fmt::Debug; 6] = [
            &pb::AuthenticateRequest { name: name.clone(), password: password.clone() },
            &pb::AuthenticateResponse { header: None, token },
            &pb::AuthUserAddRequest {
                name: name.clone(),
                password: password.clone(),
                hashed_password: hashed_password.clone(),
                options: None,
            },
            &pb::AuthUserChangePasswordRequest {
                name: name.clone(),
                password: password.clone(),
                hashed_password,
            },
            &pb::InternalRaftRequest {
                authenticate: Some(Box::new(pb::InternalAuthenticateRequest {
                    name,
                    password: password.clone(),
                    simple_token: password.clone(),
                })),
                ..Default::default()
            },
            &authpb::User { name: "ann".into(), password: password.into(), ..Default::default() },
        ];
        for message in messages {
            let shown = format!("{message:?} {message:#?}");
            assert!(!shown.contains("SECRET"), "{shown}");
            // Bytes may also be printed as numbers.
            assert!(!shown.contains("83"), "{shown}");
            assert!(shown.contains("ann") || shown.contains("AuthenticateResponse"), "{shown}");
        }
    }
}
