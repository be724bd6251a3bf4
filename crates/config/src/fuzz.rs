//! Fuzz target: a command line, an environment and a file.

use std::io;

use super::{Surroundings, parse, without_secrets};

/// The path of the configuration file.
const FILE: &str = "/c";

/// Parses a configuration. The data consists of three parts, separated by zero bytes: the words of the command line,
/// one per line; the variables of the environment, one per line; and the file. Any input must yield a configuration or
/// an error, and parsing it again must have the same result.
pub fn any(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut lines = || {
        let text = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        text.lines().map(str::to_owned).collect::<Vec<String>>()
    };
    let (words, environment) = (lines(), lines());
    let environment = environment.iter().filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    let world = World {
        environment: environment.collect(),
        file: parts.next().unwrap_or_default().to_vec(),
    };
    let mut arguments = vec!["quorate".to_owned()];
    arguments.extend(words);
    assert_eq!(without_secrets(&arguments).len(), arguments.len());
    match (parse(&arguments, &world), parse(&arguments, &world)) {
        (Ok(parsed), Ok(again)) => assert_eq!(parsed.config, again.config),
        (Err(exit), Err(again)) => {
            assert_eq!((exit.code, &exit.stderr), (again.code, &again.stderr));
            let has_message = !exit.lines.is_empty() || !exit.stderr.is_empty();
            assert!(exit.code == 0 || has_message, "the error has no message");
        }
        _ => panic!("parsing the same input twice gave different results"),
    }
}

struct World {
    environment: Vec<(String, String)>,
    file: Vec<u8>,
}

impl Surroundings for World {
    fn environment(&self) -> Vec<(String, String)> {
        self.environment.clone()
    }

    fn read_file(&self, path: &str) -> io::Result<Vec<u8>> {
        if path == FILE { Ok(self.file.clone()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn default_host(&self) -> Result<String, String> {
        Ok("10.0.0.1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    #[test]
    fn any_configuration_is_accepted_or_refused_without_a_panic() {
        let flags = b"--name=m1\n--data-dir\n/d\n--listen-client-urls=http://0.0.0.0:2379,http://[::1]:1\n\
            --advertise-client-urls=http://a:2379\n--initial-cluster=m1=http://a:2380,m2=http://b:2380\n\
            --initial-advertise-peer-urls=http://a:2380\n--heartbeat-interval=100\n--election-timeout=1000\n\
            --auto-compaction-mode=periodic\n--auto-compaction-retention=1h30m\n--quota-backend-bytes=-1\n\
            --feature-gates=InitialCorruptCheck=true\n--log-level=warn\n--max-txn-ops=0x80\n--pre-vote=false\n\
            --unsafe-no-fsync\n--backend-batch-interval=1.5s\n--cors=http://x,*\n";
        let environment =
            b"\0ETCD_NAME=m1\nETCD_MAX_WALS=3\nETCD_LISTEN_PEER_URLS=http://h:1\nETCD_UNKNOWN=1\n";
        let file = b"--config-file=/c\n\0\0name: m1\ndata-dir: \"/d\"\nlisten-client-urls: 'http://h:1'\n\
            heartbeat-interval: 0x64\nelection-timeout: 1_000\npre-vote: yes\nquota-backend-bytes: -1\n\
            feature-gates: InitialCorruptCheck=true\nclient-transport-security:\n  cert-file: x\n\
            anchors: &a [1, {b: ~}]\nagain: *a\nlog-outputs: [stderr]\n# comment\n";
        let samples = [
            ("flags", flags.to_vec()),
            ("environment", environment.to_vec()),
            ("file", file.to_vec()),
        ];
        bounded("config", &samples, 4000, super::any);
    }
}
