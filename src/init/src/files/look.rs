//! Looking: the bytes of a file, what a path leads to, what is in a directory.

use std::env;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path};

use wire::file::{Entry, Fault, Kind, MAX_ENTRY, Stat};

use super::{Done, errno_fault, fault};

/// Bytes that are read or written at a time.
const PIECE: usize = 64 << 10;
/// Where every file tells its size only to who reads it, that size is at most this.
const UNTOLD: u64 = 4096;
/// What `/proc` tells of this process that it would tell of a command as well. The rest is about a program, and this
/// one is the init's: where its memory is does not concern the sandbox.
const SHARED: [&str; 10] =
    ["status", "cgroup", "limits", "mounts", "mountinfo", "mountstats", "net", "oom_score_adj", "uid_map", "gid_map"];

/// The bytes of a plain file, at most `max`.
pub fn read(path: &Path, max: u64, out: &mut File) -> Done {
    let (file, size) = open(path)?;
    if size > max {
        return Err(Fault::TooLarge);
    }
    pass_on(file, max, |piece| out.write_all(piece).map_err(fault)).map(drop)
}

/// What `path` leads to: a directory, or a file that may be read.
pub fn stat(path: &Path, max: u64, out: &mut File) -> Done {
    let mut found = describe(&fs::metadata(path).map_err(fault)?);
    match found.kind {
        Kind::Directory => {}
        Kind::File => {
            let (file, size) = open(path)?;
            let untold = file.metadata().map_err(fault)?.blocks() == 0 && size <= UNTOLD;
            found.size = if untold { pass_on(file, max, |_| Ok(()))? } else { size };
        }
        Kind::Other => return Err(Fault::Special),
    }
    let mut buffer = [0; MAX_ENTRY];
    let bytes = postcard::to_slice(&found, &mut buffer).map_err(|_| errno_fault(libc::EIO))?;
    out.write_all(bytes).map_err(fault)
}

/// The entries of a directory, at most `max`.
pub fn list(path: &Path, max: u64, out: &mut File) -> Done {
    // To be in it is to stay in it, whatever becomes of its name.
    env::set_current_dir(path).map_err(fault)?;
    let mut out = BufWriter::with_capacity(PIECE, out);
    let mut buffer = [0; MAX_ENTRY];
    let mut left = max;
    for entry in fs::read_dir(".").map_err(fault)? {
        let name = entry.map_err(fault)?.file_name();
        let Some(stat) = follow(Path::new(&name)) else { continue };
        left = left.checked_sub(1).ok_or(Fault::TooMany)?;
        let entry = Entry { name: name.as_bytes(), stat };
        let bytes = postcard::to_slice(&entry, &mut buffer).map_err(|_| errno_fault(libc::EIO))?;
        out.write_all(bytes).map_err(fault)?;
    }
    out.flush().map_err(fault)
}

/// What `name` leads to, if it is still there.
fn follow(name: &Path) -> Option<Stat> {
    match fs::metadata(name) {
        Ok(metadata) => Some(describe(&metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(name).is_err() => None,
        // It leads nowhere, in a circle, or where this user may not look.
        Err(_) => Some(Stat { kind: Kind::Other, size: 0, seconds: 0, nanoseconds: 0 }),
    }
}

fn describe(metadata: &Metadata) -> Stat {
    let kind = match metadata {
        file if file.is_file() => Kind::File,
        dir if dir.is_dir() => Kind::Directory,
        _ => Kind::Other,
    };
    let size = if kind == Kind::File { metadata.len() } else { 0 };
    let nanoseconds = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
    Stat { kind, size, seconds: metadata.mtime(), nanoseconds }
}

/// A plain file, open, and its size. Nothing else is opened, as far as it can be told before, and nothing makes wait.
fn open(path: &Path) -> Result<(File, u64), Fault> {
    plain(&fs::metadata(path).map_err(fault)?)?;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(fault)?;
    let metadata = file.metadata().map_err(fault)?;
    plain(&metadata)?;
    not_itself(&file)?;
    Ok((file, metadata.len()))
}

fn plain(metadata: &Metadata) -> Done {
    match describe(metadata).kind {
        Kind::File => Ok(()),
        Kind::Directory => Err(errno_fault(libc::EISDIR)),
        Kind::Other => Err(Fault::Special),
    }
}

fn not_itself(file: &File) -> Done {
    let place = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| Fault::Itself)?;
    let Ok(inside) = place.strip_prefix(format!("/proc/{}", std::process::id())) else { return Ok(()) };
    let first = inside.components().next();
    let shared = SHARED.iter().any(|name| first == Some(Component::Normal(name.as_ref())));
    if shared { Ok(()) } else { Err(Fault::Itself) }
}

/// Hands all that is in `file` to `sink`, at most `max` bytes: how many there were.
fn pass_on(mut file: File, max: u64, mut sink: impl FnMut(&[u8]) -> Done) -> Result<u64, Fault> {
    let mut buffer = vec![0; PIECE];
    let mut total = 0;
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(fault(error)),
        };
        total += count as u64;
        if total > max {
            return Err(Fault::TooLarge);
        }
        sink(buffer.get(..count).unwrap_or_default())?;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_are_told_from_what_would_make_wait() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("f"), b"12345").unwrap();
        symlink("f", at("link")).unwrap();
        symlink("loop", at("loop")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RWXU).unwrap();
        let fault = |path: &Path| open(path).map(|(_, size)| size);
        assert_eq!(fault(&at("f")), Ok(5));
        assert_eq!(fault(&at("link")), Ok(5));
        assert_eq!(fault(&at("loop")), Err(errno_fault(libc::ELOOP)));
        assert_eq!(fault(dir.path()), Err(errno_fault(libc::EISDIR)));
        assert_eq!(fault(&at("f/x")), Err(errno_fault(libc::ENOTDIR)));
        assert_eq!(fault(&at("none")), Err(errno_fault(libc::ENOENT)));
        for path in [at("fifo").as_path(), Path::new("/dev/zero")] {
            assert_eq!(fault(path), Err(Fault::Special), "{}", path.display());
        }
    }

    #[test]
    fn proc_tells_of_this_process_only_what_it_would_of_a_command() {
        for path in ["/proc/self/status", "/proc/mounts", "/proc/net/dev", "/proc/self/limits", "/proc/uptime"] {
            assert!(open(Path::new(path)).is_ok(), "{path}");
        }
        for path in ["maps", "environ", "auxv", "stat", "smaps", "syscall", "cmdline", "task/PID/maps"] {
            let path = path.replace("PID", &std::process::id().to_string());
            assert_eq!(open(&Path::new("/proc/self").join(path)).err(), Some(Fault::Itself));
        }
    }

    #[test]
    fn bytes_are_counted_as_they_come() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, vec![7; 100_000]).unwrap();
        let count = |max| pass_on(File::open(&path).unwrap(), max, |_| Ok(()));
        assert_eq!((count(100_000), count(99_999)), (Ok(100_000), Err(Fault::TooLarge)));
    }
}
