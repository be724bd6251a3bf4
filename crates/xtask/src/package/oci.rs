//! A container image in the OCI layout: one archive with one layer.
//!
//! In addition to the OCI index, the archive contains the manifest list that `docker load` reads, so that all common
//! tools accept the archive. The OCI format does not support health checks. The Docker image built from
//! `packaging/container/Dockerfile` does have one.

use serde_json::{Value, json};

use super::digest;
use super::tree::Tree;

/// The user id of the process. No other process on a host should run under this id.
pub(super) const USER: u32 = 65532;
/// The data directory, which must be a volume.
pub(super) const HOME: &str = "/var/lib/quorate";

/// Facts about the image that its metadata contains.
pub(super) struct About<'a> {
    pub(super) version: &'a str,
    pub(super) revision: Option<&'a str>,
    pub(super) architecture: &'a str,
    /// The time of the commit, in seconds since 1970.
    pub(super) time: u64,
}

/// Builds the image for a root file system, given its compressed archive and the digest of the uncompressed archive.
pub(super) fn image(
    layer_digest: &str,
    compressed: &[u8],
    about: &About<'_>,
) -> Result<Vec<u8>, String> {
    let config = config(layer_digest, about).to_string().into_bytes();
    let mut files = Tree::default();
    let mut blob = |bytes: &[u8]| {
        let path = format!("blobs/sha256/{}", digest(bytes));
        files.file(&path, 0o644, bytes);
        path
    };
    let layer_path = blob(compressed);
    let config_path = blob(&config);
    let descriptor = |kind: &str, bytes: &[u8]| {
        let media = format!("application/vnd.oci.image.{kind}");
        json!({
            "mediaType": media, "digest": format!("sha256:{}", digest(bytes)), "size": bytes.len(),
        })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", &config),
        "layers": [descriptor("layer.v1.tar+gzip", compressed)],
        "annotations": labels(about),
    })
    .to_string();
    blob(manifest.as_bytes());
    // Image tags must not contain a tilde.
    let tag = about.version.replace('~', "-");
    let mut entry = descriptor("manifest.v1+json", manifest.as_bytes());
    entry["platform"] = json!({"architecture": about.architecture, "os": "linux"});
    entry["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/quorate:{tag}"),
        "org.opencontainers.image.ref.name": tag,
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });
    let for_docker = json!([{
        "Config": config_path, "RepoTags": [format!("quorate:{tag}")], "Layers": [layer_path],
    }]);
    files.file("index.json", 0o644, index.to_string());
    files.file("manifest.json", 0o644, for_docker.to_string());
    files.file("oci-layout", 0o644, json!({"imageLayoutVersion": "1.0.0"}).to_string());
    files.archive("", about.time)
}

fn config(layer_digest: &str, about: &About<'_>) -> Value {
    let created = date(about.time);
    let volume = HOME;
    json!({
        "architecture": about.architecture,
        "os": "linux",
        "created": created,
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": ["/usr/bin/quorate"],
            "Env": [
                "PATH=/usr/local/bin:/usr/bin",
                // Unlike `ETCD_DATA_DIR`, this variable may be set together with the flag `--data-dir`.
                format!("QUORATE_DEFAULT_DATA_DIR={HOME}/default"),
            ],
            "ExposedPorts": {"2379/tcp": {}, "2380/tcp": {}},
            "Volumes": {volume: {}},
            "WorkingDir": HOME,
            "StopSignal": "SIGTERM",
            "Labels": labels(about),
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
        "history": [{"created": created, "created_by": "cargo xtask package"}],
    })
}

fn labels(about: &About<'_>) -> Value {
    let mut labels = json!({
        "org.opencontainers.image.title": "quorate",
        "org.opencontainers.image.description": super::SUMMARY,
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
        "org.opencontainers.image.version": about.version,
        "org.opencontainers.image.created": date(about.time),
    });
    if let Some(revision) = about.revision {
        labels["org.opencontainers.image.revision"] = json!(revision);
    }
    labels
}

/// Formats seconds since 1970 as a date (RFC 3339).
fn date(time: u64) -> String {
    let (days, second) = (time / 86_400, time % 86_400);
    // Years begin in March here, so that a leap day is the last day of its year. 719,468 days lie between 1 March of
    // year 0 and 1 January 1970.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_times_are_formatted_as_calendar_dates() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_795_420_866), "2026-11-23T08:01:06Z");
    }
}
