//! Connections to individual members, for operations that concern a single member.
//!
//! # Guarantees
//!
//! * A user's token is not sent in plaintext to an address known only from the member list (`quorate_client::listed`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use quorate_client::{Client, listed};

use crate::cluster::{Caller, Cluster};
use crate::refusal::{Kind, Refusal};

/// Maximum number of members whose connections are kept.
const MEMBERS_MAX: usize = 16;

/// Connections by the member's id and addresses.
type Kept = BTreeMap<(u64, Vec<String>), Rc<Client>>;

/// Connections to members, which all callers share.
pub(crate) struct Members {
    cluster: Cluster,
    kept: RefCell<Kept>,
}

impl Members {
    pub(crate) fn new(cluster: Cluster) -> Self {
        Self { cluster, kept: RefCell::default() }
    }

    /// Returns a copy of the caller that uses a connection to one member.
    pub(crate) async fn of(&self, caller: &Caller, id: u64) -> Result<Caller, Refusal> {
        let members = caller.members().await?;
        let found = members.into_iter().find(|member| member.id == id);
        let found = found.ok_or_else(|| {
            Refusal::new(Kind::NotFound, "the cluster has no member with this id")
        })?;
        let Cluster { endpoints, transport, .. } = &self.cluster;
        let urls = match caller.is_logged_in {
            true => listed::for_credentials(endpoints, &found.client_urls, transport)
                .map_err(|refused| Refusal::new(Kind::PlaintextMember, refused.to_string()))?,
            false => found.client_urls,
        };
        let key = (id, urls);
        let known = self.kept.borrow().get(&key).cloned();
        let client = match known {
            Some(client) => client,
            None => {
                let connected = self.cluster.connect(key.1.clone()).map_err(|failure| {
                    let text = failure.message.unwrap_or_default();
                    Refusal::new(
                        Kind::Unavailable,
                        format!("no client URL of the member can be used: {text}"),
                    )
                })?;
                let client = Rc::new(connected);
                let mut all = self.kept.borrow_mut();
                if all.len() >= MEMBERS_MAX {
                    all.clear();
                }
                all.insert(key, Rc::clone(&client));
                client
            }
        };
        let client = client.for_user(caller.client.token());
        Ok(Caller { client, is_logged_in: caller.is_logged_in })
    }
}
