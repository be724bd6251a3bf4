//! The binaries of this process: their mappings, unwind tables and symbols.
//!
//! The binaries are read at the start of a CPU recording, and when a heap profile is encoded, from `/proc/self/maps`
//! and from the files listed there. The binary that the kernel provides (`[vdso]`) is read from memory. Only the
//! required sections of a file are read, and symbols only when the profile is encoded.
//!
//! # Not here
//!
//! Binaries loaded during a recording: profiles show their functions only as addresses.

use std::fs::{self, File};
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, Register, UnwindContext, UnwindSection as _,
    UnwindTableRow,
};
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ReadCache};

/// The maximum size of a section, in bytes. A larger section is ignored.
pub(crate) const SECTION_BYTES_MAX: u64 = 256 << 20;

/// The maximum number of binaries. A process typically has five.
pub(crate) const BINARIES_MAX: usize = 256;

/// The kernel's name for the binary that it provides.
const VDSO: &str = "[vdso]";

/// The suffix that the kernel adds to the path of a deleted file.
const DELETED: &str = " (deleted)";

/// The minimum alignment of segments, in bytes.
const PAGE_BYTES: u64 = 4096;

/// The mapping of a binary's code in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) file_offset: u64,
    /// The path of the file, or the kernel's name for a mapping without a file.
    pub(crate) path: String,
    inode: u64,
}

/// A binary. Parts that could not be read are missing.
#[derive(Debug)]
pub(crate) struct Binary {
    pub(crate) mapping: Mapping,
    /// The build id in hexadecimal; empty if there is none.
    pub(crate) build_id: String,
    /// The difference between addresses in memory and in the file.
    bias: u64,
    frames: Option<Frames>,
}

/// The unwind tables of a binary.
#[derive(Debug)]
struct Frames {
    index: Vec<u8>,
    rules: Vec<u8>,
    bases: BaseAddresses,
}

type Bytes<'a> = gimli::EndianSlice<'a, LittleEndian>;

/// The binaries of a process.
#[derive(Debug)]
pub(crate) struct Binaries {
    pub(crate) all: Vec<Binary>,
}

impl Binaries {
    /// Returns the binaries that are currently mapped, the program itself first.
    pub(crate) fn of_process() -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let own = fs::read_link("/proc/self/exe").unwrap_or_default();
        let own = own.to_string_lossy();
        let own = own.trim_end_matches(DELETED);
        let mut mappings: Vec<Mapping> = maps.lines().filter_map(code_mapping).collect();
        mappings.sort_by_key(|mapping| (mapping.path != own, mapping.start));
        mappings.truncate(BINARIES_MAX);
        Self { all: mappings.into_iter().map(read).collect() }
    }

    /// Returns the index of the binary that contains an address.
    pub(crate) fn at(&self, address: u64) -> Option<usize> {
        let holds = |binary: &Binary| (binary.mapping.start..binary.mapping.end).contains(&address);
        self.all.iter().position(holds)
    }

    /// Returns the unwind rules of the function at an address, and the register that the rules use for the return
    /// address.
    pub(crate) fn frame_rules<'a>(
        &self,
        address: u64,
        context: &'a mut UnwindContext<usize>,
    ) -> Option<(&'a UnwindTableRow<usize>, Register)> {
        let binary = &self.all[self.at(address)?];
        let Frames { index, rules, bases } = binary.frames.as_ref()?;
        let address = address.wrapping_sub(binary.bias);
        let rules: EhFrame<Bytes<'_>> = EhFrame::new(rules, LittleEndian);
        let index = EhFrameHdr::new(index, LittleEndian).parse(bases, 8).ok()?;
        let find = EhFrame::cie_from_offset;
        let function = index.table()?.fde_for_address(&rules, bases, address, find).ok()?;
        let returns_to = function.cie().return_address_register();
        let row = function.unwind_info_for_address(&rules, bases, context, address).ok()?;
        Some((row, returns_to))
    }
}

impl Binary {
    /// Converts an address in the file to an address in memory.
    pub(crate) const fn in_memory(&self, address: u64) -> u64 {
        address.wrapping_add(self.bias)
    }
}

/// Parses a line of `/proc/self/maps`. Returns `None` unless the line maps the code of a binary.
fn code_mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
    let (_device, inode) = (words.next()?, words.next()?);
    let path = line.find(['/', '[']).map(|at| &line[at..])?;
    let (start, end) = range.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let is_binary = path.starts_with('/') || path == VDSO;
    (rights.contains('x') && is_binary).then_some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        file_offset: hex(offset)?,
        path: path.trim_end_matches(DELETED).to_owned(),
        inode: inode.parse().ok()?,
    })
}

/// A source that can be read at any position.
pub(crate) trait Source: Read + Seek {}
impl<T: Read + Seek> Source for T {}

/// A binary file, whose sections are read on demand.
pub(crate) type BinaryFile<'a> =
    ElfFile64<'a, object::LittleEndian, &'a ReadCache<Box<dyn Source>>>;

/// Opens the file of a mapping, if it still exists.
fn open(mapping: &Mapping) -> Option<Box<dyn Source>> {
    if mapping.path == VDSO {
        let len = mapping.end.checked_sub(mapping.start).filter(|len| *len <= SECTION_BYTES_MAX)?;
        let mut memory = File::open("/proc/self/mem").ok()?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        memory.seek(SeekFrom::Start(mapping.start)).ok()?;
        memory.read_exact(&mut bytes).ok()?;
        return Some(Box::new(Cursor::new(bytes)));
    }
    // The program's own file is found through `/proc` even if a new version has replaced it.
    let is_it = |file: &File| file.metadata().is_ok_and(|facts| facts.ino() == mapping.inode);
    let mut paths = [mapping.path.as_str(), "/proc/self/exe"].into_iter();
    let file = paths.find_map(|path| File::open(path).ok().filter(is_it))?;
    Some(Box::new(file))
}

/// Passes the file of a mapping to a function. Returns `None` if the file cannot be read.
pub(crate) fn with_file<T>(
    mapping: &Mapping,
    look: impl FnOnce(&BinaryFile<'_>) -> Option<T>,
) -> Option<T> {
    let cache = ReadCache::new(open(mapping)?);
    look(&ElfFile64::parse(&cache).ok()?)
}

fn read(mapping: Mapping) -> Binary {
    let found = with_file(&mapping, |file| {
        let id = file.build_id().ok().flatten().unwrap_or_default();
        let build_id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Some((build_id, bias(file, &mapping)?, frames(file)))
    });
    let (build_id, bias, frames) = found.unwrap_or_default();
    Binary { mapping, build_id, bias, frames }
}

/// Computes the load bias of a binary from the segment that belongs to the mapping.
fn bias(file: &BinaryFile<'_>, mapping: &Mapping) -> Option<u64> {
    let wanted = mapping.file_offset;
    let segment = file.segments().find(|segment| {
        let (offset, size) = segment.file_range();
        // A segment may begin in the middle of a page, but the mapping begins at the start of the page.
        let start = offset & !(PAGE_BYTES - 1);
        segment.permissions().executable() && (start..offset.saturating_add(size)).contains(&wanted)
    })?;
    let (offset, _) = segment.file_range();
    let linked_at = segment.address().wrapping_add(wanted).wrapping_sub(offset);
    Some(mapping.start.wrapping_sub(linked_at))
}

fn frames(file: &BinaryFile<'_>) -> Option<Frames> {
    let section = |name| {
        let section = file.section_by_name(name)?;
        let is_short = section.size() <= SECTION_BYTES_MAX;
        is_short.then(|| Some((section.address(), section.data().ok()?.to_vec()))).flatten()
    };
    let ((index_at, index), (rules_at, rules)) = (section(".eh_frame_hdr")?, section(".eh_frame")?);
    let bases = BaseAddresses::default().set_eh_frame_hdr(index_at).set_eh_frame(rules_at);
    Some(Frames { index, rules, bases })
}
