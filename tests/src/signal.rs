//! Signals to the processes under test.

use std::fs::DirEntry;
use std::process::Command;

use crate::condition::eventually;

/// Sends a signal by name (`TERM`, `INT`) to a process that must exist.
pub fn send_signal(pid: u32, name: &str) {
    let pid = pid.to_string();
    let status = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
    assert!(status.success(), "kill -s {name} {pid}");
}

/// Pauses a process (`SIGSTOP`), and waits until none of its threads runs. On a busy machine, the threads of a process
/// may run for tens of milliseconds after the signal was sent, because one of them must be scheduled to stop the
/// others.
pub async fn pause_process(pid: u32) {
    send_signal(pid, "STOP");
    let tasks = format!("/proc/{pid}/task");
    eventually("all threads of the process are stopped", async || {
        let is_stopped = |task: std::io::Result<DirEntry>| {
            // A thread may have exited since the directory was read.
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.map_or(true, |stat| stat.contains(") T "))
        };
        std::fs::read_dir(&tasks).unwrap().all(is_stopped).then_some(())
    })
    .await;
}

/// Resumes a paused process (`SIGCONT`).
pub fn resume_process(pid: u32) {
    send_signal(pid, "CONT");
}
