//! What the two ends of a tunnel need beside the init: poll(2), pipes, memfds, a socket with a path, a mount.

use std::ffi::CStr;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::{Errno, Fork, Result, check};

/// What [`poll`] looks at, and what it found.
#[derive(Debug)]
pub struct Watched<'a> {
    /// Which descriptor.
    pub fd: BorrowedFd<'a>,
    /// Whether to wait until it can be written, rather than read.
    pub write: bool,
    /// Whether it can be, or is at its end.
    pub ready: bool,
}

/// Waits until one of `watched` is ready, or for `timeout`.
///
/// # Errors
/// Those of poll(2).
pub fn poll(watched: &mut [Watched<'_>], timeout: Option<Duration>) -> Result<()> {
    let events = |one: &Watched<'_>| if one.write { libc::POLLOUT } else { libc::POLLIN };
    let mut fds: Vec<libc::pollfd> =
        watched.iter().map(|one| libc::pollfd { fd: one.fd.as_raw_fd(), events: events(one), revents: 0 }).collect();
    let timeout = timeout.map_or(-1, |time| i32::try_from(time.as_millis()).unwrap_or(i32::MAX));
    // SAFETY: `fds` is valid for reading and writing of its length.
    check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) })?;
    for (one, fd) in watched.iter_mut().zip(&fds) {
        one.ready = fd.revents != 0;
    }
    Ok(())
}

/// A new pipe: its read and its write end, closed on exec.
///
/// # Errors
/// Those of pipe2(2).
pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: `ends` is valid for writing two numbers.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: two new descriptors, ours alone.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Which file `fd` is, as long as it is open somewhere: its device and inode; and its size.
///
/// # Errors
/// Those of fstat(2).
pub fn identity(fd: BorrowedFd<'_>) -> Result<((u64, u64), usize)> {
    // SAFETY: a stat of zeroes is a valid one.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: `stat` is valid for writing for the duration of the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
    Ok(((stat.st_dev, stat.st_ino), usize::try_from(stat.st_size).unwrap_or(usize::MAX)))
}

/// How many bytes can be read from the pipe `fd` now, FIONREAD.
///
/// # Errors
/// Those of ioctl(2).
pub fn available(fd: BorrowedFd<'_>) -> Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: `count` is valid for writing.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD as _, &raw mut count) })?;
    usize::try_from(count).map_err(|_| Errno(libc::EIO))
}

/// A sealed memfd with these bytes.
///
/// # Errors
/// Those of memfd_create(2), write(2) and fcntl(2).
pub fn sealed_memfd(bytes: &[u8]) -> Result<OwnedFd> {
    // SAFETY: the name is a string that ends with NUL.
    let fd = check(unsafe { libc::memfd_create(c"tunnel".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    // SAFETY: a new descriptor, ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut left = bytes;
    while !left.is_empty() {
        // SAFETY: `left` is valid for reading of its length.
        let written = check(unsafe { libc::write(fd.as_raw_fd(), left.as_ptr().cast(), left.len()) })?;
        left = left.get(usize::try_from(written).unwrap_or(0)..).ok_or(Errno(libc::EIO))?;
    }
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: both take numbers; the offset is for whoever reads from where it stands.
    unsafe {
        check(libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_SET))?;
        check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
    }
    Ok(fd)
}

/// Writes what the pipe takes of `bytes`, without `SIGPIPE` (which is blocked here, see [`super::block_signals`]).
///
/// # Errors
/// `EAGAIN` if it takes nothing now, `EPIPE` if nobody reads.
pub fn write_some(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    // SAFETY: `bytes` is valid for reading of its length.
    let written = check(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })?;
    usize::try_from(written).map_err(|_| Errno(libc::EIO))
}

fn unix_socket(flags: i32) -> Result<OwnedFd> {
    // SAFETY: socket takes numbers.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags, 0) })?;
    // SAFETY: a new descriptor, ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The address of `path`, at most 107 bytes.
fn address(path: &CStr) -> Result<libc::sockaddr_un> {
    // SAFETY: a sockaddr_un of zeroes is a valid, unnamed one.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.to_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(address)
}

/// A `SOCK_SEQPACKET` socket that listens at `path`.
///
/// # Errors
/// Those of bind(2) and listen(2).
pub fn listen_at(path: &CStr) -> Result<OwnedFd> {
    let (socket, address) = (unix_socket(0)?, address(path)?);
    let size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives and has that size.
    unsafe {
        check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size))?;
        check(libc::listen(socket.as_raw_fd(), 4))?;
    }
    Ok(socket)
}

/// A connection to whoever listens at `path`; calls on it do not wait.
///
/// # Errors
/// Those of connect(2).
pub fn connect_to(path: &CStr) -> Result<OwnedFd> {
    let (socket, address) = (unix_socket(libc::SOCK_NONBLOCK)?, address(path)?);
    let size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives and has that size.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
    Ok(socket)
}

/// Makes the directory `path`, mode 0700.
///
/// # Errors
/// Those of mkdir(2).
pub fn make_private_dir(path: &CStr) -> Result<()> {
    // SAFETY: `path` is a string that ends with NUL.
    check(unsafe { libc::mkdir(path.as_ptr(), 0o700) }).map(drop)
}

/// Gives `path` to `user` and the group of the same number.
///
/// # Errors
/// Those of chown(2).
pub fn give(path: &CStr, user: u32) -> Result<()> {
    // SAFETY: `path` is a string that ends with NUL.
    check(unsafe { libc::chown(path.as_ptr(), user, user) }).map(drop)
}

/// Mounts a version 1 cgroup file system with the controller `controller` at `path`, mount(2).
///
/// # Errors
/// Those of mount(2).
pub fn mount_cgroup(path: &CStr, controller: &CStr) -> Result<()> {
    let kind = c"cgroup";
    // SAFETY: four strings that end with NUL.
    let answer = unsafe { libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, controller.as_ptr().cast()) };
    check(answer).map(drop)
}

/// A duplicate of `fd` with a number of 16 or more, closed on exec.
///
/// # Errors
/// Those of fcntl(2).
pub fn duplicate_high(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: fcntl takes numbers; what is not open fails.
    let fd = check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 16) })?;
    // SAFETY: a new descriptor, ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes number `onto` a duplicate of `fd`, kept on exec; both before anything owns that number.
///
/// # Errors
/// Those of dup2(2).
pub fn put(fd: &OwnedFd, onto: RawFd) -> Result<()> {
    // SAFETY: called at the start alone, for 3 and 4, which nothing owns yet.
    check(unsafe { libc::dup2(fd.as_raw_fd(), onto) }).map(drop)
}

/// A plain fork.
///
/// # Errors
/// Those of fork(2).
pub fn fork() -> Result<Fork> {
    // SAFETY: by system call, so that nothing of the C library runs in between; this process has one thread, so the child finds
    // no lock held by another.
    match check(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })? {
        0 => Ok(Fork::Child),
        pid => i32::try_from(pid).map(Fork::Parent).map_err(|_| Errno(libc::EIO)),
    }
}
