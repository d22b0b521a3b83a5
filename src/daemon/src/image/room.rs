//! Room on the disk of the image store: what comes from outside stops before the host's reserve, as what sessions write does.
//!
//! What this process writes is looked at before it is written ([`Watch`]), what the launcher writes meanwhile ([`within`]):
//! how much a layer unpacks to is known only when it has.

use std::pin::pin;
use std::time::Duration;

use rustix::fs::fstatvfs;

use super::store::Store;

/// The reserve is never more than this part of a file system, as for sessions.
const RESERVE_PART: u64 = 10;
/// How much is written between two looks, in bytes.
const STRETCH: u64 = 16 << 20;
/// What may be on its way to the disk when it is looked at, in bytes.
const LAG: u64 = 8 << 20;
/// How often it is looked at while the launcher writes.
const LOOK: Duration = Duration::from_millis(500);

/// The disk is nearly full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "disk full: {} are free where images are, {} are the host's reserve (disk_reserve), and {} were to be written; remove images, \
     or try images gc", size(*free), size(*reserve), size(*wanted)
)]
pub struct NoRoom {
    /// Bytes that are free.
    pub free: u64,
    /// Bytes of it that nobody may have.
    pub reserve: u64,
    /// Bytes that were to be written.
    pub wanted: u64,
}

/// Whether so many bytes more can be written into the store. A file system that cannot be asked has room.
pub(super) fn check(store: &Store, wanted: u64) -> Result<(), NoRoom> {
    let Ok(stat) = fstatvfs(store.root()) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let reserve = store.reserve().min(stat.f_blocks.saturating_mul(stat.f_frsize) / RESERVE_PART);
    judge(free, reserve, wanted)
}

/// What comes of `work`, which has the launcher write into the store; it is dropped, and so ended, when there is no room any more.
pub(super) async fn within<T>(store: &Store, work: impl Future<Output = T>) -> Result<T, NoRoom> {
    while_none_is_lacking(LOOK, || check(store, 1), work).await
}

async fn while_none_is_lacking<T>(
    every: Duration,
    look: impl Fn() -> Result<(), NoRoom>,
    work: impl Future<Output = T>,
) -> Result<T, NoRoom> {
    look()?;
    let mut work = pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(every, &mut work).await {
            return Ok(done);
        }
        look()?;
    }
}

fn judge(free: u64, reserve: u64, wanted: u64) -> Result<(), NoRoom> {
    if free.saturating_sub(reserve) >= wanted { Ok(()) } else { Err(NoRoom { free, reserve, wanted }) }
}

/// Looks at the disk from time to time while something is written.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// What may be written until the next look.
    left: u64,
}

impl Watch {
    /// So many bytes are about to be written.
    pub(super) fn before(&mut self, store: &Store, bytes: u64) -> Result<(), NoRoom> {
        if bytes > self.left {
            check(store, STRETCH.max(bytes).saturating_add(LAG))?;
            self.left = STRETCH.max(bytes);
        }
        self.left -= bytes;
        Ok(())
    }
}

fn size(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let bytes = bytes as f64;
    let unit = |unit: u32| bytes / f64::from(unit);
    if bytes >= f64::from(1 << 30) { format!("{:.1} GiB", unit(1 << 30)) } else { format!("{:.1} MiB", unit(1 << 20)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_much_and_no_more() {
        assert_eq!(judge(100, 10, 90), Ok(()));
        let refused = judge(100 << 20, 10 << 20, (90 << 20) + 1).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("100.0 MiB are free") && text.contains("10.0 MiB are the host's reserve"), "{text}");
        assert!(judge(5, 10, 0).is_ok() && judge(5, 10, 1).is_err());
    }

    #[tokio::test]
    async fn what_is_under_way_ends_when_there_is_no_room_any_more() {
        let full = NoRoom { free: 1, reserve: 2, wanted: 1 };
        let looks = std::cell::Cell::new(0);
        let ends = |last: i32| {
            looks.set(0);
            let looks = &looks;
            move || {
                looks.set(looks.get() + 1);
                if looks.get() < last { Ok(()) } else { Err(full) }
            }
        };
        let often = Duration::from_millis(1);
        let not_begun = async { panic!("there is no room from the beginning") };
        assert_eq!(while_none_is_lacking(often, ends(1), not_begun).await, Err::<(), _>(full));
        assert_eq!(while_none_is_lacking(often, ends(3), std::future::pending::<()>()).await, Err(full));
        assert_eq!(looks.get(), 3);
        assert_eq!(while_none_is_lacking(often, ends(i32::MAX), async { 7 }).await, Ok(7));
    }

    #[test]
    fn a_watch_looks_once_for_each_stretch() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(std::fs::File::open(root.path()).unwrap().into()).unwrap();
        let mut watch = Watch::default();
        watch.before(&store, 1).unwrap();
        assert_eq!(watch.left, STRETCH - 1);
        watch.before(&store, STRETCH - 1).unwrap();
        assert_eq!(watch.left, 0);
        watch.before(&store, 2 * STRETCH).unwrap();
        assert_eq!(watch.left, 0);
        assert!(Watch::default().before(&store, u64::MAX).is_err());
    }
}
