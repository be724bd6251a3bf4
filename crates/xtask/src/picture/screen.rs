//! A terminal emulator with the features that `ctl top` uses, and an image of its screen.
//!
//! Supported control sequences move the cursor (`H`), clear the rest of the line (`K`), clear the screen (`J`) and set
//! the style (`m`). Other sequences are ignored.

/// Width and height of a cell in the image, and the margin around all cells, in pixels.
const CELL: (usize, usize) = (8, 17);
const MARGIN: usize = 14;
const FONT: &str = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace";
const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d5d8de";

/// The style of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Style {
    bold: bool,
    faint: bool,
    reversed: bool,
    /// The code of the text colour, 31 to 37.
    colour: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    letter: char,
    style: Style,
}

const BLANK: Cell =
    Cell { letter: ' ', style: Style { bold: false, faint: false, reversed: false, colour: None } };

/// The cells in rows, and the position of the next character.
#[derive(Debug)]
pub(super) struct Screen {
    cells: Vec<Vec<Cell>>,
    row: usize,
    column: usize,
    style: Style,
}

impl Screen {
    /// Returns the screen of this size after a program has printed these bytes.
    pub(super) fn of(printed: &[u8], columns: usize, rows: usize) -> Self {
        let mut screen = Self {
            cells: vec![vec![BLANK; columns]; rows],
            row: 0,
            column: 0,
            style: Style::default(),
        };
        let text = String::from_utf8_lossy(printed);
        let mut rest = &text[..];
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            match letter {
                '\x1b' => {
                    let Some(sequence) = rest.strip_prefix('[') else { continue };
                    // A truncated control sequence ends the output.
                    let Some(end) = sequence.find(|c: char| ('@'..='~').contains(&c)) else {
                        break;
                    };
                    screen.control(&sequence[..end], &sequence[end..=end]);
                    rest = &sequence[end + 1..];
                }
                '\r' => screen.column = 0,
                '\n' => screen.row += 1,
                _ => screen.print(letter),
            }
        }
        screen
    }

    fn print(&mut self, letter: char) {
        if let Some(cell) = self.cells.get_mut(self.row).and_then(|row| row.get_mut(self.column)) {
            *cell = Cell { letter, style: self.style };
        }
        self.column += 1;
    }

    fn control(&mut self, arguments: &str, action: &str) {
        let mut numbers = arguments.split(';').map(|number| number.parse::<usize>().unwrap_or(0));
        match action {
            "H" => {
                let mut place = || numbers.next().unwrap_or(1).max(1) - 1;
                (self.row, self.column) = (place(), place());
            }
            "K" => {
                let row = self.cells.get_mut(self.row);
                row.into_iter()
                    .flat_map(|row| row.iter_mut().skip(self.column))
                    .for_each(|cell| *cell = BLANK);
            }
            "J" => self.cells.iter_mut().flatten().for_each(|cell| *cell = BLANK),
            "m" => numbers.for_each(|code| self.restyle(code)),
            _ => {}
        }
    }

    fn restyle(&mut self, code: usize) {
        match code {
            0 => self.style = Style::default(),
            1 => self.style.bold = true,
            2 => self.style.faint = true,
            7 => self.style.reversed = true,
            31..=37 => self.style.colour = u8::try_from(code).ok(),
            _ => {}
        }
    }

    /// Returns an SVG image with one text element for each run of cells that have the same style.
    pub(super) fn svg(&self, title: &str) -> String {
        let columns = self.cells.first().map_or(0, Vec::len);
        let (width, height) =
            (columns * CELL.0 + 2 * MARGIN, self.cells.len() * CELL.1 + 2 * MARGIN);
        let mut image = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n\
             <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n\
             <g font-family=\"{FONT}\" font-size=\"13\" xml:space=\"preserve\">\n"
        );
        for (number, row) in self.cells.iter().enumerate() {
            let mut column = 0;
            for run in row.chunk_by(|one, other| one.style == other.style) {
                image += &draw(run, column, number);
                column += run.len();
            }
        }
        image + "</g>\n</svg>\n"
    }
}

/// Draws a run of cells that have the same style, starting at the given row and column.
fn draw(run: &[Cell], column: usize, row: usize) -> String {
    let Some(Cell { style, .. }) = run.first().copied() else { return String::new() };
    let text: String = run.iter().map(|cell| cell.letter).collect();
    let mut image = String::new();
    let (x, y) = (MARGIN + column * CELL.0, MARGIN + row * CELL.1);
    let width = run.len() * CELL.0;
    if style.reversed {
        image += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{}\" fill=\"{FOREGROUND}\"/>\n",
            CELL.1
        );
    }
    let text = text.trim_end();
    if text.is_empty() {
        return image;
    }
    let fill = match style.colour {
        _ if style.reversed => BACKGROUND,
        Some(31) => "#ff6b6b",
        Some(32) => "#7bd88f",
        Some(33) => "#f5c56b",
        _ if style.faint => "#858b98",
        _ => FOREGROUND,
    };
    let weight = if style.bold { " font-weight=\"bold\"" } else { "" };
    // The explicit length keeps the columns aligned if the viewer's font has a different width.
    let length = text.chars().count() * CELL.0;
    image
        + &format!(
            "<text x=\"{x}\" y=\"{}\" textLength=\"{length}\" fill=\"{fill}\"{weight}>{}</text>\n",
            y + CELL.1 - 4,
            escaped(text)
        )
}

/// Escapes text for an SVG file.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace(' ', "\u{a0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(screen: &Screen) -> Vec<String> {
        let text = |row: &Vec<Cell>| row.iter().map(|cell| cell.letter).collect::<String>();
        screen.cells.iter().map(|row| text(row).trim_end().to_owned()).collect()
    }

    #[test]
    fn text_is_drawn_at_the_position_of_the_cursor() {
        let printed = b"\x1b[?1049h\x1b[2Jold\x1b[2J\x1b[2;1Hsecond line\x1b[K\x1b[1;3Hfirst\x1b[2;1Hnew\x1b[K\x1b[3";
        assert_eq!(rows(&Screen::of(printed, 20, 3)), ["  first", "new", ""]);
    }

    #[test]
    fn text_beyond_the_screen_is_clipped() {
        assert_eq!(rows(&Screen::of(b"abcdef\x1b[9;1Hbelow", 4, 2)), ["abcd", ""]);
    }

    #[test]
    fn text_styles_become_attributes_of_the_image() {
        let image = Screen::of(b"\x1b[1;31ma<b\x1b[0m plain", 12, 1).svg("top");
        assert!(image.contains("fill=\"#ff6b6b\" font-weight=\"bold\">a&lt;b</text>"), "{image}");
        assert!(image.contains("x=\"38\""), "{image}");
    }
}
