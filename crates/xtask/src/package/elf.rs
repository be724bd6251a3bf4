//! The requirements of a Linux program, read from its ELF headers and dynamic section: its loader, its libraries, and
//! the newest glibc version that its symbols require.
//!
//! Only 64-bit little-endian files are supported. Any other file causes an error, but no panic.

/// The requirements of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// The architecture, as named by Debian and by container images.
    pub(super) architecture: &'static str,
    /// The path of the loader; `None` for a static program.
    pub(super) interpreter: Option<String>,
    /// The names of the required libraries.
    pub(super) libraries: Vec<String>,
    /// The oldest version of glibc that provides all required symbols.
    pub(super) glibc: Option<(u32, u32)>,
}

const PROGRAM_HEADER: u64 = 56;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;

const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const VERSIONS: u64 = 0x6fff_fffe;
const VERSIONS_COUNT: u64 = 0x6fff_ffff;

/// The maximum number of entries read from a version chain. In a corrupt file, the chain may contain a cycle.
const CHAIN_MAX: u64 = 10_000;

/// Reads the requirements of a program or a library.
pub(super) fn needs(bytes: &[u8]) -> Result<Needs, String> {
    let file = File(bytes);
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return Err("not a 64-bit little-endian ELF file".to_owned());
    }
    let architecture = match file.u16(18, 0)? {
        62 => "amd64",
        183 => "arm64",
        other => return Err(format!("architecture {other} is not supported")),
    };
    let (start, count) = (file.u64(32, 0)?, u64::from(file.u16(56, 0)?));
    let mut interpreter = None;
    let mut dynamic = None;
    let mut loads = Vec::new();
    for number in 0..count {
        let at = sum(start, number * PROGRAM_HEADER)?;
        let (offset, address, size) = (file.u64(at, 8)?, file.u64(at, 16)?, file.u64(at, 32)?);
        match file.u32(at, 0)? {
            LOAD => loads.push(Load { address, size, offset }),
            DYNAMIC => dynamic = Some((offset, size)),
            INTERPRETER => interpreter = Some(file.text(offset, 0)?),
            _ => {}
        }
    }
    let mut needs = Needs { architecture, interpreter, libraries: Vec::new(), glibc: None };
    if let Some((offset, size)) = dynamic {
        read_dynamic(&file, offset, size, &loads, &mut needs)?;
    }
    Ok(needs)
}

/// A loaded segment of the file, and its address at run time.
struct Load {
    address: u64,
    size: u64,
    offset: u64,
}

/// Returns the file offset of an address.
fn place(loads: &[Load], address: u64) -> Result<u64, String> {
    let offset = loads.iter().find_map(|load| {
        let distance = address.checked_sub(load.address)?;
        (distance < load.size).then(|| sum(load.offset, distance))
    });
    offset.unwrap_or(Err("an address lies outside all segments".to_owned()))
}

fn read_dynamic(
    file: &File<'_>,
    offset: u64,
    size: u64,
    loads: &[Load],
    needs: &mut Needs,
) -> Result<(), String> {
    let mut entries = Vec::new();
    for number in 0..size / 16 {
        let at = sum(offset, number * 16)?;
        entries.push((file.u64(at, 0)?, file.u64(at, 8)?));
    }
    let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let strings = place(loads, value(STRINGS).ok_or("the dynamic section has no string table")?)?;
    for (_, name) in entries.iter().filter(|(tag, _)| *tag == NEEDED) {
        needs.libraries.push(file.text(strings, *name)?);
    }
    let (Some(at), Some(count)) = (value(VERSIONS), value(VERSIONS_COUNT)) else { return Ok(()) };
    let mut library = place(loads, at)?;
    for _ in 0..count.min(CHAIN_MAX) {
        let mut version = sum(library, u64::from(file.u32(library, 8)?))?;
        for _ in 0..file.u16(library, 2)? {
            let name = file.text(strings, u64::from(file.u32(version, 8)?))?;
            needs.glibc = needs.glibc.max(glibc_version(&name));
            version = sum(version, u64::from(file.u32(version, 12)?))?;
        }
        library = sum(library, u64::from(file.u32(library, 12)?))?;
    }
    Ok(())
}

/// Parses a version such as `GLIBC_2.34`. A third number, as in `GLIBC_2.2.5`, is ignored.
fn glibc_version(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Adds two offsets read from the file. Fails if the sum overflows.
fn sum(offset: u64, more: u64) -> Result<u64, String> {
    offset.checked_add(more).ok_or("an offset is too large".to_owned())
}

/// The contents of the file, read at `base + offset`.
struct File<'a>(&'a [u8]);

impl File<'_> {
    fn tail(&self, base: u64, offset: u64) -> Result<&[u8], String> {
        let start = usize::try_from(sum(base, offset)?).ok();
        start.and_then(|start| self.0.get(start..)).ok_or("the file is truncated".to_owned())
    }

    fn array<const LENGTH: usize>(&self, base: u64, offset: u64) -> Result<[u8; LENGTH], String> {
        let tail = self.tail(base, offset)?;
        tail.first_chunk().copied().ok_or("the file is truncated".to_owned())
    }

    fn u16(&self, base: u64, offset: u64) -> Result<u16, String> {
        self.array(base, offset).map(u16::from_le_bytes)
    }

    fn u32(&self, base: u64, offset: u64) -> Result<u32, String> {
        self.array(base, offset).map(u32::from_le_bytes)
    }

    fn u64(&self, base: u64, offset: u64) -> Result<u64, String> {
        self.array(base, offset).map(u64::from_le_bytes)
    }

    fn text(&self, base: u64, offset: u64) -> Result<String, String> {
        let tail = self.tail(base, offset)?;
        let text = tail.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8(text.to_vec()).map_err(|_| "a name is not valid UTF-8".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn the_required_libraries_and_glibc_version_of_a_program_are_read() {
        let needs = needs(&own()).unwrap();
        assert!(needs.interpreter.is_some_and(|path| path.contains("/ld-")));
        assert!(needs.libraries.iter().any(|name| name.starts_with("libc.so")));
        assert!(needs.glibc >= Some((2, 17)));
    }

    #[test]
    fn parsing_a_corrupt_elf_file_never_panics() {
        let program = own();
        assert!(needs(b"#!/bin/sh").is_err());
        for length in 0..2000 {
            drop(needs(&program[..length]));
        }
        // Each of the first 2,000 bytes, which include the headers, is inverted in turn.
        for place in 0..2000 {
            let mut broken = program[..program.len().min(1 << 20)].to_vec();
            broken[place] ^= 0xff;
            drop(needs(&broken));
        }
    }

    #[test]
    fn glibc_versions_are_compared_as_numbers() {
        assert!(glibc_version("GLIBC_2.34") > glibc_version("GLIBC_2.4"));
        assert_eq!(glibc_version("GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc_version("GCC_3.0"), None);
    }
}
