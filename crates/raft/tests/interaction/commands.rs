//! The commands of the scenario scripts.

use quorate_raft::{
    AnyConfChange, ConfChange, ConfChangeV2, Config, LogIndex, MemberId, MemoryStorage, Message,
    MessageKind, Node, NoteLevel, ReadOnlyOption, Role, Snapshot, SnapshotOutcome, Storage, Term,
    Transition, is_local_target,
};

use crate::confchange::{describe_progress, parse_steps};
use crate::describe;
use crate::environment::{Environment, Member, NodeStorage, Verbosity};
use quorate_test_support::script::Command;

impl Environment {
    pub(crate) fn dispatch(&mut self, command: &Command) -> Result<(), String> {
        let ids: Vec<MemberId> = command.plain().filter_map(|word| word.parse().ok()).collect();
        let id = ids.first().copied().unwrap_or_default();
        match command.name.as_str() {
            // This command has no effect. It is a place to set a breakpoint.
            "_breakpoint" => {}
            // add-nodes 3 voters=(1,2,3) learners=(4) index=2 content=foo async-storage-writes=true
            // inflight=3 prevote=true checkquorum=true read-only=lease-based
            // max-committed-size-per-ready=180 disable-conf-change-validation=true
            // step-down-on-removal=true
            "add-nodes" => return self.add_nodes(id, command),
            // campaign 1
            "campaign" => self.with_node(id, Node::campaign),
            // compact 1 5: the log begins after index 5
            "compact" => return self.compact(id, ids[1]),
            // deliver-msgs 1 2 type=MsgApp drop=(3)
            "deliver-msgs" => return self.deliver_messages(&ids, command),
            // process-ready 1 2
            "process-ready" => {
                return self.process_each(&ids, "handling Ready", Self::process_ready);
            }
            // process-append-thread 1 2
            "process-append-thread" => {
                let what = "processing append thread";
                return self.process_each(&ids, what, Self::process_append_thread);
            }
            // process-apply-thread 1 2
            "process-apply-thread" => {
                let what = "processing apply thread";
                return self.process_each(&ids, what, Self::process_apply_thread);
            }
            // log-level debug
            "log-level" => {
                self.verbosity = verbosity(command.plain().next().unwrap_or_default())?;
            }
            // raft-log 1
            "raft-log" => self.print_log(id),
            // raft-state
            "raft-state" => self.print_states(),
            // set-randomized-election-timeout 1 timeout=5
            "set-randomized-election-timeout" => {
                let ticks = command.value("timeout").expect("the command has a timeout");
                self.with_node(id, |node| node.override_election_timeout(ticks));
            }
            // stabilize 1 2 log-level=none
            "stabilize" => return self.stabilize_quietly(ids, command),
            // status 1
            "status" => {
                let status = self.with_node(id, |node| node.status());
                self.print(&describe_progress(&status.progress));
            }
            // tick-election 1
            "tick-election" => {
                let ticks = self.with_node(id, |node| node.config().election_tick);
                self.tick(id, ticks);
            }
            // tick-heartbeat 1
            "tick-heartbeat" => {
                let ticks = self.with_node(id, |node| node.config().heartbeat_tick);
                self.tick(id, ticks);
            }
            // transfer-leadership from=1 to=4
            "transfer-leadership" => {
                let to = command.value("to").expect("the command names a member");
                let from = command.value("from").expect("the command names a member");
                self.with_node(from, |node| node.transfer_leader(to));
            }
            // wipe 3: restart member 3 under the same id with an empty state
            "wipe" => self.wipe(id)?,
            // forget-leader 1
            "forget-leader" => self.with_node(id, Node::forget_leader),
            // send-snapshot 1 3: send the latest snapshot of node 1 to node 3
            "send-snapshot" => self.send_snapshot(id, ids[1]),
            // propose 1 foo
            "propose" => {
                let data = command.plain().nth(1).expect("the command has data").to_owned();
                return self
                    .with_node(id, |node| node.propose(data.into()))
                    .map_err(|error| error.to_string());
            }
            // propose-conf-change 1 v1=true transition=explicit, with changes as input
            "propose-conf-change" => return self.propose_conf_change(id, command),
            // report-unreachable 1 2: report to node 1 that node 2 is unreachable
            "report-unreachable" => self.with_node(id, |node| node.report_unreachable(ids[1])),
            // report-snapshot 1 3 failed: report to node 1 that its snapshot to node 3 failed (or
            // `finished`)
            "report-snapshot" => {
                let is_failed = command.plain().any(|word| word == "failed");
                let outcome =
                    if is_failed { SnapshotOutcome::Failed } else { SnapshotOutcome::Finished };
                self.with_node(id, |node| node.report_snapshot(ids[1], outcome));
            }
            // read-index 1 context
            "read-index" => {
                let context = command.plain().nth(1).expect("the command has a context").to_owned();
                self.with_node(id, |node| node.read_index(context.into()));
            }
            name => return Err(format!("unknown command {name}")),
        }
        Ok(())
    }

    fn add_nodes(&mut self, count: u64, command: &Command) -> Result<(), String> {
        let ids = |key| -> Vec<MemberId> {
            command.values(key).iter().map(|value| value.parse().unwrap()).collect()
        };
        let mut snapshot = Snapshot::default();
        snapshot.metadata.conf_state.voters = ids("voters");
        snapshot.metadata.conf_state.learners = ids("learners");
        snapshot.metadata.index = LogIndex(command.value("index").unwrap_or_default());
        snapshot.data = command.value::<String>("content").unwrap_or_default().into();
        let is_bootstrapped = snapshot != Snapshot::default();
        if is_bootstrapped {
            if snapshot.metadata.index <= LogIndex(1) {
                return Err("index must be specified as > 1 due to bootstrap".to_owned());
            }
            snapshot.metadata.term = Term(1);
        }
        for _ in 0..count {
            let id = self.members.len() as MemberId + 1;
            let mut log = MemoryStorage::new();
            if is_bootstrapped {
                log.apply_snapshot(snapshot.clone()).map_err(|error| error.to_string())?;
            }
            let storage = NodeStorage { log, history: vec![snapshot.clone()] };
            let config = node_config(id, snapshot.metadata.index, command)?;
            let node = Node::new(config, storage).map_err(|error| error.to_string())?;
            self.members.push(Member { node, append_work: Vec::new(), apply_work: Vec::new() });
            // Running an empty action prints the notes that the new node has recorded.
            self.with_node(id, |_| ());
        }
        Ok(())
    }

    fn wipe(&mut self, id: MemberId) -> Result<(), String> {
        let log = MemoryStorage::new();
        let storage = NodeStorage { log, history: vec![Snapshot::default()] };
        let config = Config { applied: LogIndex(0), ..self.member(id).node.config().clone() };
        let node = Node::new(config, storage).map_err(|error| error.to_string())?;
        *self.member(id) = Member { node, append_work: Vec::new(), apply_work: Vec::new() };
        self.in_flight.retain(|message| message.from != id && message.to != id);
        self.with_node(id, |_| ());
        Ok(())
    }

    fn compact(&mut self, id: MemberId, index: u64) -> Result<(), String> {
        let compacted = self.member(id).node.storage_mut().log.compact(LogIndex(index));
        compacted.map_err(|error| error.to_string())?;
        self.print_log(id);
        Ok(())
    }

    fn deliver_messages(&mut self, ids: &[MemberId], command: &Command) -> Result<(), String> {
        let kind = command.value::<String>("type").map(|name| {
            let mut kinds = (0..).map_while(MessageKind::from_wire);
            let kind = kinds.find(|kind| kind.name() == name);
            kind.unwrap_or_else(|| panic!("unknown message type {name}"))
        });
        let drops = command.values("drop").iter().map(|id| (id.parse().unwrap(), true));
        let deliveries = ids.iter().map(|id| (*id, false));
        let mut count = 0;
        for (id, is_dropped) in deliveries.chain(drops).collect::<Vec<_>>() {
            count += self.deliver(id, kind, is_dropped);
        }
        if count == 0 {
            self.print("no messages");
        }
        Ok(())
    }

    /// Delivers or drops the in-flight messages to a node. Returns their number.
    fn deliver(&mut self, to: MemberId, kind: Option<MessageKind>, is_dropped: bool) -> usize {
        let (messages, rest) = std::mem::take(&mut self.in_flight)
            .into_iter()
            .partition(|message| is_addressed(message, to, kind, is_dropped));
        self.in_flight = rest;
        let messages: Vec<Message> = messages;
        let count = messages.len();
        for message in messages {
            let prefix = if is_dropped { "dropped: " } else { "" };
            self.print(&format!("{prefix}{}", describe::message(&message)));
            if is_dropped {
                continue;
            }
            let stepped = self.with_node(to, |node| {
                if is_reliable(&message) { node.step_local(message) } else { node.step(message) }
            });
            if let Err(error) = stepped {
                self.print(&error.to_string());
            }
        }
        count
    }

    fn process_each(
        &mut self,
        ids: &[MemberId],
        what: &str,
        process: fn(&mut Self, MemberId) -> Result<(), String>,
    ) -> Result<(), String> {
        for id in ids {
            if ids.len() > 1 {
                self.print(&format!("> {id} {what}"));
                self.indented(|environment| process(environment, *id))?;
            } else {
                process(self, *id)?;
            }
        }
        Ok(())
    }

    fn stabilize_quietly(&mut self, ids: Vec<MemberId>, command: &Command) -> Result<(), String> {
        let before = self.verbosity;
        if let Some(level) = command.value::<String>("log-level") {
            self.verbosity = verbosity(&level)?;
        }
        let all = || (1..=self.members.len() as MemberId).collect();
        let ids: Vec<_> = if ids.is_empty() { all() } else { ids };
        let result = self.stabilize(&ids);
        self.verbosity = before;
        result
    }

    /// Does the pending work of the nodes `ids` and delivers their messages until no work and no messages are left.
    fn stabilize(&mut self, ids: &[MemberId]) -> Result<(), String> {
        loop {
            let mut is_idle = true;
            for id in ids.iter().copied() {
                if self.member(id).node.has_ready() {
                    self.print(&format!("> {id} handling Ready"));
                    self.indented(|environment| environment.process_ready(id))?;
                    is_idle = false;
                }
            }
            for id in ids.iter().copied() {
                if self.in_flight.iter().any(|message| message.to == id) {
                    self.print(&format!("> {id} receiving messages"));
                    self.indented(|environment| environment.deliver(id, None, false));
                    is_idle = false;
                }
            }
            for id in ids.iter().copied() {
                if !self.member(id).append_work.is_empty() {
                    self.print(&format!("> {id} processing append thread"));
                    is_idle = false;
                }
                while !self.member(id).append_work.is_empty() {
                    self.indented(|environment| environment.process_append_thread(id))?;
                }
            }
            for id in ids.iter().copied() {
                if !self.member(id).apply_work.is_empty() {
                    self.print(&format!("> {id} processing apply thread"));
                    is_idle = false;
                }
                while !self.member(id).apply_work.is_empty() {
                    self.indented(|environment| environment.process_apply_thread(id))?;
                }
            }
            if is_idle {
                return Ok(());
            }
        }
    }

    fn tick(&mut self, id: MemberId, ticks: u32) {
        for _ in 0..ticks {
            self.with_node(id, Node::tick);
        }
    }

    fn send_snapshot(&mut self, from: MemberId, to: MemberId) {
        let node = &self.member(from).node;
        let mut message = Message::new(MessageKind::Snapshot, to);
        message.from = from;
        message.term = node.term();
        message.snapshot = node.storage().snapshot().ok().map(Box::new);
        self.print(&describe::message(&message));
        self.in_flight.push(message);
    }

    fn propose_conf_change(&mut self, id: MemberId, command: &Command) -> Result<(), String> {
        let steps = parse_steps(&command.input)?;
        let transition = match command.value::<String>("transition").as_deref() {
            None | Some("auto") => Transition::Auto,
            Some("implicit") => Transition::JointImplicit,
            Some("explicit") => Transition::JointExplicit,
            Some(other) => return Err(format!("unknown transition {other}")),
        };
        let change: AnyConfChange = if command.value("v1") == Some(true) {
            let ([step], Transition::Auto) = (steps.as_slice(), transition) else {
                let why = "v1 conf change can only have one operation and no transition";
                return Err(why.to_owned());
            };
            ConfChange { kind: step.kind, node_id: step.node_id, ..ConfChange::default() }.into()
        } else {
            ConfChangeV2 { transition, changes: steps, ..ConfChangeV2::default() }.into()
        };
        let proposed = self.with_node(id, |node| node.propose_conf_change(change));
        proposed.map_err(|error| error.to_string())
    }

    fn print_log(&mut self, id: MemberId) {
        let log = &self.member(id).node.storage().log;
        let (first, last) = (log.first_index(), log.last_index());
        let text = if last < first {
            format!("log is empty: first index={first}, last index={last}")
        } else {
            describe::entries(&log.entries(first, last + 1, u64::MAX).unwrap())
        };
        self.print(&text);
    }

    fn print_states(&mut self) {
        for id in 1..=self.members.len() as MemberId {
            let status = self.member(id).node.status();
            let is_voter = status.config.voters.contains(id);
            let voter = if is_voter { "(Voter)" } else { "(Non-Voter)" };
            let role: Role = status.soft_state.role;
            let term = status.hard_state.term;
            let leader = status.soft_state.leader;
            self.print(&format!("{id}: State{role:?} {voter} Term:{term} Lead:{leader}"));
        }
    }
}

/// Returns whether a command to deliver or drop messages applies to this message.
fn is_addressed(
    message: &Message,
    to: MemberId,
    kind: Option<MessageKind>,
    is_dropped: bool,
) -> bool {
    message.to == to
        && kind.is_none_or(|kind| message.kind == kind)
        && !(is_dropped && is_reliable(message))
}

/// Returns whether a message stays within its node and therefore cannot be lost.
fn is_reliable(message: &Message) -> bool {
    message.from == message.to || is_local_target(message.from) || is_local_target(message.to)
}

fn node_config(id: MemberId, applied: LogIndex, command: &Command) -> Result<Config, String> {
    let flag = |key| command.value(key).unwrap_or(false);
    let read_only = match command.value::<String>("read-only").as_deref() {
        None | Some("safe") => ReadOnlyOption::Safe,
        Some("lease-based") => ReadOnlyOption::LeaseBased,
        Some(other) => return Err(format!("invalid read-only option {other:?}")),
    };
    Ok(Config {
        election_tick: 3,
        max_size_per_message: u64::MAX,
        max_committed_size_per_ready: command
            .value("max-committed-size-per-ready")
            .unwrap_or_default(),
        max_inflight_count: command.value("inflight").unwrap_or(usize::MAX),
        check_quorum: flag("checkquorum"),
        pre_vote: flag("prevote"),
        read_only,
        disable_conf_change_validation: flag("disable-conf-change-validation"),
        step_down_on_removal: flag("step-down-on-removal"),
        async_storage_writes: flag("async-storage-writes"),
        applied,
        note_level: NoteLevel::Debug,
        ..Config::new(id, id)
    })
}

fn verbosity(name: &str) -> Result<Verbosity, String> {
    let levels = [
        ("debug", Verbosity::Debug),
        ("info", Verbosity::Info),
        ("warn", Verbosity::Warn),
        ("error", Verbosity::Error),
        ("fatal", Verbosity::Fatal),
        ("none", Verbosity::None),
    ];
    let found = levels.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    let (_, level) = found.ok_or_else(|| format!("there is no log level {name}"))?;
    Ok(*level)
}
