//! A stored workspace, looked at by the platform: nothing is written, and no sandbox needs to be there.
//!
//! Paths are relative to the workspace. Links are neither followed nor listed: what the sandbox
//! would see behind them cannot be said here.

use std::collections::VecDeque;
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, FileType, OFlags};
use rustix::io::Errno;
use wire::api::FileEntry;

use super::entry::entry;
use super::error::shown;
use super::resolve::open_beneath;
use super::{FileError, MAX_ENTRIES, Workspace, text};

/// Why a stored workspace was not read. The text is what the client shows.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// It climbs out, or is a link, behind one, or no plain file: 400.
    #[error("Path '{path}' is outside the workspace")]
    Outside {
        /// As the client named it.
        path: String,
    },
    /// There is no such directory: 404.
    #[error("No such directory: {path}")]
    NoDirectory {
        /// As the client named it.
        path: String,
    },
    /// There is no such file: 404.
    #[error("No such file: {path}")]
    NoFile {
        /// As the client named it.
        path: String,
    },
    /// The file is too large: 400.
    #[error("File is over the {limit}-byte read limit")]
    TooLarge {
        /// The ceiling, in bytes.
        limit: u64,
    },
    /// The directory has too many entries for one answer; a tree takes a part of them: 400.
    #[error("Directory holds more than {MAX_ENTRIES} entries: {path}")]
    TooMany {
        /// As the client named it.
        path: String,
    },
    /// The file's content is not text: 400.
    #[error("[Binary File]")]
    Binary,
    /// The sandbox's user has closed it to itself, or it is another user's: 403.
    #[error("Permission denied: {path}")]
    Denied {
        /// As the client named it.
        path: String,
    },
    /// The host failed: not the client's doing.
    #[error("read '{path}' in a stored workspace")]
    Io {
        /// As the client named it.
        path: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// What a look at a tree is bounded by.
#[derive(Debug, Clone, Copy)]
pub struct TreeLimits {
    /// Levels, 1..=64; 1 is the directory alone.
    pub depth: u32,
    /// Entries, 1..=100,000.
    pub entries: usize,
    /// No name is looked at after this; see [`NAMES_PER_LOOK`].
    pub until: Instant,
}

/// What a listing for people leaves out: a directory of the workspace and what is in it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Hidden(Vec<String>);

impl Hidden {
    /// Prefixes of paths, relative to the workspace; a final `/` means nothing more.
    #[must_use]
    pub fn new(prefixes: &[String]) -> Self {
        Self(prefixes.iter().map(|prefix| prefix.trim_matches('/').to_owned()).filter(|p| !p.is_empty()).collect())
    }

    /// Whether nobody is to see this path. A plain file that has the name of a hidden directory is seen.
    fn hides(&self, path: &str, is_dir: bool) -> bool {
        self.0.iter().any(|prefix| {
            let rest = path.strip_prefix(prefix.as_str());
            rest.is_some_and(|rest| rest.starts_with('/') || (rest.is_empty() && is_dir))
        })
    }
}

/// How far one directory is read.
struct Reach<'a> {
    names: usize,
    until: Instant,
    hidden: &'a Hidden,
}

/// A directory and those beneath it, breadth first.
#[derive(Debug, PartialEq, Eq)]
pub struct Tree {
    /// Each directory's entries before those of its children.
    pub entries: Vec<FileEntry>,
    /// Whether there is more: a directory was left unopened at the depth, could not be read, or there were too many
    /// entries.
    pub truncated: bool,
}

/// Names that a look at a tree may read for each entry that it may return: links are read and left out.
const NAMES_PER_ENTRY: usize = 4;
/// Names that are read between two looks at the clock.
const NAMES_PER_LOOK: usize = 256;
/// How long a listing of one directory may take.
const LS_TIME: std::time::Duration = std::time::Duration::from_secs(10);

/// What was found in a directory.
struct Scan {
    entries: Vec<FileEntry>,
    /// Names that were looked at, links and hidden ones included.
    names: usize,
    /// Whether there are names that were not.
    more: bool,
}

impl Workspace {
    /// The entries of a directory, directories first, then by name.
    ///
    /// # Errors
    /// [`StoredError`].
    pub fn stored_ls(&self, path: &str) -> Result<Vec<FileEntry>, StoredError> {
        let relative = self.relative(path)?;
        let reach = Reach { names: MAX_ENTRIES, until: Instant::now() + LS_TIME, hidden: &Hidden::default() };
        let scan = self.scan(&relative, &reach).map_err(|errno| directory(path, errno))?;
        if scan.more { Err(StoredError::TooMany { path: shown(path) }) } else { Ok(scan.entries) }
    }

    /// A directory and those beneath it. The work is bounded as the answer is: of each directory no more names
    /// are read than are still wanted, and one; of all together, [`NAMES_PER_ENTRY`] for each entry.
    ///
    /// # Errors
    /// [`StoredError`], for the directory itself; what fails beneath it truncates.
    pub fn stored_tree(&self, path: &str, limits: TreeLimits) -> Result<Tree, StoredError> {
        self.stored_tree_without(path, limits, &Hidden::default())
    }

    /// The same without what is hidden. To look into a hidden directory is to find it empty.
    ///
    /// # Errors
    /// As [`Workspace::stored_tree`].
    pub fn stored_tree_without(&self, path: &str, limits: TreeLimits, hidden: &Hidden) -> Result<Tree, StoredError> {
        let mut tree = Tree { entries: Vec::new(), truncated: false };
        let mut names = limits.entries.saturating_mul(NAMES_PER_ENTRY).saturating_add(hidden.0.len());
        let mut queue = VecDeque::from([(self.relative(path)?, 1)]);
        while let Some((dir, depth)) = queue.pop_front() {
            let wanted = limits.entries.saturating_sub(tree.entries.len());
            let most = wanted.saturating_add(1).saturating_add(hidden.0.len());
            let reach = Reach { names: names.min(most), until: limits.until, hidden };
            let scan = match self.scan(&dir, &reach) {
                Ok(scan) => scan,
                Err(errno) if depth == 1 => return Err(directory(path, errno)),
                Err(errno) => {
                    // Skipped, and said: one directory that was closed is no workspace that cannot be read.
                    tracing::debug!(directory = dir, %errno, "a directory of a stored workspace does not answer");
                    tree.truncated = true;
                    continue;
                }
            };
            names -= scan.names;
            let more = scan.more || scan.entries.len() > wanted;
            for entry in scan.entries.into_iter().take(wanted) {
                if entry.is_dir && depth < limits.depth {
                    queue.push_back((entry.path.clone(), depth + 1));
                }
                tree.truncated |= entry.is_dir && depth >= limits.depth;
                tree.entries.push(entry);
            }
            if more {
                tree.truncated = true;
                break;
            }
        }
        Ok(tree)
    }

    /// The bytes of a file of at most `max`.
    ///
    /// # Errors
    /// [`StoredError`].
    pub fn stored_bytes(&self, path: &str, max: u64) -> Result<Vec<u8>, StoredError> {
        let relative = self.relative(path)?;
        let absolute = format!("{}/{relative}", self.work_dir);
        self.read(&absolute, max).map_err(|error| file(path, error))
    }

    /// The text of a file of at most `max` bytes.
    ///
    /// # Errors
    /// [`StoredError`].
    pub fn stored_text(&self, path: &str, max: u64) -> Result<String, StoredError> {
        let bytes = self.stored_bytes(path, max)?;
        let name = path.rsplit('/').next().unwrap_or_default();
        text::decode(name, &bytes).ok_or(StoredError::Binary)
    }

    /// `path`, as a client writes it, relative to the workspace and normalised. An absolute one beneath the work
    /// directory is the same file; any other lands inside.
    fn relative(&self, path: &str) -> Result<String, StoredError> {
        let below = path.strip_prefix(self.work_dir.as_str()).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let mut relative = String::new();
        for part in below.unwrap_or(path).split('/') {
            match part {
                "" | "." => {}
                ".." => return Err(outside(path)),
                part if part.contains('\0') => return Err(outside(path)),
                part => {
                    if !relative.is_empty() {
                        relative.push('/');
                    }
                    relative.push_str(part);
                }
            }
        }
        Ok(relative)
    }

    /// Entries of the directory `relative`, sorted, of the first names that the file system gives, within `reach`.
    fn scan(&self, relative: &str, reach: &Reach<'_>) -> Result<Scan, Errno> {
        let mut dir = Dir::new(open_beneath(self.root(), relative, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        let mut scan = Scan { entries: Vec::new(), names: 0, more: false };
        while let Some(item) = dir.read() {
            let item = item?;
            let name = item.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let late = scan.names.is_multiple_of(NAMES_PER_LOOK) && Instant::now() > reach.until;
            if scan.names == reach.names || late {
                scan.more = true;
                break;
            }
            scan.names += 1;
            let stat = match rustix::fs::statat(dir.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            };
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                // A name that is not UTF-8 is shown, though no path of a request can name it.
                let name = name.to_string_lossy();
                let path = if relative.is_empty() { name.to_string() } else { format!("{relative}/{name}") };
                let entry = entry(&name, path, &stat);
                if !reach.hidden.hides(&entry.path, entry.is_dir) {
                    scan.entries.push(entry);
                }
            }
        }
        sort(&mut scan.entries);
        Ok(scan)
    }
}

/// Directories first, then by name.
fn sort(entries: &mut [FileEntry]) {
    entries.sort_unstable_by(|a, b| b.is_dir.cmp(&a.is_dir).then_with(|| a.name.cmp(&b.name)));
}

fn outside(path: &str) -> StoredError {
    StoredError::Outside { path: shown(path) }
}

/// What `errno` means for a directory that was to be listed.
fn directory(path: &str, errno: Errno) -> StoredError {
    let path = shown(path);
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => StoredError::NoDirectory { path },
        Errno::LOOP | Errno::XDEV => StoredError::Outside { path },
        Errno::ACCESS | Errno::PERM => StoredError::Denied { path },
        other => StoredError::Io { path, source: other.into() },
    }
}

/// What a live session's error means for a file that was to be read.
fn file(path: &str, error: FileError) -> StoredError {
    use super::Why;
    let path = shown(path);
    match error {
        FileError::NotFound { .. }
        | FileError::IsADirectory { .. }
        | FileError::NotADirectory { .. }
        | FileError::NotNative { why: Why::TooLong, .. } => StoredError::NoFile { path },
        FileError::NotNative { why: Why::Denied, .. } => StoredError::Denied { path },
        FileError::NotNative { why: Why::Outside | Why::Link | Why::Special | Why::Unclear, .. }
        | FileError::NotNative { why: Why::Encoding | Why::TooMany | Why::Changed, .. }
        | FileError::Exists { .. }
        | FileError::Invalid { .. } => StoredError::Outside { path },
        FileError::TooLarge { limit, .. } => StoredError::TooLarge { limit },
        FileError::OverQuota { .. } | FileError::NoSpace { .. } => {
            StoredError::Io { path, source: std::io::ErrorKind::StorageFull.into() }
        }
        FileError::Io { source, .. } => StoredError::Io { path, source },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    use rustix::fs::{CWD, Mode};

    use super::super::testing::{Fixture, MAX};
    use super::*;

    fn sample() -> Fixture {
        let fixture = Fixture::new();
        for dir in ["b", "a/x/y", "a/w"] {
            std::fs::create_dir_all(fixture.host(dir)).unwrap();
        }
        for file in ["f", "B", "a/x/y/deep", "a/1"] {
            std::fs::write(fixture.host(file), file).unwrap();
        }
        symlink("f", fixture.host("link")).unwrap();
        symlink(fixture.outside(""), fixture.host("out")).unwrap();
        rustix::fs::mkfifoat(CWD, fixture.host("fifo"), Mode::RWXU).unwrap();
        fixture
    }

    fn paths(entries: &[FileEntry]) -> Vec<&str> {
        entries.iter().map(|entry| entry.path.as_str()).collect()
    }

    fn limits(depth: u32, entries: usize) -> TreeLimits {
        TreeLimits { depth, entries, until: Instant::now() + LS_TIME }
    }

    #[test]
    fn a_listing_has_directories_first_and_no_links() {
        let fixture = sample();
        for path in ["", ".", "/", "/workspace", "./", "/workspace/."] {
            let entries = fixture.workspace.stored_ls(path).unwrap();
            assert_eq!(paths(&entries), ["a", "b", "B", "f", "fifo"], "{path:?}");
            assert!(entries.iter().all(|e| e.modified_at.is_some() == e.size.is_some()));
        }
        for path in ["a", "/workspace/a", "/a", "./a/"] {
            assert_eq!(paths(&fixture.workspace.stored_ls(path).unwrap()), ["a/w", "a/x", "a/1"], "{path:?}");
        }
    }

    #[test]
    fn paths_stay_inside() {
        let fixture = sample();
        let workspace = &fixture.workspace;
        for path in ["..", "a/../..", "/workspace/..", "a/..", "link/x", "out", "out/secret", "a\0"] {
            assert!(matches!(workspace.stored_ls(path), Err(StoredError::Outside { .. })), "ls {path:?}");
        }
        for path in ["../x", "out/secret", "link", "fifo", "/workspace/out/secret"] {
            assert!(matches!(workspace.stored_bytes(path, MAX), Err(StoredError::Outside { .. })), "read {path:?}");
        }
        for path in ["/etc", "/etc/passwd", "/workspace2", "missing", "f", "f/x"] {
            assert!(matches!(workspace.stored_ls(path), Err(StoredError::NoDirectory { .. })), "ls {path:?}");
        }
        for path in ["/etc/passwd", "missing", "a", "f/x", "", "/workspace"] {
            assert!(matches!(workspace.stored_bytes(path, MAX), Err(StoredError::NoFile { .. })), "read {path:?}");
        }
        let long = "n/".repeat(5000);
        assert!(matches!(workspace.stored_ls(&long), Err(StoredError::NoDirectory { .. })));
        assert!(matches!(workspace.stored_bytes(&long, MAX), Err(StoredError::NoFile { .. })));
    }

    #[test]
    fn a_tree_is_breadth_first_and_says_when_there_is_more() {
        let fixture = sample();
        let all = ["a", "b", "B", "f", "fifo", "a/w", "a/x", "a/1", "a/x/y", "a/x/y/deep"];
        let tree = |depth, entries| fixture.workspace.stored_tree(".", limits(depth, entries)).unwrap();
        let whole = tree(64, 100);
        assert_eq!((paths(&whole.entries), whole.truncated), (all.to_vec(), false));
        assert_eq!(tree(4, 10), whole);
        for (depth, entries, count) in [(1, 100, 5), (2, 100, 8), (3, 100, 9), (64, 9, 9), (64, 8, 8)] {
            let part = tree(depth, entries);
            assert_eq!((part.entries.len(), part.truncated), (count, true), "{depth} {entries}");
        }
        // Of which names depends on the file system's order: links are among them.
        for entries in 1..=5 {
            let part = tree(64, entries);
            assert!(part.truncated && part.entries.len() <= entries);
        }
        let beneath = fixture.workspace.stored_tree("/workspace/a/x", limits(2, 10)).unwrap();
        assert_eq!((paths(&beneath.entries), beneath.truncated), (vec!["a/x/y", "a/x/y/deep"], false));
        assert!(matches!(fixture.workspace.stored_tree("out", limits(1, 1)), Err(StoredError::Outside { .. })));
    }

    #[test]
    fn links_are_work_too() {
        let fixture = Fixture::new();
        for dir in 0..9 {
            std::fs::create_dir(fixture.host(format!("{dir}"))).unwrap();
            for link in 0..5 {
                symlink("x", fixture.host(format!("{dir}/{link}"))).unwrap();
            }
        }
        let tree = |entries| fixture.workspace.stored_tree("", limits(2, entries)).unwrap();
        assert!(!tree(15).truncated);
        assert_eq!((tree(13).entries.len(), tree(13).truncated), (9, true));
    }

    #[test]
    fn a_large_directory_costs_what_is_wanted_of_it() {
        let fixture = Fixture::new();
        for i in 0..20_000 {
            symlink("x", fixture.host(format!("{i}"))).unwrap();
        }
        let time = |entries| {
            let start = Instant::now();
            let tree = fixture.workspace.stored_tree("", limits(6, entries)).unwrap();
            assert!(tree.entries.is_empty());
            (start.elapsed(), tree.truncated)
        };
        let cheap = |_| {
            let ((few, truncated), (all, whole)) = (time(10), time(20_000));
            assert!(truncated && !whole);
            println!("{few:?} for ten names, {all:?} for all");
            few * 10 < all
        };
        // If it were looked at whole each time, the two were the same each time.
        assert!((0..10).any(cheap));
    }

    #[test]
    fn what_is_hidden_is_in_no_listing_and_no_bound() {
        let fixture = Fixture::new();
        for dir in ["skills/deep", ".spill", "a/skills", "skills-2"] {
            std::fs::create_dir_all(fixture.host(dir)).unwrap();
        }
        for file in ["skills/1", "skills/deep/2", ".spill/3", "a/skills/4", "skills-2/5", "6"] {
            std::fs::write(fixture.host(file), file).unwrap();
        }
        let hidden = Hidden::new(&["skills/".into(), ".spill".into(), "/".into()]);
        let seen = |path: &str, entries| {
            let tree = fixture.workspace.stored_tree_without(path, limits(6, entries), &hidden).unwrap();
            (tree.entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>(), tree.truncated)
        };
        let all = ["a", "skills-2", "6", "a/skills", "skills-2/5", "a/skills/4"];
        assert_eq!(seen("", 2000), (all.map(str::to_owned).to_vec(), false));
        assert_eq!(seen("", 6), (all.map(str::to_owned).to_vec(), false));
        assert_eq!(seen("skills", 2000), (vec![], false));
        assert_eq!(seen("a", 2000).0, ["a/skills", "a/skills/4"]);
        std::fs::remove_dir_all(fixture.host(".spill")).unwrap();
        std::fs::write(fixture.host(".spill"), "a file").unwrap();
        assert_eq!(seen("", 2000).0[2], ".spill");
    }

    #[test]
    fn time_bounds_a_look() {
        let fixture = sample();
        let late = TreeLimits { depth: 6, entries: 100, until: Instant::now() };
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(fixture.workspace.stored_tree("", late).unwrap(), Tree { entries: vec![], truncated: true });
    }

    #[test]
    fn text_is_read_in_slices() {
        let fixture = sample();
        std::fs::write(fixture.host("a/t.txt"), "1\n2\n3\n").unwrap();
        std::fs::write(fixture.host("bin"), b"\0\x01\x02").unwrap();
        let read = |path: &str, offset, limit| {
            fixture.workspace.stored_text(path, 10).map(|text| text::slice(&text, offset, limit))
        };
        assert_eq!(read("a/t.txt", 0, 2000).unwrap(), "1\n2\n3");
        assert_eq!(read("/workspace/a/t.txt", 1, 1).unwrap(), "2\n\n[... 1 more lines. Use offset=2 to read more.]");
        assert_eq!(read("a/x/y/deep", 0, 1).unwrap(), "a/x/y/deep");
        assert!(matches!(read("bin", 0, 1), Err(StoredError::Binary)));
        assert!(matches!(fixture.workspace.stored_text("f", 0), Err(StoredError::TooLarge { limit: 0 })));
        assert_eq!(StoredError::Binary.to_string(), "[Binary File]");
    }
}
