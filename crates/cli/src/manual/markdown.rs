//! Reference pages in Markdown.

use super::{Manual, description_of, names_of, value_of};
use crate::flags::Flag;

impl<R> Manual<R> {
    /// Returns the page for `docs/`.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut page = format!(
            "# `{}`\n\nThis page is generated from the declarations of commands and flags, and a test compares it \
             with them.",
            self.program
        );
        if let Some(alias) = self.alias {
            page.push_str(&format!(
                " The program also behaves as this tool when it is run under the name `{alias}`."
            ));
        }
        page.push('\n');
        paragraphs(self.description, &mut page);
        page.push_str("\n## Commands\n");
        for leaf in self.leaves() {
            page.push_str(&format!("\n### `{}`\n\n", leaf.usage(self.program)));
            page.push_str(&about(leaf.about().trim()));
            let example = leaf.found.command().example;
            if !example.is_empty() {
                page.push_str(&format!("\n```\n{}\n```\n", example.trim_end()));
            }
            table(&leaf.flags(), &mut page);
        }
        let global = self.global_flags();
        if !global.is_empty() {
            page.push_str("\n## Options of every command\n");
            table(&global, &mut page);
        }
        if !self.environment.is_empty() {
            page.push_str("\n## Environment\n");
            paragraphs(self.environment, &mut page);
        }
        page.push_str("\n## Exit status\n\n| code | |\n|---|---|\n");
        for (code, when) in self.exits {
            page.push_str(&format!("| {code} | {when} |\n"));
        }
        page
    }
}

/// Converts terminal text, which consists of paragraphs and blocks of command lines, to Markdown.
fn about(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let is_typed = |line: &str| line.starts_with([' ', '\t', '$']);
        if paragraph.lines().all(is_typed) {
            format!("```\n{paragraph}\n```\n")
        } else {
            format!("{}\n", plain(paragraph))
        }
    });
    paragraphs.collect::<Vec<_>>().join("\n")
}

/// Escapes angle brackets outside of code, so that they are not interpreted as tags.
fn plain(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    let pieces = pieces.map(|(place, piece)| match place % 2 {
        0 => piece.replace('<', "\\<"),
        _ => piece.to_owned(),
    });
    pieces.collect::<Vec<_>>().join("`")
}

fn paragraphs(texts: &[&str], page: &mut String) {
    for text in texts {
        page.push_str(&format!("\n{text}\n"));
    }
}

fn table(flags: &[Flag], page: &mut String) {
    if flags.is_empty() {
        return;
    }
    page.push_str("\n| flag | |\n|---|---|\n");
    for flag in flags {
        let mut names = names_of(flag);
        if let (Some(last), Some(value)) = (names.last_mut(), value_of(flag)) {
            last.push_str(&format!(" {value}"));
        }
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let description = plain(&description_of(flag).replace('|', "\\|"));
        page.push_str(&format!("| {} | {description} |\n", names.join(", ")));
    }
}
