//! Switches the terminal to a full-screen display, and restores it afterwards.
//!
//! # Guarantees
//!
//! - The terminal modes, the normal screen and the cursor are restored on every exit: at the normal end, on an error,
//!   on a signal, and before a panic message is printed.
//! - A refresh draws only the lines that have changed, in a single write.

use std::io::{IsTerminal as _, stdin, stdout};
use std::thread;

use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize,
    tcsetattr,
};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;

use super::line::Line;
use super::view::{Key, keys};
use crate::Host;
use crate::failure::Failure;

/// Switches to the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";
/// The size to assume if the terminal does not report one.
const SIZE: (usize, usize) = (80, 24);
/// The maximum number of columns and of rows.
const SIZE_MAX: usize = 1000;
/// The capacity of the queue of terminal events. When it is full, keys wait in the terminal's input buffer.
const EVENTS_MAX: usize = 64;

/// An event from the terminal or from a signal.
#[derive(Debug)]
pub(super) enum TerminalEvent {
    Pressed(Vec<Key>),
    /// The screen must be redrawn, because its size has changed or another program has drawn on it.
    Disturbed,
    /// The display must end.
    Over,
}

/// The terminal in full-screen mode. Dropping this value restores the terminal.
pub(super) struct Console {
    /// The previous terminal modes, if standard input is a terminal.
    before: Option<Termios>,
    /// The lines on the screen, and the screen size for which they were drawn.
    shown: Vec<String>,
    size: (usize, usize),
}

impl Console {
    /// Switches the terminal to full-screen mode.
    pub(super) fn take(host: &Host<'_>) -> Result<Self, Failure> {
        let before = if stdin().is_terminal() { tcgetattr(stdin()).ok() } else { None };
        let of_hook = before.clone();
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore(of_hook.as_ref());
            previous(info);
        }));
        // From here on, dropping the console restores the terminal.
        let mut console = Self { before, shown: Vec::new(), size: (0, 0) };
        console.enter(host)?;
        Ok(console)
    }

    /// Makes the terminal report single key presses, and shows the empty alternate screen.
    pub(super) fn enter(&mut self, host: &Host<'_>) -> Result<(), Failure> {
        if let Some(before) = &self.before {
            let mut raw = before.clone();
            let local =
                LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN;
            raw.local_modes.remove(local);
            raw.input_modes.remove(InputModes::IXON | InputModes::ICRNL);
            raw.special_codes[SpecialCodeIndex::VMIN] = 1;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            // The call fails only if the terminal has been closed, and then nothing can be displayed anyway.
            tcsetattr(stdin(), OptionalActions::Now, &raw).ok();
        }
        self.shown.clear();
        (host.print)(ENTER)
    }

    /// Returns the number of columns and rows of the terminal.
    pub(super) fn size() -> (usize, usize) {
        let Ok(size) = tcgetwinsize(stdout()) else { return SIZE };
        let or = |given: u16, default| if given == 0 { default } else { usize::from(given) };
        (or(size.ws_col, SIZE.0).min(SIZE_MAX), or(size.ws_row, SIZE.1).min(SIZE_MAX))
    }

    /// Draws the lines that have changed since the screen was last drawn.
    pub(super) fn paint(
        &mut self,
        host: &Host<'_>,
        lines: &[Line],
        size: (usize, usize),
    ) -> Result<(), Failure> {
        let lines: Vec<_> = lines.iter().map(Line::painted).collect();
        let mut out = String::new();
        if self.size != size {
            self.shown.clear();
            out.push_str("\x1b[2J");
        }
        for (at, line) in lines.iter().enumerate() {
            if self.shown.get(at) != Some(line) {
                out.push_str(&format!("\x1b[{};1H{line}\x1b[K", at + 1));
            }
        }
        (self.shown, self.size) = (lines, size);
        if out.is_empty() { Ok(()) } else { (host.print)(&out) }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        restore(self.before.as_ref());
        // During a panic, the hook has already restored the terminal.
        if !thread::panicking() {
            drop(std::panic::take_hook());
        }
    }
}

/// Restores the terminal. This function also runs during a panic, so it uses no lock that the panicking thread may
/// hold.
fn restore(before: Option<&Termios>) {
    let mut left = LEAVE;
    while let Ok(count @ 1..) = rustix::io::write(stdout(), left) {
        left = &left[count..];
    }
    if let Some(before) = before {
        tcsetattr(stdin(), OptionalActions::Now, before).ok();
    }
}

/// Starts the threads that read keys and signals, and returns their events.
pub(super) fn listen(host: &Host<'_>) -> Result<mpsc::Receiver<TerminalEvent>, Failure> {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGCONT])?;
    let of_signals = sender.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            let event = match signal {
                SIGWINCH | SIGCONT => TerminalEvent::Disturbed,
                _ => TerminalEvent::Over,
            };
            if of_signals.blocking_send(event).is_err() {
                return;
            }
        }
    })?;
    let (mut input, is_person) = ((host.take_input)(), stdin().is_terminal());
    thread::Builder::new().name("keys".to_owned()).spawn(move || {
        loop {
            let (event, count) = match input.fill_buf() {
                Ok([]) | Err(_) => {
                    // On a terminal, end of input means that the terminal was closed. Other inputs may be empty from
                    // the start.
                    if is_person {
                        drop(sender.blocking_send(TerminalEvent::Over));
                    }
                    return;
                }
                Ok(bytes) => (TerminalEvent::Pressed(keys(bytes)), bytes.len()),
            };
            input.consume(count);
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(events)
}
