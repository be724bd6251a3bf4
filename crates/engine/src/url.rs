//! The URL of the database, and the credentials that belong to it.
//!
//! The URL has the format that libpq defines: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE`. Several
//! hosts are separated by commas, and the first host that accepts writes is used. In addition to the parameters of the
//! client library, `schema` selects one of several keyspaces in the same database, and `sslmode`, `sslrootcert`,
//! `sslcert`, `sslkey` and `passfile` have the same meaning as in libpq. The values `allow` and `verify-ca` of
//! `sslmode` are not supported. Missing credentials come from the environment variables `PGUSER`, `PGPASSWORD` and
//! `PGPASSFILE`.
//!
//! # Invariants
//!
//! * No error and no `Debug` output contains a password. Errors about the URL never quote the URL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// Name of the schema if the URL does not specify one.
const SCHEMA_DEFAULT: &str = "quorate";
/// The time limit for a connection attempt to one host, unless the URL sets `connect_timeout`.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Time without an acknowledgement after which the operating system closes a connection.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Whether TLS is used, and how the database server's certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// TLS is not used.
    NoTls,
    /// TLS is used if the server supports it. The certificate is not checked.
    Preferred,
    /// TLS is required. The certificate is not checked.
    Encrypted,
    /// TLS is required, and the certificate must be valid for the host.
    Full,
}

/// The hosts of the database, the schema, and the credentials.
#[derive(Clone)]
pub struct DatabaseUrl {
    pub(crate) config: Config,
    pub(crate) schema: String,
    pub(crate) verification: Verification,
    pub(crate) root_certificate: Option<PathBuf>,
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
}

/// The reason why a database URL is refused.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// The text is not a valid database URL.
    #[error(
        "the database URL is not valid; expected postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE, \
         with special characters percent-encoded"
    )]
    Invalid,
    /// The value of a parameter is invalid.
    #[error("the parameter {name} of the database URL is not valid: {problem}")]
    Parameter {
        /// The name of the parameter.
        name: &'static str,
        /// A description of the problem.
        problem: String,
    },
    /// The password file cannot be read.
    #[error("cannot read the password file {}: {error}", path.display())]
    PasswordFile {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the file cannot be read.
        error: std::io::Error,
    },
}

/// The parameters that this module interprets.
#[derive(Default)]
struct Parameters {
    schema: Option<String>,
    ssl_mode: Option<String>,
    root_certificate: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    password_file: Option<PathBuf>,
}

impl DatabaseUrl {
    /// Parses a URL. `environment` returns the value of an environment variable.
    ///
    /// # Errors
    ///
    /// If the URL is invalid, or the password file that it names cannot be read.
    pub fn parse(
        url: &str,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, UrlError> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(UrlError::Invalid);
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (parameters, others) = Parameters::take(query)?;
        let rest = if others.is_empty() { base.to_owned() } else { format!("{base}?{others}") };
        // The error of the client library is dropped, because it may quote parts of the URL.
        let mut config: Config = rest.parse().map_err(|_| UrlError::Invalid)?;
        let count = config.get_hosts().len();
        let fits = |values: usize, may_be_shared: bool| {
            values == 0 || values == count || may_be_shared && values == 1
        };
        if count == 0
            || !fits(config.get_ports().len(), true)
            || !fits(config.get_hostaddrs().len(), false)
        {
            return Err(UrlError::Invalid);
        }
        let schema = parameters.schema.unwrap_or_else(|| SCHEMA_DEFAULT.to_owned());
        check_schema(&schema)?;
        let (verification, ssl_mode) = verification(parameters.ssl_mode.as_deref())?;
        config.ssl_mode(ssl_mode).application_name("quorate");
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIME_MAX);
        }
        config.keepalives_idle(SILENCE_MAX / 3).keepalives_interval(SILENCE_MAX / 3);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_MAX);
        }
        // A standby may lag behind the primary, so reads from it could be stale.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_user().is_none()
            && let Some(user) = environment("PGUSER")
        {
            config.user(user);
        }
        let file = parameters.password_file;
        add_password(&mut config, file, environment)?;
        let client_certificate = match (parameters.certificate, parameters.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                let problem = "sslcert and sslkey must be set together".to_owned();
                return Err(UrlError::Parameter { name: "sslcert", problem });
            }
        };
        let root_certificate = parameters.root_certificate;
        Ok(Self { config, schema, verification, root_certificate, client_certificate })
    }

    /// Returns the hosts and ports, for messages.
    pub(crate) fn hosts(&self) -> String {
        let ports = self.config.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let hosts = self.config.get_hosts().iter().enumerate().map(|(at, host)| match host {
            Host::Tcp(name) => format!("{name}:{}", port(at)),
            Host::Unix(path) => path.display().to_string(),
        });
        hosts.collect::<Vec<_>>().join(",")
    }
}

/// Shows the hosts, the database and the schema, but no credentials.
impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseUrl")
            .field("hosts", &self.hosts())
            .field("database", &self.config.get_dbname())
            .field("schema", &self.schema)
            .field("verification", &self.verification)
            .finish_non_exhaustive()
    }
}

impl Parameters {
    /// Extracts the parameters that this module interprets. Returns the other parameters unchanged.
    fn take(query: &str) -> Result<(Self, String), UrlError> {
        let mut taken = Self::default();
        let mut others = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let text = || percent_decoded(value).ok_or(UrlError::Invalid);
            match name {
                "schema" => taken.schema = Some(text()?),
                "sslmode" => taken.ssl_mode = Some(text()?),
                "sslrootcert" => taken.root_certificate = Some(text()?.into()),
                "sslcert" => taken.certificate = Some(text()?.into()),
                "sslkey" => taken.key = Some(text()?.into()),
                "passfile" => taken.password_file = Some(text()?.into()),
                _ => others.push(part),
            }
        }
        Ok((taken, others.join("&")))
    }
}

/// Checks the name of a schema. The name is inserted into every statement without quotation marks, so
/// only plain names are accepted.
fn check_schema(schema: &str) -> Result<(), UrlError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let starts_plainly = schema.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if starts_plainly && schema.len() <= 63 && schema.bytes().all(plain) {
        return Ok(());
    }
    let problem = format!(
        "{schema:?} must consist of lower-case letters, digits and underscores, and be at most 63 bytes long"
    );
    Err(UrlError::Parameter { name: "schema", problem })
}

fn verification(mode: Option<&str>) -> Result<(Verification, SslMode), UrlError> {
    match mode {
        None | Some("prefer") => Ok((Verification::Preferred, SslMode::Prefer)),
        Some("disable") => Ok((Verification::NoTls, SslMode::Disable)),
        Some("require") => Ok((Verification::Encrypted, SslMode::Require)),
        Some("verify-full") => Ok((Verification::Full, SslMode::Require)),
        Some(other) => {
            let problem =
                format!("{other:?} is not supported; use disable, prefer, require or verify-full");
            Err(UrlError::Parameter { name: "sslmode", problem })
        }
    }
}

fn add_password(
    config: &mut Config,
    file: Option<PathBuf>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<(), UrlError> {
    if config.get_password().is_some() {
        return Ok(());
    }
    if let Some(path) = file.or_else(|| environment("PGPASSFILE").map(PathBuf::from)) {
        if let Some(password) = password_in_file(&path, config)? {
            config.password(password);
        }
    } else if let Some(password) = environment("PGPASSWORD") {
        config.password(password);
    }
    Ok(())
}

/// Returns the password in the first matching line of a password file. The lines have libpq's format,
/// `host:port:database:user:password`.
fn password_in_file(path: &Path, config: &Config) -> Result<Option<String>, UrlError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| UrlError::PasswordFile { path: path.to_owned(), error })?;
    let user = config.get_user().unwrap_or_default().to_owned();
    let database = config.get_dbname().unwrap_or(&user).to_owned();
    let hosts: Vec<String> = config.get_hosts().iter().map(host_text).collect();
    let ports: Vec<String> = match config.get_ports() {
        [] => vec!["5432".to_owned()],
        ports => ports.iter().map(u16::to_string).collect(),
    };
    let line = text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = password_fields(line);
        let [line_host, line_port, line_database, line_user, password] = &fields[..] else {
            return None;
        };
        let fits = |field: &String, wanted: &[String]| field == "*" || wanted.contains(field);
        let all = fits(line_host, &hosts)
            && fits(line_port, &ports)
            && fits(line_database, std::slice::from_ref(&database))
            && fits(line_user, std::slice::from_ref(&user));
        all.then(|| password.clone())
    });
    Ok(line)
}

fn host_text(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(_) => "localhost".to_owned(),
    }
}

/// Splits a line of the password file at its colons. A backslash makes the next character literal.
fn password_fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let next = match character {
            ':' if fields.len() < 5 => {
                fields.push(String::new());
                None
            }
            '\\' => characters.next(),
            other => Some(other),
        };
        fields.last_mut().expect("the list starts with one field").extend(next);
    }
    fields
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<DatabaseUrl, UrlError> {
        DatabaseUrl::parse(url, |_| None)
    }

    #[test]
    fn a_url_is_parsed_with_all_its_parameters() {
        let url = parse(
            "postgres://u:p%40ss@h1:1,h2:2/db?schema=blue&sslmode=verify-full&sslrootcert=%2Fca.pem&connect_timeout=3",
        )
        .unwrap();
        assert_eq!(url.hosts(), "h1:1,h2:2");
        assert_eq!((url.schema.as_str(), url.verification), ("blue", Verification::Full));
        assert_eq!(url.root_certificate, Some("/ca.pem".into()));
        assert_eq!(url.config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(url.config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(url.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }

    #[test]
    fn neither_errors_nor_debug_output_contain_the_password() {
        let shown = format!("{:?}", parse("postgres://u:geheim@h/db").unwrap());
        assert!(!shown.contains("geheim") && shown.contains("h:5432"), "{shown}");
        for url in [
            "postgres://u:geheim@h:port/db",
            "postgres://u:geheim@h/db?schema=Bad-Name",
            "postgres://u:geheim@h/db?geheim=1",
            "postgres://u:geheim@h/db?sslmode=verify-ca",
            "mysql://u:geheim@h/db",
            "postgres://u:geheim@/db",
        ] {
            let error = parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("geheim"), "{url}: {error}");
        }
    }

    #[test]
    fn each_host_has_one_port_and_at_most_one_address() {
        for url in [
            "postgres://h/db?port=5433",
            "postgres://h1,h2/db?hostaddr=10.0.0.1",
            "postgres://h1,h2/db?port=1",
        ] {
            assert!(matches!(parse(url), Err(UrlError::Invalid)), "{url}");
        }
        parse("postgres://h1:1,h2:2/db?hostaddr=10.0.0.1,10.0.0.2").unwrap();
    }

    #[test]
    fn a_missing_password_comes_from_the_file_or_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pass");
        std::fs::write(&path, "# a comment\nother:*:*:*:no\nh:5432:db:u:a\\:b\n").unwrap();
        let with_file = format!("postgres://u@h/db?passfile={}", path.display());
        let environment = |name: &str| (name == "PGPASSWORD").then(|| "env".to_owned());
        for (url, expected) in [
            (with_file.as_str(), Some(&b"a:b"[..])),
            ("postgres://u@h/db", Some(b"env")),
            ("postgres://u:url@h/db", Some(b"url")),
        ] {
            let url = DatabaseUrl::parse(url, environment).unwrap();
            assert_eq!(url.config.get_password(), expected);
        }
        let missing = DatabaseUrl::parse("postgres://h/db?passfile=/no/such/file", environment);
        assert!(matches!(missing, Err(UrlError::PasswordFile { .. })));
    }
}
