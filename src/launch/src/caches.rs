//! The package caches of builds: how large each is, and emptying those that are too large together.
//!
//! What is in them was written by build sandboxes. It is counted, never read; and a cache goes whole, by a rename: half of
//! what a package manager keeps may be worse for it than nothing.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{FileType, OFlags};
use wire::launch::Cache;

use crate::config::Config;
use crate::error::{Result, Step};
use crate::measure;
use crate::store::{self, CACHES, Store};
use crate::sys;

/// Look at each cache; with `most`, empty those that have to go for all together to be no larger, least recently used
/// first, or with `dry_run` only mark them.
///
/// # Errors
/// A cache is not there, or cannot be moved away.
pub fn look(config: &Config, store: &Store, most: Option<u64>, dry_run: bool) -> Result<Vec<Cache>> {
    sys::run_in_background();
    let until = measure::soon();
    let mut caches = CACHES.iter().map(|name| measured(store, name, until)).collect::<Result<Vec<_>>>()?;
    let Some(most) = most else { return Ok(caches) };
    mark(&mut caches, most);
    for cache in caches.iter().filter(|cache| cache.emptied && !dry_run) {
        store.discard(&store.cache, &cache.manager)?;
        store.make_cache(&cache.manager, config.first_id(0))?;
    }
    Ok(caches)
}

fn measured(store: &Store, name: &str, until: Instant) -> Result<Cache> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = store::open_beneath(&store.cache, name, flags).step(|| format!("open the package cache {name}"))?;
    let usage = measure::tree(&dir, until);
    // Its own directory is no content.
    let bytes = if usage.inodes > 1 { usage.bytes } else { 0 };
    let used = last_use(&dir, until);
    Ok(Cache { manager: name.to_owned(), bytes, complete: usage.complete, used, emptied: false })
}

/// When a file of it was last read or written, seconds since 1970; 0: there is none. File systems keep reads to the day.
fn last_use(dir: &OwnedFd, until: Instant) -> u64 {
    let mut last = 0;
    // What cannot be looked at is not newer than what can.
    let _ = measure::walk(dir, until, &mut |entry| {
        // Who looks through directories has read them.
        if entry.kind() != FileType::Directory {
            last = last.max(entry.stat.st_atime).max(entry.stat.st_mtime);
        }
        Ok(())
    });
    u64::try_from(last).unwrap_or(0)
}

/// Which have to go. One that could not be counted to its end is too large.
fn mark(caches: &mut [Cache], most: u64) {
    let mut order: Vec<&mut Cache> = caches.iter_mut().collect();
    order.sort_by_key(|cache| (cache.complete, cache.used));
    let mut all = order.iter().fold(0_u64, |sum, cache| sum.saturating_add(cache.bytes));
    for cache in order {
        if cache.complete && (all <= most || cache.bytes == 0) {
            continue;
        }
        all = all.saturating_sub(cache.bytes);
        cache.emptied = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(manager: &str, bytes: u64, used: u64) -> Cache {
        Cache { manager: manager.into(), bytes, complete: true, used, emptied: false }
    }

    fn emptied(mut caches: Vec<Cache>, most: u64) -> Vec<String> {
        mark(&mut caches, most);
        caches.into_iter().filter(|cache| cache.emptied).map(|cache| cache.manager).collect()
    }

    #[test]
    fn those_that_were_used_longest_ago_go_first_and_no_more_than_have_to() {
        let all = || vec![cache("pip", 400, 30), cache("npm", 100, 10), cache("apt", 300, 20), cache("cargo", 0, 0)];
        assert_eq!(emptied(all(), 800), Vec::<String>::new());
        assert_eq!(emptied(all(), 799), ["npm"]);
        assert_eq!(emptied(all(), 699), ["npm", "apt"]);
        assert_eq!(emptied(all(), 0), ["pip", "npm", "apt"], "what is empty stays");
        let mut endless = all();
        endless[0].complete = false;
        assert_eq!(emptied(endless, 1000), ["pip"]);
    }

    #[test]
    fn a_cache_is_as_old_as_what_was_last_used_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let fd = || OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        std::fs::create_dir(dir.path().join("below")).unwrap();
        assert_eq!(last_use(&fd(), measure::soon()), 0);
        for (name, seconds) in [("a", 1000), ("below/b", 5000), ("below/c", 2000)] {
            let file = std::fs::File::create(dir.path().join(name)).unwrap();
            let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_times(std::fs::FileTimes::new().set_accessed(then).set_modified(then)).unwrap();
        }
        assert_eq!(last_use(&fd(), measure::soon()), 5000);
    }
}
