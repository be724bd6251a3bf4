//! Runs a member as a process, which is configured by arguments, environment and file, is stopped by signals, and ends
//! with an exit status.
//!
//! # Not here
//!
//! The member itself (`server`), and a member embedded in another program (`embedded`).

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use quorate_config::{Config, ProcessSurroundings};
use quorate_net::descriptors;
use quorate_telemetry::log;

use crate::engine;
use crate::failed_start;
use crate::remedy;
use crate::server::{Ended, StartError, run};
use crate::signals::{self, StopSignals};
use crate::supervisor::{Stop, Supervisor};

/// Runs a server until it is stopped. The first argument is the program name.
#[must_use]
pub fn main(arguments: &[String]) -> ExitCode {
    let config = match quorate_config::parse(arguments, &ProcessSurroundings)
        .and_then(|parsed| parsed.open_log(arguments))
    {
        Ok(config) => config,
        Err(exit) => return to_exit_code(exit.report()),
    };
    if config.serves_profiles() && !quorate_profiler::sample_heap() {
        log::warn!(
            "heap profiles are not available: this program uses an allocator that does not take samples"
        );
    }
    if let Err(error) = signals::ignore_user_signals() {
        log::warn!("failed to ignore user signals", "error" = error.to_string());
    }
    descriptors::raise_limit();
    let mut supervisor = match StopSignals::install() {
        Ok(signals) => Supervisor::Process(signals),
        Err(error) => {
            log::fatal!("failed to install signal handlers", "error" = error.to_string());
            log::flush();
            return ExitCode::FAILURE;
        }
    };
    let outcome = match config.engine.get() {
        Some(url) => engine::run(&config, url, arguments, &mut supervisor),
        None => run(&config, arguments, &mut supervisor),
    };
    let code = end(outcome, &config);
    log::flush();
    to_exit_code(code)
}

/// Logs why a member has ended, and returns the exit status. Restarts the process if the member's state must be
/// rebuilt.
fn end(outcome: Result<Ended, StartError>, config: &Config) -> i32 {
    match outcome {
        Ok(Ended::Stopped(stop)) => {
            log::info!("closed etcd server", "name" = config.name, "data-dir" = config.data_dir);
            match stop {
                Stop::Signal(signal) => signal.end_process(),
                Stop::Host => 0,
            }
        }
        Ok(Ended::Removed) => 0,
        Ok(Ended::Rebuild(reason)) => {
            log::warn!("restarting to rebuild this member's state", "reason" = reason);
            start_again()
        }
        Ok(Ended::Damaged(fatal)) => {
            log::error!(
                "this member's state cannot be read; restarting to rebuild it",
                "task" = fatal.task,
                "error" = log::error_chain(&*fatal.error)
            );
            start_again()
        }
        Ok(Ended::Fault(fatal)) => {
            log::fatal!(
                "the member has failed and is stopping",
                "task" = fatal.task,
                "error" = log::error_chain(&*fatal.error),
                "what-to-do" = remedy::after_fault(&*fatal.error)
            );
            1
        }
        Ok(Ended::LogFault { fault, member_id }) => {
            log::fatal!(
                "the member can no longer take part in its cluster and is stopping",
                "error" = fault.to_string(),
                "what-to-do" = remedy::after_log_fault(&fault, member_id, &config.data_dir)
            );
            1
        }
        Err(StartError::Descriptors(error)) => {
            log::fatal!(
                "file descriptor limit of etcd process is too low; please set higher",
                "limit" = error.limit,
                "recommended-limit" = error.needed,
                "error" = error.to_string()
            );
            1
        }
        Err(error) => {
            let chain = log::error_chain(&error);
            match failed_start::what_to_do(&error, &config.data_dir) {
                Some(advice) => {
                    log::fatal!(
                        failed_start::heading(&error),
                        "error" = chain,
                        "what-to-do" = advice
                    );
                }
                None => log::fatal!(failed_start::heading(&error), "error" = chain),
            }
            1
        }
    }
}

fn to_exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Restarts this process by calling `exec` with the same arguments. The process keeps its id, which the init system
/// knows, but its threads end and its files are closed. Returns an exit code if `exec` fails; the rebuild order then
/// remains, and is carried out when the process is started again.
fn start_again() -> i32 {
    log::flush();
    let mut arguments = std::env::args_os();
    let mut program = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        program.arg0(name);
    }
    let error = program.args(arguments).exec();
    log::fatal!("failed to restart the process", "error" = error.to_string());
    1
}
