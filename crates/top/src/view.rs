//! The user's choices at the terminal, and how key presses change them.

use std::time::Duration;

/// A key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Character(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    /// Ctrl-C.
    Interrupt,
}

/// The pane shown below the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    #[default]
    Overview,
    Members,
    Requests,
    Watches,
    Prefixes,
}

impl Pane {
    pub(super) const ALL: [Self; 5] =
        [Self::Overview, Self::Members, Self::Requests, Self::Watches, Self::Prefixes];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Members => "members",
            Self::Requests => "requests",
            Self::Watches => "watches",
            Self::Prefixes => "prefixes",
        }
    }
}

/// A sort order. The first five orders apply to members, and the others apply to prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Name,
    Requests,
    Latency,
    Db,
    Lag,
    Bytes,
    Keys,
    Writes,
    Prefix,
}

impl Sort {
    pub(super) const OF_MEMBERS: [Self; 5] =
        [Self::Name, Self::Requests, Self::Latency, Self::Db, Self::Lag];
    pub(super) const OF_PREFIXES: [Self; 4] = [Self::Bytes, Self::Keys, Self::Writes, Self::Prefix];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Requests => "requests",
            Self::Latency => "latency",
            Self::Db => "db",
            Self::Lag => "lag",
            Self::Bytes => "bytes",
            Self::Keys => "keys",
            Self::Writes => "writes",
            Self::Prefix => "prefix",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        let mut all = Self::OF_MEMBERS.into_iter().chain(Self::OF_PREFIXES);
        all.find(|sort| sort.name() == name)
    }

    /// Returns whether the order is descending.
    pub(super) const fn is_falling(self) -> bool {
        !matches!(self, Self::Name | Self::Prefix)
    }
}

/// The current choices of the user.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) pane: Pane,
    pub(super) member_sort: Sort,
    pub(super) prefix_sort: Sort,
    pub(super) is_reversed: bool,
    /// The text that the names of members and prefixes must contain to be shown.
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    /// The number of rows that are scrolled off the top.
    pub(super) offset: usize,
    pub(super) interval: Duration,
}

/// The minimum refresh interval.
pub(super) const INTERVAL_MIN: Duration = Duration::from_millis(200);
/// The maximum refresh interval that keys can set.
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// The maximum length of a filter, in characters.
const FILTER_MAX: usize = 60;
const PAGE_ROWS: usize = 10;

impl View {
    pub(super) const fn new(interval: Duration) -> Self {
        Self {
            pane: Pane::Overview,
            member_sort: Sort::Name,
            prefix_sort: Sort::Bytes,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            shows_help: false,
            offset: 0,
            interval,
        }
    }

    /// Sorts the table to which this order applies.
    pub(super) fn sort_by(&mut self, sort: Sort) {
        if Sort::OF_MEMBERS.contains(&sort) {
            self.member_sort = sort;
        } else {
            self.prefix_sort = sort;
        }
    }

    /// Handles a key. Returns whether the display must end.
    pub(super) fn press(&mut self, key: Key) -> bool {
        if key == Key::Interrupt {
            return true;
        }
        if self.is_typing {
            self.type_filter(key);
            return false;
        }
        if self.shows_help && key != Key::Character('q') {
            self.shows_help = false;
            return false;
        }
        match key {
            Key::Character('q') => return true,
            Key::Character('h' | '?') => self.shows_help = true,
            Key::Character('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Character('r') => self.is_reversed = !self.is_reversed,
            Key::Character('s' | '>') => self.next_sort(1),
            Key::Character('<') => self.next_sort(-1),
            Key::Character('/') => (self.is_typing, self.offset) = (true, 0),
            Key::Character('+') => {
                // The command line may set a longer interval.
                let longest = self.interval.max(INTERVAL_MAX);
                self.interval = self.interval.saturating_mul(2).min(longest);
            }
            Key::Character('-') => self.interval = (self.interval / 2).max(INTERVAL_MIN),
            Key::Character(digit @ '1'..='5') => {
                let at = usize::try_from(u32::from(digit) - u32::from('1')).unwrap_or_default();
                self.show(Pane::ALL[at]);
            }
            Key::Tab => {
                let at = Pane::ALL.iter().position(|pane| *pane == self.pane).unwrap_or_default();
                self.show(Pane::ALL[(at + 1) % Pane::ALL.len()]);
            }
            Key::Escape => self.filter.clear(),
            Key::Up | Key::Character('k') => self.offset = self.offset.saturating_sub(1),
            Key::Down | Key::Character('j') => self.offset += 1,
            Key::PageUp => self.offset = self.offset.saturating_sub(PAGE_ROWS),
            Key::PageDown => self.offset += PAGE_ROWS,
            Key::Home => self.offset = 0,
            Key::Character(_) | Key::Enter | Key::Backspace | Key::Interrupt => {}
        }
        false
    }

    const fn show(&mut self, pane: Pane) {
        (self.pane, self.offset) = (pane, 0);
    }

    /// Moves to the next or previous sort order of the current table.
    fn next_sort(&mut self, step: isize) {
        let next = |all: &[Sort], now: Sort| {
            let at = all.iter().position(|sort| *sort == now).unwrap_or_default();
            all[(at + all.len()).saturating_add_signed(step) % all.len()]
        };
        match self.pane {
            Pane::Members | Pane::Watches => {
                self.member_sort = next(&Sort::OF_MEMBERS, self.member_sort);
            }
            Pane::Overview | Pane::Requests | Pane::Prefixes => {
                self.prefix_sort = next(&Sort::OF_PREFIXES, self.prefix_sort);
            }
        }
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.filter.clear();
                self.is_typing = false;
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Character(character) if self.filter.len() < FILTER_MAX => {
                self.filter.push(character);
            }
            Key::Character(_)
            | Key::Tab
            | Key::Up
            | Key::Down
            | Key::PageUp
            | Key::PageDown
            | Key::Home
            | Key::Interrupt => {}
        }
    }
}

/// Parses input into keys. Unknown control sequences are skipped. An escape character at the end of the input is the
/// escape key.
pub(super) fn keys(input: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = input;
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        keys.extend(match first {
            0x1b => match tail {
                [b'[' | b'O', ..] => {
                    let end = tail[1..].iter().position(|byte| (0x40..=0x7e).contains(byte));
                    let (sequence, after) =
                        tail[1..].split_at(end.map_or(tail.len() - 1, |at| at + 1));
                    rest = after;
                    sequence_key(sequence)
                }
                _ => Some(Key::Escape),
            },
            0x03 | 0x04 => Some(Key::Interrupt),
            b'\r' | b'\n' => Some(Key::Enter),
            b'\t' => Some(Key::Tab),
            0x08 | 0x7f => Some(Key::Backspace),
            0x20..=0x7e => Some(Key::Character(char::from(*first))),
            _ => None,
        });
    }
    keys
}

fn sequence_key(sequence: &[u8]) -> Option<Key> {
    Some(match sequence {
        b"A" => Key::Up,
        b"B" => Key::Down,
        b"H" | b"1~" => Key::Home,
        b"5~" => Key::PageUp,
        b"6~" => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(input: &[u8]) -> (View, bool) {
        let mut view = View::new(Duration::from_secs(2));
        let is_over = keys(input).into_iter().any(|key| view.press(key));
        (view, is_over)
    }

    #[test]
    fn terminal_input_is_parsed_into_keys() {
        let expected = [Key::Up, Key::Character('q'), Key::PageDown, Key::Enter, Key::Escape];
        assert_eq!(keys(b"\x1b[Aq\x1b[6~\r\x1b"), expected);
        assert_eq!(keys(b"\x1b[1;5C\x1bOB\xc3\x03"), [Key::Down, Key::Interrupt]);
        assert_eq!(keys(b"\x1b["), []);
    }

    #[test]
    fn keys_change_the_pane_the_sort_order_the_interval_and_the_pause() {
        for (input, pane) in
            [(&b"3"[..], Pane::Requests), (b"5", Pane::Prefixes), (b"5\t", Pane::Overview)]
        {
            assert_eq!(pressed(input).0.pane, pane);
        }
        assert_eq!(pressed(b"5s").0.prefix_sort, Sort::Keys);
        assert_eq!(pressed(b"5<").0.prefix_sort, Sort::Prefix);
        assert_eq!(pressed(b"2ss").0.member_sort, Sort::Latency);
        assert_eq!(pressed(b"jjjk").0.offset, 2);
        assert_eq!(pressed(b"+").0.interval, Duration::from_secs(4));
        assert_eq!(pressed(b"-----").0.interval, INTERVAL_MIN);
        assert_eq!(pressed(b"++++++").0.interval, INTERVAL_MAX);
        assert!(pressed(b"p").0.is_paused && !pressed(b"p ").0.is_paused);
    }

    #[test]
    fn the_plus_key_never_lowers_the_interval() {
        let mut view = View::new(INTERVAL_MAX * 2);
        view.press(Key::Character('+'));
        assert_eq!(view.interval, INTERVAL_MAX * 2);
    }

    #[test]
    fn a_filter_accepts_all_letters_and_ends_with_enter() {
        let (view, is_over) = pressed(b"/pqx\x7f\r");
        assert_eq!((view.filter.as_str(), view.is_typing, is_over), ("pq", false, false));
        assert_eq!(pressed(b"/pq\x1b").0.filter, "");
        assert!(pressed(b"/a\rq").1 && pressed(b"/a\x03").1);
        assert_eq!(pressed(&[&b"/"[..], &[b'a'; 200]].concat()).0.filter.len(), FILTER_MAX);
    }

    #[test]
    fn any_key_except_q_closes_the_help_and_has_no_other_effect() {
        let (view, is_over) = pressed(b"hs");
        assert!(!view.shows_help && !is_over);
        assert_eq!(view.prefix_sort, Sort::Bytes);
    }
}
