//! Connection attempts that are started one after another, without waiting for the earlier ones to end.
//!
//! # Guarantees
//!
//! * An address that does not respond delays the attempt at the next address only by [`ATTEMPT_DELAY`]. An address that
//!   refuses the connection does not delay it at all.
//! * Once an attempt has succeeded, all other attempts are dropped.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;

/// The time after which the next attempt starts although the earlier ones are still in progress. It is the delay that
/// RFC 8305 (“Happy Eyeballs”) recommends: longer than a round trip in most networks, so that the first address is
/// usually the only one that is dialled.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Returns the result of the attempt that succeeds first, or the last error if all attempts fail. Returns `None` if
/// there are no attempts.
pub async fn first_success<T, E, F>(attempts: impl IntoIterator<Item = F>) -> Option<Result<T, E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = attempts.into_iter();
    let mut running = Vec::new();
    let mut last_error = None;
    loop {
        let next = waiting.next();
        let is_last = next.is_none();
        running.extend(next.map(Box::pin));
        if running.is_empty() {
            return last_error.map(Err);
        }
        tokio::select! {
            ended = first_end(&mut running) => match ended {
                Ok(success) => return Some(Ok(success)),
                Err(error) => last_error = Some(error),
            },
            () = sleep(ATTEMPT_DELAY), if !is_last => {}
        }
    }
}

/// Runs the attempts until one ends, removes it, and returns its result.
async fn first_end<F: Future>(running: &mut Vec<Pin<Box<F>>>) -> F::Output {
    poll_fn(|context| {
        for position in 0..running.len() {
            if let Poll::Ready(output) = running[position].as_mut().poll(context) {
                drop(running.remove(position));
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::Instant;

    use super::*;

    /// How an attempt ends.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Succeeds,
        Fails,
        Hangs,
    }

    /// Runs an attempt for each fate. Returns the result, the number of attempts that were started, and the time that
    /// they took.
    async fn outcome(fates: &[Fate]) -> (Option<Result<usize, usize>>, usize, Duration) {
        let started = RefCell::new(0);
        let attempts = fates.iter().enumerate().map(|(number, fate)| {
            let started = &started;
            async move {
                *started.borrow_mut() += 1;
                match fate {
                    Fate::Succeeds => Ok(number),
                    Fate::Fails => Err(number),
                    Fate::Hangs => std::future::pending().await,
                }
            }
        });
        let start = Instant::now();
        let result = first_success(attempts).await;
        (result, started.into_inner(), start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_delays_the_next_one_briefly() {
        use Fate::{Fails, Hangs, Succeeds};
        let (none, once) = (Duration::ZERO, ATTEMPT_DELAY);
        for (fates, result, started, duration) in [
            (&[][..], None, 0, none),
            (&[Succeeds, Succeeds], Some(Ok(0)), 1, none),
            (&[Fails, Succeeds, Succeeds], Some(Ok(1)), 2, none),
            (&[Fails, Fails], Some(Err(1)), 2, none),
            (&[Hangs, Succeeds], Some(Ok(1)), 2, once),
            (&[Hangs, Fails, Hangs, Succeeds], Some(Ok(3)), 4, 2 * once),
        ] {
            assert_eq!(outcome(fates).await, (result, started, duration), "{fates:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_attempt_may_succeed_after_a_later_one_has_started() {
        let attempts = [4 * ATTEMPT_DELAY / 3, 2 * ATTEMPT_DELAY].map(async |delay| {
            sleep(delay).await;
            Ok::<_, ()>(delay)
        });
        assert_eq!(first_success(attempts).await, Some(Ok(4 * ATTEMPT_DELAY / 3)));
    }
}
