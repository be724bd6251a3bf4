//! Answers the questions of the start decision (`core::bootstrap`) with information from flags, DNS and other members.

use std::time::Duration;

use quorate_core::bootstrap::{
    AskInitial, AskSameUrls, Decision, Founding, InitialCluster, Purpose, Step, Unlearned,
    UrlComparison,
};
use quorate_state::members::Member;
use quorate_state::units::MemberId;
use quorate_storage::data_dir::DataDir;

use super::discovery;
use super::error::BootError;
use super::founding::{RESOLVE_TIMEOUT, check_advertised};
use super::initial::{Initial, to_cluster};
use super::names::Outside;
use super::remote;
use super::same_urls::{Comparison, is_literally_same};
use quorate_config::Config;
use quorate_telemetry::log;

/// Maximum time for each URL to return the members of the cluster.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the other members to return their information about this member.
const OWN_ROW_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers questions until the start decision is made.
pub(super) async fn decide(
    config: &Config,
    dirs: &DataDir,
    outside: Outside<'_>,
    mut step: Step,
) -> Result<Decision, BootError> {
    let way = |timeout| (outside.dialer, timeout);
    let mut comparison = None;
    loop {
        let next = match step {
            Step::Decided(decision) => return Ok(decision),
            Step::Initial(question) => match initial_cluster(config, &question, outside).await {
                Ok(initial) => question.answer(initial),
                Err(error) => Ok(question.go_without().ok_or(error)?),
            },
            Step::Members(question) => {
                let answer = remote::cluster_of(question.urls(), way(MEMBERS_TIMEOUT)).await;
                question.answer(answer)
            }
            Step::OwnRow(question) => {
                let (urls, id) = (question.urls().to_vec(), question.id());
                let is_wanted = |row: &Member| question.is_settled_by(row);
                let row = remote::row_of(urls, id, is_wanted, way(OWN_ROW_TIMEOUT)).await;
                question.answer(row)
            }
            Step::SameUrls(question) => {
                let comparison = comparison
                    .get_or_insert_with(|| Comparison::new(outside.names, RESOLVE_TIMEOUT));
                let compared = compare(&question, comparison).await;
                question.answer(compared)
            }
            Step::Versions(question) => {
                let timeout = config.request_timeout();
                let checked = remote::check_versions(&question, way(timeout)).await;
                question.answer(checked)
            }
        };
        step = next.map_err(|refusal| BootError::refused(refusal, dirs))?;
    }
}

/// Returns the members named by the flags, after the checks that the question's purpose requires.
async fn initial_cluster(
    config: &Config,
    question: &AskInitial,
    Outside { names, .. }: Outside<'_>,
) -> Result<InitialCluster, BootError> {
    let initial = Initial::find(config, names).await?;
    let members = &initial.members;
    match question.purpose() {
        Purpose::Learn => {}
        Purpose::FoundAgain => members.check_holds(&config.name)?,
        Purpose::Found => {
            members.check_holds(&config.name)?;
            check_advertised(config, members, names).await?;
            members.check_urls()?;
        }
        Purpose::Join => {
            members.check_holds(&config.name)?;
            members.check_urls()?;
            if config.discovery.is_asked_for() {
                return Err(BootError::DiscoveryWhileJoining);
            }
        }
    }
    Ok(initial.to_cluster())
}

async fn compare(question: &AskSameUrls, comparison: &mut Comparison<'_>) -> Result<(), String> {
    let (left, right) = question.urls();
    match question.comparison() {
        UrlComparison::Literal => match is_literally_same(left, right) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(String::new()),
        },
        UrlComparison::Resolved => {
            let compared = comparison.check_same(left, right).await;
            compared.map_err(|difference| difference.to_string())
        }
    }
}

/// Finds the other founders through discovery, if the flags configure it. Otherwise returns `founding` unchanged.
pub(super) async fn meet_founders(
    config: &Config,
    dirs: &DataDir,
    outside: Outside<'_>,
    founding: Founding,
) -> Result<Founding, BootError> {
    if !config.discovery.is_asked_for() {
        return Ok(founding);
    }
    let own = Initial::find(config, outside.names).await?.members;
    let id = MemberId(founding.identity.member_id);
    let met = discovery::join(&config.discovery, id, &own).await.map_err(BootError::Discovery)?;
    met.check_urls().map_err(|_| BootError::DiscoveredTwice(met.to_string()))?;
    met.check_holds(&config.name)?;
    Founding::of(&to_cluster(&met, &config.discovery.token), &config.name)
        .map_err(|refusal| BootError::refused(refusal, dirs))
}

/// Logs why the other members are not known yet.
pub(super) fn log_unlearned(unlearned: Unlearned, cluster_id: u64) {
    match unlearned {
        Unlearned::NoCluster(error) => log::warn!(
            "no other member is known yet; waiting for the leader to connect",
            "error" = error.to_string()
        ),
        Unlearned::OtherCluster(other) => log::warn!(
            "the peers in --initial-cluster belong to another cluster",
            "local-member-cluster-id" = format!("{cluster_id:x}"),
            "remote-cluster-id" = format!("{other:x}")
        ),
    }
}
