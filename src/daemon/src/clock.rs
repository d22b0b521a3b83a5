//! The wall clock beside the one that does not jump.
//!
//! What is kept for a time says in Unix seconds since when, because that must outlive a reboot. Whoever deletes by that asks
//! here first: a wall clock that has jumped ahead makes everything old at once.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A jump that is one: more than any scheduler's delay.
const JUMP: Duration = Duration::from_secs(300);

/// Sees the wall clock jump ahead.
#[derive(Debug)]
pub struct Jumps {
    last: (Instant, Duration),
}

impl Jumps {
    /// From now on.
    #[must_use]
    pub fn watch() -> Self {
        Self { last: moment() }
    }

    /// Whether the wall clock went ahead further than time did since this was last asked.
    pub fn ahead(&mut self) -> bool {
        let (then, now) = (self.last, moment());
        self.last = now;
        jumped(now.0 - then.0, then.1, now.1)
    }
}

fn moment() -> (Instant, Duration) {
    (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn jumped(elapsed: Duration, then: Duration, now: Duration) -> bool {
    now.saturating_sub(then) > elapsed + JUMP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_jump_ahead_is_one() {
        let seconds = Duration::from_secs;
        for (elapsed, then, now, jump) in [
            (10, 1000, 5000, true),
            (10, 1000, 1311, true),
            (10, 1000, 1310, false),
            (10, 1000, 1010, false),
            (10, 5000, 1000, false),
            (4000, 1000, 5000, false),
        ] {
            assert_eq!(jumped(seconds(elapsed), seconds(then), seconds(now)), jump, "{elapsed} {then} {now}");
        }
        assert!(!Jumps::watch().ahead());
    }
}
