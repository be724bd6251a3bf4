//! The type of a row in the table of flags. The rows are in `table`.
//!
//! There is one row for each flag: its name, type and field, its help text, and its key in the configuration
//! file if that differs from the name. The environment variable is derived from the name (`--max-wals` is
//! `ETCD_MAX_WALS`), and the default from [`super::Config::default`].
//!
//! A flag is in the table only if it has an effect, or if etcd also accepts it without effect. Flags that etcd has
//! removed are in `absent`.

mod console;
mod data;
mod sections;
mod table;

use std::borrow::Cow;

pub(super) use self::sections::{FILE_ONLY, SECTIONS};
pub(super) use self::table::FLAGS;
use super::draft::Draft;
use super::setting::Setting::{self, Ignored};

/// The position of a flag's value in the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKey {
    /// The key is the flag's name.
    Name,
    /// The key is at this path, which consists of section names and the key, separated by dots.
    Nested(&'static str),
    /// The file cannot set the flag.
    None,
}

/// The text printed in place of a secret.
const WITHHELD: &str = "***";

/// A row of the table: one flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// The name without dashes.
    pub(super) name: &'static str,
    /// The heading in the help text.
    pub(super) section: &'static str,
    /// The type of the flag, and the field that stores its value.
    pub(super) setting: Setting,
    /// The help text.
    pub(super) help: &'static str,
    /// The key in the configuration file.
    pub(super) file: FileKey,
    /// The default shown in the help text, if it differs from the actual value.
    pub(super) default_text: Option<&'static str>,
}

impl Flag {
    const fn file_key(self, path: &'static str) -> Self {
        Self { file: FileKey::Nested(path), ..self }
    }

    const fn flag_only(self) -> Self {
        Self { file: FileKey::None, ..self }
    }

    const fn default_text(self, text: &'static str) -> Self {
        Self { default_text: Some(text), ..self }
    }

    /// Parses `text` as the value of the flag, and records that the flag was set.
    pub(super) fn set(&self, draft: &mut Draft, text: &str) -> Result<(), String> {
        self.setting.set(draft, text)?;
        draft.explicit.insert(self.name.to_owned());
        Ok(())
    }

    /// Returns a value of this flag for the log, with secrets removed.
    pub(super) fn redacted<'a>(&self, value: &'a str) -> Cow<'a, str> {
        match (self.name, value.split_once(':')) {
            // The options contain file names, but an operator may have put the keys themselves there by mistake.
            ("auth-token", _) if value.contains(',') => Cow::Borrowed(WITHHELD),
            ("discovery-password" | "engine", _) if !value.is_empty() => Cow::Borrowed(WITHHELD),
            ("discovery-user", Some((name, _))) => Cow::Owned(format!("{name}:{WITHHELD}")),
            _ => Cow::Borrowed(value),
        }
    }
}

/// Returns the flag with this name.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

const fn flag(
    section: &'static str,
    name: &'static str,
    setting: Setting,
    help: &'static str,
) -> Flag {
    Flag { name, section, setting, help, file: FileKey::Name, default_text: None }
}

/// Creates an obsolete flag, which accepts any value, has no effect, and is not listed in the help text.
const fn ignored(name: &'static str) -> Flag {
    flag("", name, Ignored, "").flag_only()
}
