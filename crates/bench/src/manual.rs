//! What the command line takes, for a page about it: the same texts that `--help` has.

use clap::{Arg, CommandFactory as _};

use crate::cli::Cli;

/// A kind of load.
#[derive(Clone, Debug)]
pub struct ToldLoad {
    /// Its name.
    pub name: String,
    /// What it does.
    pub about: String,
    /// Options that only it has.
    pub options: Vec<ToldOption>,
}

/// An option.
#[derive(Clone, Debug)]
pub struct ToldOption {
    /// Its name, with dashes.
    pub name: String,
    /// What stands for its value, if it takes one.
    pub value: Option<String>,
    /// What it is for, with its default and its variable.
    pub about: String,
}

/// Every kind of load, in the order of the help.
#[must_use]
pub fn told_loads() -> Vec<ToldLoad> {
    let cli = Cli::command();
    let told = |load: &clap::Command| ToldLoad {
        name: load.get_name().to_owned(),
        about: load.get_about().map(ToString::to_string).unwrap_or_default(),
        options: load.get_arguments().filter_map(told_option).collect(),
    };
    cli.get_subcommands().filter(|load| load.get_name() != "help").map(told).collect()
}

/// The options of all loads.
#[must_use]
pub fn told_options() -> Vec<ToldOption> {
    Cli::command().get_arguments().filter_map(told_option).collect()
}

fn told_option(option: &Arg) -> Option<ToldOption> {
    let long = option.get_long().filter(|name| *name != "help")?;
    let mut about = option.get_help().map(ToString::to_string).unwrap_or_default();
    let takes_value = option.get_action().takes_values();
    let defaults: Vec<_> =
        option.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_value && !defaults.is_empty() {
        about.push_str(&format!(" [default: {}]", defaults.join(",")));
    }
    if let Some(variable) = option.get_env() {
        about.push_str(&format!(" [variable: {}]", variable.to_string_lossy()));
    }
    let possible: Vec<_> =
        option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let value = takes_value.then(|| match possible.is_empty() {
        true => "value".to_owned(),
        false => possible.join("|"),
    });
    Some(ToldOption { name: format!("--{long}"), value, about: about + "." })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_what_the_help_has() {
        let help = Cli::command().render_long_help().to_string();
        let options = told_options();
        assert!(options.len() > 10);
        for option in options {
            assert!(
                help.contains(&format!("{} ", option.name)) || option.value.is_none(),
                "{option:?}"
            );
            assert!(option.about.len() > 5, "{option:?}");
        }
        let loads = told_loads();
        let list = loads.iter().find(|load| load.name == "list").unwrap();
        let names: Vec<_> = list.options.iter().map(|option| option.name.as_str()).collect();
        assert_eq!(names[..3], ["--limit", "--span", "--walk"]);
        assert_eq!(
            list.options[0].about,
            "Keys in a reply, at most; 0 for all of the range [default: 0]."
        );
        assert!(loads.iter().all(|load| help.contains(&load.name) && !load.about.is_empty()));
    }
}
