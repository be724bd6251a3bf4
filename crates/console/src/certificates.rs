//! The certificates that members present to clients, and the certificates whose expiry members report in metrics.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use quorate_client::http_stream;
use quorate_client::transport::Transport;
use quorate_top::report::Report;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::encode::hex;

/// Maximum duration of one handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(3);

/// Maximum number of addresses per member with which a TLS handshake is performed.
const URLS_MAX: usize = 4;

/// A certificate of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) member: u64,
    /// The address that presents the certificate, or the flag that names the certificate file.
    pub(crate) place: String,
    pub(crate) subject: Option<String>,
    pub(crate) issuer: Option<String>,
    pub(crate) names: Vec<String>,
    pub(crate) not_before_ms: Option<i64>,
    pub(crate) not_after_ms: Option<i64>,
    /// The reason why the handshake failed.
    pub(crate) error: Option<String>,
}

impl Certificate {
    pub(crate) fn json(&self) -> Value {
        json!({
            "member": hex(self.member),
            "endpoint": self.place,
            "subject": self.subject,
            "issuer": self.issuer,
            "names": self.names,
            "not_before_unix_ms": self.not_before_ms,
            "not_after_unix_ms": self.not_after_ms,
            "error": self.error,
        })
    }
}

/// Returns the client addresses that use TLS, each with the id of its member.
pub(crate) fn places(report: &Report) -> BTreeMap<String, u64> {
    let members = report.members.iter();
    let urls = members.flat_map(|member| {
        let secured = member.client_urls.iter().filter(|url| url.starts_with("https://"));
        secured.take(URLS_MAX).map(|url| (url.clone(), member.id))
    });
    urls.collect()
}

/// Fetches the certificate of each address with a TLS handshake.
pub(crate) async fn ask(places: &BTreeMap<String, u64>, transport: &Transport) -> Vec<Certificate> {
    let mut found = Vec::new();
    for (place, member) in places {
        let empty = Certificate { member: *member, place: place.clone(), ..Certificate::default() };
        let failed = |text: String| Certificate { error: Some(text), ..empty.clone() };
        let connector = match http_stream(place, transport) {
            Ok(connector) => connector,
            Err(failure) => {
                found.push(failed(failure.message.unwrap_or_default()));
                continue;
            }
        };
        found.push(match timeout(HANDSHAKE_TIME, connector.server_certificate()).await {
            Ok(Ok(Some(facts))) => Certificate {
                subject: Some(facts.subject),
                issuer: Some(facts.issuer),
                names: facts.names,
                not_before_ms: facts.not_before.and_then(ms),
                not_after_ms: facts.not_after.and_then(ms),
                ..empty
            },
            Ok(Ok(None)) => failed("the server certificate cannot be decoded".to_owned()),
            Ok(Err(error)) => failed(error.to_string()),
            Err(_) => failed("the connection or its TLS handshake timed out".to_owned()),
        });
    }
    found
}

/// Returns the certificates whose expiry the members report.
pub(crate) fn reported(report: &Report) -> Vec<Certificate> {
    let mut found = Vec::new();
    for member in &report.members {
        for (file, secs) in &member.certificates {
            found.push(Certificate {
                member: member.id,
                place: format!("--{}", file.trim_start_matches('-')),
                not_after_ms: format!("{:.0}", secs * 1e3).parse().ok(),
                ..Certificate::default()
            });
        }
    }
    found
}

fn ms(time: SystemTime) -> Option<i64> {
    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(since_1970.as_millis()).ok()
}
