//! Flags from environment variables. The name of a variable is `ETCD_` followed by the flag's name in capitals, with
//! `_` for `-`.
//!
//! A variable applies only if the command line does not set its flag. If both are set, the program exits, because one
//! of them would otherwise be silently ignored. An empty variable is treated as unset. A container image must not
//! prevent its users from passing `--data-dir`, so it sets its data directory through a variable of its own, which only
//! replaces the default.
//!
//! # Invariants
//!
//! * The value of a variable is never printed if the variable is unknown or contains a secret.

use std::collections::BTreeSet;

use quorate_gotext::quote::go_quote;
use quorate_telemetry::log;

use super::absent::{ABSENT, Absent};
use super::draft::Draft;
use super::flags::{FLAGS, Flag};
use super::outcome::{Pending, Stop};

/// A variable set by container images, which must not be mistaken for a flag.
const VERSION_VARIABLE: &str = "ETCD_VERSION";

/// The default data directory, which the container image sets to a directory in its volume.
const DEFAULT_DATA_DIR: &str = "QUORATE_DEFAULT_DATA_DIR";

/// Returns the name of a flag's environment variable.
pub(super) fn environment_name(flag: &str) -> String {
    format!("ETCD_{}", flag.to_uppercase().replace('-', "_"))
}

/// Stores the values of environment variables in the draft.
pub(super) fn read(
    mut environment: Vec<(String, String)>,
    draft: &mut Draft,
    lines: &mut Vec<Pending>,
) -> Result<(), Stop> {
    if let Some(value) = value_of(&environment, VERSION_VARIABLE) {
        lines.push(Pending::early(log::pending!(
            Warn,
            "cannot set special environment variable",
            "key" = VERSION_VARIABLE,
            "value" = value
        )));
        environment.retain(|(name, _)| name != VERSION_VARIABLE);
    }
    let on_command_line: BTreeSet<String> =
        draft.explicit.iter().map(|flag| environment_name(flag)).collect();
    let mut used = BTreeSet::new();
    let mut refusal = None;
    let mut flags: Vec<&Flag> = FLAGS.iter().collect();
    flags.sort_by_key(|flag| flag.name);
    for flag in flags {
        let name = environment_name(flag.name);
        let value = match value_of(&environment, &name) {
            Some(value) if !on_command_line.contains(&name) => value.to_owned(),
            _ => continue,
        };
        match flag.set(draft, &value) {
            Ok(()) => lines.push(Pending::early(log::pending!(
                Info,
                "recognized and used environment variable",
                "variable-name" = name,
                "variable-value" = flag.redacted(&value)
            ))),
            // Of several invalid values, the last one is reported.
            Err(reason) => {
                let value = go_quote(&flag.redacted(&value));
                refusal = Some(format!("invalid value {value} for {name}: {reason}"));
            }
        }
        used.insert(name);
    }
    if draft.config.data_dir.is_empty()
        && let Some(folder) = value_of(&environment, DEFAULT_DATA_DIR)
    {
        folder.clone_into(&mut draft.config.data_dir);
    }
    review(&environment, &used, &on_command_line, lines)?;
    refusal.map_or(Ok(()), |text| Err(Stop::Refused(text)))
}

/// Returns the value of a variable; `None` if it is unset or empty.
pub(super) fn value_of<'a>(environment: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = environment.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
}

/// Returns the removed flag whose variable has this name.
fn absent_of_variable(name: &str) -> Option<&'static Absent> {
    ABSENT.iter().find(|absent| environment_name(absent.name) == name)
}

/// Refuses a variable whose flag is also on the command line or decides which cluster the member joins, and reports
/// unknown variables.
fn review(
    environment: &[(String, String)],
    used: &BTreeSet<String>,
    on_command_line: &BTreeSet<String>,
    lines: &mut Vec<Pending>,
) -> Result<(), Stop> {
    for (name, _) in environment.iter().filter(|(name, _)| !used.contains(name)) {
        if on_command_line.contains(name) {
            lines.push(Pending::early(log::pending!(
                Fatal,
                "conflicting environment variable is shadowed by corresponding command-line flag \
                 (either unset environment variable or disable flag))",
                "environment-variable" = name
            )));
            return Err(Stop::Logged);
        }
        if let Some(absent) = absent_of_variable(name)
            && absent.decides_cluster
            && value_of(environment, name).is_some()
        {
            return Err(Stop::Refused(format!("{name}: {}", absent.reason)));
        }
        if name.starts_with("ETCD_") {
            let message = "unrecognized environment variable";
            lines.push(Pending::early(match absent_of_variable(name) {
                Some(absent) => log::pending!(
                    Warn,
                    message,
                    "environment-variable" = name,
                    "reason" = absent.reason.to_string()
                ),
                None => log::pending!(Warn, message, "environment-variable" = name),
            }));
        }
    }
    Ok(())
}
