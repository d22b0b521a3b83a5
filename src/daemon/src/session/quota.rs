//! What a session may use of the disk, workspace and write layer together, and what the host keeps for itself.
//!
//! Where the file system has project quotas, the launcher sets one for each session and the kernel does the rest: a
//! write that is too much fails, in the sandbox and here: with `EDQUOT`, or on xfs with `ENOSPC`, which a full disk says too. Elsewhere the launcher looks at every file, as
//! often as [`super::quota_watch`] finds worth it; what was found is kept here, and what clients write through the API is added to
//! it and refused when it is too much, before a byte is taken.
//!
//! The reserve is the host's in both cases: when less is free, nothing is opened and nothing written through the API.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wire::id::SessionId;
use wire::launch::{DiskEnforcement, DiskUsage, MAX_MEASURED};

use crate::config::Settings;
use crate::runtime::{LaunchError, Launcher};

/// What a file of a few bytes takes, in bytes.
const BLOCK: u64 = 4096;
/// Inodes that the host keeps, where they are countable.
const INODE_RESERVE: u64 = 10_000;
/// The reserve is never more than this part of a file system: a small disk stays usable.
const RESERVE_PART: u64 = 10;
/// A figure that says no is looked at again after so long, and after so many times as long as looking takes.
const DOUBT: Duration = Duration::from_millis(200);
const DOUBT_FACTOR: u32 = 20;
/// How long a figure of a sandbox that runs is good enough to be shown, at least.
const SHOWN: Duration = Duration::from_secs(1);
/// What a session over its quota may grow by while somebody cleans up; and more than a file system sets aside for a write or a
/// directory before it knows what that takes.
const SLACK: DiskUsage = DiskUsage { bytes: 1 << 20, inodes: 100, complete: true };
/// What a new session has: its directories.
const NOTHING: DiskUsage = DiskUsage { bytes: 6 * BLOCK, inodes: 6, complete: true };

/// Something would be more than there is room for: 507.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The session's own share is used up.
    #[error("disk quota exceeded: {} of {} are used; remove something, or purge the session", size(*used), size(*limit))]
    Bytes {
        /// Bytes that it has, or would have.
        used: u64,
        /// `disk_quota`.
        limit: u64,
    },
    /// Likewise, of files.
    #[error("disk quota exceeded: {used} of {limit} files are used; remove something, or purge the session")]
    Inodes {
        /// Files, directories and links that it has, or would have.
        used: u64,
        /// `disk_inodes`.
        limit: u64,
    },
    /// The host's disk is nearly full.
    #[error("disk full: no space left for sandboxes; {} are free, and {} are the host's reserve", size(*free), size(*reserve))]
    Reserve {
        /// Bytes that are free.
        free: u64,
        /// `disk_reserve`.
        reserve: u64,
    },
    /// Likewise, of inodes.
    #[error("disk full: no space left for sandboxes; {free} inodes are free, and {reserve} are the host's reserve")]
    InodeReserve {
        /// Inodes that are free.
        free: u64,
        /// How many are kept.
        reserve: u64,
    },
}

impl DiskError {
    /// In two words, for a log that holds nothing of a client's.
    #[must_use]
    pub fn brief(&self) -> &'static str {
        match self {
            Self::Bytes { .. } | Self::Inodes { .. } => "disk quota",
            Self::Reserve { .. } | Self::InodeReserve { .. } => "disk full",
        }
    }
}

/// How much is left on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// Inodes; none where they cannot run out.
    pub inodes: Option<u64>,
    /// Bytes that are the host's.
    pub reserve: u64,
    /// Inodes that are the host's.
    pub inode_reserve: u64,
}

impl Free {
    /// Whether it is less than the reserve.
    pub fn check(&self) -> Result<(), DiskError> {
        if self.bytes < self.reserve {
            return Err(DiskError::Reserve { free: self.bytes, reserve: self.reserve });
        }
        match self.inodes {
            Some(free) if free < self.inode_reserve => {
                Err(DiskError::InodeReserve { free, reserve: self.inode_reserve })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// What is known of a session's use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// What was found, and what clients have written since.
    pub usage: DiskUsage,
    /// When it was looked.
    pub at: Instant,
    /// How long that took.
    pub cost: Duration,
    /// Whether it had a sandbox then, or something was removed since: it may be another by now.
    pub moves: bool,
    /// Up to where it may have grown; none: up to its quota. See [`super::quota_watch`].
    pub ceiling: Option<DiskUsage>,
}

/// The quotas of all sessions.
#[derive(Debug)]
pub struct Quotas {
    /// Bytes of a session.
    pub bytes: Option<u64>,
    /// Files, directories and links of a session.
    pub inodes: Option<u64>,
    reserve: u64,
    launcher: Launcher,
    /// Where sessions are: what is free on their file systems is looked at.
    places: Vec<OwnedFd>,
    enforcement: Mutex<Option<DiskEnforcement>>,
    known: Mutex<HashMap<SessionId, Known>>,
}

impl Quotas {
    /// Quotas as they are set. `workspaces` is the directory that clients write to.
    #[must_use]
    pub fn new(settings: &Settings, launcher: Launcher, workspaces: OwnedFd) -> Self {
        let mut places = vec![workspaces];
        // The launcher's; that it is not there yet, or elsewhere, is no matter.
        places.extend(open(&settings.state_dir.join("sessions")).or_else(|| open(&settings.state_dir)));
        Self {
            bytes: settings.disk_quota.as_ref().map(crate::catalog::Size::bytes),
            inodes: settings.disk_inodes,
            reserve: settings.disk_reserve.as_ref().map_or(0, crate::catalog::Size::bytes),
            launcher,
            places,
            enforcement: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// Who enforces them: the file system, or this service by measuring; asked of the launcher once.
    pub async fn enforcement(&self) -> DiskEnforcement {
        let known = *self.enforcement.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known {
            return known;
        }
        match self.launcher.usage(Vec::new()).await {
            Ok((enforcement, _)) => {
                *self.enforcement.lock().unwrap_or_else(PoisonError::into_inner) = Some(enforcement);
                enforcement
            }
            // Asked again next time; until then nobody relies on the kernel.
            Err(_) => DiskEnforcement::Measured,
        }
    }

    /// The same in one word: `project` or `measured`.
    pub async fn enforced_by(&self) -> &'static str {
        match self.enforcement().await {
            DiskEnforcement::Project => "project",
            DiskEnforcement::Measured => "measured",
        }
    }

    /// Whether this service has to measure in order to enforce something.
    pub async fn measures(&self) -> bool {
        (self.bytes.is_some() || self.inodes.is_some()) && self.enforcement().await == DiskEnforcement::Measured
    }

    /// What is free where sessions are, the least of it. A file system that cannot be asked has enough.
    #[must_use]
    pub fn free(&self) -> Free {
        let unknown = Free { bytes: u64::MAX, inodes: None, reserve: 0, inode_reserve: 0 };
        let asked = self.places.iter().filter_map(|place| rustix::fs::fstatvfs(place).ok());
        let all = asked.map(|stat| {
            let part = stat.f_blocks.saturating_mul(stat.f_frsize) / RESERVE_PART;
            let counts = stat.f_files > 0 && self.reserve > 0;
            Free {
                bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
                inodes: counts.then_some(stat.f_favail),
                reserve: self.reserve.min(part),
                inode_reserve: INODE_RESERVE.min(stat.f_files / RESERVE_PART),
            }
        });
        all.min_by_key(|free| (free.check().is_ok(), free.bytes)).unwrap_or(unknown)
    }

    /// Whether a session may write so much more through the API. `runs`: it has a sandbox.
    ///
    /// # Errors
    /// [`DiskError`]; then nothing is to be written.
    pub async fn admit(&self, id: &SessionId, runs: bool, bytes: u64, inodes: u64) -> Result<(), DiskError> {
        self.free().check()?;
        if !self.measures().await {
            return Ok(());
        }
        let more =
            |usage: DiskUsage| self.check(usage.bytes.saturating_add(bytes), usage.inodes.saturating_add(inodes));
        let known = self.known().get(id).copied();
        match known.map(|known| (known, more(known.usage))) {
            Some((_, Ok(()))) => return Ok(()),
            Some((known, Err(refused))) => {
                let doubted = known.at.elapsed() > DOUBT.max(known.cost * DOUBT_FACTOR);
                if !known.moves && !doubted {
                    return Err(refused);
                }
            }
            None => {}
        }
        match self.measure(id, runs).await {
            Ok(usage) => more(usage),
            // Whoever cannot look cannot say no; the reserve holds.
            Err(_) => Ok(()),
        }
    }

    /// Whether a session may have so much.
    ///
    /// # Errors
    /// [`DiskError`], of bytes first.
    pub fn check(&self, bytes: u64, inodes: u64) -> Result<(), DiskError> {
        match (self.bytes, self.inodes) {
            (Some(limit), _) if bytes > limit => Err(DiskError::Bytes { used: bytes, limit }),
            (_, Some(limit)) if inodes > limit => Err(DiskError::Inodes { used: inodes, limit }),
            (Some(_) | None, Some(_) | None) => Ok(()),
        }
    }

    /// Whether it is its own share that is too small for a session's write of so many bytes, where the file system found no
    /// space for it: xfs says the same of a project that has its share and of a full disk.
    pub async fn is_used_up(&self, id: &SessionId, runs: bool, bytes: u64) -> bool {
        self.enforcement().await == DiskEnforcement::Project
            && self.measure(id, runs).await.is_ok_and(|usage| self.is_next_to_nothing_left(usage, bytes))
    }

    /// Whether so many bytes more are more than a session's share, or nearly.
    fn is_next_to_nothing_left(&self, usage: DiskUsage, bytes: u64) -> bool {
        let most = with_slack(usage);
        self.check(most.bytes.saturating_add(bytes), most.inodes).is_err()
    }

    /// A client has written so much.
    pub fn wrote(&self, id: &SessionId, bytes: u64, inodes: u64) {
        if let Some(known) = self.known().get_mut(id) {
            known.usage.bytes = known.usage.bytes.saturating_add(bytes.div_ceil(BLOCK) * BLOCK);
            known.usage.inodes = known.usage.inodes.saturating_add(inodes);
        }
    }

    /// Something of a session was removed.
    pub fn removed(&self, id: &SessionId) {
        if let Some(known) = self.known().get_mut(id) {
            known.moves = true;
        }
    }

    /// A session is new: it has next to nothing.
    pub fn fresh(&self, id: &SessionId) {
        let known = Known { usage: NOTHING, at: Instant::now(), cost: Duration::ZERO, moves: true, ceiling: None };
        self.known().insert(id.clone(), known);
    }

    /// A session's files are gone.
    pub fn forget(&self, id: &SessionId) {
        self.known().remove(id);
    }

    /// Look what a session uses now.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub(super) async fn measure(&self, id: &SessionId, runs: bool) -> Result<DiskUsage, LaunchError> {
        let usage = self.measure_all(std::slice::from_ref(id), |_| runs).await?;
        Ok(usage.first().copied().unwrap_or_default())
    }

    /// Look what sessions use now, at most [`MAX_MEASURED`] of them.
    async fn measure_all(
        &self,
        ids: &[SessionId],
        runs: impl Fn(&SessionId) -> bool,
    ) -> Result<Vec<DiskUsage>, LaunchError> {
        let moves: Vec<bool> = ids.iter().map(&runs).collect();
        let begun = Instant::now();
        let (_, usage) = self.launcher.usage(ids.to_vec()).await?;
        let cost = begun.elapsed() / u32::try_from(ids.len().max(1)).unwrap_or(1);
        let mut known = self.known();
        for ((id, usage), moves) in ids.iter().zip(&usage).zip(moves) {
            let ceiling = known.get(id).and_then(|known| known.ceiling);
            let over = self.check(usage.bytes, usage.inodes).is_err();
            // What was cleaned up is not to be filled again.
            let ceiling = ceiling.filter(|_| over).map(|ceiling| lesser(ceiling, with_slack(*usage)));
            // Of one that is gone nothing has to be kept.
            if usage.inodes > 0 {
                known.insert(id.clone(), Known { usage: *usage, at: begun, cost, moves, ceiling });
            }
        }
        Ok(usage)
    }

    /// What sessions use, for people: as it was found a moment ago if it runs, as it is if not. None: not known.
    pub async fn shown(&self, ids: &[SessionId], runs: impl Fn(&SessionId) -> bool) -> Vec<Option<DiskUsage>> {
        let good = |known: &Known, id: &SessionId| match runs(id) {
            true => known.at.elapsed() < SHOWN.max(known.cost * DOUBT_FACTOR),
            false => !known.moves && known.usage.complete,
        };
        let counted = self.enforcement().await == DiskEnforcement::Project;
        let wanted: Vec<SessionId> = {
            let known = self.known();
            let fresh = |id: &&SessionId| !counted && known.get(*id).is_some_and(|known| good(known, id));
            ids.iter().filter(|id| !fresh(id)).take(MAX_MEASURED).cloned().collect()
        };
        let found = match wanted.is_empty() {
            true => Ok(Vec::new()),
            false => self.measure_all(&wanted, runs).await,
        };
        let found: HashMap<&SessionId, DiskUsage> = wanted.iter().zip(found.unwrap_or_default()).collect();
        let known = self.known();
        let usage = |id: &SessionId| found.get(id).copied().or_else(|| known.get(id).map(|known| known.usage));
        ids.iter().map(usage).collect()
    }

    pub(super) fn known(&self) -> MutexGuard<'_, HashMap<SessionId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Up to where a session that was stopped with so much may grow.
pub(super) fn with_slack(usage: DiskUsage) -> DiskUsage {
    DiskUsage { bytes: usage.bytes + SLACK.bytes, inodes: usage.inodes + SLACK.inodes, complete: true }
}

fn lesser(a: DiskUsage, b: DiskUsage) -> DiskUsage {
    DiskUsage { bytes: a.bytes.min(b.bytes), inodes: a.inodes.min(b.inodes), complete: true }
}

fn open(path: &PathBuf) -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Bytes in a unit that people read.
fn size(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let bytes = bytes as f64;
    match bytes {
        b if b >= f64::from(1 << 30) => format!("{:.1} GiB", b / f64::from(1 << 30)),
        b if b >= f64::from(1 << 20) => format!("{:.1} MiB", b / f64::from(1 << 20)),
        b => format!("{:.1} KiB", b / 1024.0),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Quotas of 1 MiB and 100 files, with nobody to measure.
    pub(in crate::session) fn quotas() -> Quotas {
        Quotas {
            bytes: Some(1 << 20),
            inodes: Some(100),
            reserve: 0,
            launcher: Launcher::new(std::path::Path::new("/nonexistent/launch.sock")),
            places: Vec::new(),
            enforcement: Mutex::new(Some(DiskEnforcement::Measured)),
            known: Mutex::default(),
        }
    }

    fn id() -> SessionId {
        SessionId::parse("a").unwrap()
    }

    #[tokio::test]
    async fn what_clients_write_is_added_up_until_it_is_too_much() {
        let (quotas, id) = (quotas(), id());
        quotas.fresh(&id);
        // Nothing moves, and it was just looked at: what is known is what there is.
        quotas.known().get_mut(&id).unwrap().moves = false;
        for _ in 0..9 {
            quotas.admit(&id, true, 100_000, 1).await.unwrap();
            quotas.wrote(&id, 100_000, 1);
        }
        let refused = quotas.admit(&id, true, 200_000, 1).await.unwrap_err();
        assert!(matches!(refused, DiskError::Bytes { limit: 1_048_576, .. }), "{refused}");
        let refused = quotas.admit(&id, true, 0, 90).await.unwrap_err();
        assert!(matches!(refused, DiskError::Inodes { used: 105, limit: 100 }), "{refused}");
        quotas.forget(&id);
        assert!(quotas.known().is_empty());
    }

    #[test]
    fn a_share_is_used_up_when_a_write_comes_near_its_end() {
        let quotas = Quotas { bytes: Some(32 << 20), inodes: Some(600), ..quotas() };
        let usage = |mib: u64, inodes: u64| DiskUsage { bytes: mib << 20, inodes, complete: true };
        for (usage, write, used_up) in [
            (usage(1, 10), 4 << 20, false),
            (usage(32, 10), 1, true),
            (usage(29, 10), 4 << 20, true),
            (usage(1, 599), 1, true),
            (usage(1, 10), u64::MAX, true),
        ] {
            assert_eq!(quotas.is_next_to_nothing_left(usage, write), used_up, "{usage:?} and {write}");
        }
        let unlimited = Quotas { bytes: None, inodes: None, ..quotas };
        assert!(!unlimited.is_next_to_nothing_left(usage(100, 1000), 1));
    }

    #[tokio::test]
    async fn where_quotas_are_measured_no_space_is_the_disks() {
        let quotas = quotas();
        quotas.fresh(&id());
        assert!(!quotas.is_used_up(&id(), true, 64 << 20).await);
    }

    #[test]
    fn the_reserve_is_of_bytes_and_of_inodes() {
        let free = Free { bytes: 10, inodes: Some(10), reserve: 10, inode_reserve: 10 };
        assert_eq!(free.check(), Ok(()));
        assert!(matches!(Free { bytes: 9, ..free }.check(), Err(DiskError::Reserve { .. })));
        assert!(matches!(Free { inodes: Some(9), ..free }.check(), Err(DiskError::InodeReserve { .. })));
        assert_eq!(Free { inodes: None, ..free }.check(), Ok(()));
        assert_eq!(quotas().free().check(), Ok(()));
    }

    #[test]
    fn an_answer_says_quota_or_disk() {
        let bytes = DiskError::Bytes { used: 3 << 30, limit: 2 << 30 };
        assert!(bytes.to_string().starts_with("disk quota exceeded: 3.0 GiB of 2.0 GiB"), "{bytes}");
        let full = DiskError::Reserve { free: 1 << 20, reserve: 1 << 30 };
        assert!(full.to_string().starts_with("disk full: no space left"), "{full}");
        assert_eq!((bytes.brief(), full.brief()), ("disk quota", "disk full"));
    }
}
