//! Log lines as `tracing` events, for a program that embeds a member and has its own subscriber.
//!
//! An event has the target `quorate` and up to four text fields: `message`, `caller` (file and line), `logger` (if
//! there is one) and `fields`, which contains the line's own fields as one JSON object, formatted as in the log.
//! Subscribers distinguish lines by their messages, as readers of the log do.
//!
//! Without a subscriber, the only additional cost of a line is one check.
//!
//! # Not here
//!
//! Events for lines below the log's level: [`super::enabled`] is checked first.

use tracing_core::callsite::{Callsite as _, DefaultCallsite, Identifier};
use tracing_core::field::{Field, FieldSet, Value as FieldValue};
use tracing_core::metadata::Kind;
use tracing_core::subscriber::NoSubscriber;
use tracing_core::{Event, Metadata, dispatcher};

use super::encode;
use super::{Level, Source, Value};

/// The target of all events.
const TARGET: &str = "quorate";

const FIELDS: [&str; 4] = ["message", "caller", "logger", "fields"];

/// The `tracing` callsite of a level. All lines of a level share one callsite; their source positions are in a field.
macro_rules! callsite {
    ($level:ident) => {{
        static CALLSITE: DefaultCallsite = DefaultCallsite::new({
            static METADATA: Metadata<'static> = Metadata::new(
                "a line of the log",
                TARGET,
                tracing_core::Level::$level,
                None,
                None,
                None,
                FieldSet::new(&FIELDS, Identifier(&CALLSITE)),
                Kind::EVENT,
            );
            &METADATA
        });
        &CALLSITE
    }};
}

fn callsite(level: Level) -> &'static DefaultCallsite {
    match level {
        Level::Debug => callsite!(DEBUG),
        Level::Info => callsite!(INFO),
        Level::Warn => callsite!(WARN),
        Level::Error | Level::DPanic | Level::Panic | Level::Fatal => callsite!(ERROR),
    }
}

/// Returns whether the program or the current thread has a subscriber.
pub(super) fn is_there() -> bool {
    dispatcher::has_been_set() && dispatcher::get_default(|to| !to.is::<NoSubscriber>())
}

/// Passes a line to the subscriber, if the subscriber has enabled events of this level.
pub(super) fn tell(level: Level, source: Source, message: &str, fields: &[(&str, Value<'_>)]) {
    let callsite = callsite(level);
    let metadata = callsite.metadata();
    if callsite.interest().is_never() || !dispatcher::get_default(|to| to.enabled(metadata)) {
        return;
    }
    let (mut object, mut caller) = (Vec::new(), Vec::new());
    encode::object(&mut object, fields);
    encode::caller(&mut caller, source);
    let (object, caller) = (String::from_utf8_lossy(&object), String::from_utf8_lossy(&caller));
    let texts =
        [Some(message), Some(&*caller), source.logger, (!fields.is_empty()).then_some(&*object)];
    let names = FIELDS.map(|name| {
        metadata.fields().field(name).expect("the callsite was created with this field")
    });
    let values: [(&Field, Option<&dyn FieldValue>); FIELDS.len()] = std::array::from_fn(|at| {
        (&names[at], texts[at].as_ref().map(|text| text as &dyn FieldValue))
    });
    Event::dispatch(metadata, &metadata.fields().value_set(&values));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use tracing_core::field::Visit;
    use tracing_core::span::{Attributes, Id, Record};
    use tracing_core::{Dispatch, Subscriber};

    use super::super::Field as _;
    use super::*;

    type Seen = BTreeMap<String, String>;

    /// A subscriber that stores its events.
    #[derive(Clone, Debug, Default)]
    struct Keeper(Arc<Mutex<Vec<Seen>>>);

    struct Fields(Seen);

    impl Visit for Fields {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name().to_owned(), value.to_owned());
        }

        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.insert(field.name().to_owned(), format!("{value:?}"));
        }
    }

    impl Subscriber for Keeper {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == TARGET && *metadata.level() <= tracing_core::Level::INFO
        }

        fn event(&self, event: &Event<'_>) {
            let level = event.metadata().level().to_string();
            let mut fields = Fields(Seen::from([("level".to_owned(), level)]));
            event.record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_log_subscriber_receives_each_line() {
        const SOURCE: Source = Source { file: "crates/server/src/a.rs", line: 7, logger: None };
        let keeper = Keeper::default();
        let dispatch = Dispatch::new(keeper.clone());
        dispatcher::with_default(&dispatch, || {
            let fields = [("took", 3u64.value()), ("urls", ["a", "b"].as_slice().value())];
            super::super::write(Level::Warn, SOURCE, "it \"took\" long", &fields);
            let raft = Source { logger: Some("raft"), ..SOURCE };
            super::super::write(Level::Fatal, raft, "it ends", &[]);
            tell(Level::Debug, SOURCE, "the subscriber has not enabled this level", &[]);
        });
        tell(Level::Error, SOURCE, "there is no subscriber", &[]);
        let seen = keeper.0.lock().unwrap();
        let row = |pairs: &[(&str, &str)]| -> Seen {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let warned = row(&[
            ("level", "WARN"),
            ("message", "it \"took\" long"),
            ("caller", "server/a.rs:7"),
            ("fields", r#"{"took":3,"urls":["a","b"]}"#),
        ]);
        let ended = row(&[
            ("level", "ERROR"),
            ("message", "it ends"),
            ("caller", "server/a.rs:7"),
            ("logger", "raft"),
        ]);
        assert_eq!(*seen, [warned, ended]);
    }
}
