//! The tables, and their migrations from one format to the next.
//!
//! | table | content | primary key |
//! |---|---|---|
//! | `log` | committed batches in order, until a compaction has removed their garbage | `seq` |
//! | `versions` | every version of every key, until a compaction has removed it | `key, mod_revision, sub` |
//! | `newest` | the newest version of every key, also of a deleted key until a compaction has removed it | `key` |
//! | `facts` | the rows of leases, users, roles and alarms, and the newest compacted revision | `bucket, key` |
//! | `progress` | the last batch in the tables, the compacted revision, the number and bytes of all versions | `id` |
//! | `sequencer` | the sequencer, its term, its address and secret, and the end of its lease on the role | `id` |
//! | `servers` | the servers of this keyspace | `id` |
//! | `format` | the format of the tables, and the id of the keyspace | `id` |
//! | `spans` | the numbers of keys in parts of a large keyspace, at one position of the log | `id` |
//!
//! The tables `progress`, `sequencer` and `format` have one row each, and `spans` has at most one.
//!
//! A commit is one row of `log`. The tables `versions`, `newest`, `facts` and `progress` are written from the log
//! afterwards, so no commit requires a transaction that spans several shards of a distributed database. The largest
//! tables are `versions` and `newest`, whose primary keys begin with the key.
//!
//! In a database with the extension Citus, new tables `versions` and `newest` are distributed by key. The versions of a
//! key and its newest version are on the same node, so that one node executes a statement that joins the two tables.
//! The other tables stay on the coordinator, because they are small or, like the log, are written by one server at a
//! time, so that a second node would only add latency.
//!
//! # Invariants
//!
//! * Every statement that creates or migrates tables can be repeated, so that several servers that start at the same
//!   time can all run the migrations. Only the statements that distribute tables cannot be repeated.
//! * Only one server can add the row of table `format`, and the tables are distributed in the transaction that adds it.
//!   As a result, the tables are distributed only once, and no server uses tables that another server has yet to
//!   distribute.

use std::sync::atomic::Ordering;

use quorate_telemetry::log;

use super::{Database, DatabaseFault, Session};

/// The format that this version writes.
const FORMAT: i32 = 3;

/// The format of newly created tables, before the migrations.
const FIRST_FORMAT: i32 = 1;

/// The format of a keyspace whose import has not finished.
const IMPORTING: i32 = 0;

/// Maximum number of times that a migration is repeated because another server migrates at the same
/// time.
const ATTEMPTS_MAX: usize = 10;

/// For each later format, the statements that migrate tables from the previous format. Existing
/// statements are never changed, because tables of every format may exist.
const MIGRATIONS: &[(i32, &[&str])] = &[
    (
        2,
        // A server that uses format 1 and is still running ignores the new columns.
        &[
            "ALTER TABLE {s}.log ADD COLUMN IF NOT EXISTS nonce bigint NOT NULL DEFAULT 0",
            "ALTER TABLE {s}.sequencer ADD COLUMN IF NOT EXISTS nonce bigint NOT NULL DEFAULT 0",
        ],
    ),
    (
        3,
        // A server that uses an earlier format and is still running does not use this table.
        &[
            "CREATE TABLE IF NOT EXISTS {s}.spans (id int PRIMARY KEY, seq bigint NOT NULL, epoch bigint NOT NULL, \
             nonce bigint NOT NULL, key_count bigint NOT NULL, stored timestamptz NOT NULL, starts bytea[] NOT NULL, \
             ends bytea[] NOT NULL, counts bigint[] NOT NULL)",
        ],
    ),
];

/// The statements that create the tables in the first format.
const TABLES: &[&str] = &[
    "CREATE SCHEMA IF NOT EXISTS {s}",
    "CREATE TABLE IF NOT EXISTS {s}.format (id int PRIMARY KEY, format int NOT NULL, cluster_id bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {s}.log (seq bigint PRIMARY KEY, epoch bigint NOT NULL, \
     last_revision bigint NOT NULL, batch bytea NOT NULL)",
    "CREATE INDEX IF NOT EXISTS log_by_revision ON {s}.log (last_revision, seq)",
    "CREATE TABLE IF NOT EXISTS {s}.versions (key bytea NOT NULL, mod_revision bigint NOT NULL, sub bigint NOT NULL, \
     deleted bool NOT NULL, record bytea NOT NULL, PRIMARY KEY (key, mod_revision, sub))",
    "CREATE TABLE IF NOT EXISTS {s}.newest (key bytea PRIMARY KEY, mod_revision bigint NOT NULL, \
     sub bigint NOT NULL, create_revision bigint NOT NULL, version bigint NOT NULL, lease bigint NOT NULL, \
     deleted bool NOT NULL, record bytea NOT NULL)",
    "CREATE INDEX IF NOT EXISTS newest_by_lease ON {s}.newest (lease) WHERE lease <> 0",
    "CREATE TABLE IF NOT EXISTS {s}.facts (bucket int NOT NULL, key bytea NOT NULL, value bytea NOT NULL, \
     PRIMARY KEY (bucket, key))",
    "CREATE TABLE IF NOT EXISTS {s}.progress (id int PRIMARY KEY, written_seq bigint NOT NULL, \
     compacted bigint NOT NULL, records bigint NOT NULL, bytes bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {s}.sequencer (id int PRIMARY KEY, epoch bigint NOT NULL, holder bigint NOT NULL, \
     address text NOT NULL, secret bytea NOT NULL, expires timestamptz NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {s}.servers (id bigint PRIMARY KEY, name text NOT NULL, address text NOT NULL, \
     client_urls text NOT NULL, seen timestamptz NOT NULL)",
    // An empty keyspace has revision 1.
    "INSERT INTO {s}.log (seq, epoch, last_revision, batch) VALUES (0, 0, 1, '') ON CONFLICT DO NOTHING",
    "INSERT INTO {s}.progress (id, written_seq, compacted, records, bytes) VALUES (1, 0, -1, 0, 0) \
     ON CONFLICT DO NOTHING",
    "INSERT INTO {s}.sequencer (id, epoch, holder, address, secret, expires) \
     VALUES (1, 0, 0, '', '', now() - interval '1 second') ON CONFLICT DO NOTHING",
];

/// Distributes the tables of versions. One node at a time creates its shards, because Citus refuses to
/// create the shards of two tables in parallel in one transaction.
const DISTRIBUTE: &[&str] = &[
    "SET LOCAL citus.multi_shard_modify_mode = 'sequential'",
    "SELECT create_distributed_table('{s}.versions', 'key', colocate_with => 'none')",
    "SELECT create_distributed_table('{s}.newest', 'key', colocate_with => '{s}.versions')",
];

impl Database {
    /// Creates or migrates the tables. Returns the id of the keyspace, which is `new_id` if the
    /// tables are new.
    pub(crate) async fn migrate(&self, new_id: i64) -> Result<i64, DatabaseFault> {
        let mut attempts = 0;
        loop {
            let session = self.connect().await?;
            match self.migrate_once(&session, new_id).await {
                // If several servers create the same table at the same time, the statement may fail
                // even with IF NOT EXISTS.
                Err(fault) if attempts < ATTEMPTS_MAX && is_concurrent(&fault) => attempts += 1,
                other => return other,
            }
        }
    }

    /// Creates the tables, and marks the keyspace so that no server uses it until
    /// [`Database::end_import`]. Removes the data of an interrupted import. Refuses a keyspace that a
    /// server has used.
    pub(crate) async fn begin_import(&self, new_id: i64) -> Result<(), DatabaseFault> {
        let session = self.connect().await?;
        match self.found_format(&session).await? {
            Some((IMPORTING, _)) => {
                self.upgrade(&session, FIRST_FORMAT).await?;
                self.find_distribution(&session).await?;
            }
            Some(_) | None => drop(self.migrate(new_id).await?),
        }
        let mark = self.with_schema(
            "UPDATE {s}.format SET format = 0 WHERE id = 1 AND (SELECT max(seq) FROM {s}.log) = 0",
        );
        if session.client().execute(&mark, &[]).await? == 1 {
            for table in ["versions", "newest", "facts", "spans"] {
                let text = self.with_schema(&format!("TRUNCATE TABLE {{s}}.{table}"));
                session.client().batch_execute(&text).await?;
            }
            return Ok(());
        }
        let problem = "the keyspace is not empty; choose another schema".to_owned();
        Err(DatabaseFault::Content { table: "log", problem })
    }

    /// Makes an imported keyspace usable.
    pub(crate) async fn end_import(&self) -> Result<(), DatabaseFault> {
        let session = self.connect().await?;
        let text = self.with_schema("UPDATE {s}.format SET format = $1 WHERE id = 1");
        session.client().execute(&text, &[&FORMAT]).await?;
        Ok(())
    }

    async fn migrate_once(&self, session: &Session, new_id: i64) -> Result<i64, DatabaseFault> {
        let (found, cluster_id) = match self.found_format(session).await? {
            Some(found) => found,
            None => self.create_tables(session, new_id).await?,
        };
        if found == IMPORTING {
            let problem = "an import into this keyspace has not finished; repeat the import, or drop the schema";
            return Err(DatabaseFault::Content { table: "format", problem: problem.to_owned() });
        }
        if found > FORMAT {
            let schema = self.schema().to_owned();
            return Err(DatabaseFault::NewerFormat { schema, found, supported: FORMAT });
        }
        self.upgrade(session, found).await?;
        let text =
            self.with_schema("UPDATE {s}.format SET format = $1 WHERE id = 1 AND format = $2");
        if found < FORMAT {
            session.client().execute(&text, &[&FORMAT, &found]).await?;
        }
        self.find_distribution(session).await?;
        Ok(cluster_id)
    }

    /// Returns the format of the tables and the id of the keyspace; `None` if the tables do not exist, or
    /// were not created completely.
    async fn found_format(&self, session: &Session) -> Result<Option<(i32, i64)>, DatabaseFault> {
        let exists = "SELECT count(*) FROM information_schema.tables \
                      WHERE table_schema = $1 AND table_name = 'format'";
        let schema: &str = self.schema();
        if session.client().query_one(exists, &[&schema]).await?.get::<_, i64>(0) == 0 {
            return Ok(None);
        }
        let text = self.with_schema("SELECT format, cluster_id FROM {s}.format WHERE id = 1");
        let row = session.client().query_opt(&text, &[]).await?;
        Ok(row.map(|row| (row.get(0), row.get(1))))
    }

    /// Creates the tables. The row in table `format` is added last, so if a server stops earlier, the
    /// next server creates the missing tables.
    async fn create_tables(
        &self,
        session: &Session,
        new_id: i64,
    ) -> Result<(i32, i64), DatabaseFault> {
        for text in TABLES {
            session.client().batch_execute(&self.with_schema(text)).await?;
        }
        let first = self.with_schema(
            "INSERT INTO {s}.format (id, format, cluster_id) VALUES (1, $1, $2) ON CONFLICT DO NOTHING",
        );
        session
            .transaction(async |session| {
                let is_added =
                    session.client().execute(&first, &[&FIRST_FORMAT, &new_id]).await? == 1;
                if is_added && self.distributed_count(session).await? == Some(0) {
                    for text in DISTRIBUTE {
                        session.batch(&self.with_schema(text)).await?;
                    }
                }
                Ok(true)
            })
            .await?;
        // The row is read again, because another server may have added it at the same time.
        self.found_format(session).await?.ok_or_else(|| DatabaseFault::Content {
            table: "format",
            problem: "the row is missing".to_owned(),
        })
    }

    /// Executes the migrations from format `from` to the newest format.
    async fn upgrade(&self, session: &Session, from: i32) -> Result<(), DatabaseFault> {
        for (_, texts) in MIGRATIONS.iter().filter(|(format, _)| *format > from) {
            for text in *texts {
                session.client().batch_execute(&self.with_schema(text)).await?;
            }
        }
        Ok(())
    }

    /// Stores whether Citus distributes the tables of versions. An operator may also have distributed them, or undone
    /// this, while no server was running.
    async fn find_distribution(&self, session: &Session) -> Result<(), DatabaseFault> {
        let distributed = self.distributed_count(session).await?.unwrap_or(0);
        if distributed == 1 {
            let problem = "only one of the tables versions and newest is distributed; stop all servers, \
                           and distribute both tables by column key, or none";
            return Err(DatabaseFault::Content { table: "newest", problem: problem.to_owned() });
        }
        if distributed > 1 {
            log::info!("Citus distributes the tables of versions", "schema" = self.schema());
        }
        self.is_distributed.store(distributed > 1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how many of the tables of versions are distributed, or `None` if the database does not
    /// have the extension Citus.
    async fn distributed_count(&self, session: &Session) -> Result<Option<i64>, DatabaseFault> {
        let citus = "SELECT count(*) FROM pg_extension WHERE extname = 'citus'";
        if session.client().query_one(citus, &[]).await?.get::<_, i64>(0) == 0 {
            return Ok(None);
        }
        let count = "SELECT count(*) FROM pg_dist_partition WHERE partmethod = 'h' \
                     AND logicalrelid IN ('{s}.versions'::regclass, '{s}.newest'::regclass)";
        let row = session.client().query_one(&self.with_schema(count), &[]).await?;
        Ok(Some(row.get(0)))
    }
}

/// Returns whether the concurrent migration of another server may have caused the error: a conflict, an object that
/// already exists, or a concurrent change to the catalogue, which PostgreSQL may report as an internal error.
fn is_concurrent(fault: &DatabaseFault) -> bool {
    match fault {
        DatabaseFault::Conflict(_) => true,
        // unique_violation, duplicate_schema, duplicate_table, duplicate_object, internal_error
        DatabaseFault::Statement { code, .. } => {
            ["23505", "42P06", "42P07", "42710", "XX000"].contains(&code.as_str())
        }
        _ => false,
    }
}
