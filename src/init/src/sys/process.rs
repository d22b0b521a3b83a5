//! Making, executing, killing and reaping processes.

use std::ffi::{CStr, c_char};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use wire::init::{Status, Usage};

use super::{Errno, Result, check};

/// clone(2). The constant of this name in libc is an `int`, too small for it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a fork this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The init; the child has this pid.
    Parent(i32),
    /// The child.
    Child,
}

/// Forks a child that is born in `cgroup`, clone(2), `CLONE_INTO_CGROUP`.
///
/// A real fork, not vfork: the init is so small that copying its page tables costs
/// 0.03 ms more, and it must never share its memory with, or wait for, a process that has already
/// become the sandbox user: others of that user could stop it and so hold the init.
///
/// Where there is no clone3 (gVisor), the child moves itself, which costs nothing there.
///
/// # Errors
/// Those of clone3(2): `EAGAIN` at a limit of processes.
pub fn fork_into(cgroup: BorrowedFd<'_>) -> Result<Fork> {
    // SAFETY: a clone_args of zeroes is a valid one: everything is copied.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: no memory is shared and no stack given, so this returns twice as fork does. This process
    // has one thread, so the child finds no lock held by another.
    let answer = check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of_val(&args)) });
    if answer == Err(Errno(libc::ENOSYS)) {
        return fork_and_move(cgroup);
    }
    match answer? {
        0 => Ok(Fork::Child),
        pid => i32::try_from(pid).map(Fork::Parent).map_err(|_| Errno(libc::EIO)),
    }
}

/// The child ends at once if it cannot be moved.
fn fork_and_move(cgroup: BorrowedFd<'_>) -> Result<Fork> {
    let forked = super::fork()?;
    if forked == Fork::Child {
        let own = std::process::id().to_string();
        let moved = super::open_beneath(cgroup, c"cgroup.procs", libc::O_WRONLY)
            .and_then(|procs| super::write(procs.as_fd(), own.as_bytes()));
        if moved.is_err() {
            exit_now(126);
        }
    }
    Ok(forked)
}

/// Strings for execve(2): an argument list or an environment.
#[derive(Debug, Default)]
pub struct Strings {
    block: Vec<u8>,
    starts: Vec<usize>,
    pointers: Vec<*const c_char>,
}

impl Strings {
    /// An empty list with room for `bytes` bytes, NULs included.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { block: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Appends the string made of these parts; `None`, if one holds a NUL.
    #[must_use]
    pub fn push(&mut self, parts: &[&str]) -> Option<()> {
        if parts.iter().any(|part| part.as_bytes().contains(&0)) {
            return None;
        }
        self.starts.push(self.block.len());
        parts.iter().for_each(|part| self.block.extend_from_slice(part.as_bytes()));
        self.block.push(0);
        self.pointers.clear();
        Some(())
    }

    /// The string at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&CStr> {
        CStr::from_bytes_until_nul(self.block.get(*self.starts.get(index)?..)?).ok()
    }

    /// Makes the list of pointers that [`execute`] hands to the kernel; before a fork, because it allocates.
    pub fn finish(&mut self) {
        let base = self.block.as_ptr().cast::<c_char>();
        self.pointers = self.starts.iter().map(|start| base.wrapping_add(*start)).chain([ptr::null()]).collect();
    }
}

/// Becomes the program at `path`, execve(2). Returns only to say why not.
#[must_use]
pub fn execute(path: &CStr, arguments: &Strings, environment: &Strings) -> Errno {
    if arguments.pointers.is_empty() || environment.pointers.is_empty() {
        return Errno(libc::EINVAL);
    }
    // SAFETY: all three end with NUL; each pointer leads to a string that ends with NUL in the block
    // of its list, which has not changed since `finish` (`push` clears the pointers).
    unsafe { libc::execve(path.as_ptr(), arguments.pointers.as_ptr(), environment.pointers.as_ptr()) };
    Errno::last()
}

/// Ends this process at once, with nothing of Rust or of the C library.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit runs no handler and touches no memory of others.
    unsafe { libc::_exit(code) }
}

/// Leads a session of its own, setsid(2).
///
/// # Errors
/// Those of setsid(2).
pub fn new_session() -> Result<()> {
    // SAFETY: setsid takes nothing.
    check(unsafe { libc::setsid() }).map(drop)
}

/// Sets the file mode creation mask, umask(2).
pub fn set_umask(mask: u32) {
    // SAFETY: umask takes a number and cannot fail.
    unsafe { libc::umask(mask) };
}

/// Ends this process by `SIGALRM` after so many seconds, alarm(2).
pub fn end_after(seconds: u32) {
    // SAFETY: alarm takes a number and cannot fail.
    unsafe { libc::alarm(seconds) };
}

/// Sends `signal` to process `pid`.
///
/// # Errors
/// Those of kill(2); `EINVAL` for a pid that would mean more than one process, or the init.
pub fn kill(pid: i32, signal: i32) -> Result<()> {
    if pid <= 1 {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: kill takes numbers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// A child that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// Its pid, free from now on.
    pub pid: i32,
    /// How it ended.
    pub status: Status,
    /// What it and those of its children that it had waited for used.
    pub usage: Usage,
}

/// Reaps one child that has ended, if there is one. Called by `reap` alone.
#[must_use]
pub fn wait_any() -> Option<Reaped> {
    let mut status = 0;
    // SAFETY: a rusage of zeroes is a valid one.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: both are valid for writing.
    let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
    if pid <= 0 {
        return None;
    }
    let status = match libc::WIFEXITED(status) {
        true => Status::Code(libc::WEXITSTATUS(status) as u8),
        false => Status::Signal(libc::WTERMSIG(status) as u8),
    };
    Some(Reaped { pid, status, usage: usage_of(&usage) })
}

fn usage_of(usage: &libc::rusage) -> Usage {
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Usage { user_us: micros(usage.ru_utime), system_us: micros(usage.ru_stime), max_rss_kib: usage.ru_maxrss as u64 }
}

/// Numbers that a child can set before it executes and the init reads: memory shared over fork.
#[derive(Debug)]
pub struct SharedCells {
    cells: &'static [AtomicU64],
}

impl SharedCells {
    /// So many of them, each 0.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(count: usize) -> Result<Self> {
        let size = count * size_of::<AtomicU64>();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: the mapping holds `count` aligned zeroes, valid atomics, and is never unmapped.
        let cells = unsafe { std::slice::from_raw_parts(start.cast(), count) };
        Ok(Self { cells })
    }

    /// The cell at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&AtomicU64> {
        self.cells.get(index)
    }
}
