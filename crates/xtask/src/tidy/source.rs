//! The files of the repository, and their lines of production code.

use std::path::Path;

/// Extensions of the files to read. Files without an extension are read only in `.ci`.
const TEXT: [&str; 8] = ["rs", "toml", "md", "proto", "sh", "yml", "yaml", "json"];

/// A file of the repository: its text, and its path from the root, separated by `/`.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
}

/// Reads every text file below the root, except for build products, generated code and repository metadata.
pub(super) fn read_all(root: &Path) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            if path.is_dir() {
                if !["target", ".git", "generated"].contains(&name.as_ref()) {
                    folders.push(path);
                }
            } else if is_text(&path) {
                // A file that is not UTF-8 is not text.
                if let Ok(text) = std::fs::read_to_string(&path) {
                    let path = path.strip_prefix(root).expect("every file is below the root");
                    sources.push(Source { path: path.to_string_lossy().replace('\\', "/"), text });
                }
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

fn is_text(path: &Path) -> bool {
    match path.extension() {
        Some(extension) => TEXT.iter().any(|known| extension == *known),
        None => path.parent().and_then(Path::file_name).is_some_and(|folder| folder == ".ci"),
    }
}

pub(super) fn is_test_file(path: &str) -> bool {
    // Fuzz targets count as tests, because they are compiled only for the fuzzer and for tests.
    let is_fuzz = path.ends_with("/fuzz.rs") || path.contains("/fuzz/");
    is_fuzz || path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/benches/")
}

/// Returns the numbered lines of production code, without comments. An inline module with `#[cfg(test)]` ends the
/// production code of a file, because test modules come last.
pub(super) fn production(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut marked = false;
    (1..)
        .zip(text.lines())
        .take_while(move |(_, line)| {
            let code = line.trim();
            let test_module = marked && code.contains("mod ") && code.ends_with('{');
            marked = code == "#[cfg(test)]" || marked && code.starts_with("#[");
            !test_module
        })
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Returns the identifiers and keywords of a line, each with its position.
pub(super) fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let start = rest.find(is_letter)?;
        let word = &rest[start..];
        let word = &word[..word.find(|letter| !is_letter(letter)).unwrap_or(word.len())];
        let at = line.len() - rest.len() + start;
        rest = &rest[start + word.len()..];
        Some((at, word))
    })
}

/// Returns whether a character may be part of an identifier.
pub(super) fn is_letter(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Returns the directory of a path, with a trailing `/`.
pub(super) fn folder(path: &str) -> &str {
    path.rfind('/').map_or("", |at| &path[..=at])
}
