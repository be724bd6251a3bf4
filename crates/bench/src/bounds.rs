//! Upper limits for the numeric flags of a run, so that a mistyped number is refused before memory is allocated for it.
//!
//! The limits are far above what servers can handle. The total size of in-flight requests is limited as well.

use crate::cli::{Cli, Load, Options};
use crate::error::BenchError;

const VALUE_BYTES_MAX: u64 = 64 << 20;
const KEY_BYTES_MAX: u64 = 1 << 20;
/// The maximum total size of all in-flight requests, in bytes.
const FLIGHT_BYTES_MAX: u64 = 2 << 30;
const CLIENTS_MAX: u64 = 1_000_000;
/// The maximum number of connections: one for each source port of the machine.
const CONNECTIONS_MAX: u64 = 65_535;
const THREADS_MAX: u64 = 1024;
/// The maximum number of keys. It is low enough that sums of key numbers do not overflow.
const KEYS_MAX: u64 = 1 << 60;
/// The maximum number of objects. There is a limit because the state of each object is kept in memory.
const OBJECTS_MAX: u64 = 100_000_000;
const WATCHERS_MAX: u64 = 10_000_000;
const STREAMS_MAX: u64 = 1_000_000;

/// Refuses a command line that exceeds the limits.
pub(crate) fn check(cli: &Cli) -> Result<(), BenchError> {
    let Options { clients, connections, threads, keys, key_size, value_size, .. } = &cli.options;
    let mut asked = vec![
        ("--value-size", wide(*value_size), VALUE_BYTES_MAX, " bytes"),
        ("--key-size", wide(*key_size), KEY_BYTES_MAX, " bytes"),
        ("--clients", wide(*clients), CLIENTS_MAX, ""),
        ("--connections", wide(*connections), CONNECTIONS_MAX, ""),
        ("--threads", wide(*threads), THREADS_MAX, ""),
        ("--keys", *keys, KEYS_MAX, ""),
    ];
    match &cli.load {
        Load::Watch(args) => asked.extend([
            ("--watchers", args.watchers, WATCHERS_MAX, ""),
            ("--watched-keys", args.watched_keys, WATCHERS_MAX, ""),
            ("--streams", wide(args.streams), STREAMS_MAX, ""),
            ("--watch-connections", wide(args.watch_connections), CONNECTIONS_MAX, ""),
        ]),
        Load::Kubernetes(args) => asked.extend([
            ("--watchers", args.watchers, WATCHERS_MAX, ""),
            ("--keys", *keys, OBJECTS_MAX, ""),
        ]),
        _ => {}
    }
    for (flag, given, max, unit) in asked {
        if given > max {
            let text = format!("{flag} is {given}; the maximum is {max}{unit}");
            return Err(BenchError::Usage(text));
        }
    }
    let in_flight = wide(*clients).saturating_mul(wide(*key_size) + wide(*value_size));
    if in_flight > FLIGHT_BYTES_MAX {
        let text = format!(
            "{clients} clients with keys of {key_size} and values of {value_size} bytes have {in_flight} bytes in \
             flight; the maximum is {FLIGHT_BYTES_MAX}: reduce --clients"
        );
        return Err(BenchError::Usage(text));
    }
    Ok(())
}

const fn wide(number: usize) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::read_line;

    fn refusal(line: &str) -> Option<String> {
        let cli = read_line(line, &[]).unwrap();
        check(&cli).err().map(|error| error.to_string())
    }

    #[test]
    fn loads_beyond_the_limits_are_refused() {
        for line in [
            "put",
            "put --value-size=1048576 --clients=1000",
            "put --clients=100000 --connections=10000",
            "watch --watchers=1000000 --streams=1000",
            "kubernetes --keys=1000000",
        ] {
            assert_eq!(refusal(line), None, "{line}");
        }
        for (line, flag) in [
            ("put --value-size=99999999999", "--value-size is 99999999999"),
            ("put --value-size=18446744073709551615", "--value-size is 18446744073709551615"),
            ("put --key-size=18446744073709551615", "--key-size"),
            ("range --clients=18446744073709551615", "--clients"),
            ("put --connections=65536", "--connections"),
            ("put --threads=100000", "--threads"),
            ("fill --keys=18446744073709551615 --key-size=64", "--keys"),
            ("kubernetes --keys=1000000000", "--keys"),
            ("kubernetes --watchers=9999999999", "--watchers"),
            ("watch --watchers=9999999999", "--watchers"),
            ("watch --streams=9999999999", "--streams"),
            ("watch --watched-keys=9999999999", "--watched-keys"),
            ("watch --watch-connections=9999999999", "--watch-connections"),
            ("put --value-size=67108864", "bytes in flight"),
        ] {
            let refusal = refusal(line).unwrap_or_else(|| panic!("{line} was not refused"));
            assert!(refusal.contains(flag) && refusal.contains("the maximum is"), "{refusal}");
        }
    }
}
