//! The SQL statements of the engine, except migrations, session settings, `LISTEN`, and the
//! statements that begin and end transactions.
//!
//! The statements are written for PostgreSQL, CockroachDB and YugabyteDB. A database need not support
//! [`Statement::Notify`], and [`Statement::EndPrepared`] is executed only on distributed tables of Citus. The tables
//! are described in `migrations`. If Citus distributes the tables of versions, no statement reads these tables and the
//! compacted revision together (see [`Tables`]).

/// One of the engine's SQL statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Statement {
    /// Appends a batch to the log. Has no effect if the position is taken, if the batch at the previous
    /// position is not the last batch that this server knows, or if the term has ended. The statement
    /// locks the row that contains the term. Because of this lock, a server that raises the epoch waits
    /// for the end of this statement, and this statement sees an epoch that was raised earlier.
    AppendLog,
    /// Appends the batch that ends an import.
    AppendImport,
    /// Reads the batches after a position, and the position of the last batch that is in the tables. The first row is
    /// the batch at the start position, without its content. This row shows whether the log still contains that batch.
    ReadLog,
    /// Reads the batch at a position.
    ReadBatch,
    /// Reads batches that are after a given position and whose last revision is not below a given revision. Also reads
    /// the compacted revision.
    ReadLogFromRevision,
    /// Reads the term of the batch at a position.
    TermInLog,
    /// Reads the position of the last batch that is in the tables, the compacted revision, and the
    /// number and bytes of all versions.
    ReadProgress,
    /// Advances the stored position of the last batch in the tables to the end of the next part of
    /// the log, and adds the versions of this part to the stored number and bytes of all versions.
    /// Has no effect if the position has already moved.
    AdvanceProgress,
    /// Locks the stored position of the last batch in the tables until the end of the transaction.
    /// Returns no row if the position has already moved.
    LockProgress,
    /// Ends the transactions that were interrupted after they had been prepared on the nodes of a
    /// Citus database.
    EndPrepared,
    /// Adds versions to table `versions`.
    AddVersions,
    /// Sets the newest versions of keys in table `newest`.
    SetNewest,
    /// Inserts or updates rows of table `facts`.
    SetFacts,
    /// Removes rows of table `facts`.
    DeleteFacts,
    /// Reads all rows of table `facts`.
    ReadFacts,
    /// Reads the keys that are attached to leases.
    ReadAttachments,
    /// Reads the newest version of each given key that is live, without records.
    NewestFacts,
    /// Reads the newest version of each given key that is live, with records.
    NewestWhole,
    /// Reads a page of the newest versions of the live keys in a range, without records.
    NewestFactsIn(End),
    /// Reads a page of the newest versions of the live keys in a range, with records.
    NewestWholeIn(End),
    /// Reads a page of all versions of the keys in a range, ordered by key and revision. The page
    /// begins after a given version.
    VersionsIn(End),
    /// Reads the version of a key at a revision, and the compacted revision.
    VersionAt,
    /// Reads the keys of a range as they were at a revision, and the compacted revision.
    RangeAt {
        /// How the range ends.
        end: End,
        /// Whether records are read.
        whole: bool,
        /// Whether the keys are in descending order.
        descending: bool,
    },
    /// Counts the keys of a range that are live at a revision, except the given keys, and reads the compacted revision.
    CountAt(End),
    /// Numbers the first `$6` keys of a range that are live at a revision, except the given keys, from 1 in key order.
    /// Reads every `$5`th of these keys, beginning with the first one, and the last one, each with its number. Also
    /// reads the compacted revision and the position of the last batch in the tables.
    DivideAt(End),
    /// Stores the spans of this server with their counts at a position of the log, unless the stored spans are recent, or
    /// cover many more keys.
    StoreSpans,
    /// Reads the stored spans, unless they have the counts at position `$1` or an earlier position.
    ReadSpans,
    /// Reads the compacted revision.
    Compacted,
    /// Takes over the sequencer role, if the lease on it has expired or this server already holds it.
    TakeRole,
    /// Extends the lease on the sequencer role.
    RenewRole,
    /// Gives up the sequencer role.
    LeaveRole,
    /// Reads the current sequencer, and the number of bytes of all versions in the tables.
    ReadRole,
    /// Stores the compacted revision, so that readers of the tables notice the compaction.
    AnnounceCompaction,
    /// Reads the oldest batches whose garbage a compaction removes.
    ReadGarbage,
    /// Removes superseded versions.
    DeleteVersions,
    /// Removes deleted keys from table `newest`.
    DeleteNewest,
    /// Removes batches from the log after their garbage has been removed.
    DeleteLog,
    /// Subtracts removed versions from the stored number and bytes of all versions.
    CountRemoved,
    /// Inserts or updates this server's row in table `servers`.
    AnnounceServer,
    /// Reads all servers.
    ReadServers,
    /// Removes a server.
    RemoveServer,
    /// Notifies the other servers of a new batch.
    Notify,
    /// Returns whether a compaction has not removed all of its garbage yet.
    HasGarbage,
    /// Reads all records up to a revision, in revision order. The last column is true if the record is the version of
    /// its key that is visible at that revision.
    Records,
    /// Returns whether any key is visible at a revision.
    IsAnyVisible,
}

/// Where the tables `versions` and `newest` are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    /// In the same database as the other tables. A statement reads all tables in one snapshot.
    Local,
    /// Citus distributes the tables over several database servers, which have no common snapshot.
    /// Statements that read these tables return NULL instead of the compacted revision, which must
    /// be read afterwards.
    Distributed,
}

impl Tables {
    /// Returns the column `compacted` of a statement that reads versions.
    const fn compacted(self) -> &'static str {
        match self {
            Self::Local => COMPACTED,
            Self::Distributed => "NULL::bigint AS compacted",
        }
    }
}

/// How a range of keys ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum End {
    /// The range ends before a key.
    Before,
    /// The range has no upper bound.
    Open,
}

impl End {
    /// Returns the condition on column `key`. Parameter 1 is the start of the range, and parameter 2 is
    /// its end. The condition of a range without an end also refers to parameter 2, so that all ranges
    /// have the same parameters.
    const fn condition(self) -> &'static str {
        match self {
            Self::Before => "n.key >= $1 AND n.key < $2",
            Self::Open => "n.key >= $1 AND $2::bytea IS NULL",
        }
    }
}

/// The version of a key at revision `$3`. It is the newest version of the key, unless that version
/// is newer than the revision. In that case, the older version is looked up in table `versions`.
const AT_REVISION: &str = "FROM {s}.newest n LEFT JOIN LATERAL (\
     SELECT v.mod_revision, v.sub, v.deleted, v.record FROM {s}.versions v \
     WHERE n.mod_revision > $3 AND v.key = n.key AND v.mod_revision <= $3 \
     ORDER BY v.mod_revision DESC, v.sub DESC LIMIT 1) o ON true \
     WHERE {range} AND ((n.mod_revision <= $3 AND NOT n.deleted) OR (n.mod_revision > $3 AND NOT o.deleted))";

/// The condition that a key is live at revision `$3`.
const LIVE_AT_REVISION: &str = "CASE WHEN n.mod_revision <= $3 THEN NOT n.deleted ELSE coalesce((\
     SELECT NOT v.deleted FROM {s}.versions v WHERE v.key = n.key AND v.mod_revision <= $3 \
     ORDER BY v.mod_revision DESC, v.sub DESC LIMIT 1), false) END";

/// The version of key `$1` at revision `$2`.
const VERSION_AT: &str = "mod_revision, sub, deleted, record FROM {s}.versions \
     WHERE key = $1 AND mod_revision <= $2 ORDER BY mod_revision DESC, sub DESC LIMIT 1";

/// The records up to revision `$1`. A key that was deleted at exactly that revision is not visible,
/// even if the same request wrote it again.
const RECORDS: &str = "(SELECT mod_revision, sub, deleted, record, \
     NOT deleted AND next IS NULL AND NOT gone AS visible FROM (\
     SELECT v.mod_revision, v.sub, v.deleted, v.record, lead(v.mod_revision) OVER \
     (PARTITION BY v.key ORDER BY v.mod_revision, v.sub) AS next, \
     bool_or(v.deleted AND v.mod_revision = $1) OVER (PARTITION BY v.key) AS gone \
     FROM {s}.versions v WHERE v.mod_revision <= $1) w) r";

impl Statement {
    /// Returns the text of the statement, with the schema filled in.
    pub(crate) fn text(self, schema: &str, tables: Tables) -> String {
        let compacted = tables.compacted();
        let text = match self {
            Self::NewestFactsIn(end) => {
                format!("{NEWEST_FACTS} WHERE {} AND NOT n.deleted {PAGE}", end.condition())
            }
            Self::NewestWholeIn(end) => {
                format!("{NEWEST_WHOLE} WHERE {} AND NOT n.deleted {PAGE}", end.condition())
            }
            Self::VersionsIn(end) => format!(
                "SELECT n.mod_revision, n.sub, n.deleted, n.record FROM {{s}}.versions n WHERE {} \
                 AND (n.key, n.mod_revision, n.sub) > ($3, $4, $5) \
                 ORDER BY n.key, n.mod_revision, n.sub LIMIT $6",
                end.condition()
            ),
            Self::RangeAt { end, whole, descending } => range_at(end, whole, descending, compacted),
            Self::CountAt(end) => format!(
                "SELECT count(*), {compacted} FROM {{s}}.newest n WHERE {} AND n.key <> ALL($4) AND {LIVE_AT_REVISION}",
                end.condition()
            ),
            Self::DivideAt(end) => format!(
                "SELECT l.place, l.key, {compacted}, (SELECT p.written_seq FROM {{s}}.progress p WHERE p.id = 1) \
                 FROM (SELECT k.key, row_number() OVER keys AS place, lead(true) OVER keys IS NULL AS is_last \
                 FROM (SELECT n.key FROM {{s}}.newest n WHERE {} AND n.key NOT IN (SELECT unnest($4::bytea[])) \
                 AND {LIVE_AT_REVISION} ORDER BY n.key LIMIT $6) k \
                 WINDOW keys AS (ORDER BY k.key)) l \
                 WHERE (l.place - 1) % $5 = 0 OR l.is_last ORDER BY l.place",
                end.condition()
            ),
            Self::ReadLog => part_of_log(&LogPart {
                // The content of the batch at the start position is not needed.
                batch: "CASE WHEN seq > $1 THEN batch ELSE ''::bytea END",
                condition: "seq >= $1",
                order: "seq",
                limit: "$2",
                extra: "(SELECT p.written_seq FROM {s}.progress p WHERE p.id = 1)",
            }),
            Self::ReadLogFromRevision => part_of_log(&LogPart {
                batch: "batch",
                condition: "last_revision >= $1 AND seq > $2",
                order: "last_revision, seq",
                limit: "$3",
                extra: COMPACTED,
            }),
            Self::ReadGarbage => part_of_log(&LogPart {
                batch: "batch",
                condition: "seq < $1 AND last_revision < $2",
                order: "seq",
                limit: "$3",
                extra: COMPACTED,
            }),
            Self::Records => format!(
                "SELECT mod_revision, sub, deleted, record, visible FROM {RECORDS} ORDER BY mod_revision, sub"
            ),
            Self::IsAnyVisible => format!("SELECT EXISTS (SELECT 1 FROM {RECORDS} WHERE visible)"),
            Self::VersionAt => version_at(tables),
            fixed => fixed.fixed_text().to_owned(),
        };
        text.replace("{s}", schema)
    }

    /// Returns the text of a statement that [`Statement::text`] does not assemble from several parts.
    fn fixed_text(self) -> &'static str {
        self.text_of_log()
            .or_else(|| self.text_of_tables())
            .or_else(|| self.text_of_spans())
            .or_else(|| self.text_of_role())
            .unwrap_or_default()
    }

    const fn text_of_log(self) -> Option<&'static str> {
        Some(match self {
            Self::AppendLog => {
                "INSERT INTO {s}.log (seq, epoch, nonce, last_revision, batch) \
                 SELECT $1::bigint, s.epoch, s.nonce, $4::bigint, $5::bytea FROM {s}.sequencer s \
                 WHERE s.id = 1 AND s.epoch = $2 AND s.nonce = $3 AND EXISTS (SELECT 1 FROM {s}.log l \
                 WHERE l.seq = $1::bigint - 1 AND l.epoch = $6 AND l.nonce = $7) \
                 FOR SHARE ON CONFLICT DO NOTHING"
            }
            Self::AppendImport => {
                "INSERT INTO {s}.log (seq, epoch, last_revision, batch) VALUES (1, 0, $1, $2)"
            }
            Self::ReadBatch => {
                "SELECT seq, epoch, nonce, last_revision, batch FROM {s}.log WHERE seq = $1"
            }
            Self::TermInLog => "SELECT epoch, nonce FROM {s}.log WHERE seq = $1",
            Self::DeleteLog => {
                "DELETE FROM {s}.log WHERE seq <= $1 AND last_revision < $2 AND \
                 seq < (SELECT p.written_seq FROM {s}.progress p WHERE p.id = 1)"
            }
            Self::HasGarbage => {
                "SELECT EXISTS (SELECT 1 FROM {s}.log l, {s}.progress p WHERE p.id = 1 AND \
                 (p.compacted < $1 OR (l.seq < p.written_seq AND l.last_revision < p.compacted)))"
            }
            Self::Notify => "NOTIFY {s}_log",
            _ => return None,
        })
    }

    const fn text_of_tables(self) -> Option<&'static str> {
        Some(match self {
            Self::ReadProgress => {
                "SELECT written_seq, compacted, records, bytes FROM {s}.progress WHERE id = 1"
            }
            Self::AdvanceProgress => {
                "UPDATE {s}.progress SET written_seq = $2, records = records + $3, bytes = bytes + $4 \
                 WHERE id = 1 AND written_seq = $1"
            }
            Self::LockProgress => {
                "SELECT id FROM {s}.progress WHERE id = 1 AND written_seq = $1 FOR UPDATE"
            }
            Self::EndPrepared => "SELECT recover_prepared_transactions()",
            Self::AddVersions => {
                "INSERT INTO {s}.versions (key, mod_revision, sub, deleted, record) \
                 SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bool[], $5::bytea[]) \
                 ON CONFLICT DO NOTHING"
            }
            Self::SetNewest => {
                "INSERT INTO {s}.newest AS n (key, mod_revision, sub, create_revision, version, lease, deleted, record) \
                 SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], \
                 $6::bigint[], $7::bool[], $8::bytea[]) \
                 ON CONFLICT (key) DO UPDATE SET mod_revision = excluded.mod_revision, sub = excluded.sub, \
                 create_revision = excluded.create_revision, version = excluded.version, lease = excluded.lease, \
                 deleted = excluded.deleted, record = excluded.record \
                 WHERE n.mod_revision < excluded.mod_revision"
            }
            Self::SetFacts => {
                "INSERT INTO {s}.facts (bucket, key, value) \
                 SELECT * FROM unnest($1::int[], $2::bytea[], $3::bytea[]) \
                 ON CONFLICT (bucket, key) DO UPDATE SET value = excluded.value"
            }
            Self::DeleteFacts => {
                "DELETE FROM {s}.facts WHERE (bucket, key) IN (SELECT * FROM unnest($1::int[], $2::bytea[]))"
            }
            Self::ReadFacts => "SELECT bucket, key, value FROM {s}.facts",
            Self::ReadAttachments => "SELECT key, lease FROM {s}.newest WHERE lease <> 0",
            Self::NewestFacts => {
                "SELECT n.key, n.mod_revision, n.sub, n.create_revision, n.version FROM {s}.newest n \
                 WHERE n.key = ANY($1) AND NOT n.deleted"
            }
            Self::NewestWhole => {
                "SELECT n.mod_revision, n.sub, n.record FROM {s}.newest n WHERE n.key = ANY($1) AND NOT n.deleted"
            }
            Self::Compacted => "SELECT compacted FROM {s}.progress WHERE id = 1",
            Self::AnnounceCompaction => {
                "UPDATE {s}.progress SET compacted = $1 WHERE id = 1 AND compacted < $1"
            }
            Self::DeleteVersions => {
                "WITH gone AS (DELETE FROM {s}.versions v USING unnest($1::bytea[], $2::bigint[], $3::bigint[]) \
                 AS g (key, mod_revision, sub) WHERE v.key = g.key AND (v.mod_revision < g.mod_revision OR \
                 (v.mod_revision = g.mod_revision AND v.sub < g.sub)) RETURNING octet_length(v.record) AS size) \
                 SELECT count(*), coalesce(sum(size), 0)::bigint FROM gone"
            }
            Self::DeleteNewest => {
                "DELETE FROM {s}.newest n USING unnest($1::bytea[], $2::bigint[]) AS g (key, mod_revision) \
                 WHERE n.key = g.key AND n.mod_revision = g.mod_revision AND n.deleted"
            }
            Self::CountRemoved => {
                "UPDATE {s}.progress SET records = records - $1, bytes = bytes - $2 WHERE id = 1"
            }
            _ => return None,
        })
    }

    const fn text_of_spans(self) -> Option<&'static str> {
        Some(match self {
            Self::StoreSpans => {
                "INSERT INTO {s}.spans AS o (id, seq, epoch, nonce, key_count, stored, starts, ends, counts) \
                 VALUES (1, $1, $2, $3, $4, now(), $5, $6, $7) \
                 ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, epoch = excluded.epoch, nonce = excluded.nonce, \
                 key_count = excluded.key_count, stored = excluded.stored, starts = excluded.starts, \
                 ends = excluded.ends, counts = excluded.counts \
                 WHERE o.key_count < excluded.key_count OR (o.seq < excluded.seq AND \
                 o.stored < now() - interval '25 seconds' AND \
                 (excluded.key_count > o.key_count * 9 / 10 OR o.stored < now() - interval '5 minutes'))"
            }
            Self::ReadSpans => {
                "SELECT seq, epoch, nonce, starts, ends, counts FROM {s}.spans WHERE id = 1 AND seq > $1"
            }
            _ => return None,
        })
    }

    const fn text_of_role(self) -> Option<&'static str> {
        Some(match self {
            Self::TakeRole => {
                "UPDATE {s}.sequencer SET epoch = epoch + 1, nonce = $5, holder = $1, address = $2, secret = $4, \
                 expires = now() + $3 * interval '1 millisecond' WHERE id = 1 AND (expires < now() OR holder = $1) \
                 RETURNING epoch"
            }
            Self::RenewRole => {
                "UPDATE {s}.sequencer SET expires = now() + $2 * interval '1 millisecond' \
                 WHERE id = 1 AND epoch = $1 AND nonce = $3"
            }
            Self::LeaveRole => {
                "UPDATE {s}.sequencer SET expires = now() - interval '1 second' \
                 WHERE id = 1 AND epoch = $1 AND nonce = $2"
            }
            Self::ReadRole => {
                "SELECT epoch, holder, address, expires < now(), secret, nonce, \
                 (SELECT p.bytes FROM {s}.progress p WHERE p.id = 1) FROM {s}.sequencer WHERE id = 1"
            }
            Self::AnnounceServer => {
                "INSERT INTO {s}.servers (id, name, address, client_urls, seen) VALUES ($1, $2, $3, $4, now()) \
                 ON CONFLICT (id) DO UPDATE SET name = excluded.name, address = excluded.address, \
                 client_urls = excluded.client_urls, seen = excluded.seen"
            }
            Self::ReadServers => {
                "SELECT id, name, address, client_urls, \
                 (extract(epoch FROM now() - seen) * 1000)::bigint FROM {s}.servers ORDER BY id"
            }
            Self::RemoveServer => "DELETE FROM {s}.servers WHERE id = $1",
            _ => return None,
        })
    }
}

fn range_at(end: End, whole: bool, descending: bool, compacted: &str) -> String {
    let newer = "n.mod_revision > $3";
    let of = |column: &str| format!("CASE WHEN {newer} THEN o.{column} ELSE n.{column} END");
    let record = if whole { of("record") } else { format!("CASE WHEN {newer} THEN o.record END") };
    let order = if descending { "DESC" } else { "ASC" };
    format!(
        "SELECT n.key, {}, {}, n.create_revision, n.version, {record}, {compacted} {} ORDER BY n.key {order} LIMIT $4",
        of("mod_revision"),
        of("sub"),
        AT_REVISION.replace("{range}", end.condition())
    )
}

fn version_at(tables: Tables) -> String {
    match tables {
        Tables::Local => format!(
            "SELECT p.compacted, v.mod_revision, v.sub, v.deleted, v.record FROM {{s}}.progress p \
             LEFT JOIN LATERAL (SELECT {VERSION_AT}) v ON true WHERE p.id = 1"
        ),
        Tables::Distributed => format!("SELECT {}, {VERSION_AT}", tables.compacted()),
    }
}

/// A statement that reads batches from the log.
struct LogPart {
    /// The expression for the content of a batch: the column itself, or an expression that omits some contents.
    batch: &'static str,
    /// The condition that a batch must meet to be read.
    condition: &'static str,
    /// The order of the batches.
    order: &'static str,
    /// The parameter for the maximum number of batches.
    limit: &'static str,
    /// The expression for an additional value, which is the same in each row.
    extra: &'static str,
}

/// Returns the text of a statement that reads batches until their contents reach [`LOG_READ_BYTES`]. The last column of
/// a row is the total length of the contents up to and including the batch in that row.
fn part_of_log(part: &LogPart) -> String {
    let LogPart { batch, condition, order, limit, extra } = part;
    format!(
        "SELECT seq, epoch, nonce, last_revision, batch, {extra}, total FROM (\
         SELECT seq, epoch, nonce, last_revision, {batch} AS batch, \
         (sum(octet_length({batch})) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING))::bigint AS total \
         FROM {{s}}.log WHERE {condition} ORDER BY {order} LIMIT {limit}) l \
         WHERE total - octet_length(batch) < {LOG_READ_BYTES} ORDER BY {order}"
    )
}

/// A statement that reads batches from the log stops after this number of bytes. The batch that reaches the limit is
/// still read.
const LOG_READ_BYTES: i64 = 8 << 20;

/// Returns whether the read of the log that ended with this row has reached the limit on the bytes of one read, so that
/// more batches may follow.
pub(crate) fn has_reached_log_limit(last: &tokio_postgres::Row) -> bool {
    last.get::<_, i64>("total") >= LOG_READ_BYTES
}

/// Reads the compacted revision in the same database snapshot as the rest of a statement.
const COMPACTED: &str = "(SELECT p.compacted FROM {s}.progress p WHERE p.id = 1)";
/// Limits a statement to the first keys of a range.
const PAGE: &str = "ORDER BY n.key LIMIT $3";
const NEWEST_FACTS: &str =
    "SELECT n.key, n.mod_revision, n.sub, n.create_revision, n.version FROM {s}.newest n";
const NEWEST_WHOLE: &str = "SELECT n.mod_revision, n.sub, n.record FROM {s}.newest n";

#[cfg(test)]
mod tests {
    use super::*;

    /// The statements that read versions of keys at a revision.
    fn reads_at_a_revision() -> Vec<Statement> {
        let mut statements = vec![Statement::VersionAt];
        for end in [End::Before, End::Open] {
            statements.push(Statement::CountAt(end));
            statements.push(Statement::DivideAt(end));
            for (whole, descending) in [(false, false), (false, true), (true, false), (true, true)]
            {
                statements.push(Statement::RangeAt { end, whole, descending });
            }
        }
        statements
    }

    #[test]
    fn the_compacted_revision_is_read_in_the_same_statement_only_if_the_tables_are_local() {
        for statement in reads_at_a_revision() {
            let local = statement.text("s", Tables::Local);
            assert!(local.contains("p.compacted") && local.contains("s.progress"), "{local}");
            // Ranges of distributed tables are not divided.
            if matches!(statement, Statement::DivideAt(_)) {
                continue;
            }
            let distributed = statement.text("s", Tables::Distributed);
            assert!(!distributed.contains("s.progress"), "{distributed}");
            assert!(distributed.contains("NULL::bigint AS compacted"), "{distributed}");
        }
    }

    #[test]
    fn statements_that_do_not_read_at_a_revision_are_the_same_for_local_and_distributed_tables() {
        for statement in [Statement::AddVersions, Statement::ReadGarbage, Statement::Records] {
            assert_eq!(
                statement.text("s", Tables::Local),
                statement.text("s", Tables::Distributed)
            );
        }
    }
}
