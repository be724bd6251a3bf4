//! `import`: fills an empty keyspace in a PostgreSQL database from a snapshot.
//!
//! The reverse operation is `snapshot save` from a server with `--engine`, followed by `snapshot restore`.
//!
//! # Invariants
//!
//! * Nothing is written before the whole snapshot has been checked.
//! * The password of the database is never printed.
//!
//! # Not here
//!
//! Choosing and writing the imported rows (`quorate_engine`).

use std::path::Path;

use quorate_engine::{DatabaseUrl, EngineError};

use crate::command::Command;
use crate::failure::Failure;
use crate::files;
use crate::session::Session;
use crate::snapshot::{SKIP_HASH_CHECK, Source};

pub(crate) const IMPORT: Command = Command {
    usage: "import <filename> <database URL> [options]",
    short: "Imports a snapshot into an empty keyspace of a PostgreSQL database",
    long: "Imports a snapshot into an empty keyspace of a PostgreSQL database, which servers can then use with --engine. The
snapshot may be from Quorate or etcd. The tables are created. The newest version of each key is imported, with leases,
users, roles and alarms. Revision numbers continue, and older revisions count as compacted. The import fails if a key,
or the name of a user or role, is longer than 2,048 bytes.

The URL has the form postgres://USER@HOST:PORT/DATABASE?schema=KEYSPACE, as for --engine. Use a password file or
PGPASSWORD for the password, because the command line is visible to other users of the machine.

An interrupted import can be repeated. Until it has succeeded, no server uses the keyspace.",
    own_example: "  quorate utl import backup.db postgres://quorate@db.example/quorate",
    is_own: true,
    flags: &[SKIP_HASH_CHECK],
    run: Some(run),
    ..Command::EMPTY
};

fn run(session: &Session) -> Result<(), Failure> {
    let [path, url] =
        session.arguments("import requires a snapshot and a database URL as arguments")?;
    let database = DatabaseUrl::parse(&url.to_string_lossy(), |name| std::env::var(name).ok())
        .map_err(|error| Failure::arguments(error.to_string()))?;
    let fields = [("path", path.display().to_string()), ("database", format!("{database:?}"))];
    session.log("info", "importing snapshot", &fields);
    let (disk, path) = (files::disk(), Path::new(&path));
    let source = Source::open(&*disk, path, session.matches.bool(SKIP_HASH_CHECK.name))?;
    source.check(&disk)?;
    let backend = files::open(session, path)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("start a runtime for the database connection", path))?;
    let imported = runtime.block_on(async {
        let cluster_id = new_cluster_id()?;
        quorate_engine::import(database, cluster_id, &backend).await
    })?;
    let counts = [("keys", imported.keys.to_string()), ("revision", imported.revision.to_string())];
    session.log("info", "imported snapshot", &[&fields[..], &counts].concat());
    Ok(())
}

/// Returns a random id for the cluster; 0 is not a valid id.
fn new_cluster_id() -> Result<u64, EngineError> {
    let random = getrandom::u64().map_err(|error| EngineError::Random(error.to_string()))?;
    Ok(random.max(1))
}
