//! Reports, as metrics, when this member's certificates expire and its revocation lists become outdated. Also logs
//! warnings, once a day for each file.
//!
//! Authorities issue a new revocation list every few days, often only on the day on which the current list becomes
//! outdated. Therefore a warning about a list is logged only once the list is outdated.
//!
//! The files are checked every [`CHECK_INTERVAL`], with or without connections, so that a broken file is reported
//! before it is needed.
//!
//! # Not here
//!
//! Expired certificates are refused during the TLS handshake, not here. An outdated revocation list stays in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quorate_config::Config;
use quorate_net::runtime::blocking;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use quorate_tls::{Acceptor, Connector, Expiry, Part};
use tokio::time::{MissedTickBehavior, interval};

use crate::security::Security;

/// Interval at which the files are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Time before a certificate's expiry at which warnings start.
const WARNING_PERIOD: Duration = DAY.saturating_mul(30);

/// The files to check, with the flags that name them.
#[derive(Debug)]
pub(crate) struct Watch {
    listeners: Vec<(Acceptor, Flags)>,
    dialer: Option<(Connector, Flags)>,
    warned: Warned,
}

/// The flags that name a certificate and its related files.
#[derive(Clone, Copy, Debug)]
struct Flags {
    certificate: &'static str,
    authorities: &'static str,
    revocations: &'static str,
}

impl Flags {
    const fn name(self, part: Part) -> &'static str {
        match part {
            Part::Certificate => self.certificate,
            Part::Authorities => self.authorities,
            Part::Revocations => self.revocations,
        }
    }
}

/// The time of the last warning about each flag's file.
type Warned = BTreeMap<&'static str, SystemTime>;

const CLIENT_FLAGS: Flags = Flags {
    certificate: "cert-file",
    authorities: "trusted-ca-file",
    revocations: "client-crl-file",
};
const PEER_FLAGS: Flags = Flags {
    certificate: "peer-cert-file",
    authorities: "peer-trusted-ca-file",
    revocations: "peer-crl-file",
};
const DIALER_FLAGS: Flags = Flags { certificate: "peer-client-cert-file", ..PEER_FLAGS };

impl Watch {
    pub(crate) fn over(security: &Security, config: &Config) -> Self {
        let Security { client, metrics, console, peer, dialer } = security;
        let for_clients =
            client.iter().chain(metrics).chain(console).map(|acceptor| (acceptor, CLIENT_FLAGS));
        let for_peers = peer.iter().map(|acceptor| (acceptor, PEER_FLAGS));
        let own = config.security.peer.client_cert_file.is_empty();
        let flags = if own { PEER_FLAGS } else { DIALER_FLAGS };
        Self {
            listeners: for_clients
                .chain(for_peers)
                .map(|(acceptor, flags)| (acceptor.clone(), flags))
                .collect(),
            dialer: dialer.tls.as_ref().map(|connector| (connector.clone(), flags)),
            warned: Warned::new(),
        }
    }

    /// Returns whether there are no files to check.
    pub(crate) fn is_empty(&self) -> bool {
        self.found().is_empty()
    }

    /// Returns the expiry of each file, by the flag that names the file. A file that several listeners use is returned
    /// only once.
    fn found(&self) -> BTreeMap<&'static str, Expiry> {
        let of_listeners = self.listeners.iter().map(|(acceptor, flags)| (acceptor.look(), *flags));
        let of_dialer = self.dialer.iter().map(|(connector, flags)| (connector.look(), *flags));
        let mut found = BTreeMap::new();
        for (expiries, flags) in of_listeners.chain(of_dialer) {
            found.extend(expiries.into_iter().map(|expiry| (flags.name(expiry.part), expiry)));
        }
        found
    }

    fn look(&mut self, metrics: &Metrics) {
        let now = SystemTime::now();
        for (flag, expiry) in self.found() {
            let Expiry { part, not_after, .. } = expiry;
            let since_epoch = not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let secs = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
            let series = match part {
                Part::Certificate | Part::Authorities => &metrics.server.certificate_expiry,
                Part::Revocations => &metrics.server.revocations_next_update,
            };
            series.with(&[flag]).set(secs);
            if is_due(&mut self.warned, flag, (part, not_after), now) {
                warn(flag, &expiry, now);
            }
        }
    }
}

/// Returns whether a warning about a file is due.
fn is_due(
    warned: &mut Warned,
    flag: &'static str,
    (part, not_after): (Part, SystemTime),
    now: SystemTime,
) -> bool {
    let warned_before = match part {
        Part::Certificate | Part::Authorities => WARNING_PERIOD,
        Part::Revocations => Duration::ZERO,
    };
    if not_after.duration_since(now).is_ok_and(|left| left > warned_before) {
        // If the file was renewed, the last warning about the old file must not delay a warning about the new file.
        warned.remove(flag);
        return false;
    }
    // If the clock was set back, the last warning is in the future and must not delay the next one.
    let is_recent = |last: &SystemTime| now.duration_since(*last).is_ok_and(|since| since < DAY);
    if warned.get(flag).is_some_and(is_recent) {
        return false;
    }
    warned.insert(flag, now);
    true
}

fn warn(flag: &str, Expiry { part, path, not_after }: &Expiry, now: SystemTime) {
    let path = path.display().to_string();
    match (part, not_after.duration_since(now)) {
        (Part::Revocations, _) => log::warn!(
            "a certificate revocation list is outdated: the certificates that it lists are refused, but \
             later revocations are unknown",
            "flag" = flag,
            "path" = path,
            "next-update" = *not_after
        ),
        (Part::Certificate | Part::Authorities, Ok(left)) => log::warn!(
            "a certificate expires soon",
            "flag" = flag,
            "path" = path,
            "not-after" = *not_after,
            "days-left" = left.as_secs() / DAY.as_secs()
        ),
        (Part::Certificate | Part::Authorities, Err(_)) => log::warn!(
            "a certificate has expired",
            "flag" = flag,
            "path" = path,
            "not-after" = *not_after
        ),
    }
}

/// Checks the files until the member ends.
pub(crate) async fn check_periodically(mut watch: Watch, metrics: Arc<Metrics>) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let metrics = Arc::clone(&metrics);
        watch = blocking(move || {
            watch.look(&metrics);
            watch
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_expiry_is_logged_daily_in_the_last_thirty_days() {
        let mut warned = Warned::new();
        let end = SystemTime::UNIX_EPOCH + DAY * 20_000;
        let certificate = |end| (Part::Certificate, end);
        let mut is_due_in =
            |flag, left: Duration| is_due(&mut warned, flag, certificate(end), end - left);
        assert!(!is_due_in("cert-file", DAY * 30 + Duration::from_secs(1)));
        assert!(is_due_in("cert-file", DAY * 30));
        assert!(!is_due_in("cert-file", DAY * 30 - CHECK_INTERVAL));
        assert!(
            is_due_in("peer-cert-file", DAY * 30 - CHECK_INTERVAL),
            "each certificate file has a separate warning"
        );
        assert!(!is_due_in("cert-file", DAY * 29 + CHECK_INTERVAL));
        assert!(is_due_in("cert-file", DAY * 29));
        let after = end + DAY;
        assert!(
            is_due(&mut warned, "cert-file", certificate(end), after),
            "the certificate has expired"
        );
        assert!(!is_due(&mut warned, "cert-file", certificate(end), after + CHECK_INTERVAL));
        // The certificate was renewed, and the new certificate is about to expire.
        assert!(!is_due(
            &mut warned,
            "cert-file",
            certificate(end + DAY * 90),
            after + CHECK_INTERVAL
        ));
        assert!(is_due(
            &mut warned,
            "cert-file",
            certificate(end + DAY),
            after + CHECK_INTERVAL * 2
        ));
    }

    #[test]
    fn an_outdated_revocation_list_is_logged() {
        let mut warned = Warned::new();
        let end = SystemTime::UNIX_EPOCH + DAY * 20_000;
        let mut is_due_at =
            |now| is_due(&mut warned, "client-crl-file", (Part::Revocations, end), now);
        assert!(!is_due_at(end - CHECK_INTERVAL));
        assert!(is_due_at(end));
        assert!(!is_due_at(end + CHECK_INTERVAL));
        assert!(is_due_at(end + DAY));
    }
}
