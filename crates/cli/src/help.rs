//! Help texts in cobra's layout, which users and scripts already know.

use crate::command::{Command, Found};
use crate::flags::{Flag, Kind};
use crate::gotext::{duration, parse_duration, quote};

/// The first word of a tool's own name, such as `quorate ctl`, as opposed to the name of etcd's tool.
const OWN: &str = "quorate";

/// The minimum width of the column with command names.
const NAME_WIDTH_MIN: usize = 11;

/// Returns the help text of a command. `program` is the name under which the tool was called.
#[must_use]
pub fn help<R: Copy>(program: &str, found: &Found<R>) -> String {
    let command = found.command();
    let about = if command.long.is_empty() { command.short } else { command.long };
    let mut out = String::new();
    if !about.is_empty() {
        out.push_str(about.trim_end());
        out.push_str("\n\n");
    }
    out.push_str(&usage(program, found));
    if found.root().lists_flags_apart() {
        out.push_str(&format!(
            "Use \"{program} options\" for a list of global command-line options (applies to all commands).\n"
        ));
    }
    out
}

/// Returns the part of the help text that is also printed after an error.
#[must_use]
pub fn usage<R: Copy>(program: &str, found: &Found<R>) -> String {
    let command = found.command();
    let names: Vec<_> = found.path[1..].iter().map(|command| command.name()).collect();
    let path = [&[program][..], &names].concat().join(" ");
    let mut out = String::from("Usage:");
    if command.run.is_some() {
        let arguments = command.usage.strip_prefix(command.name()).unwrap_or_default();
        out.push_str(&format!("\n  {path}{arguments} [flags]"));
    }
    if !command.children.is_empty() {
        out.push_str(&format!("\n  {path} [command]"));
    }
    let is_own = program.split(' ').next() == Some(OWN);
    let example = if is_own { command.own_example } else { "" };
    let example = if example.is_empty() { command.example } else { example };
    if !example.is_empty() {
        out.push_str(&format!("\n\nExamples:\n{example}"));
    }
    out.push_str(&children(command));
    let mut local: Vec<Flag> = command.flags.to_vec();
    // If a separate command lists the global flags, no other help text does.
    let apart = found.root().lists_flags_apart();
    let shows_flags = found.path.len() > 1 || !apart;
    if shows_flags {
        local.extend(command.inherited);
        // This entry is only for the help text, because the grammar handles `-h` itself.
        local.push(Flag::bool("help", "").short('h'));
        let help =
            format!("help for {}", if found.path.len() == 1 { program } else { command.name() });
        out.push_str("\n\nFlags:\n");
        out.push_str(flag_usages(&local, Some(&help)).trim_end());
    }
    let last = found.path.len() - 1;
    let above = &found.path[usize::from(apart).min(last)..last];
    let inherited: Vec<Flag> =
        above.iter().flat_map(|command| command.inherited).copied().collect();
    if shows_flags && !inherited.is_empty() {
        out.push_str("\n\nGlobal Flags:\n");
        out.push_str(flag_usages(&inherited, None).trim_end());
    }
    if !command.children.is_empty() {
        out.push_str(&format!(
            "\n\nUse \"{path} [command] --help\" for more information about a command."
        ));
    }
    out.push('\n');
    out
}

fn children<R>(command: &Command<R>) -> String {
    let width = command.children.iter().map(|child| child.name().len()).max().unwrap_or_default();
    let width = width.max(NAME_WIDTH_MIN);
    let list = |group: Option<&str>| -> String {
        let of_group = command.children.iter().filter(|child| child.group == group);
        of_group.map(|child| format!("\n  {:width$} {}", child.name(), child.short)).collect()
    };
    let mut out = String::new();
    for title in command.groups {
        let lines = list(Some(title));
        if !lines.is_empty() {
            out.push_str(&format!("\n\n{title}{lines}"));
        }
    }
    let rest = list(None);
    if !rest.is_empty() {
        out.push_str(&format!("\n\nAvailable Commands:{rest}"));
    }
    out
}

/// Returns a table of flags, sorted by name. `help` is the description of the help flag.
#[must_use]
pub fn flag_usages(flags: &[Flag], help: Option<&str>) -> String {
    let mut flags = flags.to_vec();
    flags.sort_by_key(|flag| flag.name);
    let left = |flag: &Flag| {
        let short = flag.short.map_or("    ".to_owned(), |short| format!("-{short}, "));
        let kind = match flag.kind {
            Kind::Bool => "",
            Kind::Int => " int",
            Kind::Uint => " uint",
            Kind::Text | Kind::Bytes => " string",
            Kind::Duration => " duration",
            Kind::List => " strings",
        };
        format!("  {short}--{}{kind}", flag.name)
    };
    let width = flags.iter().map(|flag| left(flag).len()).max().unwrap_or_default();
    let line = |flag: &Flag| {
        let usage = if flag.name == "help" { help.unwrap_or_default() } else { flag.usage };
        format!("{:width$}   {usage}{}\n", left(flag), shown_default(flag))
    };
    flags.iter().map(line).collect()
}

/// Returns the end of a flag's line, which shows the default unless the default is the zero value.
pub(crate) fn shown_default(flag: &Flag) -> String {
    match flag.kind {
        Kind::Bool if flag.default == "false" => String::new(),
        Kind::Int | Kind::Uint if flag.default == "0" => String::new(),
        Kind::Text | Kind::Bytes | Kind::List if flag.default.is_empty() => String::new(),
        Kind::Duration if flag.default == "0s" => String::new(),
        Kind::Bool | Kind::Int | Kind::Uint => format!(" (default {})", flag.default),
        Kind::Text | Kind::Bytes => format!(" (default {})", quote(flag.default.as_bytes())),
        Kind::Duration => match parse_duration(flag.default) {
            Ok(value) => format!(" (default {})", duration(value)),
            Err(_) => String::new(),
        },
        Kind::List => format!(" (default [{}])", flag.default),
    }
}
