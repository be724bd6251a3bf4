//! `migrate`: changes the storage version of a file, up or down.
//!
//! The content is the same in etcd 3.5 to 3.7, but only 3.6 and later store the version in the file. A downgrade is
//! refused if the log contains an entry that the older version does not know.

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::InternalRaftRequest;
use quorate_cli::flags::Flag;
use quorate_cli::gotext::{parse_int, quote};
use quorate_state::backend::Batch;
use quorate_state::schema::{Bucket, meta};
use quorate_state::versions::{detect_storage_version, follow_cluster_version};
use quorate_storage::data_dir::DataDir;
use quorate_storage::wal::inspect::{self, Content};
use quorate_version::Version;

use crate::command::Command;
use crate::failure::{Failure, MigrateError};
use crate::files;
use crate::session::Session;

pub(crate) const MIGRATE: Command = Command {
    usage: "migrate",
    short: "Migrates schema of etcd data dir files to make them compatible with different etcd version",
    flags: &[
        Flag::bytes("data-dir", "Path to the etcd data dir"),
        Flag::text(
            "target-version",
            "",
            "Target etcd version to migrate contents of data dir. Minimal value 3.5. Format \"X.Y\" for example 3.6.",
        ),
        Flag::bool(
            "force",
            "Ignore migration failure and forcefully override storage version. Not recommended.",
        ),
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// First version that stores its version in the file.
const NAMED_IN_FILE: Version = Version::new(3, 6);

fn run(session: &Session) -> Result<(), Failure> {
    session.require(&["data-dir", "target-version"])?;
    let root = session.required_path("data-dir")?;
    let [] = session.arguments("migrate takes no arguments")?;
    let target = target(session.matches.text("target-version"))?;
    let dirs = DataDir::new(&root, None);
    let backend = files::open_to_write(session, &dirs.backend())?;
    let view = backend.read();
    let named = view.get(Bucket::Meta, meta::STORAGE_VERSION)?;
    let (_, term) = view.consistent_index()?;
    let current = detect_storage_version(named.as_deref(), term).map_err(MigrateError::NoWay)?;
    let current = current.ok_or(MigrateError::Undetected)?;
    drop((view, named));
    let shown = |version: Version| format!("{}.{}", version.major, version.minor);
    if current == target {
        session.log("info", "storage version up-to-date", &[("storage-version", shown(target))]);
        return Ok(());
    }
    let mut batch = Batch::new();
    match plan(&dirs, current, target, &mut batch) {
        Ok(()) => {}
        Err(failure) if session.matches.bool("force") => {
            let reason = [("error", failure.to_string())];
            session.log("info", "normal migrate failed, trying with force", &reason);
            batch = Batch::new();
            name_version(target, &mut batch);
            if target >= NAMED_IN_FILE {
                let version = [("storage-version", shown(target))];
                session.log("warn", "forcefully set storage version", &version);
            } else {
                session.log("warn", "forcefully cleared storage version", &[]);
            }
            backend.commit(&batch)?;
            return Ok(());
        }
        Err(failure) => return Err(failure),
    }
    backend.commit(&batch)?;
    for step in steps(current, target) {
        session.log(
            "info",
            "updated storage version",
            &[("new-storage-version", step.to_string())],
        );
    }
    Ok(())
}

/// Returns the versions from `current` to `target`, excluding `current`.
fn steps(current: Version, target: Version) -> Vec<Version> {
    let minor = |minor| Version::new(target.major, minor);
    if current < target {
        (current.minor + 1..=target.minor).map(minor).collect()
    } else {
        (target.minor..current.minor).rev().map(minor).collect()
    }
}

/// Parses `X.Y`.
fn target(text: &str) -> Result<Version, Failure> {
    let Some((major, minor)) = text.split_once('.').filter(|(_, rest)| !rest.contains('.')) else {
        let text = quote(text.as_bytes());
        let text = format!("wrong target version format, expected \"X.Y\", got {text}");
        return Err(Failure::arguments(text));
    };
    let unparsed = |reason| Failure::arguments(format!("failed to parse target version: {reason}"));
    // etcdutl appends `.0` to the text before parsing it. In a version, `+` or `-` starts a suffix, so the text before
    // this character has fewer than the required three numbers.
    if let Some(end) = text.find(['+', '-']) {
        return Err(unparsed(format!("{} is not in dotted-tri format", &text[..end])));
    }
    let number = |text| parse_int(text, 10).map_err(unparsed);
    let (major, minor) = (number(major)?, number(minor)?);
    let larger = |number| u64::try_from(number).unwrap_or_default();
    let version = Version::new(larger(major), larger(minor));
    if version < Version::OLDEST_FILE {
        return Err(Failure::arguments(format!(
            "target version {} not supported. Minimal \"3.5\"",
            quote(text.as_bytes())
        )));
    }
    Ok(version)
}

/// Adds to `batch` the changes that give the file the target version. Fails if the migration is not allowed.
fn plan(
    dirs: &DataDir,
    current: Version,
    target: Version,
    batch: &mut Batch,
) -> Result<(), Failure> {
    follow_cluster_version(current, Some(target), batch).map_err(MigrateError::NoWay)?;
    if target < current {
        check_log(dirs, target)?;
    }
    Ok(())
}

fn name_version(version: Version, batch: &mut Batch) {
    if version >= NAMED_IN_FILE {
        batch.put(Bucket::Meta, meta::STORAGE_VERSION, version.to_string());
    } else {
        batch.delete(Bucket::Meta, Bytes::from_static(meta::STORAGE_VERSION));
    }
}

/// Refuses a log with an entry that needs a newer version than the target.
fn check_log(dirs: &DataDir, target: Version) -> Result<(), Failure> {
    inspect::visit(&*files::disk(), dirs.wal(), |place, content| -> Result<(), Failure> {
        let Content::Entry(entry) = content else { return Ok(()) };
        if entry.kind != 0 || entry.data.is_empty() {
            return Ok(());
        }
        let request = InternalRaftRequest::decode(entry.data).ok();
        let needed =
            request.and_then(|request| request.downgrade_version_test).map(|test| test.ver);
        match needed.as_deref().and_then(Version::parse) {
            Some(version) if version > target => Err(MigrateError::NewerEntries {
                segment: place.path.display().to_string(),
                offset: place.offset,
                version: version.to_string(),
            }
            .into()),
            Some(_) | None => Ok(()),
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_steps_through_each_version() {
        let of = |from, to| {
            let steps = steps(Version::new(3, from), Version::new(3, to));
            steps.iter().map(Version::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(5, 7), ["3.6.0", "3.7.0"]);
        assert_eq!(of(7, 5), ["3.6.0", "3.5.0"]);
        assert_eq!(of(6, 7), ["3.7.0"]);
    }

    #[test]
    fn invalid_and_too_old_migration_targets_are_refused() {
        assert_eq!(target("3.6").unwrap(), Version::new(3, 6));
        for (text, expected) in [
            ("3", "wrong target version format, expected \"X.Y\", got \"3\""),
            ("3.6.0", "wrong target version format, expected \"X.Y\", got \"3.6.0\""),
            ("", "wrong target version format, expected \"X.Y\", got \"\""),
            (
                "3.a",
                "failed to parse target version: strconv.ParseInt: parsing \"a\": invalid syntax",
            ),
            (
                "3.",
                "failed to parse target version: strconv.ParseInt: parsing \"\": invalid syntax",
            ),
            ("3.6-rc", "failed to parse target version: 3.6 is not in dotted-tri format"),
            ("3.-6", "failed to parse target version: 3. is not in dotted-tri format"),
            ("3.4", "target version \"3.4\" not supported. Minimal \"3.5\""),
        ] {
            let failure = target(text).unwrap_err();
            assert_eq!((failure.to_string().as_str(), failure.code()), (expected, 128));
        }
    }
}
