//! A line of the screen, which consists of styled pieces of text.

use super::text::cut;

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    Strong,
    Faint,
    /// A heading, or a selected row.
    Reversed,
    Good,
    Warning,
    Bad,
}

impl Style {
    /// Returns the escape sequence that starts this style.
    const fn codes(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Strong => "\x1b[1m",
            Self::Faint => "\x1b[2m",
            Self::Reversed => "\x1b[7m",
            Self::Good => "\x1b[32m",
            Self::Warning => "\x1b[33m",
            Self::Bad => "\x1b[1;31m",
        }
    }
}

/// A styled line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pieces: Vec<(Style, String)>,
}

impl Line {
    pub(super) fn of(style: Style, text: impl Into<String>) -> Self {
        Self { pieces: vec![(style, text.into())] }
    }

    /// Appends a piece of text.
    pub(super) fn and(mut self, style: Style, text: impl Into<String>) -> Self {
        self.push(style, text);
        self
    }

    pub(super) fn push(&mut self, style: Style, text: impl Into<String>) {
        self.pieces.push((style, text.into()));
    }

    pub(super) fn width(&self) -> usize {
        self.pieces.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// Returns the line, cut to at most `width` columns.
    pub(super) fn fitted(&self, width: usize) -> Self {
        let mut left = width;
        let mut line = Self::default();
        for (style, text) in &self.pieces {
            let text = cut(text, left);
            left -= text.chars().count();
            line.push(*style, text);
        }
        line
    }

    /// Pads the line with blanks to `width` columns.
    pub(super) fn filled(mut self, width: usize) -> Self {
        let missing = width.saturating_sub(self.width());
        if let Some((_, last)) = self.pieces.last_mut() {
            last.push_str(&" ".repeat(missing));
        }
        self
    }

    /// Returns the text without styles and trailing blanks.
    pub(super) fn plain(&self) -> String {
        let text: String = self.pieces.iter().map(|(_, text)| text.as_str()).collect();
        text.trim_end().to_owned()
    }

    /// Returns the text with escape sequences for the terminal.
    pub(super) fn painted(&self) -> String {
        let mut out = String::new();
        for (style, text) in self.pieces.iter().filter(|(_, text)| !text.is_empty()) {
            let codes = style.codes();
            let end = if codes.is_empty() { "" } else { "\x1b[0m" };
            out.push_str(&format!("{codes}{text}{end}"));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_truncated_to_the_screen_width() {
        let line = Line::of(Style::Strong, "abc").and(Style::Plain, "def");
        for (width, text) in [(6, "abcdef"), (5, "abcd>"), (3, "abc"), (2, "a>"), (0, "")] {
            let fitted = line.fitted(width);
            assert!(fitted.width() <= width);
            assert_eq!(fitted.plain(), text);
        }
        assert_eq!(line.painted(), "\x1b[1mabc\x1b[0mdef");
        assert_eq!(line.filled(8).width(), 8);
    }
}
