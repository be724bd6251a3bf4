//! Commands about the cluster: alarms, versions, and the names and client URLs of members.

use quorate_api::etcdserverpb::{AlarmResponse, AlarmType, alarm_request::AlarmAction};

use super::{AlarmCommand, ClusterCommand, Fault, Notice, Response, State};
use crate::alarm::Alarm;
use crate::units::MemberId;
use crate::versions::{Downgrade, Version};

impl State {
    /// Applies an alarm command. If the action is unknown, or would raise an alarm without a kind, nothing changes and
    /// the response lists no alarms.
    pub(super) fn alarm(&mut self, command: &AlarmCommand) -> Response {
        let AlarmCommand { request, cause } = command;
        let alarm = Alarm { member: MemberId(request.member_id), kind: request.alarm };
        let mut alarms = Vec::new();
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => {
                alarms.extend(self.alarms.of_kind(request.alarm).map(Alarm::to_message));
            }
            Ok(AlarmAction::Activate) if request.alarm != AlarmType::None as i32 => {
                self.alarms.activate(alarm, *cause, &mut self.batch);
                self.facts_changed = true;
                alarms.push(alarm.to_message());
            }
            Ok(AlarmAction::Deactivate) => {
                if self.alarms.deactivate(alarm, &mut self.batch) {
                    self.facts_changed = true;
                    alarms.push(alarm.to_message());
                }
            }
            Ok(AlarmAction::Activate) | Err(_) => {}
        }
        Response::Alarm(AlarmResponse { header: self.header(), alarms })
    }

    /// Updates a fact about the cluster. The change is added to the batch only if `store` is set.
    pub(super) fn set_cluster_fact(
        &mut self,
        command: ClusterCommand,
        store: bool,
    ) -> Result<Option<Notice>, Fault> {
        self.facts_changed = true;
        let batch = store.then_some(&mut self.batch);
        match command {
            ClusterCommand::VersionSet(request) => {
                let to = Version::parse(&request.ver)
                    .ok_or_else(|| Fault::ClusterVersion(request.ver.clone()))?;
                if to > Version::OWN {
                    return Err(Fault::ServerTooOld { own: Version::OWN, cluster: to });
                }
                let from = self.versions.cluster();
                self.versions.set_cluster(to, batch);
                Ok(Some(Notice::ClusterVersion { from, to }))
            }
            ClusterCommand::MemberAttrSet(request) => {
                let id = MemberId(request.member_id);
                let attributes = request.member_attributes.unwrap_or_default();
                let known =
                    self.members.set_attributes(id, attributes.name, attributes.client_urls, batch);
                Ok(known.then_some(Notice::MemberAttributes(id)))
            }
            ClusterCommand::DowngradeInfoSet(request) => {
                let downgrade = if request.enabled {
                    Downgrade { target_version: request.ver, enabled: true }
                } else {
                    Downgrade::default()
                };
                self.versions.set_downgrade(downgrade, batch);
                Ok(Some(Notice::Downgrade))
            }
        }
    }
}
