//! What `--help` says, made from the table of flags.

use std::fmt::Write;

use super::draft::Draft;
use super::flags::FLAGS;
use super::{Gate, setting::Setting};

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

  quorate ctl | utl | bench ...
    Run a tool; each has its own --help.
"
    .to_owned()
}

/// Every flag with its default and its meaning.
pub(super) fn flags() -> String {
    let mut text = String::new();
    let mut defaults = Draft::default();
    let mut section = "";
    for flag in FLAGS.iter().filter(|flag| !matches!(flag.setting, Setting::Ignored)) {
        if flag.section != section {
            section = flag.section;
            write!(text, "\n{section}:\n").expect("a String takes any text");
        }
        let shown = match flag.default_text {
            Some(text) => text.to_owned(),
            None => flag.setting.shown(&mut defaults),
        };
        write!(text, "  --{} '{shown}'\n    {}\n", flag.name, flag.help)
            .expect("a String takes any text");
        if matches!(flag.setting, Setting::Gates(_)) {
            for gate in Gate::ALL {
                let (name, stage, on) = (gate.name(), gate.stage().name(), gate.default_state());
                writeln!(text, "      {name}=true|false ({stage} - default={on})")
                    .expect("a String takes any text");
            }
        }
    }
    text
}
