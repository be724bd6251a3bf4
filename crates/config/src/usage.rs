//! What `--help` says, made from the table of flags.

use std::fmt::Write;

use super::absent::{self, ABSENT, Demand};
use super::draft::Draft;
use super::features::Gate;
#[cfg(test)]
use super::flags::FileKey;
use super::flags::{FLAGS, Flag, SECTIONS};
use super::setting::Setting;

/// How the program is called; follows every mistake on the command line, too.
pub(super) fn usage() -> String {
    "Usage:

  quorate [flags]
    Run a member.

  quorate --version
    Print the version.

  quorate -h | --help
    Print this and every flag.

  quorate --config-file FILE
    Run a member as the file says; other flags and the environment are then ignored.

  quorate ctl | bench ...
    Run a tool; each has its own --help.
"
    .to_owned()
}

/// Every flag with its default and its meaning, and those of etcd that are not here.
pub(super) fn flags() -> String {
    let mut text = String::new();
    let mut defaults = Draft::default();
    for section in SECTIONS {
        push(&mut text, format_args!("\n{section}:\n"));
        for flag in FLAGS.iter().filter(|flag| flag.section == *section) {
            push_flag(&mut text, flag, &mut defaults);
        }
    }
    push(&mut text, format_args!("\nFlags of etcd that are refused:\n"));
    let of_this_release = ABSENT.iter().filter(|absent| absent.is_of_this_release());
    let demands: Vec<Demand> = of_this_release
        .map(|absent| Demand { setting: format!("--{}", absent.name), reason: absent.reason })
        .collect();
    for line in absent::told(&demands) {
        push(&mut text, format_args!("  {line}\n"));
    }
    text
}

/// The reference page: the same as help, for reading.
#[cfg(test)]
pub(super) fn reference() -> String {
    let mut text = "# Flags of a member\n\n\
        Made from the table of flags (`config::flags`); a test compares it. Each flag is also the environment\n\
        variable `ETCD_` and its name in capitals, and has the key of the configuration file that stands here.\n"
        .to_owned();
    let mut defaults = Draft::default();
    for section in SECTIONS {
        push(&mut text, format_args!("\n## {section}\n\n"));
        push(
            &mut text,
            format_args!("| flag | default | key in the file | |\n|---|---|---|---|\n"),
        );
        for flag in FLAGS.iter().filter(|flag| flag.section == *section) {
            let shown = match flag.default_text {
                Some(text) => text.to_owned(),
                None => flag.setting.shown(&mut defaults),
            };
            let key = match flag.file {
                FileKey::Name => format!("`{}`", flag.name),
                FileKey::Nested(path) => format!("`{path}`"),
                FileKey::None => String::new(),
            };
            let default = if shown.is_empty() { String::new() } else { format!("`{shown}`") };
            let (name, help) = (flag.name, flag.help);
            push(&mut text, format_args!("| `--{name}` | {default} | {key} | {help} |\n"));
        }
    }
    text
}

fn push_flag(text: &mut String, flag: &Flag, defaults: &mut Draft) {
    let shown = match flag.default_text {
        Some(text) => text.to_owned(),
        None => flag.setting.shown(defaults),
    };
    push(text, format_args!("  --{} '{shown}'\n    {}\n", flag.name, flag.help));
    if matches!(flag.setting, Setting::Gates(_)) {
        for gate in Gate::ALL {
            let (name, stage, on) = (gate.name(), gate.stage().name(), gate.default_state());
            push(text, format_args!("      {name}=true|false ({stage} - default={on})\n"));
        }
    }
}

fn push(text: &mut String, piece: std::fmt::Arguments<'_>) {
    text.write_fmt(piece).expect("a String takes any text");
}
