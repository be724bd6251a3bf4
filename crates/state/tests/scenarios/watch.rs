//! Commands about watch streams and watchers, and the responses that they receive.

use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use prost::Message as _;
use quorate_api::etcdserverpb::watch_create_request::FilterType;
use quorate_api::etcdserverpb::{WatchCreateRequest, WatchResponse};
use quorate_api::mvccpb::event::EventType;
use quorate_state::watch::{HeaderFields, WatchStream};
use quorate_test_support::script::Command;

use crate::member::{Member, bytes, done, number, shown, word};

impl Member {
    pub(crate) fn watching(&mut self, name: &str, command: &Command) -> Option<String> {
        Some(match name {
            // stream s fragment=200: opens a stream whose responses are split at this size
            "stream" => {
                let bytes_max = command.value("fragment").unwrap_or(1 << 20);
                let stream = self.state.published().hub.open_stream(bytes_max);
                self.streams.insert(word(command, 0).unwrap().to_owned(), stream);
                done()
            }
            // watch s a b start=2 id=7 prev-kv fragment progress filter=(put,delete) deny
            "watch" => {
                let request = create_request(command);
                let denied = command.has("deny");
                let verdict = if denied { Err("permission denied".to_owned()) } else { Ok(()) };
                self.stream(command).create(request, |_, _| verdict);
                done()
            }
            // cancel s 7
            "cancel" => {
                let id = number(command, 1);
                self.stream(command).cancel(id);
                done()
            }
            // progress s: the client requests progress
            "progress" => {
                self.stream(command).request_progress();
                done()
            }
            // tick-progress s: the interval for periodic progress notifications has passed
            "tick-progress" => {
                self.stream(command).tick_progress();
                done()
            }
            // catch-up: runs catch-up passes until no watcher can be served
            "catch-up" => {
                let hub = self.state.published().hub;
                while hub.catch_up().unwrap() {}
                done()
            }
            // receive s 2: receives up to two responses, or all responses if no number is given
            "receive" => {
                let count = word(command, 1).map_or(usize::MAX, |word| word.parse().unwrap());
                receive(self.stream(command), count)
            }
            // watchers
            "watchers" => {
                let stats = self.state.published().hub.stats();
                format!("{} watching, {} behind", stats.watcher_count, stats.slow_watcher_count)
            }
            _ => return None,
        })
    }

    fn stream(&mut self, command: &Command) -> &mut WatchStream {
        let name = word(command, 0).unwrap();
        self.streams.get_mut(name).unwrap_or_else(|| panic!("there is no stream {name}"))
    }
}

fn create_request(command: &Command) -> WatchCreateRequest {
    let options = ["prev-kv", "fragment", "progress", "deny"];
    let mut words = command.plain().skip(1).filter(|word| !options.contains(word));
    let filters = command.values("filter").iter().map(|filter| match filter.as_str() {
        "put" => FilterType::Noput as i32,
        "delete" => FilterType::Nodelete as i32,
        filter => panic!("{filter} is not a filter"),
    });
    WatchCreateRequest {
        key: bytes(words.next()),
        range_end: bytes(words.next()),
        start_revision: command.value("start").unwrap_or(0),
        progress_notify: command.has("progress"),
        filters: filters.collect(),
        prev_kv: command.has("prev-kv"),
        watch_id: command.value("id").unwrap_or(0),
        fragment: command.has("fragment"),
    }
}

fn receive(stream: &mut WatchStream, count: usize) -> String {
    let mut lines = Vec::new();
    while lines.len() < count {
        let context = Context::from_waker(Waker::noop());
        let Poll::Ready(frame) = stream.poll_next(&context, &HeaderFields::default()) else {
            break;
        };
        let mut bytes = BytesMut::new();
        frame.unwrap().encode(&mut bytes);
        lines.push(response_text(&WatchResponse::decode(bytes.freeze()).unwrap()));
    }
    if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
}

fn response_text(response: &WatchResponse) -> String {
    let revision = response.header.as_ref().unwrap().revision;
    let mut text = format!("{} at {revision}:", response.watch_id);
    if response.created {
        text += " created";
    }
    if response.canceled {
        text += " canceled";
        if response.compact_revision != 0 {
            text += &format!(", compacted {}", response.compact_revision);
        }
        if !response.cancel_reason.is_empty() {
            text += &format!(": {}", response.cancel_reason);
        }
    }
    let is_progress = !response.created && !response.canceled && response.events.is_empty();
    if is_progress {
        text += " progress";
    }
    for event in &response.events {
        let kv = event.kv.as_ref().unwrap().fields();
        text += &if event.r#type == EventType::Put as i32 {
            format!(" put {}={} ({})", shown(kv.key), shown(kv.value), kv.mod_revision)
        } else {
            format!(" delete {} ({})", shown(kv.key), kv.mod_revision)
        };
        if let Some(before) = &event.prev_kv {
            text += &format!(" was {}", shown(before.value()));
        }
    }
    if response.fragment {
        text += " (to be continued)";
    }
    text
}
