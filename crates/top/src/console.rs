//! The terminal: taken over for as long as the display lasts, and given back as it was.
//!
//! # Guarantees
//!
//! * The modes of the terminal, its other screen and its cursor are restored on every way out: at the end, at a failure,
//!   when a signal asks for it, and before a panic is told.
//! * Only lines that have changed are drawn, each refresh with one write.

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

/// The other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";
/// Where the terminal does not say how large it is.
const SIZE: (usize, usize) = (80, 24);
/// Larger it is not taken for.
const SIZE_MAX: usize = 1000;
/// What has happened and was not looked at yet. Where this is full, keys wait in the terminal.
const HAPPENINGS_MAX: usize = 64;

/// What the person, or somebody who sends signals, has done.
#[derive(Debug)]
pub(super) enum Happening {
    Pressed(Vec<Key>),
    /// The size of the screen is another, or somebody else has drawn on it.
    Disturbed,
    /// It is to end.
    Over,
}

/// A terminal that is ours for as long as this lives.
pub(super) struct Console {
    /// How the terminal was, if keys come from one.
    before: Option<Termios>,
    /// What is on the screen, and how large that was.
    shown: Vec<String>,
    size: (usize, usize),
}

impl Console {
    /// Takes the terminal.
    pub(super) fn take(host: &Host<'_>) -> Result<Self, Failure> {
        let before = if stdin().is_terminal() { tcgetattr(stdin()).ok() } else { None };
        let of_hook = before.clone();
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore(of_hook.as_ref());
            previous(info);
        }));
        // From here on the drop gives it back.
        let mut console = Self { before, shown: Vec::new(), size: (0, 0) };
        console.enter(host)?;
        Ok(console)
    }

    /// Has the terminal give keys as they are pressed, and shows the other screen, empty.
    pub(super) fn enter(&mut self, host: &Host<'_>) -> Result<(), Failure> {
        if let Some(before) = &self.before {
            let mut raw = before.clone();
            let local =
                LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN;
            raw.local_modes.remove(local);
            raw.input_modes.remove(InputModes::IXON | InputModes::ICRNL);
            raw.special_codes[SpecialCodeIndex::VMIN] = 1;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            // A terminal that has gone away shows nothing either.
            tcsetattr(stdin(), OptionalActions::Now, &raw).ok();
        }
        self.shown.clear();
        (host.print)(ENTER)
    }

    /// Its columns and rows.
    pub(super) fn size() -> (usize, usize) {
        let Ok(size) = tcgetwinsize(stdout()) else { return SIZE };
        let or = |given: u16, default| if given == 0 { default } else { usize::from(given) };
        (or(size.ws_col, SIZE.0).min(SIZE_MAX), or(size.ws_row, SIZE.1).min(SIZE_MAX))
    }

    /// Draws what is not on the screen yet.
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
        // The hook of this console would restore a terminal that is not its own any more.
        if !thread::panicking() {
            drop(std::panic::take_hook());
        }
    }
}

/// Gives the terminal back. A panic comes here too, so nothing that it may hold is used.
fn restore(before: Option<&Termios>) {
    let mut left = LEAVE;
    while let Ok(count @ 1..) = rustix::io::write(stdout(), left) {
        left = &left[count..];
    }
    if let Some(before) = before {
        tcsetattr(stdin(), OptionalActions::Now, before).ok();
    }
}

/// Hears keys and signals until the program ends.
pub(super) fn listen(host: &Host<'_>) -> Result<mpsc::Receiver<Happening>, Failure> {
    let (told, happenings) = mpsc::channel(HAPPENINGS_MAX);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGCONT])?;
    let of_signals = told.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            let happening = match signal {
                SIGWINCH | SIGCONT => Happening::Disturbed,
                _ => Happening::Over,
            };
            if of_signals.blocking_send(happening).is_err() {
                return;
            }
        }
    })?;
    let (mut input, is_person) = ((host.take_input)(), stdin().is_terminal());
    thread::Builder::new().name("keys".to_owned()).spawn(move || {
        loop {
            let (happening, count) = match input.fill_buf() {
                Ok([]) | Err(_) => {
                    // A person's terminal that ends has been closed. Others may have had nothing to say.
                    if is_person {
                        drop(told.blocking_send(Happening::Over));
                    }
                    return;
                }
                Ok(bytes) => (Happening::Pressed(keys(bytes)), bytes.len()),
            };
            input.consume(count);
            if told.blocking_send(happening).is_err() {
                return;
            }
        }
    })?;
    Ok(happenings)
}
