//! Directories of the simulated disk: their current names, and the names on the medium.
//!
//! Nodes correspond to inodes. They are separate from names because a name and the bytes of the
//! file are made durable by different syncs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use quorate_seeded_random::SplitMix64;

use super::Surviving;
use super::content::{Fate, File};
use crate::disk::FileFacts;

pub(super) type NodeId = u64;

const ROOT: NodeId = 0;

/// Permission bits of a directory for which no caller has set a mode.
const DIR_MODE: u32 = 0o700;

type Names = BTreeMap<OsString, NodeId>;

/// Names that are set and removed in a single atomic step.
type NameChange = Vec<(OsString, Option<NodeId>)>;

#[derive(Debug)]
enum Node {
    Dir { now: Names, durable: Names, unsynced: Vec<NameChange>, mode: u32 },
    File(File),
}

impl Node {
    fn dir(names: Names, mode: u32) -> Self {
        Self::Dir { now: names.clone(), durable: names, unsynced: Vec::new(), mode }
    }
}

/// All directories and files of a simulated disk.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<NodeId, Node>,
    next: NodeId,
}

impl Default for Tree {
    fn default() -> Self {
        let nodes = BTreeMap::from([(ROOT, Node::dir(Names::new(), DIR_MODE))]);
        Self { nodes, next: ROOT + 1 }
    }
}

impl Tree {
    /// Copies a directory of this machine to a new simulated disk, under the same path. The whole
    /// copy is durable.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.create_dirs(root, DIR_MODE)?;
        tree.read_dir(root)?;
        let (mut draw, mercy) = (SplitMix64::new(0), Surviving::All);
        Ok(tree.after_power_cut(&mut Fate { mercy, draw: &mut draw }))
    }

    fn read_dir(&mut self, path: &Path) -> io::Result<()> {
        for found in fs::read_dir(path)? {
            let (path, facts) = found.and_then(|found| Ok((found.path(), found.metadata()?)))?;
            let mode = facts.permissions().mode() & 0o7777;
            if facts.is_dir() {
                self.create_dirs(&path, mode)?;
                self.read_dir(&path)?;
            } else {
                let node = self.add(Node::File(File::new(fs::read(&path)?, mode)));
                self.link(&path, Some(node))?;
            }
        }
        Ok(())
    }

    /// Writes the files and directories below `path` into the directory `into` on this machine.
    pub(super) fn write(&self, path: &Path, into: &Path) -> io::Result<()> {
        fs::create_dir_all(into)?;
        for name in self.names(path)? {
            let (path, into) = (path.join(&name), into.join(&name));
            match self.find(&path).and_then(|id| self.nodes.get(&id)) {
                None => {}
                Some(Node::Dir { .. }) => self.write(&path, &into)?,
                Some(Node::File(file)) => {
                    fs::write(&into, file.to_vec())?;
                    fs::set_permissions(&into, fs::Permissions::from_mode(file.mode))?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, node: Node) -> NodeId {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        id
    }

    pub(super) fn find(&self, path: &Path) -> Option<NodeId> {
        let mut node = ROOT;
        for name in names_of(path) {
            let Some(Node::Dir { now, .. }) = self.nodes.get(&node) else { return None };
            node = *now.get(&name)?;
        }
        Some(node)
    }

    pub(super) fn file_mut(&mut self, node: NodeId) -> io::Result<&mut File> {
        match self.nodes.get_mut(&node) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir { .. }) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn create_file(&mut self, path: &Path, mode: u32) -> io::Result<NodeId> {
        self.parent_of(path)?;
        let node = self.add(Node::File(File::new(Vec::new(), mode)));
        self.link(path, Some(node))?;
        Ok(node)
    }

    pub(super) fn create_dirs(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let names: Vec<OsString> = names_of(path).collect();
        for depth in 1..=names.len() {
            let ancestor: std::path::PathBuf = names[..depth].iter().collect();
            if self.find(&ancestor).is_none() {
                let node = self.add(Node::dir(Names::new(), mode));
                self.link(&ancestor, Some(node))?;
            }
        }
        Ok(())
    }

    pub(super) fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        match self.find(path).and_then(|id| self.nodes.get(&id)) {
            Some(Node::Dir { now, .. }) => Ok(now.keys().cloned().collect()),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn facts(&self, path: &Path) -> Option<FileFacts> {
        let (len, is_dir, mode) = match self.nodes.get(&self.find(path)?)? {
            Node::Dir { mode, .. } => (0, true, *mode),
            Node::File(file) => (file.len(), false, file.mode),
        };
        Some(FileFacts { len, is_dir, is_file: !is_dir, mode, modified: None })
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.find(path).ok_or(io::ErrorKind::NotFound)?;
        self.link(path, None)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.find(from).ok_or(io::ErrorKind::NotFound)?;
        if from.parent() == to.parent() {
            let names = |path: &Path| path.file_name().map(OsString::from);
            let (old, new) = names(from).zip(names(to)).ok_or(io::ErrorKind::InvalidInput)?;
            return self.change(from, vec![(old, None), (new, Some(node))]);
        }
        // Two directories need two syncs, so either half of the rename may survive without the
        // other.
        self.link(to, Some(node))?;
        self.link(from, None)
    }

    fn link(&mut self, path: &Path, target: Option<NodeId>) -> io::Result<()> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        self.change(path, vec![(name.to_owned(), target)])
    }

    fn parent_of(&mut self, path: &Path) -> io::Result<&mut Node> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let node = self.find(parent).and_then(|id| self.nodes.get_mut(&id));
        match node {
            Some(node @ Node::Dir { .. }) => Ok(node),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn change(&mut self, path: &Path, change: NameChange) -> io::Result<()> {
        if let Node::Dir { now, unsynced, .. } = self.parent_of(path)? {
            set_names(now, &change);
            unsynced.push(change);
        }
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let node = self.find(path).and_then(|id| self.nodes.get_mut(&id));
        let Some(Node::Dir { durable, unsynced, .. }) = node else {
            return Err(io::ErrorKind::NotFound.into());
        };
        for change in unsynced.drain(..) {
            set_names(durable, &change);
        }
        Ok(())
    }

    pub(super) fn release_locks(&mut self) {
        for node in self.nodes.values_mut() {
            if let Node::File(file) = node {
                file.release_locks();
            }
        }
    }

    pub(super) fn flip(&mut self, path: &Path, offset: u64, bit: u32) -> bool {
        let node = self.find(path);
        node.and_then(|node| self.file_mut(node).ok()).is_some_and(|file| file.flip(offset, bit))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.nodes
            .values()
            .map(|node| if let Node::File(file) = node { file.len() } else { 0 })
            .sum()
    }

    /// Returns the state of the medium after a power cut.
    pub(super) fn after_power_cut(&self, fate: &mut Fate<'_>) -> Self {
        let mut after = Self::default();
        after.take_over(self, ROOT, ROOT, fate);
        after
    }

    /// Fills a directory with the surviving content of another tree's directory.
    fn take_over(&mut self, before: &Self, from: NodeId, to: NodeId, fate: &mut Fate<'_>) {
        let Some(Node::Dir { durable, unsynced, mode, .. }) = before.nodes.get(&from) else {
            return;
        };
        let mut names = durable.clone();
        for change in &unsynced[..fate.prefix(unsynced.len())] {
            set_names(&mut names, change);
        }
        let mut taken = Names::new();
        for (name, id) in names {
            match before.nodes.get(&id) {
                None => {}
                Some(Node::File(file)) => {
                    let file = file.after_power_cut(fate);
                    taken.insert(name, self.add(Node::File(file)));
                }
                Some(Node::Dir { .. }) => {
                    let dir = self.add(Node::dir(Names::new(), DIR_MODE));
                    self.take_over(before, id, dir, fate);
                    taken.insert(name, dir);
                }
            }
        }
        self.nodes.insert(to, Node::dir(taken, *mode));
    }
}

fn set_names(names: &mut Names, change: &NameChange) {
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
