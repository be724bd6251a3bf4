//! Checks that a founder advertises the peer URLs that the initial cluster lists for it.

use std::time::Duration;

use super::error::BootError;
use super::initial::url_texts;
use super::names::Names;
use super::same_urls::Comparison;
use quorate_config::{Config, InitialMembers};

/// Maximum duration of name resolution.
pub(super) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Checks that the advertised peer URLs and the initial cluster agree, literally or after name resolution. The check is
/// necessary because the other founders know this member's URLs only from the initial cluster.
pub(super) async fn check_advertised(
    config: &Config,
    initial: &InitialMembers,
    names: &dyn Names,
) -> Result<(), BootError> {
    let name = &config.name;
    let advertised = url_texts(&config.initial_advertise_peer_urls);
    let own = url_texts(initial.urls_of(name).unwrap_or_default());
    let mut comparison = Comparison::new(names, RESOLVE_TIMEOUT);
    let Err(difference) = comparison.check_same(&advertised, &own).await else { return Ok(()) };
    let difference = Box::new(difference);
    let missing = |from: &[String], all: &[String], mark: &str| {
        let missing: Vec<String> = all
            .iter()
            .filter(|url| !from.contains(url))
            .map(|url| format!("{mark}{url}"))
            .collect();
        (!missing.is_empty()).then(|| missing.join(","))
    };
    let mark = format!("{name}=");
    if let Some(missing) = missing(&advertised, &own, &mark) {
        let advertised = advertised.join(",");
        return Err(BootError::NotAdvertised { missing, advertised, difference });
    }
    let initial_cluster = initial.to_string();
    if let Some(missing) = missing(&own, &advertised, "") {
        return Err(BootError::NotInitial { missing, initial_cluster });
    }
    Err(BootError::OtherAdvertised {
        advertised: advertised.join(","),
        initial_cluster,
        difference,
    })
}
