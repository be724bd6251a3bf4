//! The flags that determine where the data is stored: in files or in a database.

use super::super::setting::Setting::Text;
use super::sections::MEMBER;
use super::{Flag, flag};

pub(super) const DATA_DIR: Flag =
    flag(MEMBER, "data-dir", Text(|d| &mut d.config.data_dir), "Data directory of this member.")
        .default_text("${name}.etcd");

pub(super) const WAL_DIR: Flag = flag(
    MEMBER,
    "wal-dir",
    Text(|d| &mut d.config.wal_dir),
    "Directory of the write-ahead log, if it is not in the data directory.",
);

pub(super) const ENGINE: Flag = flag(
    MEMBER,
    "engine",
    Text(|d| &mut d.config.engine.0),
    "URL of a PostgreSQL database that holds the data instead of the data directory: postgres://USER@HOST/DATABASE.",
);
