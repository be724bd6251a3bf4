//! Log lines about limits: the configured limits at startup, with a warning about unwise values, and later that the
//! backend quota is exceeded.

use quorate_state::quota::Quota;

use quorate_config::Config;
use quorate_telemetry::log;

const QUOTA_BYTES_DEFAULT: i64 = 2 << 30;
const QUOTA_BYTES_RECOMMENDED: i64 = 8 << 30;
const REQUEST_BYTES_RECOMMENDED: u64 = 10 << 20;

/// The name of the quota in the notices.
const QUOTA_NAME: &str = "v3-applier";

/// Logs the limits set by the flags.
pub fn log_limits(config: &Config) {
    let request_bytes = config.max_request_bytes;
    if request_bytes > REQUEST_BYTES_RECOMMENDED {
        log::warn!(
            "exceeded recommended request limit",
            "max-request-bytes" = request_bytes,
            "max-request-size" = size_text(request_bytes),
            "recommended-request-bytes" = REQUEST_BYTES_RECOMMENDED,
            "recommended-request-size" = size_text(REQUEST_BYTES_RECOMMENDED)
        );
    }
    let given = config.quota_backend_bytes;
    let Ok(quota_bytes) = u64::try_from(given) else {
        log::info!("disabled backend quota", "quota-name" = QUOTA_NAME, "quota-size-bytes" = given);
        return;
    };
    if quota_bytes == 0 {
        log::info!(
            "enabled backend quota with default value",
            "quota-name" = QUOTA_NAME,
            "quota-size-bytes" = QUOTA_BYTES_DEFAULT,
            "quota-size" = size_text(QUOTA_BYTES_DEFAULT.unsigned_abs())
        );
        return;
    }
    if given > QUOTA_BYTES_RECOMMENDED {
        log::warn!(
            "quota exceeds the maximum value",
            "quota-name" = QUOTA_NAME,
            "quota-size-bytes" = given,
            "quota-size" = size_text(quota_bytes),
            "quota-maximum-size-bytes" = QUOTA_BYTES_RECOMMENDED,
            "quota-maximum-size" = size_text(QUOTA_BYTES_RECOMMENDED.unsigned_abs())
        );
    }
    log::info!(
        "enabled backend quota",
        "quota-name" = QUOTA_NAME,
        "quota-size-bytes" = given,
        "quota-size" = size_text(quota_bytes)
    );
}

/// Logs that the backend quota is exceeded, and how to recover.
pub(crate) fn warn_of_full_store(quota: Quota, size_bytes: u64) {
    let quota_bytes = quota.bytes_max().unwrap_or(u64::MAX);
    log::warn!(
        "message exceeded backend quota; raising alarm",
        "quota-size-bytes" = quota_bytes,
        "quota-size" = size_text(quota_bytes),
        "backend-size-bytes" = size_bytes,
        "backend-size" = size_text(size_bytes),
        "advice" = "delete keys, compact, defragment every member, then disarm the alarm; or restart all members with \
         a larger --quota-backend-bytes, then disarm the alarm"
    );
}

/// Formats a number of bytes with a decimal unit. Numbers below ten have one decimal place: `2.1 GB`, `268 MB`.
fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut unit_bytes = 1_u64;
    let mut unit = 0;
    while bytes / unit_bytes >= 1000 {
        unit_bytes *= 1000;
        unit += 1;
    }
    let name = UNITS[unit];
    if bytes < 10 {
        return format!("{bytes} {name}");
    }
    let tenths = (u128::from(bytes) * 10 + u128::from(unit_bytes) / 2) / u128::from(unit_bytes);
    let (whole, rest) = (tenths / 10, tenths % 10);
    if whole < 10 {
        return format!("{whole}.{rest} {name}");
    }
    // A tie is rounded to the even digit.
    let rounds_up = rest > 5 || (rest == 5 && whole % 2 == 1);
    format!("{} {name}", whole + u128::from(rounds_up))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted_as_in_etcd() {
        for (bytes, text) in [
            (0, "0 B"),
            (9, "9 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (9_960, "10 kB"),
            (10 << 20, "10 MB"),
            (20 << 20, "21 MB"),
            (2 << 30, "2.1 GB"),
            (8 << 30, "8.6 GB"),
            (i64::MAX.unsigned_abs(), "9.2 EB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }
}
