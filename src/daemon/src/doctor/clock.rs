//! The clock: what is kept and thrown away by it has to be right.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wire::api::{Finding, Level};

use super::{fine, mended, sys};

/// The beginning of 2026: no clock was earlier when this was written.
const EARLIEST: u64 = 1_767_225_600;
/// How far ahead of the clock a file of ours may be.
const AHEAD: Duration = Duration::from_secs(60);
/// Files that the service writes all the time.
const WRITTEN: [&str; 3] = ["operations.journal", "operations.db", "state.db"];
const SYNCHRONISE: &str = "timedatectl set-ntp true, or install chrony";

/// Whether something keeps it right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Yes,
    No,
    /// The service may not ask the kernel, and nobody else says.
    Unknown,
}

/// Look at the clock, and at what was written by it.
pub fn look(state_dir: &Path) -> Finding {
    let written = |name: &&str| std::fs::metadata(state_dir.join(name)).and_then(|about| about.modified()).ok();
    judge(SystemTime::now(), WRITTEN.iter().filter_map(written).max(), kept())
}

fn kept() -> Kept {
    match sys::clock_is_synchronised() {
        Some(true) => Kept::Yes,
        Some(false) => Kept::No,
        // systemd-timesyncd says it in a file, if it is what keeps the clock.
        None if Path::new("/run/systemd/timesync/synchronized").exists() => Kept::Yes,
        None => Kept::Unknown,
    }
}

fn judge(now: SystemTime, written: Option<SystemTime>, kept: Kept) -> Finding {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if since < EARLIEST {
        let message =
            format!("says {since} s after 1970, which is long ago: certificates and lifetimes are judged by it");
        return mended("clock", Level::Error, &message, SYNCHRONISE);
    }
    let ahead = written.and_then(|written| written.duration_since(now).ok()).filter(|ahead| *ahead > AHEAD);
    if let Some(ahead) = ahead {
        let message = format!("went back: files of the service are {} s ahead of it", ahead.as_secs());
        return mended("clock", Level::Warning, &message, SYNCHRONISE);
    }
    match kept {
        Kept::Yes => fine("clock", "is kept right"),
        Kept::Unknown => fine("clock", "is plausible; whether something keeps it right cannot be seen from here"),
        Kept::No => mended("clock", Level::Warning, "nothing keeps it right", SYNCHRONISE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_right_wrong_behind_or_nobody_s() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let now = at(EARLIEST + 1000);
        for (now, written, kept, level) in [
            (now, None, Kept::Yes, Level::Ok),
            (now, Some(now), Kept::Unknown, Level::Ok),
            (now, Some(now + AHEAD), Kept::Yes, Level::Ok),
            (now, Some(now + AHEAD * 2), Kept::Yes, Level::Warning),
            (now, None, Kept::No, Level::Warning),
            (at(0), None, Kept::Yes, Level::Error),
        ] {
            assert_eq!(judge(now, written, kept).level, level, "{now:?} {written:?} {kept:?}");
        }
    }
}
