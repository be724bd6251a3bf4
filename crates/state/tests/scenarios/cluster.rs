//! Commands about alarms, members and versions.

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::{AlarmType, alarm_request::AlarmAction};
use quorate_api::membershippb::{
    Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest,
};
use quorate_api::raftpb::{ConfChange, ConfChangeType};
use quorate_state::alarm::Cause;
use quorate_state::apply::{self, AlarmCommand, ClusterCommand, Response};
use quorate_state::members::{ChangeContext, Member as ClusterMember};
use quorate_state::units::MemberId;
use quorate_test_support::script::Command;

use crate::member::{Member, done, number, word};

impl Member {
    pub(crate) fn cluster(&mut self, name: &str, command: &Command) -> Option<String> {
        use ConfChangeType::{
            ConfChangeAddLearnerNode, ConfChangeAddNode, ConfChangeRemoveNode, ConfChangeUpdateNode,
        };
        let id = || MemberId(number(command, 0));
        let described = |is_learner| {
            let urls = command.values("urls").to_vec();
            ClusterMember { is_learner, ..ClusterMember::new(id(), urls) }.to_json()
        };
        Some(match name {
            // alarm raise nospace member=1 [full-disk]; alarm drop corrupt member=1; alarm list
            "alarm" => self.alarm(command),
            // cluster-version 3.6.0
            "cluster-version" => {
                let ver = word(command, 0).unwrap().to_owned();
                let request = ClusterVersionSetRequest { ver };
                self.fact(ClusterCommand::VersionSet(request))
            }
            // told 1 name=one clients=(http://one:2379): a member publishes these attributes
            "told" => {
                let name = command.value("name").unwrap_or_default();
                let client_urls = command.values("clients").to_vec();
                let member_attributes = Some(Attributes { name, client_urls });
                let member_id = number(command, 0);
                let request = ClusterMemberAttrSetRequest { member_id, member_attributes };
                self.fact(ClusterCommand::MemberAttrSet(request))
            }
            // add-member 1 urls=(http://one:2380)
            "add-member" => self.change(ConfChangeAddNode, id(), described(false)),
            // add-learner 2 urls=(http://two:2380)
            "add-learner" => self.change(ConfChangeAddLearnerNode, id(), described(true)),
            // promote-member 2
            "promote-member" => {
                self.change(ConfChangeAddNode, id(), ChangeContext::promotion_json(id()))
            }
            // remove-member 2
            "remove-member" => self.change(ConfChangeRemoveNode, id(), String::new()),
            // update-member 2 urls=(http://deux:2380)
            "update-member" => self.change(ConfChangeUpdateNode, id(), described(false)),
            // members
            "members" => self.members_text(),
            _ => return None,
        })
    }

    fn fact(&mut self, command: ClusterCommand) -> String {
        self.apply(apply::Command::Cluster(command), |_| done())
    }

    fn alarm(&mut self, command: &Command) -> String {
        let action = match word(command, 0) {
            Some("raise") => AlarmAction::Activate,
            Some("drop") => AlarmAction::Deactivate,
            Some("list") => AlarmAction::Get,
            other => panic!("{other:?} is not an alarm action"),
        };
        let alarm = match word(command, 1) {
            Some("nospace") => AlarmType::Nospace,
            Some("corrupt") => AlarmType::Corrupt,
            None => AlarmType::None,
            Some(other) => panic!("{other} is not a kind of alarm"),
        };
        let request = pb::AlarmRequest {
            action: action as i32,
            member_id: command.value("member").unwrap_or(0),
            alarm: alarm as i32,
        };
        let cause = match command.has("full-disk") {
            true => Cause::FullDisk,
            false => Cause::Other,
        };
        let alarm = AlarmCommand { request, cause };
        self.apply(apply::Command::Alarm(alarm), |response| match response {
            Response::Alarm(answer) => {
                let alarms = answer.alarms.iter();
                let alarms: Vec<String> = alarms
                    .map(|alarm| format!("{} of {}", alarm.alarm().as_str_name(), alarm.member_id))
                    .collect();
                if alarms.is_empty() { "none".to_owned() } else { alarms.join(", ") }
            }
            other => format!("{other:?}"),
        })
    }

    fn change(&mut self, kind: ConfChangeType, id: MemberId, context: String) -> String {
        let change = ConfChange {
            id: Some(1),
            r#type: Some(kind as i32),
            node_id: Some(id.0),
            context: Some(context.into()),
        };
        let entry = self.next_entry();
        let applied = self.state.apply_conf_change(entry, &change).unwrap();
        self.state.publish();
        match applied.expect("an entry is applied once") {
            Ok(_) => {
                let found = self.state.members().conf_state();
                format!("voters {:?}, learners {:?}", found.voters, found.learners)
            }
            Err(refusal) => format!("refused: {refusal}"),
        }
    }

    fn members_text(&self) -> String {
        let facts = self.state.published().facts();
        let mut lines: Vec<String> = facts.members.iter().map(member_text).collect();
        lines.extend(facts.members.removed().map(|id| format!("{id}: removed")));
        lines.join("\n")
    }
}

fn member_text(member: &ClusterMember) -> String {
    let kind = if member.is_learner { "learner" } else { "voter" };
    let name = if member.is_started() { member.name.as_str() } else { "not started" };
    let clients = member.client_urls.join(",");
    format!(
        "{}: {kind}, {name}, peers ({}), clients ({clients})",
        member.id,
        member.peer_urls.join(",")
    )
}
