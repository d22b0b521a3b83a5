//! What a file is, as the contract describes one.

use rustix::fs::{FileType, Stat};
use wire::api::FileEntry;
use wire::file::Kind;

/// A directory, or anything else with its size if that means something.
pub(super) fn entry(name: &str, path: String, stat: &Stat) -> FileEntry {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let plain = kind == FileType::RegularFile;
    FileEntry {
        name: name.to_owned(),
        path,
        is_dir: kind == FileType::Directory,
        size: plain.then(|| u64::try_from(stat.st_size).unwrap_or_default()),
        modified_at: if plain { iso8601(stat.st_mtime, stat.st_mtime_nsec) } else { None },
    }
}

/// The same for what a sandbox says of it.
pub(super) fn entry_of(name: &str, path: String, stat: &wire::file::Stat) -> FileEntry {
    let plain = stat.kind == Kind::File;
    FileEntry {
        name: name.to_owned(),
        path,
        is_dir: stat.kind == Kind::Directory,
        size: plain.then_some(stat.size),
        modified_at: if plain { iso8601(stat.seconds, stat.nanoseconds.into()) } else { None },
    }
}

/// Days in 400 years of the Gregorian calendar.
const DAYS_PER_ERA: i64 = 146_097;
/// From 0000-03-01 to 1970-01-01.
const DAYS_BEFORE_1970: i64 = 719_468;

/// A time after 1970 as `2026-11-29T16:39:11.123456+00:00`, the fraction only if there is one; none outside of the
/// years 1 to 9999, which a sandbox may well set.
fn iso8601(seconds: i64, nanoseconds: u64) -> Option<String> {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days)?;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = nanoseconds / 1000;
    let fraction = if micros == 0 { String::new() } else { format!(".{micros:06}") };
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}+00:00"))
}

/// Year, month and day of a day counted from 1970-01-01. Years are counted from March, so that
/// the leap day is the last of its year and months need no table.
fn civil(days: i64) -> Option<(i64, i64, i64)> {
    let days = days.checked_add(DAYS_BEFORE_1970)?;
    let (era, day_of_era) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (1..=9999).contains(&year).then_some((year, month, day))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_iso_8601_in_utc() {
        for (seconds, nanoseconds, text) in [
            (0, 0, "1970-01-01T00:00:00+00:00"),
            (0, 999, "1970-01-01T00:00:00+00:00"),
            (-1, 500_000_000, "1969-12-31T23:59:59.500000+00:00"),
            (951_782_400, 1_000, "2000-02-29T00:00:00.000001+00:00"),
            (1_700_000_000, 123_456_789, "2023-11-14T22:13:20.123456+00:00"),
            (4_107_542_400, 0, "2100-03-01T00:00:00+00:00"),
            (253_402_300_799, 0, "9999-12-31T23:59:59+00:00"),
            (-62_135_596_800, 0, "0001-01-01T00:00:00+00:00"),
        ] {
            assert_eq!(iso8601(seconds, nanoseconds).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_time_beyond_the_calendar_is_left_out() {
        for seconds in [253_402_300_800, -62_135_596_801, i64::MAX, i64::MIN] {
            assert_eq!(iso8601(seconds, 0), None);
        }
    }
}
