//! Classifies the errors of statements, and decides whether a statement may be repeated.

use quorate_tls::SetupError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// The database did not execute a statement, or did not respond.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseFault {
    /// No connection could be established.
    #[error("cannot connect to the database at {hosts}: {reason}")]
    Unreachable {
        /// The hosts of the database.
        hosts: String,
        /// The reason, without credentials.
        reason: String,
    },
    /// The certificate files cannot be used.
    #[error("cannot set up TLS for the database connection: {0}")]
    Tls(#[from] SetupError),
    /// The database refused the user or the password.
    #[error(
        "the database refused the login: {0}; check the user and password in the URL, passfile or PGPASSWORD"
    )]
    Login(String),
    /// The database does not exist.
    #[error("{0}; create it, or correct the name in the URL")]
    NoDatabase(String),
    /// The user lacks a privilege.
    #[error("the database user lacks a privilege: {0}")]
    Privilege(String),
    /// The database server is a standby, or its sessions are read-only by default.
    #[error(
        "the database is read-only, perhaps because it is a standby: {0}; connect to the primary"
    )]
    ReadOnly(String),
    /// The database server has no disk space.
    #[error("the database server has no disk space: {0}")]
    DiskFull(String),
    /// The database server accepts no more connections.
    #[error("the database server accepts no more connections: {0}")]
    Connections(String),
    /// The tables have the format of a newer version.
    #[error(
        "the tables of schema {schema} have format {found}, but this version supports at most format \
         {supported}; use a newer version"
    )]
    NewerFormat {
        /// The name of the schema.
        schema: String,
        /// The format of the tables.
        found: i32,
        /// The newest supported format.
        supported: i32,
    },
    /// The transaction conflicted with a concurrent transaction, so it had no effect and may be
    /// repeated.
    #[error("the transaction conflicted with a concurrent transaction: {0}")]
    Conflict(String),
    /// The connection was lost or the time limit was exceeded, so the outcome is unknown.
    #[error("the connection to the database was lost: {0}")]
    Lost(String),
    /// A read has failed, or has been overtaken by compactions too often. The text contains the reason.
    #[error("failed to read from the database: {0}")]
    Unread(&'static str),
    /// The database refused a statement for another reason.
    #[error("the database refused a statement: {message} (SQLSTATE {code})")]
    Statement {
        /// The SQLSTATE code.
        code: String,
        /// The message of the database server.
        message: String,
    },
    /// The content of a table is invalid.
    #[error("table {table}: {problem}")]
    Content {
        /// The name of the table.
        table: &'static str,
        /// A description of the problem.
        problem: String,
    },
}

impl DatabaseFault {
    /// Classifies an error of the client library. The messages of the database server contain no
    /// credentials, so they are kept.
    pub(crate) fn of(error: &Error) -> Self {
        let Some(refused) = error.as_db_error() else {
            return Self::Lost(causes(error));
        };
        let message = refused.message().to_owned();
        let code = refused.code();
        if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION]
            .contains(code)
        {
            Self::Login(message)
        } else if *code == SqlState::UNDEFINED_DATABASE {
            Self::NoDatabase(message)
        } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            Self::Privilege(message)
        } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
            Self::ReadOnly(message)
        } else if *code == SqlState::DISK_FULL {
            Self::DiskFull(message)
        } else if *code == SqlState::TOO_MANY_CONNECTIONS {
            Self::Connections(message)
        } else if [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ]
        .contains(code)
        {
            Self::Conflict(message)
        } else if ends_session(code.code()) || has_lost_node(code.code(), &message) {
            Self::Lost(message)
        } else {
            Self::Statement { code: code.code().to_owned(), message }
        }
    }

    /// Returns whether the statement had no effect and can be repeated immediately.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }

    /// Returns whether a later attempt with a new connection may succeed without an operator's
    /// intervention.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::ReadOnly(_)
            | Self::DiskFull(_)
            | Self::Connections(_)
            | Self::Conflict(_)
            | Self::Lost(_)
            | Self::Unread(_) => true,
            Self::Tls(_)
            | Self::Login(_)
            | Self::NoDatabase(_)
            | Self::Privilege(_)
            | Self::NewerFormat { .. }
            | Self::Statement { .. }
            | Self::Content { .. } => false,
        }
    }
}

/// Returns whether an error with this code means that the server ends the connection, or that it is
/// unknown whether the server has executed the statement.
fn ends_session(code: &str) -> bool {
    // 08: the connection has failed. 57P: the server is shutting down, starting up or crashing.
    // 25P03: the session was idle in a transaction. 40003: the outcome is unknown.
    code.starts_with("57P") || code.starts_with("08") || ["25P03", "40003"].contains(&code)
}

/// Returns whether Citus reports that it has lost the connection to a node. If the session already uses
/// this connection, Citus reports its loss as an internal error (XX000).
fn has_lost_node(code: &str, message: &str) -> bool {
    code == "XX000" && message.contains("connection")
}

impl From<Error> for DatabaseFault {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

/// Returns the messages of an error and of its sources.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_end_a_session_are_recognised_by_their_code() {
        for code in ["57P01", "57P03", "08006", "25P03", "40003"] {
            assert!(ends_session(code), "{code}");
        }
        for code in ["57014", "54000", "40001", "25P02"] {
            assert!(!ends_session(code), "{code}");
        }
    }

    #[test]
    fn a_lost_node_connection_is_distinguished_from_other_internal_errors() {
        for message in [
            "failure on connection marked as essential: 127.0.0.1:5432",
            "terminating connection due to unexpected postmaster exit",
        ] {
            assert!(has_lost_node("XX000", message), "{message}");
        }
        assert!(!has_lost_node("XX000", "could not read block 7"));
    }
}
