//! What a sandbox answers when it was asked to resolve a path, as the contract has it. Its answers are hostile:
//! whatever is not as `wire::file` says is no answer, and none of them is a failure of this service's.

use wire::api::FileEntry;
use wire::file::{Entry, Fault, FileOp, Kind, MAX_NAME, MAX_PATH, Stat};

use super::entry::entry_of;
use super::error::{FileError, Op, Why, shown};
use super::list::MAX_ENTRIES;

impl FileError {
    /// Whether it is worth asking the sandbox about `path`: it may do, or know better, what could not be done from here.
    #[must_use]
    pub fn is_for_the_sandbox(&self, op: FileOp, path: &str) -> bool {
        match self {
            Self::NotNative { why, .. } => match why {
                Why::Outside | Why::Link | Why::Denied | Why::TooLong | Why::Unclear | Why::Changed => {
                    path.len() <= MAX_PATH
                }
                Why::TooMany => op == FileOp::Remove,
                // The sandbox could say no more.
                Why::Special | Why::Encoding => false,
            },
            Self::NotFound { .. }
            | Self::IsADirectory { .. }
            | Self::NotADirectory { .. }
            | Self::Exists { .. }
            | Self::Invalid { .. }
            | Self::TooLarge { .. }
            | Self::OverQuota { .. }
            | Self::NoSpace { .. }
            | Self::Io { .. } => false,
        }
    }

    /// What the sandbox's `fault` means when `op` met it at `path`. `max` is the ceiling of a file's bytes.
    #[must_use]
    pub fn of_the_sandbox(op: FileOp, path: &str, fault: Fault, max: u64) -> Self {
        let not_native = |why| Self::not_native(&shown(path), why);
        match fault {
            Fault::Errno(errno) => of_errno(op, path, errno.into()),
            Fault::Special | Fault::Itself => not_native(Why::Special),
            Fault::Link => not_native(Why::Link),
            Fault::TooLarge => Self::TooLarge { path: shown(path), limit: max },
            Fault::TooMany => not_native(Why::TooMany),
            Fault::WorkDir => super::remove::refused(path),
        }
    }
}

/// Errors that the contract has no name for stay with the client, who then learns from a command what they are.
fn of_errno(op: FileOp, path: &str, errno: i32) -> FileError {
    let not_native = |why| FileError::not_native(&shown(path), why);
    let path = shown(path);
    // Looking finds nothing there; changing would have to.
    let looks = match op {
        FileOp::Read | FileOp::Stat | FileOp::List | FileOp::Remove => true,
        FileOp::Write | FileOp::Mkdir | FileOp::Realpath => false,
    };
    match errno {
        libc::ENOENT | libc::ELOOP | libc::ENAMETOOLONG if looks => FileError::NotFound { path },
        libc::ENOENT | libc::ELOOP => not_native(Why::Link),
        libc::ENAMETOOLONG => not_native(Why::TooLong),
        libc::ENOTDIR => FileError::NotADirectory { path },
        libc::EISDIR => FileError::IsADirectory { path },
        libc::EEXIST if op == FileOp::Mkdir => FileError::Exists { path },
        libc::EINVAL if op == FileOp::Remove => FileError::invalid(&path, "`.` and `..` are not removed"),
        libc::ENOSPC => FileError::NoSpace { op: op_of(op), path },
        libc::EDQUOT => FileError::OverQuota { op: op_of(op), path },
        _ => not_native(Why::Denied),
    }
}

fn op_of(op: FileOp) -> Op {
    match op {
        FileOp::Read => Op::Read,
        FileOp::Write => Op::Write,
        FileOp::Stat => Op::Stat,
        FileOp::List => Op::Ls,
        FileOp::Realpath => Op::Realpath,
        FileOp::Mkdir => Op::Mkdir,
        FileOp::Remove => Op::Remove,
    }
}

/// An operation that answers nothing was done.
///
/// # Errors
/// [`FileError::NotNative`] for an answer.
pub fn nothing(path: &str, bytes: Vec<u8>) -> Result<(), FileError> {
    if bytes.is_empty() { Ok(()) } else { Err(no_answer(path)) }
}

/// The bytes of a file.
///
/// # Errors
/// None: they may be any.
pub fn bytes(_path: &str, bytes: Vec<u8>) -> Result<Vec<u8>, FileError> {
    Ok(bytes)
}

/// What is at `path`.
///
/// # Errors
/// [`FileError::NotNative`] for what is no answer.
pub fn entry(path: &str, bytes: Vec<u8>) -> Result<FileEntry, FileError> {
    match postcard::take_from_bytes::<Stat>(&bytes) {
        Ok((stat, [])) if stat.kind != Kind::Other => Ok(entry_of(&name(path), tidy(path), &stat)),
        Ok(_) | Err(_) => Err(no_answer(path)),
    }
}

/// What is in the directory `path`, sorted by name.
///
/// # Errors
/// [`FileError::NotNative`] for a name that is not UTF-8, and for what is no answer.
pub fn entries(path: &str, bytes: Vec<u8>) -> Result<Vec<FileEntry>, FileError> {
    let base = tidy(path);
    let base = base.trim_end_matches('/');
    let mut entries = Vec::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (Entry { name, stat }, after) = postcard::take_from_bytes(rest).map_err(|_| no_answer(path))?;
        if !is_name(name) || entries.len() == MAX_ENTRIES {
            return Err(no_answer(path));
        }
        let name = str::from_utf8(name).map_err(|_| FileError::not_native(&shown(path), Why::Encoding))?;
        entries.push(entry_of(name, format!("{base}/{name}"), &stat));
        rest = after;
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// A path with its links resolved.
///
/// # Errors
/// [`FileError::NotNative`] for one that is not UTF-8, and for what is no answer.
pub fn real(path: &str, bytes: Vec<u8>) -> Result<String, FileError> {
    if bytes.first() != Some(&b'/') || bytes.contains(&0) {
        return Err(no_answer(path));
    }
    String::from_utf8(bytes).map_err(|_| FileError::not_native(&shown(path), Why::Encoding))
}

fn no_answer(path: &str) -> FileError {
    FileError::not_native(&shown(path), Why::Changed)
}

fn is_name(name: &[u8]) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !matches!(name, b"." | b"..") && !name.iter().any(|b| [b'/', 0].contains(b))
}

/// `path` without what means nothing. A `..` stays: where it leads is the sandbox's to know.
fn tidy(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let tidy: String = parts.flat_map(|part| ["/", part]).collect();
    if tidy.is_empty() { "/".to_owned() } else { tidy }
}

/// The last component of `path`, its `..` applied as text.
fn name(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.last().copied().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(kind: Kind) -> Stat {
        Stat { kind, size: 3, seconds: 0, nanoseconds: 0 }
    }

    fn listed(names: &[&[u8]]) -> Vec<u8> {
        let encode = |name: &&[u8]| postcard::to_allocvec(&Entry { name, stat: stat(Kind::File) }).unwrap();
        names.iter().flat_map(encode).collect()
    }

    #[test]
    fn entries_are_what_the_contract_describes() {
        let encode = |kind| postcard::to_allocvec(&stat(kind)).unwrap();
        let file = entry("/etc//./os-release", encode(Kind::File)).unwrap();
        assert_eq!((file.name.as_str(), file.path.as_str()), ("os-release", "/etc/os-release"));
        assert_eq!((file.is_dir, file.size), (false, Some(3)));
        assert_eq!(file.modified_at.as_deref(), Some("1970-01-01T00:00:00+00:00"));
        let dir = entry("/a/link/..", encode(Kind::Directory)).unwrap();
        assert_eq!((dir.name.as_str(), dir.path.as_str(), dir.is_dir, dir.size), ("a", "/a/link/..", true, None));
        assert_eq!(entry("/", encode(Kind::Directory)).unwrap().path, "/");
        let all = entries("/tmp/", listed(&[b"b", "ä".as_bytes(), b"a"])).unwrap();
        assert_eq!(all.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(), ["/tmp/a", "/tmp/b", "/tmp/ä"]);
        assert_eq!(entries("/", listed(&[b"etc"])).unwrap()[0].path, "/etc");
    }

    #[test]
    fn what_is_no_answer_is_none() {
        let refused = |result: Result<(), FileError>| matches!(result, Err(FileError::NotNative { .. }));
        assert!(refused(nothing("/a", vec![1])) && nothing("/a", vec![]).is_ok());
        for bytes in [&b""[..], &[9; 40], &postcard::to_allocvec(&stat(Kind::Other)).unwrap()] {
            assert!(refused(entry("/a", bytes.to_vec()).map(drop)), "{bytes:?}");
        }
        let long = [b'x'; MAX_NAME + 1];
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0", b"\xff", &long] {
            assert!(refused(entries("/a", listed(&[b"f", name])).map(drop)), "{name:?}");
        }
        assert!(refused(entries("/a", listed(&[b"f"])[1..].to_vec()).map(drop)));
        for bytes in [&b""[..], b"a", b"/a\0", b"/\xff"] {
            assert!(refused(real("/a", bytes.to_vec()).map(drop)), "{bytes:?}");
        }
    }

    #[test]
    fn faults_have_the_names_of_the_contract_or_stay_with_the_client() {
        let name =
            |op, errno: i32| FileError::of_the_sandbox(op, "/a", Fault::Errno(u8::try_from(errno).unwrap()), 9).name();
        assert_eq!(name(FileOp::Read, libc::ENOENT), Some("FileNotFoundError"));
        assert_eq!(name(FileOp::Stat, libc::ELOOP), Some("FileNotFoundError"));
        assert_eq!(name(FileOp::Read, libc::EISDIR), Some("IsADirectoryError"));
        assert_eq!(name(FileOp::Mkdir, libc::ENOTDIR), Some("NotADirectoryError"));
        assert_eq!(name(FileOp::Mkdir, libc::EEXIST), Some("FileExistsError"));
        assert_eq!(name(FileOp::Remove, libc::EINVAL), Some("ValueError"));
        let every = [FileOp::Read, FileOp::Write, FileOp::Stat, FileOp::List, FileOp::Realpath, FileOp::Mkdir];
        for (op, errno) in every.into_iter().flat_map(|op| [libc::EACCES, libc::EIO, 133, 199].map(|e| (op, e))) {
            let fault = Fault::Errno(u8::try_from(errno).unwrap());
            assert!(matches!(FileError::of_the_sandbox(op, "/a", fault, 9), FileError::NotNative { .. }));
        }
        let workdir = FileError::of_the_sandbox(FileOp::Remove, "/a", Fault::WorkDir, 9);
        assert_eq!(workdir.name(), Some("ValueError"));
        let large = FileError::of_the_sandbox(FileOp::Read, "/a", Fault::TooLarge, 9);
        assert!(matches!(large, FileError::TooLarge { limit: 9, .. }));
    }
}
