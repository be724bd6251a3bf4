//! Tests of the container: the image matches its digests, and a member runs in the root file system without other
//! files.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command};

use quorate_tests::{Kind, Options, eventually_ok, skipped};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::packed::file;
use crate::place::is_root;

fn digest(bytes: &[u8]) -> String {
    let sum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{sum}")
}

fn unpack(archive: &Path) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new("tar");
    command.arg("-xpf").arg(archive).arg("-C").arg(folder.path());
    assert!(command.status().unwrap().success());
    folder
}

/// Returns the blob of a descriptor, after checking its digest and size.
fn blob(image: &Path, descriptor: &Value) -> Vec<u8> {
    let name = descriptor["digest"].as_str().unwrap();
    let bytes = std::fs::read(image.join("blobs").join(name.replace(':', "/"))).unwrap();
    assert_eq!(digest(&bytes), name);
    assert_eq!(descriptor["size"], bytes.len());
    bytes
}

/// Parses a JSON file of the unpacked image.
fn json(image: &Path, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(image.join(name)).unwrap()).unwrap()
}

/// Returns the manifest of the unpacked image, and its configuration.
fn manifest(image: &Path) -> (Value, Value) {
    let parsed = |bytes: Vec<u8>| -> Value { serde_json::from_slice(&bytes).unwrap() };
    let manifest = parsed(blob(image, &json(image, "index.json")["manifests"][0]));
    let config = parsed(blob(image, &manifest["config"]));
    (manifest, config)
}

/// Returns the environment variables that the image sets.
pub(crate) fn environment() -> Vec<(String, String)> {
    let image = unpack(&file("quorate-", ".oci.tar"));
    let (_, config) = manifest(image.path());
    let lines = config["config"]["Env"].as_array().unwrap().iter();
    let pairs = lines.map(|line| line.as_str().unwrap().split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn the_image_is_consistent_and_its_layer_contains_the_root_filesystem() {
    let image = unpack(&file("quorate-", ".oci.tar"));
    let image = image.path();
    assert_eq!(json(image, "oci-layout")["imageLayoutVersion"], "1.0.0");
    let (manifest, config) = manifest(image);
    let layer = blob(image, &manifest["layers"][0]);
    assert!(layer == std::fs::read(file("quorate-", ".rootfs.tar.gz")).unwrap());
    let mut unpacked = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(&layer[..]);
    std::io::copy(&mut reader, &mut unpacked).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"][0], digest(&unpacked));
    let run = &config["config"];
    assert_eq!(run["User"], "65532:65532");
    assert_eq!(run["Entrypoint"][0], "/usr/bin/quorate");
    assert!(run["Volumes"]["/var/lib/quorate"].is_object());

    // The manifest for `docker load` lists the same files.
    let list = json(image, "manifest.json");
    let path = |descriptor: &Value| {
        format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"))
    };
    assert_eq!(list[0]["Config"], path(&manifest["config"]));
    assert_eq!(list[0]["Layers"][0], path(&manifest["layers"][0]));

    // The Dockerfile describes the same image, plus the health check, which the image format does not support.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let recipe = std::fs::read_to_string(root.join("packaging/container/Dockerfile")).unwrap();
    let said = |instruction: &str| {
        let line = recipe.lines().find_map(|line| line.strip_prefix(instruction));
        line.unwrap_or_else(|| panic!("the Dockerfile has no {instruction}")).trim().to_owned()
    };
    assert_eq!(said("USER"), run["User"]);
    assert_eq!(said("ENTRYPOINT"), run["Entrypoint"].to_string());
    assert_eq!(said("WORKDIR"), run["WorkingDir"]);
    assert_eq!(said("STOPSIGNAL"), run["StopSignal"]);
    assert_eq!(said("VOLUME"), format!("[{}]", "\"/var/lib/quorate\""));
    let variables = run["Env"].as_array().unwrap().iter().map(|line| line.as_str().unwrap());
    let words = said("ENV");
    assert_eq!(words.split(' ').collect::<Vec<_>>(), variables.collect::<Vec<_>>());
    let health = recipe.lines().find(|line| line.trim().starts_with("CMD ")).unwrap();
    assert_eq!(health.trim(), r#"CMD ["/usr/bin/quorate", "ctl", "endpoint", "health"]"#);
}

#[test]
fn programs_with_the_names_of_etcd_can_be_copied_out_of_the_image() {
    let unpacked = unpack(&file("quorate-", ".rootfs.tar.gz"));
    let inode = |path: &str| {
        let found = std::fs::symlink_metadata(unpacked.path().join(path)).unwrap();
        assert!(found.is_file(), "{path}: {found:?}");
        found.ino()
    };
    for name in ["etcd", "etcdctl", "etcdutl"] {
        assert_eq!(inode(&format!("usr/local/bin/{name}")), inode("usr/bin/quorate"), "{name}");
    }
}

/// Returns a command that runs a program with `root` as its root directory.
fn within(root: &Path, program: &str) -> Command {
    if is_root() {
        let mut command = Command::new("chroot");
        command.arg("--userspec=65532:65532").arg(root).arg(program);
        command
    } else {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--root"]).arg(root).arg(program);
        command
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may already have exited.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn a_member_runs_in_the_root_alone(kind: Kind) {
    let unpacked = unpack(&file("quorate-", ".rootfs.tar.gz"));
    let root = unpacked.path();
    let tried = within(root, "/usr/local/bin/etcd").arg("--version").output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        // If `chroot` fails even as root, missing privileges are not the reason.
        assert!(!is_root(), "{tried:?}");
        return skipped("tests of the container (no permission to change the root directory)");
    }
    assert!(!root.join("bin/sh").exists(), "the image contains no shell");
    let ports = Options::new(kind).unguarded().prepare();
    let (client, peer) = (ports.url(), ports.peer_url());
    let mut command = within(root, "/usr/bin/quorate");
    // `chroot` and `unshare` are found through the `PATH` of this machine.
    command.envs(environment().into_iter().filter(|(name, _)| name != "PATH"));
    command.env("ETCD_LOG_OUTPUTS", "stderr");
    command.args([
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
    ]);
    let log = ports.scratch().join("container.log");
    let mut member = Running(command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap());
    // The test runs the same health check as the Dockerfile.
    eventually_ok(quorate_tests::DEADLINE, "the member is healthy", async || {
        let ended = member.0.try_wait().unwrap();
        assert!(ended.is_none(), "{}", std::fs::read_to_string(&log).unwrap());
        let mut health = within(root, "/usr/bin/quorate");
        health.args(["ctl", "endpoint", "health"]).env("ETCDCTL_ENDPOINTS", &client);
        let said = health.output().unwrap();
        if said.status.success() { Ok(()) } else { Err(said) }
    })
    .await;
    assert!(root.join("var/lib/quorate/default/member/snap/db").exists());
}

#[test]
fn a_member_runs_in_the_containers_root() {
    quorate_tests::run(Kind::Quorate, a_member_runs_in_the_root_alone);
}
