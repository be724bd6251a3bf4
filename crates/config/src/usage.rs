//! The text of `--help`, generated from the table of flags.

use std::fmt::Write;

use super::draft::Draft;
use super::features::FeatureGate;
use super::flags::{FLAGS, FileKey, Flag, SECTIONS};
use super::setting::Setting;

/// Returns the usage text, which is also printed after every command line error.
pub(super) fn usage() -> String {
    "Usage:

  quorate [flags]
    Run a member.

  quorate --version | version
    Print the version.

  quorate -h | --help | help [TOOL]
    Print this text and all flags, or a tool's help.

  quorate --config-file FILE
    Run a member with the settings in a file; other flags and the environment are then ignored.

  quorate ctl | utl | bench | gateway | grpc-proxy ...
    Run a tool; each has its own --help.

  quorate manual [server | ctl | utl | bench | metrics] [--markdown]
    Print a man page, or the same page in Markdown.
"
    .to_owned()
}

/// Returns the help on all flags, with their defaults.
pub(super) fn flags() -> String {
    let mut text = String::new();
    let mut defaults = Draft::default();
    for section in SECTIONS {
        push(&mut text, format_args!("\n{section}:\n"));
        for flag in FLAGS.iter().filter(|flag| flag.section == *section) {
            push_flag(&mut text, flag, &mut defaults);
        }
    }
    text
}

/// The documentation of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagDoc {
    /// The heading of the flag in the help text.
    pub section: &'static str,
    /// The name without dashes.
    pub name: &'static str,
    /// The default value.
    pub default: String,
    /// The help text.
    pub help: &'static str,
}

/// Returns all flags, grouped by heading.
#[must_use]
pub fn flag_docs() -> Vec<FlagDoc> {
    let mut defaults = Draft::default();
    let of = |section: &'static str| FLAGS.iter().filter(move |flag| flag.section == section);
    let flags = SECTIONS.iter().flat_map(|section| of(section));
    let docs = flags.map(|flag| {
        let Flag { section, name, help, .. } = *flag;
        FlagDoc { section, name, default: shown(flag, &mut defaults), help }
    });
    docs.collect()
}

/// Returns the reference page in Markdown, which has the same content as the help text.
#[must_use]
pub fn reference() -> String {
    let mut text = "# Flags of a member\n\nThis page is generated from the table of flags (`config::flags`), and a test \
     compares it with\nthe table. Each flag can also be set by an environment variable, `ETCD_` followed by its name \
     in\ncapitals, or by its key in the configuration file, if the table names one.\n"
        .to_owned();
    let mut defaults = Draft::default();
    for section in SECTIONS {
        push(&mut text, format_args!("\n## {section}\n\n"));
        push(
            &mut text,
            format_args!("| flag | default | key in the file | |\n|---|---|---|---|\n"),
        );
        for flag in FLAGS.iter().filter(|flag| flag.section == *section) {
            let shown = shown(flag, &mut defaults);
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

/// Returns the default of a flag, as shown in the help text.
fn shown(flag: &Flag, defaults: &mut Draft) -> String {
    match flag.default_text {
        Some(text) => text.to_owned(),
        None => flag.setting.shown(defaults),
    }
}

fn push_flag(text: &mut String, flag: &Flag, defaults: &mut Draft) {
    let shown = shown(flag, defaults);
    push(text, format_args!("  --{} '{shown}'\n    {}\n", flag.name, flag.help));
    if matches!(flag.setting, Setting::Gates(_)) {
        for gate in FeatureGate::ALL {
            let (name, stage, on) = (gate.name(), gate.stage().name(), gate.default_state());
            push(text, format_args!("      {name}=true|false ({stage} - default={on})\n"));
        }
    }
}

fn push(text: &mut String, piece: std::fmt::Arguments<'_>) {
    text.write_fmt(piece).expect("writing to a string cannot fail");
}
