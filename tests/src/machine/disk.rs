//! A small file system that only one process sees.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::{Options, skipped};

/// A small file system in its own mount namespace. Creating it needs no privileges on the machine.
#[derive(Debug)]
pub struct SmallDisk {
    holder: Child,
    place: TempDir,
}

impl SmallDisk {
    /// Creates a file system of this size. Returns `None` if the machine cannot create mount namespaces.
    #[must_use]
    pub fn new(megabytes: u32) -> Option<Self> {
        let place = TempDir::new().unwrap();
        let folder = place.path().to_str().unwrap();
        let script =
            format!("mount -t tmpfs -o size={megabytes}m none {folder} && echo ready && read _");
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
        let disk = Self { holder, place };
        if line.trim() != "ready" {
            skipped("tests with a full disk (no mount namespace can be created)");
            return None;
        }
        Some(disk)
    }

    /// Returns the options of a server whose data is on this disk.
    #[must_use]
    pub fn prepare(&self, options: Options) -> Options {
        let words = self.entering();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        options.wrapper(&words).data(&self.data())
    }

    fn data(&self) -> PathBuf {
        self.place.path().join("data")
    }

    fn entering(&self) -> Vec<String> {
        let pid = self.holder.id().to_string();
        ["nsenter", "--preserve-credentials", "--user", "--mount", "--target", &pid]
            .map(str::to_owned)
            .to_vec()
    }

    fn run(&self, program: &str) -> bool {
        let words = self.entering();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["sh", "-c", program]).stderr(Stdio::null());
        command.status().unwrap().success()
    }

    /// Changes the size of the file system.
    pub fn resize(&self, megabytes: u32) {
        let folder = self.place.path().display();
        assert!(self.run(&format!("mount -o remount,size={megabytes}m {folder}")));
    }

    /// Uses all remaining space.
    pub fn fill(&self) {
        let folder = self.place.path().display();
        assert!(
            !self.run(&format!("cat /dev/zero > {folder}/filler")),
            "writing until the disk is full must fail"
        );
    }

    /// Uses all remaining space except this amount.
    pub fn fill_but(&self, megabytes: u32) {
        self.fill();
        let folder = self.place.path().display();
        assert!(self.run(&format!("truncate -s -{megabytes}M {folder}/filler")));
    }

    /// Frees the space that [`Self::fill`] or [`Self::fill_but`] used.
    pub fn empty(&self) {
        let folder = self.place.path().display();
        assert!(self.run(&format!("rm {folder}/filler")));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}
