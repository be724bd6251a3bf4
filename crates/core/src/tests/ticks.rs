//! Tests of the tick schedule.

use std::time::{Duration, Instant};

use crate::ticks::Ticks;

const INTERVAL: Duration = Duration::from_millis(100);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The thread that runs the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    /// The thread that has received a heartbeat.
    Network,
    /// The driver's own thread, which has slept until its deadline.
    Own,
}

/// Runs the ticks of a member that may defer `deferrable` ticks, with heartbeats at these times. Returns the time of
/// each run of the driver, the thread that runs it, and the number of ticks taken before and after the inputs.
fn run(
    deferrable: u32,
    is_leader: bool,
    heartbeats: &[u64],
    end: u64,
) -> Vec<(u64, Runner, usize, usize)> {
    let start = Instant::now();
    let mut ticks = Ticks::begin(INTERVAL, start);
    let mut heartbeats = heartbeats.iter().map(|at| start + millis(*at)).peekable();
    let (end, mut runs) = (start + millis(end), Vec::new());
    // The ticks since the last heartbeat.
    let mut silent = 0;
    // A heartbeat does not wake the driver's thread, so it does not change this thread's deadline.
    let mut deadline = ticks.sleep(deferrable);
    loop {
        let come = heartbeats.next_if(|at| *at <= deadline);
        let now = come.unwrap_or(deadline);
        if now > end {
            return runs;
        }
        let mut before = 0;
        while ticks.take_deferred(now) {
            before += 1;
        }
        silent = if come.is_some() { 0 } else { silent + before };
        let after = usize::from(ticks.take(now, come.is_some(), is_leader).is_some());
        silent += after;
        let runner = if come.is_some() { Runner::Network } else { Runner::Own };
        if runner == Runner::Own {
            let left = deferrable.saturating_sub(u32::try_from(silent).unwrap());
            deadline = ticks.sleep(left);
        }
        let at = u64::try_from((now - start).as_millis()).unwrap();
        runs.push((at, runner, before, after));
    }
}

#[test]
fn the_thread_of_a_follower_that_receives_heartbeats_rarely_wakes() {
    // The result does not depend on the phase of the heartbeats.
    for phase in [0, 1, 49, 50, 51, 99] {
        let heartbeats: Vec<u64> = (1..=50).map(|number| number * 100 + phase).collect();
        let runs = run(5, false, &heartbeats, 5_000);
        let ticks: usize = runs.iter().map(|(_, _, before, after)| before + after).sum();
        assert!((49..=51).contains(&ticks), "{phase}: {ticks}");
        let own = runs.iter().filter(|(_, runner, ..)| *runner == Runner::Own).count();
        assert!(own <= 13, "{phase}: {own} of {}", runs.len());
    }
}

#[test]
fn deferred_ticks_are_taken_together_before_the_next_input() {
    use Runner::{Network, Own};
    let runs = run(5, false, &[320], 1_400);
    let expected = [
        // Three ticks are due, and no other is nearly due.
        (320, Network, 3, 0),
        // Five ticks were deferred, and then three. After five ticks without a heartbeat, no tick is deferred.
        (500, Own, 2, 0),
        (800, Own, 3, 0),
        (900, Own, 0, 1),
        (1_000, Own, 0, 1),
    ];
    assert_eq!(runs[..5], expected);
}

#[test]
fn a_leader_ticks_at_every_interval() {
    let runs = run(0, true, &[90, 110, 160, 190, 310], 400);
    let ticks: Vec<u64> = runs.iter().filter(|run| run.3 > 0).map(|run| run.0).collect();
    assert_eq!(ticks, [100, 200, 300, 400]);
}

#[test]
fn ticks_missed_during_a_pause_are_skipped() {
    let start = Instant::now();
    let mut ticks = Ticks::begin(INTERVAL, start);
    assert_eq!(ticks.sleep(3), start + millis(300));
    let now = start + millis(1_000);
    let deferred = std::iter::repeat_with(|| ticks.take_deferred(now));
    assert_eq!(deferred.take_while(|is_taken| *is_taken).count(), 1, "the thread has overslept");
    assert_eq!(ticks.take(now, true, false), None, "messages may have arrived in the meantime");
    assert_eq!(ticks.sleep(0), start + millis(1_100));
    let now = start + millis(2_000);
    assert_eq!(ticks.take(now, true, false), Some(millis(900)));
    assert_eq!(ticks.take(now, true, false), Some(Duration::ZERO));
    assert_eq!(ticks.take(now, true, false), None);
    assert_eq!(ticks.sleep(0), start + millis(2_100));
}
