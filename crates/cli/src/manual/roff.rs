//! Pages for `man`, written with the macros of man(7).

use super::{Manual, description_of, names_of, value_of};
use crate::flags::Flag;

/// A manual page that is being built.
#[derive(Clone, Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Creates a page of section 1 with its header and name section.
    #[must_use]
    pub fn new(name: &str, summary: &str) -> Self {
        let mut page = Self::default();
        page.line(
            r#".\" Generated from the declarations of commands and flags; a test compares it with them."#,
        );
        page.line(&format!(r#".TH "{}" "1" "" "Quorate" "Quorate""#, inline(&name.to_uppercase())));
        page.section("NAME");
        page.line(&format!(r"{} \- {}", inline(name), inline(summary)));
        page
    }

    /// Starts a section.
    pub fn section(&mut self, title: &str) {
        self.line(&format!(".SH {}", quoted(title)));
    }

    /// Starts a subsection.
    pub fn subsection(&mut self, title: &str) {
        self.line(&format!(".SS {}", quoted(title)));
    }

    /// Adds a synopsis: the program and placeholders for its arguments.
    pub fn synopsis(&mut self, program: &str, rest: &[&str]) {
        self.line(&format!(".B {}", inline(program)));
        for word in rest {
            match word.strip_prefix('[').and_then(|word| word.strip_suffix(']')) {
                Some(word) => self.line(&format!(".RI [ {} ]", inline(word))),
                None => self.line(&format!(".I {}", inline(word))),
            }
        }
    }

    /// Starts a new line.
    pub fn line_break(&mut self) {
        self.line(".br");
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.line(".PP");
        self.text(text);
    }

    /// Adds plain text. Empty lines separate paragraphs.
    pub fn text(&mut self, text: &str) {
        let mut was_empty = false;
        for line in text.trim().lines() {
            let is_empty = line.trim().is_empty();
            match (is_empty, was_empty) {
                (true, false) => self.line(".PP"),
                (true, true) => {}
                (false, _) => self.line(&escaped(line)),
            }
            was_empty = is_empty;
        }
    }

    /// Adds preformatted lines.
    pub fn example(&mut self, text: &str) {
        self.line(".PP");
        self.line(".EX");
        text.trim_end().lines().for_each(|line| self.line(&escaped(line)));
        self.line(".EE");
    }

    /// Adds a list item: the text to type, the placeholder for its value, and the description.
    pub fn item(&mut self, typed: &str, value: Option<&str>, description: &str) {
        self.line(".TP");
        match value {
            Some(value) => {
                self.line(&format!(r#".BI "{} " {}"#, inline(typed), quoted(value)));
            }
            None => self.line(&format!(".B {}", inline(typed))),
        }
        self.text(description);
    }

    /// Returns the complete page.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn flags(&mut self, flags: &[Flag]) {
        for flag in flags {
            self.item(&names_of(flag).join(", "), value_of(flag), &description_of(flag));
        }
    }
}

/// Escapes text that is not at the beginning of a line.
fn inline(text: &str) -> String {
    text.replace('\\', r"\e").replace('-', r"\-")
}

/// Quotes the argument of a macro.
fn quoted(text: &str) -> String {
    format!("\"{}\"", inline(text).replace('"', r"\(dq"))
}

/// Escapes a line of text, so that it is never interpreted as a macro.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', r"\e");
    if line.starts_with(['.', '\'']) { format!(r"\&{line}") } else { line }
}

impl<R> Manual<R> {
    /// Returns the page for `man`.
    #[must_use]
    pub fn man_page(&self) -> String {
        let mut page = Page::new(self.name, self.summary);
        page.section("SYNOPSIS");
        let rest = ["[options]", "command", "[arguments]"];
        page.synopsis(self.program, &rest);
        if let Some(alias) = self.alias {
            page.line_break();
            page.synopsis(alias, &rest);
        }
        page.section("DESCRIPTION");
        self.description.iter().for_each(|text| page.paragraph(text));
        page.section("COMMANDS");
        for leaf in self.leaves() {
            page.subsection(&leaf.usage(self.program));
            page.text(leaf.about());
            let example = leaf.found.command().example;
            if !example.is_empty() {
                page.example(example);
            }
            page.flags(&leaf.flags());
        }
        let global = self.global_flags();
        if !global.is_empty() {
            page.section("OPTIONS");
            page.text("Every command accepts these options.");
            page.flags(&global);
        }
        if !self.environment.is_empty() {
            page.section("ENVIRONMENT");
            self.environment.iter().for_each(|text| page.paragraph(text));
        }
        page.section("EXIT STATUS");
        self.exits.iter().for_each(|(code, when)| page.item(code, None, when));
        page.section("SEE ALSO");
        page.text(&self.see_also.join(", "));
        page.finish()
    }
}
