//! The record behind a faulty disk: names and bytes that are not durable yet, and failures to come.
//!
//! Nodes are what file systems call inodes: a name change and a change of bytes are made durable by
//! different syncs, so they are kept apart.
#![expect(clippy::disallowed_types, reason = "the disk is made of files")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use super::{Fault, FileChange, Operation};

/// The node of the root directory.
pub(super) const ROOT: u64 = 0;

/// `ENOSPC`, as every Unix numbers it.
const NO_SPACE: i32 = 28;
/// `EIO`, as every Unix numbers it.
const IO_ERROR: i32 = 5;

/// Names set (`Some`) and unset (`None`) in one atomic step.
pub(super) type DirChange = Vec<(OsString, Option<u64>)>;

#[derive(Debug)]
pub(super) enum Node {
    Dir {
        durable: BTreeMap<OsString, u64>,
        pending: Vec<DirChange>,
    },
    File {
        /// Reads the present bytes even when the name is gone.
        content: Arc<File>,
        pending: Vec<FileChange>,
        /// How many of `pending` no later sync can make durable, because theirs failed.
        doomed_count: usize,
    },
}

/// What happens to an operation.
pub(super) enum Verdict {
    Proceed,
    /// It fails; a write after so many bytes.
    Fail(io::Error, usize),
    /// The power goes while it is under way.
    LastOne(io::Error),
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) nodes: BTreeMap<u64, Node>,
    next_node: u64,
    pub(super) faults: Vec<Fault>,
    pub(super) growth_left: Option<u64>,
    pub(super) operation_count: u64,
    pub(super) stop_at: Option<u64>,
}

impl World {
    /// Reads the tree below `root` as durable.
    pub(super) fn scan(root: &Path) -> io::Result<Self> {
        let mut world = Self {
            nodes: BTreeMap::new(),
            next_node: ROOT,
            faults: Vec::new(),
            growth_left: None,
            operation_count: 0,
            stop_at: None,
        };
        world.scan_dir(root)?;
        Ok(world)
    }

    fn scan_dir(&mut self, path: &Path) -> io::Result<u64> {
        let node = self.add_node(Node::Dir { durable: BTreeMap::new(), pending: Vec::new() });
        let mut names = BTreeMap::new();
        for found in fs::read_dir(path)? {
            let found = found?;
            let child = if found.file_type()?.is_dir() {
                self.scan_dir(&found.path())?
            } else {
                self.add_node(Node::new_file(Arc::new(File::open(found.path())?)))
            };
            names.insert(found.file_name(), child);
        }
        if let Some(Node::Dir { durable, .. }) = self.nodes.get_mut(&node) {
            *durable = names;
        }
        Ok(node)
    }

    fn add_node(&mut self, node: Node) -> u64 {
        let id = self.next_node;
        self.next_node += 1;
        self.nodes.insert(id, node);
        id
    }

    /// Decides the fate of an operation and counts it.
    pub(super) fn judge(&mut self, operation: Operation, path: &Path) -> Verdict {
        let power_cut = || io::Error::from_raw_os_error(IO_ERROR);
        if self.stop_at.is_some_and(|stop| self.operation_count > stop) {
            return Verdict::Fail(power_cut(), 0);
        }
        if operation != Operation::Read {
            let number = self.operation_count;
            self.operation_count += 1;
            if self.stop_at == Some(number) {
                return Verdict::LastOne(power_cut());
            }
        }
        for fault in &mut self.faults {
            let here = path.to_string_lossy().contains(&fault.path_contains);
            if fault.operation != operation || !here {
                continue;
            }
            if fault.skip_count > 0 {
                fault.skip_count -= 1;
            } else if fault.fail_count > 0 {
                fault.fail_count -= 1;
                let error = io::Error::from_raw_os_error(fault.errno);
                return Verdict::Fail(error, fault.bytes_written);
            }
        }
        Verdict::Proceed
    }

    /// Takes `bytes` from the room left, or reports a full disk.
    pub(super) fn grow(&mut self, bytes: u64) -> io::Result<()> {
        if let Some(left) = &mut self.growth_left {
            *left =
                left.checked_sub(bytes).ok_or_else(|| io::Error::from_raw_os_error(NO_SPACE))?;
        }
        Ok(())
    }

    /// Gives room back that a file has taken.
    pub(super) fn shrink(&mut self, bytes: u64) {
        if let Some(left) = &mut self.growth_left {
            *left = left.saturating_add(bytes);
        }
    }

    pub(super) fn lookup(&self, path: &Path) -> Option<u64> {
        let mut node = ROOT;
        for name in names_of(path) {
            let Some(Node::Dir { durable, pending }) = self.nodes.get(&node) else { return None };
            let latest = pending.iter().rev().flatten().find(|(changed, _)| *changed == name);
            node = match latest {
                Some((_, target)) => (*target)?,
                None => *durable.get(&name)?,
            };
        }
        Some(node)
    }

    pub(super) fn add_file(&mut self, path: &Path, content: Arc<File>) -> u64 {
        let node = self.add_node(Node::new_file(content));
        self.link(path, Some(node));
        node
    }

    pub(super) fn add_dirs(&mut self, path: &Path) {
        let names: Vec<OsString> = names_of(path).collect();
        for depth in 1..=names.len() {
            let ancestor: std::path::PathBuf = names[..depth].iter().collect();
            if self.lookup(&ancestor).is_none() {
                let dir = Node::Dir { durable: BTreeMap::new(), pending: Vec::new() };
                let node = self.add_node(dir);
                self.link(&ancestor, Some(node));
            }
        }
    }

    pub(super) fn remove(&mut self, path: &Path) {
        if self.lookup(path).is_some() {
            self.link(path, None);
        }
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) {
        let Some(node) = self.lookup(from) else { return };
        if from.parent() == to.parent() {
            if let (Some(old), Some(new)) = (from.file_name(), to.file_name()) {
                let change = vec![(old.to_owned(), None), (new.to_owned(), Some(node))];
                self.change_dir_of(from, change);
            }
        } else {
            // Two directories, two syncs: each half can arrive alone.
            self.link(to, Some(node));
            self.link(from, None);
        }
    }

    fn link(&mut self, path: &Path, target: Option<u64>) {
        if let Some(name) = path.file_name() {
            self.change_dir_of(path, vec![(name.to_owned(), target)]);
        }
    }

    fn change_dir_of(&mut self, path: &Path, change: DirChange) {
        let parent = path.parent().unwrap_or(Path::new(""));
        let node = self.lookup(parent).and_then(|id| self.nodes.get_mut(&id));
        if let Some(Node::Dir { pending, .. }) = node {
            pending.push(change);
        }
    }

    /// Makes a directory's names durable; `false` when there is no such directory.
    pub(super) fn sync_dir(&mut self, path: &Path) -> bool {
        let node = self.lookup(path).and_then(|id| self.nodes.get_mut(&id));
        let Some(Node::Dir { durable, pending }) = node else { return false };
        for change in pending.drain(..) {
            apply_names(durable, &change);
        }
        self.forget_unreachable();
        true
    }

    /// Drops the nodes no crash can bring back, which closes their files.
    fn forget_unreachable(&mut self) {
        let mut reached = BTreeSet::new();
        let mut open = vec![ROOT];
        while let Some(id) = open.pop() {
            if reached.insert(id)
                && let Some(Node::Dir { durable, pending }) = self.nodes.get(&id)
            {
                open.extend(durable.values());
                open.extend(pending.iter().flatten().filter_map(|(_, target)| *target));
            }
        }
        self.nodes.retain(|id, _| reached.contains(id));
    }

    pub(super) fn record(&mut self, node: u64, change: FileChange) {
        if let Some(Node::File { pending, .. }) = self.nodes.get_mut(&node) {
            pending.push(change);
        }
    }

    pub(super) fn sync_file(&mut self, node: u64) {
        if let Some(Node::File { content, pending, doomed_count }) = self.nodes.get_mut(&node) {
            let durable = pending.split_off(*doomed_count);
            let len = content.metadata().map_or(0, |facts| facts.len());
            pending.retain_mut(|doomed| doomed.outlives(&durable, len));
            *doomed_count = pending.len();
        }
    }

    pub(super) fn doom(&mut self, node: u64) {
        if let Some(Node::File { pending, doomed_count, .. }) = self.nodes.get_mut(&node) {
            *doomed_count = pending.len();
        }
    }
}

impl Node {
    const fn new_file(content: Arc<File>) -> Self {
        Self::File { content, pending: Vec::new(), doomed_count: 0 }
    }
}

pub(super) fn apply_names(names: &mut BTreeMap<OsString, u64>, change: &DirChange) {
    for (name, target) in change {
        match target {
            Some(node) => names.insert(name.clone(), *node),
            None => names.remove(name),
        };
    }
}

fn names_of(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            None
        }
    })
}
