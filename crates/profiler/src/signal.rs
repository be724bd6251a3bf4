//! SIGPROF: a CPU timer for each thread, and the signal handler that copies the thread's registers and stack.
//!
//! All `unsafe` signal code of this crate is in this module. The handler reads the registers that the kernel passes to
//! it and makes two system calls (`gettid`, `pwrite`), which POSIX and Linux allow in a handler. The kernel copies the
//! stack, so an invalid address causes an error instead of a fault.
//!
//! A timer counts the CPU time of one thread and interrupts only that thread. All cores are thus sampled equally, and
//! sleeping threads are not interrupted. The kernel restarts interrupted system calls (`SA_RESTART`), except calls that
//! wait for events, sleep, or reserve file space. All callers in this program repeat such calls themselves.
//!
//! # Invariants
//!
//! * Once installed, the handler stays installed, because a late signal without a handler would end the process.

#![expect(unsafe_code, reason = "signals, thread timers and registers have no safe wrapper")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::Duration;

use crate::sample_buffer::{BELOW_STACK_BYTES, Registers, SAMPLE_BUFFER, STACK_BYTES};

/// The maximum number of timers. Threads beyond this number are not sampled.
pub(crate) const TIMERS_MAX: usize = 4096;

/// Whether this module can read the registers of this architecture.
pub(crate) const IS_SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Installs the signal handler on the first call.
pub(crate) fn install_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_signal;
        // SAFETY: `sigaction` is a plain structure, and all zeroes are a valid value: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: the structure is complete, and the handler has the signature that SA_SIGINFO requires. No other code
        // of this process handles this signal.
        let outcome =
            unsafe { libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()) };
        if outcome == 0 { Ok(()) } else { Err(last_errno()) }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

/// The signal handler, which runs in the interrupted thread. The module header lists the operations that are allowed in
/// it.
extern "C" fn on_signal(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    if !SAMPLE_BUFFER.is_open() || context.is_null() {
        return;
    }
    // SAFETY: the thread can be interrupted only while its `errno` exists.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to this thread's `errno`. The value is restored at the end, because the interrupted code
    // may still need it.
    let before = unsafe { *errno };
    // SAFETY: with SA_SIGINFO, the third argument of a handler points to a `ucontext_t`, which is valid while the
    // handler runs.
    let registers = registers(unsafe { &*context.cast::<libc::ucontext_t>() });
    // SAFETY: `gettid` has no arguments and cannot fail.
    let thread = unsafe { libc::gettid() };
    let from = registers.stack.wrapping_sub(BELOW_STACK_BYTES);
    SAMPLE_BUFFER
        .put(thread.unsigned_abs(), registers, |file, place| copy_stack(from, file, place));
    // SAFETY: `errno` points to this thread's `errno`.
    unsafe { *errno = before };
}

/// Makes the kernel copy a stack into the file, and returns the number of copied bytes.
fn copy_stack(from: u64, file: c_int, place: u64) -> u32 {
    let (Ok(place), Ok(from)) = (libc::off_t::try_from(place), usize::try_from(from)) else {
        return 0;
    };
    let from = std::ptr::without_provenance::<c_void>(from);
    // SAFETY: the kernel checks that the memory is readable, and writes its contents to a file that only the sample
    // buffer reads. This code does not dereference the pointer.
    let copied = unsafe { libc::pwrite(file, from, STACK_BYTES, place) };
    u32::try_from(copied).unwrap_or(0)
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let general = &context.uc_mcontext.gregs;
    let at = |register: c_int| {
        let index = usize::try_from(register).unwrap_or(usize::MAX);
        general.get(index).map_or(0, |value| value.cast_unsigned())
    };
    Registers {
        code: at(libc::REG_RIP),
        stack: at(libc::REG_RSP),
        frame: at(libc::REG_RBP),
        link: 0,
    }
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let machine = &context.uc_mcontext;
    Registers {
        code: machine.pc,
        stack: machine.sp,
        frame: machine.regs[29],
        link: machine.regs[30],
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn registers(_context: &libc::ucontext_t) -> Registers {
    Registers::default()
}

/// The timers of a recording, which are deleted when this value is dropped.
#[derive(Debug)]
pub(crate) struct Timers {
    period: Duration,
    most: usize,
    by_thread: HashMap<u32, libc::timer_t>,
}

impl Timers {
    /// Creates an empty set for at most `most` timers with this period.
    pub(crate) fn new(period: Duration, most: usize) -> Self {
        Self { period, most, by_thread: HashMap::new() }
    }

    /// Returns the number of threads with a timer.
    pub(crate) fn count(&self) -> usize {
        self.by_thread.len()
    }

    /// Creates a timer for each of these threads without one, and deletes the timers of all other threads. Returns the
    /// last error. A thread that has just ended does not cause an error.
    pub(crate) fn cover(&mut self, threads: &[u32]) -> io::Result<()> {
        self.by_thread.retain(|thread, timer| {
            let stays = threads.contains(thread);
            if !stays {
                delete(*timer);
            }
            stays
        });
        let mut outcome = Ok(());
        for thread in threads {
            if self.by_thread.contains_key(thread) || self.by_thread.len() >= self.most {
                continue;
            }
            match start(*thread, self.period) {
                Ok(timer) => drop(self.by_thread.insert(*thread, timer)),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        for timer in self.by_thread.values() {
            delete(*timer);
        }
    }
}

/// Returns the id of the clock that counts a thread's CPU time, as Linux encodes it.
const fn cpu_clock(thread: c_int) -> libc::clockid_t {
    /// The kind of clock that counts the CPU time of a single thread, as measured by the scheduler.
    const SCHEDULED_OF_THREAD: c_int = 0b110;
    (!thread << 3) | SCHEDULED_OF_THREAD
}

fn start(thread: u32, period: Duration) -> io::Result<libc::timer_t> {
    let thread = c_int::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `sigevent` is a plain structure, and all zeroes are a valid value.
    let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGPROF;
    event.sigev_notify_thread_id = thread;
    let mut timer: libc::timer_t = std::ptr::null_mut();
    // SAFETY: both structures are initialised, and the kernel checks the clock and the thread.
    let made = unsafe { libc::timer_create(cpu_clock(thread), &raw mut event, &raw mut timer) };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    let interval = libc::timespec {
        tv_sec: libc::time_t::try_from(period.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: period.subsec_nanos().into(),
    };
    let setting = libc::itimerspec { it_interval: interval, it_value: interval };
    // SAFETY: the timer was created above, and the setting is initialised.
    let set = unsafe { libc::timer_settime(timer, 0, &raw const setting, std::ptr::null_mut()) };
    if set != 0 {
        let error = io::Error::last_os_error();
        delete(timer);
        return Err(error);
    }
    Ok(timer)
}

fn delete(timer: libc::timer_t) {
    // SAFETY: each timer is deleted once: by `start` before it enters the table, or when its entry or the whole table
    // is removed. The handler remains installed for a late signal.
    let _gone = unsafe { libc::timer_delete(timer) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_beyond_the_timer_limit_are_not_sampled() {
        let mut timers = Timers::new(Duration::from_secs(3600), 1);
        let own = crate::threads::own_id();
        // A thread that has ended has no clock, but this must not cause an error.
        timers.cover(&[(1 << 22) + 1]).unwrap();
        assert_eq!(timers.count(), 0);
        let threads = crate::threads::ids();
        let others: Vec<u32> = threads.into_iter().filter(|thread| *thread != own).collect();
        timers.cover(&[&[own], &others[..]].concat()).unwrap();
        assert_eq!(timers.count(), 1);
        timers.cover(&[]).unwrap();
        assert_eq!(timers.count(), 0);
    }
}
