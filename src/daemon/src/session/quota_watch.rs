//! Watching what sandboxes write where the file system does not stop them, and what is free on the host.
//!
//! While a sandbox runs it is asked once a second what is free; that is one system call. Where quotas are not measured, that is done
//! less often as long as nobody can use up what is left ([`rest`]). While none runs nothing is done at all. Where quotas are measured, the files of a sandbox
//! that runs are looked at
//!
//! - [`SOONEST`] after a command was at work in it, but not before [`PAUSE`] times as long has passed as looking
//!   takes (so that looking costs at most a twentieth of a processor);
//! - when the disk has lost [`DROP`] bytes or [`INODE_DROP`] inodes since it was looked at, whoever that was;
//! - else less and less often, up to every [`LATEST`].
//!
//! A session that has more than its quota is stopped: its sandbox ends, its files and its write layer stay, its commands
//! are answered with the reason. The next command starts it again, so that somebody can clean up; it is
//! stopped again only if it has grown meanwhile by more than a little.
//!
//! When less than the reserve is free, the session that has grown most since the last look is stopped, one a second,
//! until it is enough or nobody grows any more: then it was somebody else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use wire::id::SessionId;
use wire::launch::DiskUsage;

use super::handle::{Live, Session};
use super::quota::{DiskError, Free, Known, Quotas, with_slack};
use super::registry::Registry;
use super::state::State;
use super::story::tell;
use crate::metrics;
use crate::runtime::LaunchError;

/// How often it is asked what is free.
const TICK: Duration = Duration::from_secs(1);
/// How long after a look a session that works is looked at again.
const SOONEST: Duration = Duration::from_millis(900);
/// How long at most one that does not.
const LATEST: Duration = Duration::from_secs(60);
/// How long at most between two questions what is free, while a sandbox runs.
const LONGEST: Duration = Duration::from_secs(10);
/// More than a disk takes in a second, in bytes and inodes.
const FASTEST: u64 = 2 << 30;
const FASTEST_INODES: u64 = 200_000;
/// Between two looks passes so many times the time of one.
const PAUSE: u32 = 20;
/// A loss of the disk after which everybody is looked at.
const DROP: u64 = 64 << 20;
const INODE_DROP: u64 = 5_000;
/// Sessions that are looked at at once.
const AT_ONCE: usize = 2;
/// Below so many times the reserve it is noted who grows.
const NEAR: u64 = 2;

/// Looks again and again.
#[derive(Debug)]
pub struct Watch {
    registry: Arc<Registry>,
    looked: HashMap<SessionId, Looked>,
    /// What sessions had when the disk was last nearly full.
    before: HashMap<SessionId, DiskUsage>,
}

/// When a session was looked at.
#[derive(Debug, Clone, Copy)]
struct Looked {
    at: Instant,
    free: Free,
    /// When the next look is due if nothing happens.
    pause: Duration,
}

/// A sandbox that runs.
type Running = (Arc<Session>, Arc<Live>);

impl Watch {
    /// Over these sessions.
    #[must_use]
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, looked: HashMap::new(), before: HashMap::new() }
    }

    /// Watch, until dropped.
    pub async fn run(mut self) {
        let registry = self.registry.clone();
        loop {
            // Who is told while nobody waits is told at once the next time.
            let begun = registry.deps.begun_running.notified();
            match self.tick().await {
                Some(pause) => tokio::time::sleep(pause).await,
                None => begun.await,
            }
        }
    }

    /// Look, and say when to look again; never while no sandbox runs.
    async fn tick(&mut self) -> Option<Duration> {
        let running: Vec<Running> = self
            .registry
            .list()
            .into_iter()
            .filter(|session| session.state() == State::Running)
            // Also one that was to be stopped and was not.
            .filter_map(|session| session.sandbox().map(|live| (session, live)))
            .filter(|(_, live)| !live.init.is_gone())
            .collect();
        self.looked.retain(|id, _| running.iter().any(|(session, _)| session.id == *id));
        if running.is_empty() {
            self.before.clear();
            return None;
        }
        let free = self.quotas().free();
        let measures = self.quotas().measures().await;
        if measures {
            self.measure(&running, free).await;
        }
        self.reserve(&running, free).await;
        Some(if measures { TICK } else { rest(free) })
    }

    /// Look at those that are due, and stop those that have too much.
    async fn measure(&mut self, running: &[Running], free: Free) {
        let due: Vec<Running> = running.iter().filter(|(session, _)| self.is_due(session, free)).cloned().collect();
        let registry = self.registry.clone();
        let looks = stream::iter(due.into_iter().map(move |running| look(registry.clone(), running)));
        let found: Vec<Look> = looks.buffer_unordered(AT_ONCE).collect().await;
        for Look { session, live, before, found } in found {
            let id = &session.id;
            let usage = match found {
                Ok(usage) => usage,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(session = %id, error, "what it uses of the disk is not known");
                    continue;
                }
            };
            let changed = before.is_none_or(|before| before.usage != usage);
            let pause = match self.looked.get(id) {
                Some(looked) if !changed => (looked.pause * 2).min(LATEST),
                Some(_) | None => SOONEST,
            };
            self.looked.insert(id.clone(), Looked { at: Instant::now(), free, pause });
            if let Some(error) = judge(self.quotas(), usage, before.and_then(|before| before.ceiling)) {
                if let Some(known) = self.quotas().known().get_mut(id) {
                    known.ceiling = Some(with_slack(usage));
                }
                self.stop(&session, &live, error).await;
            }
        }
    }

    fn is_due(&self, session: &Session, free: Free) -> bool {
        let Some(looked) = self.looked.get(&session.id) else { return true };
        let cost = known(self.quotas(), &session.id).map_or(Duration::ZERO, |known| known.cost);
        let since = looked.at.elapsed();
        if since < SOONEST.max(cost * PAUSE) {
            return false;
        }
        let lost = looked.free.bytes.saturating_sub(free.bytes) > DROP
            || looked.free.inodes.unwrap_or(0).saturating_sub(free.inodes.unwrap_or(0)) > INODE_DROP;
        session.idle() < since || lost || since >= looked.pause
    }

    /// When little is left, find who takes it.
    async fn reserve(&mut self, running: &[Running], free: Free) {
        let near = free.bytes < free.reserve.saturating_mul(NEAR)
            || free.inodes.is_some_and(|inodes| inodes < free.inode_reserve.saturating_mul(NEAR));
        if !near {
            self.before.clear();
            return;
        }
        let mut now = HashMap::new();
        for (session, _) in running {
            if let Ok(usage) = self.quotas().measure(&session.id, true).await {
                now.insert(session.id.clone(), usage);
            }
        }
        let before = std::mem::replace(&mut self.before, now);
        let Err(error) = free.check() else { return };
        let grown = |id: &SessionId| growth(before.get(id).copied(), self.before.get(id).copied());
        let most = running.iter().map(|running| (grown(&running.0.id), running)).max_by_key(|(grown, _)| *grown);
        if let Some((grown, (session, live))) = most
            && grown > 0
        {
            tracing::error!(session = %session.id, grown, "the host's disk is nearly full; this session writes most");
            self.stop(session, live, error).await;
        }
    }

    /// End the sandbox; its driver notices. Whoever waits for a command of it is told why.
    async fn stop(&self, session: &Arc<Session>, live: &Live, error: DiskError) {
        metrics::ENDS.one(metrics::End::Disk);
        tell!(warn, session, "stopped: {error}");
        // Before it ends, so that nobody asks too early; a second reason is none.
        let _ = live.stopped.set(error.clone());
        (self.registry.deps.stopped)(session, &error);
        if let Err(error) = self.registry.deps.launcher.stop(&session.id).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(session = %session.id, error, "not stopped; tried again at the next look");
        }
    }

    fn quotas(&self) -> &Quotas {
        &self.registry.deps.quotas
    }
}

/// What a look has found.
struct Look {
    session: Arc<Session>,
    live: Arc<Live>,
    before: Option<Known>,
    found: Result<DiskUsage, LaunchError>,
}

async fn look(registry: Arc<Registry>, (session, live): Running) -> Look {
    let before = known(&registry.deps.quotas, &session.id);
    let found = registry.deps.quotas.measure(&session.id, true).await;
    Look { session, live, before, found }
}

fn known(quotas: &Quotas, id: &SessionId) -> Option<Known> {
    quotas.known().get(id).copied()
}

/// Whether a session that has so much is to be stopped: it has more than its quota, and more than it was left with.
fn judge(quotas: &Quotas, usage: DiskUsage, ceiling: Option<DiskUsage>) -> Option<DiskError> {
    let error = quotas.check(usage.bytes, usage.inodes).err()?;
    let left = ceiling.is_some_and(|ceiling| usage.bytes <= ceiling.bytes && usage.inodes <= ceiling.inodes);
    (!left).then_some(error)
}

/// How long nobody can bring what is free near the reserve.
fn rest(free: Free) -> Duration {
    let bytes = free.bytes.saturating_sub(free.reserve.saturating_mul(NEAR)) / FASTEST;
    let inodes = free
        .inodes
        .map_or(u64::MAX, |inodes| inodes.saturating_sub(free.inode_reserve.saturating_mul(NEAR)) / FASTEST_INODES);
    Duration::from_secs(bytes.min(inodes)).clamp(TICK, LONGEST)
}

/// How much a session has grown, in bytes; an inode counts as the smallest file. One that was not known has not.
fn growth(before: Option<DiskUsage>, now: Option<DiskUsage>) -> u64 {
    let (Some(before), Some(now)) = (before, now) else { return 0 };
    let inodes = now.inodes.saturating_sub(before.inodes);
    now.bytes.saturating_sub(before.bytes).max(inodes.saturating_mul(4096))
}

#[cfg(test)]
mod tests {
    use super::super::quota::tests::quotas;
    use super::*;

    fn usage(bytes: u64, inodes: u64) -> DiskUsage {
        DiskUsage { bytes, inodes, complete: true }
    }

    #[test]
    fn who_was_stopped_may_clean_up_but_not_grow() {
        let quotas = quotas();
        assert_eq!(judge(&quotas, usage(1 << 20, 100), None), None);
        let over = usage(2 << 20, 50);
        assert!(judge(&quotas, over, None).is_some());
        let left = Some(with_slack(over));
        assert_eq!(judge(&quotas, over, left), None);
        assert!(judge(&quotas, usage(4 << 20, 50), left).is_some());
        assert!(judge(&quotas, usage(2 << 20, 200), left).is_some());
    }

    #[test]
    fn a_disk_with_room_is_asked_less_often() {
        let free = |gib: u64, inodes| Free { bytes: gib << 30, inodes, reserve: 1 << 30, inode_reserve: 10_000 };
        for (free, seconds) in [
            (free(0, None), 1),
            (free(3, None), 1),
            (free(10, None), 4),
            (free(1000, None), 10),
            (free(1000, Some(100_000)), 1),
            (free(1000, Some(1_000_000)), 4),
        ] {
            assert_eq!(rest(free), Duration::from_secs(seconds), "{free:?}");
        }
    }

    #[test]
    fn growth_is_of_bytes_or_of_files() {
        let grown = |before, now| growth(Some(before), Some(now));
        assert_eq!(grown(usage(1000, 1), usage(5000, 1)), 4000);
        assert_eq!(grown(usage(1000, 1), usage(1000, 11)), 40_960);
        assert_eq!(grown(usage(5000, 9), usage(1000, 1)), 0);
        assert_eq!(growth(None, Some(usage(5000, 9))), 0);
    }
}
