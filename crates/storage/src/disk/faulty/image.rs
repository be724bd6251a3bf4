//! One state a faulty disk could be found in after a power cut, written out as a directory.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use quorate_random::SplitMix64;

use super::world::{FileChange, Node, ROOT, World, apply_names};

const SECTOR_BYTES: u64 = 512;

/// What becomes of the changes that are not durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Arrived,
    Drawn,
}

/// Writes the state that `seed` selects into `into`.
pub(super) fn materialise(world: &World, seed: u64, into: &Path) -> io::Result<()> {
    let fate = match seed {
        0 => Fate::Lost,
        1 => Fate::Arrived,
        _ => Fate::Drawn,
    };
    write_node(world, ROOT, into, &mut Draw { random: SplitMix64::new(seed), fate })
}

fn write_node(world: &World, node: u64, into: &Path, draw: &mut Draw) -> io::Result<()> {
    match world.nodes.get(&node) {
        None => Ok(()),
        Some(Node::Dir { durable, pending }) => {
            fs::create_dir_all(into)?;
            let mut names = durable.clone();
            for change in &pending[..draw.prefix(pending.len())] {
                apply_names(&mut names, change);
            }
            for (name, child) in names {
                write_node(world, child, &into.join(name), draw)?;
            }
            Ok(())
        }
        Some(Node::File { content, pending, .. }) => {
            let len = usize::try_from(content.metadata()?.len()).map_err(io::Error::other)?;
            let mut bytes = vec![0; len];
            content.read_exact_at(&mut bytes, 0)?;
            for change in pending.iter().rev() {
                undo(&mut bytes, change);
            }
            for change in pending {
                redo(&mut bytes, change, draw);
            }
            fs::write(into, &bytes)?;
            fs::set_permissions(into, content.metadata()?.permissions())
        }
    }
}

fn undo(bytes: &mut Vec<u8>, change: &FileChange) {
    bytes.resize(position(change.len_before), 0);
    let at = position(change.offset);
    if let Some(place) = bytes.get_mut(at..at + change.before.len()) {
        place.copy_from_slice(&change.before);
    }
}

/// Lets a change arrive as far as the draw has it.
fn redo(bytes: &mut Vec<u8>, change: &FileChange, draw: &mut Draw) {
    let whole = draw.bit();
    if change.after.is_empty() {
        if whole {
            bytes.resize(position(change.len_after), 0);
        }
        return;
    }
    // The length is the file system's, the sectors are the device's: each may come without the other.
    if draw.bit() && bytes.len() < position(change.len_after) {
        bytes.resize(position(change.len_after), 0);
    }
    let torn = !whole && draw.bit();
    let mut at = 0;
    while at < change.after.len() {
        let offset = change.offset + at as u64;
        let room = position(SECTOR_BYTES - offset % SECTOR_BYTES);
        let piece = &change.after[at..change.after.len().min(at + room)];
        if whole || (torn && draw.bit()) {
            let (start, end) = (position(offset), position(offset) + piece.len());
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(piece);
        }
        at += piece.len();
    }
}

/// Offsets in files that fit in memory, as these all do.
fn position(offset: u64) -> usize {
    usize::try_from(offset).expect("a file under test fits in memory")
}

/// The draw of lots, or the same answer every time.
struct Draw {
    random: SplitMix64,
    fate: Fate,
}

impl Draw {
    const fn bit(&mut self) -> bool {
        match self.fate {
            Fate::Lost => false,
            Fate::Arrived => true,
            Fate::Drawn => self.random.next_u64() & 1 == 1,
        }
    }

    /// Draws how many of `count` ordered changes arrive.
    fn prefix(&mut self, count: usize) -> usize {
        match self.fate {
            Fate::Lost => 0,
            Fate::Arrived => count,
            Fate::Drawn => self.random.position(count + 1),
        }
    }
}
