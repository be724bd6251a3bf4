//! `package` builds the release and packs it: Debian packages, a container image, its root file system, and the
//! checksums of all files.
//!
//! Two runs on one commit produce the same bytes: every timestamp is the commit's (or `SOURCE_DATE_EPOCH`), the owner
//! of every file is fixed, archive entries are sorted, and the program contains no path of the build machine. The image
//! contains the C library of the build machine, and the summary names the version of that library. Identical programs
//! also require the same C compiler and the same Rust toolchain, which `rust-toolchain.toml` pins.
//!
//! Not here: signing, uploading, the other parts of a release (`release`), and a static program, which would need a
//! toolchain with another C library.

mod base;
mod contents;
mod deb;
mod elf;
mod oci;
mod tree;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::{Compression, GzBuilder};

use crate::workspace::{cargo, digest, output, root, status, target};
use crate::{Outcome, say, train};

/// The one-line description of the packages.
const SUMMARY: &str = "consistent key-value store that speaks etcd's protocols";

const USAGE: &str = "usage: cargo xtask package [--binary PATH] [--into FOLDER]";

/// File contents by file name.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Builds and packs the program. `--binary` packs an existing program, and `--into` sets the destination.
pub(crate) fn run(args: &[String]) -> Outcome {
    let (binary, folder) = read_args(args)?;
    let folder = match folder {
        Some(folder) => folder,
        None => target()?.join("package"),
    };
    let (files, summary) = make(binary, &folder, Naming::Commit)?;
    say(&format!("{summary}packed into {}:", folder.display()));
    write(&folder, &with_sums(files))
}

/// The source of a package's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// The version is derived from the commit, unless the commit has a release tag.
    Commit,
    /// The version of the release about to be tagged.
    Release,
}

/// Builds the program unless one is given, and packs it. Returns all files by name, without checksums, and
/// notes for the user.
pub(crate) fn make(
    binary: Option<PathBuf>,
    folder: &Path,
    naming: Naming,
) -> Result<(Files, String), String> {
    let mut commit = Commit::read()?;
    if naming == Naming::Release {
        env!("CARGO_PKG_VERSION").clone_into(&mut commit.version);
    }
    let path = match binary {
        Some(path) => path,
        None => build(&folder.join("build"))?,
    };
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let needs = elf::needs(&bytes).map_err(|why| format!("{}: {why}", path.display()))?;
    let program =
        contents::Program { path: &path, bytes: &bytes, needs: &needs, version: &commit.version };
    pack(&program, &commit)
}

/// Parses the paths of the existing program and of the destination directory.
pub(crate) fn read_args(args: &[String]) -> Result<(Option<PathBuf>, Option<PathBuf>), String> {
    let (mut binary, mut folder) = (None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let place = match arg.as_str() {
            "--binary" => &mut binary,
            "--into" => &mut folder,
            _ => return Err(USAGE.to_owned()),
        };
        *place = Some(PathBuf::from(args.next().ok_or(USAGE)?));
    }
    Ok((binary, folder))
}

/// Returns all files by name, and notes for the user.
fn pack(program: &contents::Program<'_>, commit: &Commit) -> Result<(Files, String), String> {
    let (version, architecture) = (&commit.version, program.needs.architecture);
    let mut summary = String::new();
    match program.needs.glibc {
        Some((major, minor)) => writeln!(summary, "the program needs glibc {major}.{minor}"),
        None => writeln!(summary, "the program needs no C library"),
    }
    .expect("writing to a string cannot fail");
    let (container, glibc) = contents::root_of_container(program)?;
    if let Some(glibc) = glibc {
        writeln!(summary, "the container has {glibc}").expect("writing to a string cannot fail");
    }
    let about =
        oci::About { version, revision: commit.hash.as_deref(), architecture, time: commit.time };
    // The package and the container are built in parallel, because compression takes most of the time.
    let (package, container) = std::thread::scope(|scope| {
        let package = scope.spawn(|| contents::package(program)?.build(commit.time));
        let container = container.archive("", commit.time).map(|layer| {
            let compressed = gzip(&layer);
            (oci::image(&digest(&layer), &compressed, &about), compressed)
        });
        (package.join().expect("packing does not panic"), container)
    });
    let (image, rootfs) = container?;
    let names = contents::package_of_names(program)?.build(commit.time)?;
    let files = Files::from([
        (format!("quorate-as-etcd_{version}_all.deb"), names),
        (format!("quorate-{version}-{architecture}.oci.tar"), image?),
        (format!("quorate-{version}-{architecture}.rootfs.tar.gz"), rootfs),
        (format!("quorate_{version}_{architecture}.deb"), package?),
    ]);
    Ok((files, summary))
}

/// Adds `SHA256SUMS`, a file with the checksums of the given files.
pub(crate) fn with_sums(mut files: Files) -> Files {
    let mut sums = String::new();
    for (name, bytes) in &files {
        writeln!(sums, "{}  {name}", digest(bytes)).expect("writing to a string cannot fail");
    }
    files.insert("SHA256SUMS".to_owned(), sums.into_bytes());
    files
}

/// Deletes the files of an earlier run, writes the new files, and prints the names of the new files.
pub(crate) fn write(folder: &Path, files: &Files) -> Outcome {
    for (name, bytes) in files {
        say(&format!("  {name} ({} KiB)", bytes.len().div_ceil(1024)));
    }
    replace(folder, files).map_err(|error| format!("{}: {error}", folder.display()))
}

fn replace(folder: &Path, files: &Files) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("quorate") {
            std::fs::remove_file(entry.path())?;
        }
    }
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

/// Builds the release program. Its debug information contains no path of this machine, because directories are
/// remapped.
fn build(folder: &Path) -> Result<PathBuf, String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let mut folders = vec![(root(), "/quorate"), (folder.to_owned(), "/build")];
    folders.extend(home.map(|home| (home, "/cargo")));
    let (mut rust_flags, mut c_flags) = (String::new(), String::new());
    for (from, to) in folders {
        let from = from.display();
        write!(rust_flags, "--remap-path-prefix={from}={to} ")
            .expect("writing to a string cannot fail");
        write!(c_flags, "-ffile-prefix-map={from}={to} ").expect("writing to a string cannot fail");
    }
    // Cargo compiles a program again if the flags have changed, but not if the recorded profile has.
    let profile = train::digest_of_profile(&root())?;
    write!(rust_flags, "--cfg quorate_profile=\"{profile}\"")
        .expect("writing to a string cannot fail");
    let mut command = cargo(&["build", "--profile", "dist", "--locked", "--package", "quorate"]);
    command.arg("--target-dir").arg(folder);
    status(command.env("RUSTFLAGS", rust_flags.trim()).env("CFLAGS", c_flags.trim()))?;
    Ok(folder.join("dist").join("quorate"))
}

/// The packed commit, as reported by git.
struct Commit {
    hash: Option<String>,
    /// The timestamp of all packed files, in seconds since 1970.
    time: u64,
    /// The version in Debian's notation, in which pre-release versions sort before the release.
    version: String,
}

impl Commit {
    fn read() -> Result<Self, String> {
        let git = |args: &[&str]| {
            let mut command = Command::new("git");
            let said = output(command.current_dir(root()).args(args)).ok()?;
            Some(said.trim().to_owned())
        };
        let release = env!("CARGO_PKG_VERSION");
        let hash = git(&["rev-parse", "HEAD"]);
        let named = std::env::var("SOURCE_DATE_EPOCH").ok();
        let time = named.or_else(|| git(&["log", "-1", "--format=%ct"]));
        // Sources without a history have no commit time. A constant is used instead, so that the result is
        // reproducible.
        let time = time.unwrap_or("0".to_owned());
        let time = time.parse().map_err(|_| {
            format!("SOURCE_DATE_EPOCH: not a number of seconds since 1970: {time}")
        })?;
        let tags = git(&["tag", "--points-at", "HEAD"]).unwrap_or_default();
        let is_changed = git(&["status", "--porcelain"]).is_some_and(|changes| !changes.is_empty());
        let version = match &hash {
            Some(hash) if is_changed || !tags.lines().any(|tag| tag == format!("v{release}")) => {
                let date = git(&["log", "-1", "--format=%cd", "--date=format:%Y%m%d%H%M%S"]);
                let changed = if is_changed { ".changed" } else { "" };
                format!("{release}~git{}.{}{changed}", date.unwrap_or_default(), &hash[..7])
            }
            _ => release.to_owned(),
        };
        Ok(Self { hash, time, version })
    }
}

/// Compresses with gzip, without a file name or a timestamp in the header.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::default());
    writer.write_all(bytes).and_then(|()| writer.finish()).expect("writing to memory cannot fail")
}
