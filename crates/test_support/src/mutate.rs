//! Runs fuzz targets on randomly changed samples: a bounded form of fuzzing for tests on stable Rust.
//!
//! A target is a function that takes bytes and panics if something is wrong. It is in the `fuzz` module of the crate
//! whose decoder it tests. [`bounded`] passes it the samples in `fuzz/seeds/<target>`, and then changed samples, each
//! derived from a seed. `cargo xtask fuzz` runs the same functions under a coverage-guided fuzzer. This module does not
//! measure coverage, so the samples must contain every feature of the format.
//!
//! Each test defines its samples, and `UPDATE=1` writes them to their folder. Inputs found by a fuzzer are stored next
//! to them. A failure prints its seed. A test run with `QUORATE_SEED=<seed>` starts with this seed, and
//! `QUORATE_FUZZ_CASES` sets the number of cases to run.
//!
//! # Not here
//!
//! The meaning of the bytes.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use quorate_seeded_random::{SplitMix64, mix};

/// Maximum length of an input, in bytes. Longer inputs are truncated.
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Maximum number of changes to an input.
const CHANGES_MAX: usize = 6;

/// Numbers at or near common limits.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX >> 1,
    u64::MAX,
];

/// Runs a target on its samples and on `cases` inputs derived from them. If the target panics, prints the failing input
/// on standard error.
pub fn bounded(target: &str, samples: &[(&str, Vec<u8>)], cases: u64, check: impl Fn(&[u8])) {
    let folder = seeds_folder(target);
    if std::env::var_os("UPDATE").is_some() {
        write_samples(&folder, samples);
    }
    let kept = read_samples(&folder);
    for (name, _) in samples {
        let is_kept = kept.iter().any(|(kept, _)| kept == name);
        assert!(is_kept, "fuzz/seeds/{target}/{name} is missing: run the test with UPDATE=1");
    }
    for (name, input) in &kept {
        attempt(&format!("fuzz/seeds/{target}/{name}"), input, &check);
    }
    let first = number_of("QUORATE_SEED").unwrap_or(0);
    let cases = number_of("QUORATE_FUZZ_CASES").unwrap_or(cases);
    for seed in first..first.saturating_add(cases) {
        attempt(&format!("QUORATE_SEED={seed} of {target}"), &changed(&kept, seed), &check);
    }
}

/// Runs the target on an input. If the target panics, prints and stores the input.
fn attempt(name: &str, input: &[u8], check: &impl Fn(&[u8])) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(input))) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        let place = std::env::temp_dir().join(format!("quorate-fuzz-{}", std::process::id()));
        let kept =
            fs::write(&place, input).map_or("nowhere".into(), |()| place.display().to_string());
        let hex = hex.get(..400).unwrap_or(&hex);
        tell(&format!("{name}: {} bytes, stored in {kept}, starting with {hex}", input.len()));
        resume_unwind(panic);
    }
}

#[expect(clippy::print_stderr, reason = "a failing test prints its input")]
fn tell(message: &str) {
    eprintln!("{message}");
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seeds_folder(target: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = own.ancestors().nth(2).expect("this crate is two folders below the root");
    root.join("fuzz/seeds").join(target)
}

fn write_samples(folder: &Path, samples: &[(&str, Vec<u8>)]) {
    fs::create_dir_all(folder).expect("the sample folder can be created");
    for (name, bytes) in samples {
        fs::write(folder.join(name), bytes).expect("a sample can be written");
    }
}

/// Reads all stored samples, sorted by name.
fn read_samples(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", folder.display()));
    let mut samples: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy();
            (name.into_owned(), fs::read(&path).expect("a sample can be read"))
        })
        .collect();
    samples.sort();
    assert!(!samples.is_empty(), "{} contains no samples", folder.display());
    samples
}

/// Returns one of the samples, changed according to the seed.
fn changed(samples: &[(String, Vec<u8>)], seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(mix(seed));
    let mut input = samples[random.position(samples.len())].1.clone();
    for _ in 0..=random.position(CHANGES_MAX) {
        let other = &samples[random.position(samples.len())].1;
        change(&mut input, other, &mut random);
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

/// Makes one random change to `input`. `other` is another sample from which pieces may be copied.
fn change(input: &mut Vec<u8>, other: &[u8], random: &mut SplitMix64) {
    let at = random.position(input.len() + 1);
    let span = span(input.len() - at, random);
    match random.below(11) {
        0 | 1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        2 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = random.next_u64().to_le_bytes()[0];
            }
        }
        // Overwrite bytes with a limit, or with a number next to one, in either byte order.
        3 | 4 => {
            let number = NUMBERS[random.position(NUMBERS.len())];
            let number = number.wrapping_add(random.below(3)).wrapping_sub(1);
            let width = 1 << random.below(4);
            let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
            let bytes = if random.below(2) == 0 { &little[..width] } else { &big[8 - width..] };
            for (place, byte) in input[at..].iter_mut().zip(bytes) {
                *place = *byte;
            }
        }
        5 => drop(input.drain(at..at + span)),
        6 => input.truncate(at),
        // Repeat a piece at another position.
        7 => {
            let piece = input[at..at + span].to_vec();
            let to = random.position(input.len() + 1);
            input.splice(to..to, piece);
        }
        8 => {
            let piece = (0..span.max(1)).map(|_| random.next_u64().to_le_bytes()[0]);
            input.splice(at..at, piece.collect::<Vec<u8>>());
        }
        9 => input[at..at + span].fill(if random.below(2) == 0 { 0 } else { 0xff }),
        // Replace a piece with one from another sample.
        _ => {
            let from = random.position(other.len() + 1);
            let piece = &other[from..from + self::span(other.len() - from, random)];
            input.splice(at..at + span, piece.iter().copied());
        }
    }
}

/// Returns a random length, usually a short one, of at most `room`.
fn span(room: usize, random: &mut SplitMix64) -> usize {
    let bound = if random.below(4) == 0 { room } else { room.min(16) };
    random.position(bound + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<(String, Vec<u8>)> {
        vec![("a".into(), vec![1; 40]), ("b".into(), (0..100).collect()), ("c".into(), Vec::new())]
    }

    #[test]
    fn a_seed_reproduces_its_input() {
        for seed in 0..500 {
            assert_eq!(changed(&samples(), seed), changed(&samples(), seed));
        }
    }

    #[test]
    fn inputs_vary_in_length_and_content() {
        let inputs: Vec<_> = (0..500).map(|seed| changed(&samples(), seed)).collect();
        assert!(inputs.iter().any(|input| input.is_empty()));
        assert!(inputs.iter().any(|input| input.len() > 100));
        assert!(inputs.iter().any(|input| input.windows(8).any(|window| window == [0xff; 8])));
        let all: std::collections::BTreeSet<_> = inputs.iter().collect();
        assert!(all.len() > 300, "only {} of 500 inputs are distinct", all.len());
    }
}
