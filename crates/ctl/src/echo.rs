//! Reads a secret from the terminal without echo.
//!
//! # Guarantees
//!
//! * Echo is always restored. While the secret is read, the interrupt key ends the line instead of sending a signal,
//!   and the tool then exits in an orderly way.
//! * If standard input is not a terminal, there is no echo to disable, and a line is read as from a file.

use std::io::{BufRead, Error, ErrorKind, IsTerminal as _, stdin};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

/// The character that the interrupt key sends.
const INTERRUPT: u8 = 3;

/// Disables terminal echo until this value is dropped.
#[derive(Debug)]
pub(crate) struct Hidden {
    /// Terminal modes to restore, if standard input is a terminal.
    before: Option<Termios>,
}

impl Hidden {
    /// Disables echo.
    pub(crate) fn begin() -> Self {
        let before = if stdin().is_terminal() { tcgetattr(stdin()).ok() } else { None };
        if let Some(before) = &before {
            let mut hidden = before.clone();
            hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
            // The interrupt key ends the line instead of sending a signal.
            hidden.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
            // The call fails only if the terminal has been closed.
            tcsetattr(stdin(), OptionalActions::Now, &hidden).ok();
        }
        Self { before }
    }

    /// Reads a line and strips its line ending.
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
            // The call fails only if the terminal has been closed.
            tcsetattr(stdin(), OptionalActions::Now, before).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_one_at_a_time() {
        let hidden = Hidden { before: None };
        let mut input = &b"one\n two \r\n\nthree"[..];
        let mut next = || hidden.read_line(&mut input).unwrap();
        assert_eq!([next(), next(), next()], [&b"one"[..], b" two \r", b""]);
        assert_eq!([next(), next()], [&b"three"[..], b""]);
    }
}
