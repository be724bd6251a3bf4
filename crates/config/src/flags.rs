//! The table of flags: what a row is; the rows are in `table`.
//!
//! One row per flag: its name, its type and place, what help says of it, and its key in the
//! configuration file where that differs from the name. The environment variable derives from the
//! name (`--max-wals` is `ETCD_MAX_WALS`), the default from [`super::Config::default`].
//!
//! A flag stands here only when it does something, or when etcd too accepts it without effect. What
//! etcd has and we do not have yet stands in `absent`.

mod sections;
mod table;

use std::borrow::Cow;

pub(super) use self::sections::{FILE_ONLY, SECTIONS};
pub(super) use self::table::FLAGS;
use super::draft::Draft;
use super::setting::Setting::{self, Ignored};

/// Where a flag's value stands in the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKey {
    /// Under the flag's name.
    Name,
    /// Under sections and a key, with dots between.
    Nested(&'static str),
    /// Nowhere.
    None,
}

/// What a log shows in place of a secret.
const WITHHELD: &str = "***";

/// A flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// Without dashes.
    pub(super) name: &'static str,
    /// The heading in help.
    pub(super) section: &'static str,
    /// Its type, and the place of its value.
    pub(super) setting: Setting,
    /// What it is for.
    pub(super) help: &'static str,
    /// Its key in the file.
    pub(super) file: FileKey,
    /// What help shows as the default instead of the value.
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

    /// Sets the flag from a text and notes that it was set.
    pub(super) fn set(&self, draft: &mut Draft, text: &str) -> Result<(), String> {
        self.setting.set(draft, text)?;
        draft.explicit.insert(self.name.to_owned());
        Ok(())
    }

    /// A value of this flag as a log may show it: without what is secret.
    pub(super) fn told<'a>(&self, value: &'a str) -> Cow<'a, str> {
        match (self.name, value.split_once(':')) {
            // Files, unless somebody takes them for the keys themselves.
            ("auth-token", _) if value.contains(',') => Cow::Borrowed(WITHHELD),
            ("discovery-password", _) if !value.is_empty() => Cow::Borrowed(WITHHELD),
            ("discovery-user", Some((name, _))) => Cow::Owned(format!("{name}:{WITHHELD}")),
            _ => Cow::Borrowed(value),
        }
    }
}

/// The flag of that name.
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

/// A flag of long ago that is accepted, with any value, and does nothing; help does not show it.
const fn ignored(name: &'static str) -> Flag {
    flag("", name, Ignored, "").flag_only()
}
