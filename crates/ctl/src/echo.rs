//! Reading a secret from a terminal that does not show it.
//!
//! # Guarantees
//!
//! * The terminal shows what is typed again when the reading is over, whichever way: while it lasts the interrupt key
//!   sends no signal but ends the line, and so the tool, in order.
//! * Where standard input is no terminal, lines are read as they come.

use std::io::{BufRead, Error, ErrorKind, IsTerminal as _, stdin};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

/// What the interrupt key sends.
const INTERRUPT: u8 = 3;

/// A terminal that shows nothing, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Hidden {
    /// How the terminal was, if there is one.
    before: Option<Termios>,
}

impl Hidden {
    /// Hides what is typed from now on.
    pub(crate) fn begin() -> Self {
        let before = if stdin().is_terminal() { tcgetattr(stdin()).ok() } else { None };
        if let Some(before) = &before {
            let mut hidden = before.clone();
            hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
            // The key that would have sent a signal ends the line instead.
            hidden.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
            // A terminal that has gone away shows nothing either.
            tcsetattr(stdin(), OptionalActions::Now, &hidden).ok();
        }
        Self { before }
    }

    /// A line without its end.
    pub(crate) fn read_line(&self, input: &mut dyn BufRead) -> Result<Vec<u8>, Error> {
        let ends = |byte: &u8| *byte == b'\n' || (self.before.is_some() && *byte == INTERRUPT);
        let mut line = Vec::new();
        loop {
            let bytes = input.fill_buf()?;
            let Some(end) = bytes.iter().position(ends) else {
                if bytes.is_empty() {
                    return Ok(line);
                }
                let count = bytes.len();
                line.extend_from_slice(bytes);
                input.consume(count);
                continue;
            };
            let last = bytes[end];
            line.extend_from_slice(&bytes[..end]);
            input.consume(end + 1);
            if last == INTERRUPT {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
            }
            return Ok(line);
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // As above.
            tcsetattr(stdin(), OptionalActions::Now, before).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_by_one() {
        let hidden = Hidden { before: None };
        let mut input = &b"one\n two \r\n\nthree"[..];
        let mut next = || hidden.read_line(&mut input).unwrap();
        assert_eq!([next(), next(), next()], [&b"one"[..], b" two \r", b""]);
        assert_eq!([next(), next()], [&b"three"[..], b""]);
    }
}
