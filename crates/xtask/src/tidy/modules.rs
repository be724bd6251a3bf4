//! The modules of a crate, and the imports between them.
//!
//! A path is followed through re-exports to the file that defines its last name, so that `use crate::Thing` is an
//! import from the file that defines `Thing`. Paths that begin with an imported module are followed as well. Method
//! calls are not followed.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, is_test_file};
use super::tokens::{tokens, without_tests};

/// The maximum number of re-exports that are followed for one path.
const REEXPORTS_MAX: usize = 8;

/// A module: the names on its path from the crate root.
pub(super) type Module<'a> = Vec<&'a str>;

/// The modules of one crate, each with its file.
#[derive(Debug, Default)]
pub(super) struct Modules<'a> {
    files: BTreeMap<Module<'a>, File<'a>>,
}

#[derive(Debug)]
struct File<'a> {
    path: &'a str,
    /// The paths in the file, from the crate root.
    paths: Vec<Vec<&'a str>>,
    /// The names that the file imports, with their paths.
    names: BTreeMap<&'a str, Vec<&'a str>>,
}

/// Imports: the importing file, the file that defines the names, and the names.
pub(super) type Imports<'a> = BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>;

impl<'a> Modules<'a> {
    /// Reads the sources below the directory `src/` of a crate.
    pub(super) fn read(src: &str, sources: &'a [Source]) -> Self {
        let mut modules = Self::default();
        let mut tests = Vec::new();
        for source in sources {
            let Some(path) = source.path.strip_prefix(src) else { continue };
            if is_test_file(&source.path) || path.starts_with("bin/") {
                continue;
            }
            let Some(module) = module_of(path) else { continue };
            let tokens = tokens(&source.text);
            let (tokens, marked) = without_tests(&tokens);
            tests.extend(marked.into_iter().map(|name| [&module[..], &[name]].concat()));
            let mut file = File { path: &source.path, paths: Vec::new(), names: BTreeMap::new() };
            read_paths(&tokens, &module, &mut file);
            modules.files.insert(module, file);
        }
        modules.files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        modules
    }

    /// Returns all imports, except a module's imports from its parents.
    pub(super) fn imports(&self) -> Imports<'a> {
        let mut imports = Imports::new();
        for (module, file) in &self.files {
            for path in &file.paths {
                let (target, name) = self.resolve(path, REEXPORTS_MAX);
                if !module.starts_with(target) {
                    let key = (file.path, self.files[target].path);
                    imports.entry(key).or_default().insert(name);
                }
            }
        }
        imports
    }

    /// Returns the module whose file defines the last name of the path, and that name.
    fn resolve<'b>(&'b self, path: &[&'a str], hops: usize) -> (&'b [&'a str], &'a str) {
        let module = (0..=path.len())
            .rev()
            .find_map(|len| self.files.get_key_value(&path[..len]))
            .map(|(module, file)| (module, file, &path[module.len()..]));
        let Some((module, file, rest)) = module else { return (&[], "") };
        match rest.first() {
            Some(name) if hops > 0 && file.names.contains_key(name) => {
                let whole = [&file.names[name][..], &rest[1..]].concat();
                self.resolve(&whole, hops - 1)
            }
            Some(name) => (module, name),
            None => (module, "self"),
        }
    }
}

/// Returns the module that a file below `src/` contains.
pub(super) fn module_of(path: &str) -> Option<Module<'_>> {
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    match path {
        "lib" | "main" => Some(Vec::new()),
        _ => Some(path.split('/').collect()),
    }
}

fn read_paths<'a>(tokens: &[&'a str], module: &[&'a str], file: &mut File<'a>) {
    let mut at = 0;
    while at < tokens.len() {
        let before = at.checked_sub(1).map_or("", |before| tokens[before]);
        // `impl Trait + use<'_>` is not an import.
        if tokens[at] == "use" && tokens.get(at + 1) != Some(&"<") {
            at = read_use(tokens, at + 1, &Path::start(module), file);
        } else if before != "::" && before != "in" && tokens.get(at + 1) == Some(&"::") {
            let mut path = Path::start(module);
            while let Some(segment) = tokens.get(at) {
                path.step(segment, file);
                if tokens.get(at + 1) != Some(&"::") {
                    break;
                }
                at += 2;
            }
            file.paths.push(path.names);
        }
        at += 1;
    }
}

/// A path whose first segments have been read.
#[derive(Clone, Debug)]
struct Path<'a> {
    module: Vec<&'a str>,
    names: Vec<&'a str>,
    is_first: bool,
}

impl<'a> Path<'a> {
    fn start(module: &[&'a str]) -> Self {
        Self { module: module.to_vec(), names: Vec::new(), is_first: true }
    }

    fn step(&mut self, segment: &'a str, file: &File<'a>) {
        match segment {
            "crate" => {}
            "self" if self.is_first => {
                self.names.clone_from(&self.module);
            }
            "super" if self.is_first => {
                self.names = self.module[..self.module.len().saturating_sub(1)].to_vec();
            }
            "super" => _ = self.names.pop(),
            "self" => {}
            name if self.is_first => {
                if let Some(known) = file.names.get(name) {
                    self.names.clone_from(known);
                } else {
                    // The name may refer to a child module or to another crate; another crate is treated as a name in
                    // this file.
                    self.names = [&self.module[..], &[name]].concat();
                }
            }
            name => self.names.push(name),
        }
        self.is_first = false;
    }
}

/// Reads one tree of a `use` declaration, and returns the position after it.
fn read_use<'a>(tokens: &[&'a str], mut at: usize, path: &Path<'a>, file: &mut File<'a>) -> usize {
    let mut path = path.clone();
    let mut last = "";
    while let Some(token) = tokens.get(at) {
        match *token {
            "::" => {}
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = read_use(tokens, at, &path, file);
                    match tokens.get(at) {
                        Some(&",") => at += 1,
                        Some(&"}") => {}
                        // The token does not begin a tree.
                        _ => return at,
                    }
                }
                return at + 1;
            }
            "as" => {
                last = tokens.get(at + 1).copied().unwrap_or_default();
                at += 1;
            }
            "*" => last = "*",
            "," | "}" | ";" => break,
            segment => {
                path.step(segment, file);
                last = if segment == "self" {
                    path.names.last().copied().unwrap_or_default()
                } else {
                    segment
                };
            }
        }
        at += 1;
    }
    file.names.insert(last, path.names.clone());
    file.paths.push(path.names);
    at
}
