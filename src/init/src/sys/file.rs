//! Descriptors, files and directories beneath a descriptor.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::{Errno, Result, check};

/// What a descriptor is, inode(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A directory.
    Directory,
    /// Anything else.
    Other,
}

/// How a descriptor was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading alone.
    Read,
    /// For writing alone.
    Write,
    /// For both, or for neither.
    Other,
}

/// Takes over descriptor `fd`, which this process was started with, and closes it on exec.
/// Called once for each number, before anything else is opened.
///
/// # Errors
/// `EBADF` if it is not open.
pub fn inherited(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: fcntl on a number changes no memory; if it is not open it fails.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and nobody in this process has taken it: the caller does so once for each.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What `fd` is.
///
/// # Errors
/// Those of fstat(2).
pub fn kind(fd: BorrowedFd<'_>) -> Result<Kind> {
    // SAFETY: a stat of zeroes is a valid one.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writing for the duration of the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
    Ok(match stat.st_mode & libc::S_IFMT {
        libc::S_IFIFO => Kind::Pipe,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFDIR => Kind::Directory,
        _ => Kind::Other,
    })
}

fn flags(fd: BorrowedFd<'_>) -> Result<i32> {
    // SAFETY: F_GETFL takes no pointer.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })
}

fn set_flags(fd: BorrowedFd<'_>, flags: i32) -> Result<()> {
    // SAFETY: F_SETFL takes a number.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }).map(drop)
}

/// How `fd` was opened.
///
/// # Errors
/// Those of fcntl(2).
pub fn access(fd: BorrowedFd<'_>) -> Result<Access> {
    let flags = flags(fd)?;
    Ok(match flags & (libc::O_ACCMODE | libc::O_PATH) {
        libc::O_RDONLY => Access::Read,
        libc::O_WRONLY => Access::Write,
        _ => Access::Other,
    })
}

/// Makes calls on `fd` return `EAGAIN` instead of waiting.
///
/// # Errors
/// Those of fcntl(2).
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    set_flags(fd, flags(fd)? | libc::O_NONBLOCK)
}

/// Makes calls on `fd` wait, if they did not.
///
/// # Errors
/// Those of fcntl(2).
pub fn clear_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    let flags = flags(fd)?;
    if flags & libc::O_NONBLOCK == 0 { Ok(()) } else { set_flags(fd, flags & !libc::O_NONBLOCK) }
}

/// Whether `fd` is a memfd whose content is sealed, memfd_create(2).
#[must_use]
pub fn sealed_against_writing(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: F_GET_SEALS takes no pointer.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals != -1 && seals & libc::F_SEAL_WRITE != 0
}

/// Makes number `onto` a duplicate of `fd` that stays open on exec, dup2(2).
///
/// # Errors
/// Those of dup2(2).
pub fn duplicate_onto(fd: BorrowedFd<'_>, onto: RawFd) -> Result<()> {
    // SAFETY: 0, 1 and 2, the only numbers that the callers give, belong to no OwnedFd.
    check(unsafe { libc::dup2(fd.as_raw_fd(), onto) }).map(drop)
}

/// Closes every descriptor from number `first` on, close_range(2).
///
/// # Errors
/// Those of close_range(2).
pub fn close_from(first: u32) -> Result<()> {
    // SAFETY: called where nothing that owns such a descriptor is used again: before the init has opened
    // any, and in a child that executes another program or exits.
    // To the largest descriptor that there can be: gVisor takes a larger number for a negative one.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, i32::MAX, 0_u32) }).map(drop)
}

fn open(dir: RawFd, path: &CStr, flags: i32) -> Result<OwnedFd> {
    // SAFETY: `path` is a string that ends with NUL.
    let fd = check(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC | libc::O_NOCTTY) })?;
    // SAFETY: a new descriptor, ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens `path` with the given flags of open(2) and `O_CLOEXEC`.
///
/// # Errors
/// Those of open(2).
pub fn open_path(path: &CStr, flags: i32) -> Result<OwnedFd> {
    open(libc::AT_FDCWD, path, flags)
}

/// Opens `path` beneath `dir` with the given flags of open(2), `O_CLOEXEC` and `O_NOFOLLOW`.
///
/// # Errors
/// Those of openat(2).
pub fn open_beneath(dir: BorrowedFd<'_>, path: &CStr, flags: i32) -> Result<OwnedFd> {
    open(dir.as_raw_fd(), path, flags | libc::O_NOFOLLOW)
}

/// Makes the directory `name` in `dir`, mode 0755.
///
/// # Errors
/// Those of mkdirat(2).
pub fn make_dir(dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    // SAFETY: `name` is a string that ends with NUL.
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o755) }).map(drop)
}

/// Removes the empty directory `name` from `dir`.
///
/// # Errors
/// Those of unlinkat(2).
pub fn remove_dir(dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    // SAFETY: `name` is a string that ends with NUL.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) }).map(drop)
}

fn count(answer: isize) -> Result<usize> {
    usize::try_from(answer).map_err(|_| Errno::last())
}

/// Reads from where `fd` stands: how many bytes, 0 at the end.
///
/// # Errors
/// Those of read(2).
pub fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: `buffer` is valid for writing of its length.
    count(unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) })
}

/// Reads from `offset` of `fd`: how many bytes, 0 at the end.
///
/// # Errors
/// Those of pread(2).
pub fn read_at(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: usize) -> Result<usize> {
    let offset = i64::try_from(offset).map_err(|_| Errno(libc::EOVERFLOW))?;
    // SAFETY: `buffer` is valid for writing of its length.
    count(unsafe { libc::pread(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), offset) })
}

/// Writes `bytes` at once.
///
/// # Errors
/// Those of write(2), `EIO` if not all was taken.
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<()> {
    // SAFETY: `bytes` is valid for reading of its length.
    let written = count(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })?;
    if written == bytes.len() { Ok(()) } else { Err(Errno(libc::EIO)) }
}

/// Makes `path` the working directory, chdir(2).
///
/// # Errors
/// Those of chdir(2).
pub fn enter_dir(path: &CStr) -> Result<()> {
    // SAFETY: `path` is a string that ends with NUL.
    check(unsafe { libc::chdir(path.as_ptr()) }).map(drop)
}

/// Whether this process's user may do to `path` what `mode` says, access(2).
///
/// # Errors
/// Those of access(2): `EACCES`, `EROFS`.
pub fn may(path: &CStr, mode: i32) -> Result<()> {
    // SAFETY: `path` is a string that ends with NUL.
    check(unsafe { libc::access(path.as_ptr(), mode) }).map(drop)
}
