//! One state a faulty disk could be found in after a power cut, written out as a directory.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use quorate_random::SplitMix64;

use super::world::{Node, ROOT, World, apply_names};

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
                change.undo(&mut bytes);
            }
            for change in pending {
                change.redo(&mut bytes, &mut || draw.bit());
            }
            fs::write(into, &bytes)?;
            fs::set_permissions(into, content.metadata()?.permissions())
        }
    }
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
