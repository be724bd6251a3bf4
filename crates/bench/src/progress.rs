//! The progress bar, which is shown only on a terminal.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::pace::Pace;

const REDRAW: Duration = Duration::from_millis(200);

/// A progress bar that shows a run until it is dropped.
pub(crate) struct Progress {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts drawing if standard error is a terminal. Without a `total`, the bar shows the elapsed part of `duration`.
    pub(crate) fn follow(pace: Arc<Pace>, total: Option<u64>, duration: Option<Duration>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { thread: None };
        }
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let whole = total.or(duration.map(millis));
            let bar = ProgressBar::new(whole.unwrap_or_default());
            let template = "{bar:40} {percent}%  {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            while stopped.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
                let (done, elapsed) = (pace.done(), pace.elapsed());
                bar.set_position(if total.is_some() { done } else { millis(elapsed) });
                let rate = done as f64 / elapsed.as_secs_f64();
                bar.set_message(format!("{done} operations, {rate:.0} per second"));
            }
            bar.finish_and_clear();
        });
        Self { thread: Some((stop, thread)) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // An error in the progress bar must not discard the result of the run.
            drop(thread.join());
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
