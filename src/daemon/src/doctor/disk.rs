//! The disk: its file system, what is free, and who holds sessions to their share.

use std::path::Path;

use rustix::fs::{statfs, statvfs};
use wire::api::{Finding, Level};
use wire::launch::DiskEnforcement;

use super::{fine, mended};
use crate::config::Settings;

/// Below this many free bytes, or twice what the host keeps for itself, it is time to make room.
const FREE_BYTES: u64 = 2 << 30;
/// Likewise, files; and how many of them the host keeps for itself.
const FREE_FILES: u64 = 20_000;
const RESERVED_FILES: u64 = 10_000;
/// File systems on which id-mapped mounts are known to work, by their numbers in statfs(2): ext4, xfs, btrfs, f2fs, tmpfs.
const MAPPED: [(i64, &str); 5] =
    [(0xef53, "ext4"), (0x5846_5342, "xfs"), (0x9123_683e, "btrfs"), (0xf2f5_2010, "f2fs"), (0x0102_1994, "tmpfs")];
/// And on which they do not: NFS, 9p, FUSE, overlay, SMB.
const UNMAPPED: [(i64, &str); 5] =
    [(0x6969, "nfs"), (0x0102_1997, "9p"), (0x6573_5546, "fuse"), (0x794c_7630, "overlay"), (0xfe53_4d42, "smb")];

/// What is found.
pub fn findings(settings: &Settings, enforcement: Option<DiskEnforcement>) -> Vec<Finding> {
    let reserve = settings.disk_reserve.as_ref().map_or(0, |size| size.bytes());
    let mut findings = vec![space("disk", &settings.state_dir, reserve), system(&settings.state_dir)];
    let device = |path: &Path| statvfs(path).map(|stat| stat.f_fsid).ok();
    if device(&settings.images_dir) != device(&settings.state_dir) {
        findings.push(space("disk of images", &settings.images_dir, reserve));
    }
    let wanted = settings.disk_quota.is_some() || settings.disk_inodes.is_some();
    findings.push(quota(wanted, enforcement));
    findings
}

/// What is free of a file system, and how much of it there is.
#[derive(Debug, Clone, Copy)]
struct Room {
    free: u64,
    total: u64,
    free_files: u64,
    files: u64,
}

fn space(subject: &str, path: &Path, reserve: u64) -> Finding {
    let Ok(stat) = statvfs(path) else {
        let message = format!("{} cannot be looked at", path.display());
        return mended(
            subject,
            Level::Error,
            &message,
            "check that it is there, and that the service's user may enter it",
        );
    };
    let room = Room {
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
        total: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_files: stat.f_favail,
        files: stat.f_files,
    };
    judge(subject, &path.display().to_string(), room, reserve)
}

fn judge(subject: &str, place: &str, room: Room, reserve: u64) -> Finding {
    let reserve = reserve.min(room.total / 10);
    let reserved_files = RESERVED_FILES.min(room.files / 10);
    // Some file systems do not count files.
    let counts = room.files > 0;
    let files = if counts { format!(" and {} files", room.free_files) } else { String::new() };
    let message = format!("{} MiB{files} free in {place}", room.free >> 20);
    if room.free < reserve || counts && room.free_files < reserved_files {
        let message = format!("{message}, less than the host keeps (disk_reserve): nothing is opened or written");
        return mended(subject, Level::Error, &message, "make room: sandboxctl du says who uses what");
    }
    if room.free < reserve.saturating_mul(2).max(FREE_BYTES)
        || counts && room.free_files < FREE_FILES.min(room.files / 5)
    {
        return mended(
            subject,
            Level::Warning,
            &message,
            "make room (sandboxctl du says who uses what), or set workspace_ttl and container_ttl",
        );
    }
    fine(subject, &message)
}

fn system(path: &Path) -> Finding {
    match statfs(path) {
        #[allow(clippy::useless_conversion)] // its width differs between architectures
        Ok(stat) => named(i64::from(stat.f_type)),
        Err(error) => {
            let message = format!("{} cannot be looked at: {error}", path.display());
            mended("file system", Level::Error, &message, "check that state_dir is there")
        }
    }
}

fn named(number: i64) -> Finding {
    const MOVE: &str = "put state_dir on ext4, xfs or btrfs";
    let find = |list: &[(i64, &'static str)]| list.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
    if let Some(name) = find(&MAPPED) {
        return fine("file system", &format!("state_dir is on {name}"));
    }
    if let Some(name) = find(&UNMAPPED) {
        let message = format!("state_dir is on {name}, which has no id-mapped mounts: no sandbox starts");
        return mended("file system", Level::Error, &message, MOVE);
    }
    let message =
        format!("state_dir is on a file system (number {number:#x}) that is not known to have id-mapped mounts");
    mended("file system", Level::Warning, &message, MOVE)
}

fn quota(wanted: bool, enforcement: Option<DiskEnforcement>) -> Finding {
    match (wanted, enforcement) {
        (false, _) => mended("disk quota", Level::Warning, "sessions have none", "set disk_quota and disk_inodes"),
        (true, Some(DiskEnforcement::Project)) => fine("disk quota", "enforced by the file system (project quotas)"),
        (true, Some(DiskEnforcement::Measured)) => mended(
            "disk quota",
            Level::Warning,
            "measured: a session is stopped a few seconds after it went over",
            "put state_dir on ext4 with the features quota and project, or on xfs, mounted with prjquota",
        ),
        (true, None) => fine("disk quota", "who enforces it is not known: the launcher was not asked"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn room_is_enough_little_or_less_than_the_reserve() {
        let level = |free, free_files, files| {
            judge("disk", "/x", Room { free, total: 100 * GIB, free_files, files }, GIB).level
        };
        assert_eq!(level(50 * GIB, 1_000_000, 2_000_000), Level::Ok);
        assert_eq!(level(2 * GIB, 1_000_000, 2_000_000), Level::Ok);
        assert_eq!(level(2 * GIB - 1, 1_000_000, 2_000_000), Level::Warning);
        assert_eq!(level(GIB - 1, 1_000_000, 2_000_000), Level::Error);
        assert_eq!(level(50 * GIB, 15_000, 2_000_000), Level::Warning);
        assert_eq!(level(50 * GIB, 9_999, 2_000_000), Level::Error);
        assert_eq!(level(50 * GIB, 0, 0), Level::Ok, "one that does not count files");
        // A reserve is at most a tenth of the whole.
        let small = Room { free: GIB * 3 / 10, total: 2 * GIB, free_files: 1_000_000, files: 2_000_000 };
        assert_eq!(judge("disk", "/x", small, GIB).level, Level::Warning);
        assert_eq!(space("disk", Path::new("/nonexistent"), 0).level, Level::Error);
    }

    #[test]
    fn file_systems_can_map_ids_or_not_or_nobody_knows() {
        for (number, level) in [(0xef53, Level::Ok), (0x6969, Level::Error), (0x1234_5678, Level::Warning)] {
            assert_eq!(named(number).level, level, "{number:#x}");
        }
        assert_eq!(system(Path::new("/nonexistent")).level, Level::Error);
    }

    #[test]
    fn quotas_are_enforced_measured_unknown_or_none() {
        for (wanted, enforcement, level) in [
            (true, Some(DiskEnforcement::Project), Level::Ok),
            (true, Some(DiskEnforcement::Measured), Level::Warning),
            (true, None, Level::Ok),
            (false, Some(DiskEnforcement::Project), Level::Warning),
        ] {
            assert_eq!(quota(wanted, enforcement).level, level, "{wanted} {enforcement:?}");
        }
    }
}
