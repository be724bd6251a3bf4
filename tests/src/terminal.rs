//! A program on a pseudo-terminal, which behaves as it does for an interactive user.
//!
//! `script` of util-linux creates the terminal, forwards input and shows the program's output, including the terminal's
//! echo. Every Debian installation has it.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::{eventually, skipped};

/// A program on a terminal, killed when dropped.
#[derive(Debug)]
pub struct Terminal {
    process: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a program. Returns `None` if terminals cannot be created.
    #[must_use]
    pub fn start(program: &Command) -> Option<Self> {
        Self::start_between(program, "", "")
    }

    /// Starts a program with shell lines before and after it on the same terminal. The lines can change the program's
    /// environment.
    #[must_use]
    pub fn start_between(program: &Command, before: &str, after: &str) -> Option<Self> {
        let words = std::iter::once(program.get_program()).chain(program.get_args());
        let quoted =
            words.map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''")));
        let line = quoted.collect::<Vec<_>>().join(" ");
        // The shell replaces itself with the program if there are no other lines, so that a signal reaches the program.
        let lines = [before, &line, after].into_iter().filter(|line| !line.is_empty());
        let line = lines.collect::<Vec<_>>().join("\n");
        // If a shell runs the tests in the background, they ignore signals such as INT. The default handling is
        // restored, so that the interrupt key works nevertheless.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,QUIT,HUP", "script", "--quiet", "--return", "--flush"]);
        command.args(["--command", &line, "/dev/null"]);
        for (name, value) in program.get_envs() {
            command.env(name, value.unwrap());
        }
        let command = command.env("SHELL", "/bin/sh").env("TERM", "dumb");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut process) = command.spawn() else {
            skipped("tests of output on a terminal (`script` cannot create a terminal)");
            return None;
        };
        let (keyboard, mut output) =
            (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut piece) {
                shown.lock().unwrap().extend_from_slice(&piece[..count]);
            }
        });
        Some(Self { process, keyboard, screen })
    }

    /// Returns all output so far, with line endings as in files.
    #[must_use]
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).replace("\r\n", "\n")
    }

    /// Waits until the screen ends with a text.
    pub async fn shows(&self, text: &str) {
        eventually(&format!("the screen ends with {text:?}"), async || {
            self.screen().ends_with(text).then_some(())
        })
        .await;
    }

    /// Waits until the screen ends with a text and echo is off. A program prints its prompt before it disables echo.
    pub async fn prompts_without_echo(&self, text: &str) {
        self.shows(text).await;
        eventually("the terminal does not echo input", async || {
            let settings = Command::new("stty").arg("-aF").arg(self.device()?).output().unwrap();
            let settings = String::from_utf8_lossy(&settings.stdout).into_owned();
            settings.split_whitespace().any(|setting| setting == "-echo").then_some(())
        })
        .await;
    }

    /// Returns the terminal device, which is the program's standard input.
    fn device(&self) -> Option<PathBuf> {
        let id = self.process.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
        let child = children.split_whitespace().next()?;
        std::fs::read_link(format!("/proc/{child}/fd/0")).ok()
    }

    /// Types text, which may include control characters.
    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Waits until the program has exited. Returns its exit code and all output.
    pub async fn ends(mut self) -> (Option<i32>, String) {
        let status = eventually("the program exits", async || self.process.try_wait().unwrap());
        let status = status.await;
        eventually("the output is complete", async || {
            (Arc::strong_count(&self.screen) == 1).then_some(())
        })
        .await;
        (status.code(), self.screen())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program may have exited already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
