//! Waiting: epoll(7) and signalfd(2).

use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use super::{Result, check};

/// Most events taken in one turn.
const MAX_EVENTS: usize = 64;

/// What the caller calls a watched descriptor.
pub type Token = u64;

/// What is waited for. Errors and hang-ups are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// It can be read.
    Read,
    /// It can be read or written.
    ReadWrite,
    /// An exceptional condition: a change of a cgroup's `cgroup.events`.
    Change,
}

impl Interest {
    fn events(self) -> u32 {
        (match self {
            Self::Read => libc::EPOLLIN,
            Self::ReadWrite => libc::EPOLLIN | libc::EPOLLOUT,
            Self::Change => libc::EPOLLPRI,
        }) as u32
    }
}

/// A set of watched descriptors, level-triggered.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> Result<Self> {
        // SAFETY: epoll_create1 takes a number.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a new descriptor, ours alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn control(&self, operation: i32, fd: BorrowedFd<'_>, interest: Interest, token: Token) -> Result<()> {
        let mut event = libc::epoll_event { events: interest.events(), u64: token };
        // SAFETY: `event` lives for the duration of the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) }).map(drop)
    }

    /// Watches `fd` as `token`.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn add(&self, fd: BorrowedFd<'_>, interest: Interest, token: Token) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, token)
    }

    /// Changes what a watched `fd` is watched for.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn change(&self, fd: BorrowedFd<'_>, interest: Interest, token: Token) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, token)
    }

    /// Watches `fd` no longer. Closing alone does not do that while a child on its way to exec holds a duplicate.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn remove(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, Interest::Read, 0)
    }

    /// Waits until something happens or `timeout` (rounded up to milliseconds) is over; `None` waits for ever.
    /// The tokens of what happened.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Vec<Token>> {
        let millis = timeout.map_or(-1, |t| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_EVENTS];
        // SAFETY: `events` is valid for writing of MAX_EVENTS events.
        let count =
            check(unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), MAX_EVENTS as i32, millis) })?;
        Ok(events.iter().take(count as usize).map(|event| event.u64).collect())
    }
}

/// `SIGCHLD` as a descriptor.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Starts to collect `SIGCHLD`, which must be blocked.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn new() -> Result<Self> {
        // SAFETY: a sigset_t of zeroes is valid memory for sigemptyset, which makes it a set.
        let set = unsafe {
            let mut set = mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            set
        };
        // SAFETY: `set` lives for the duration of the call.
        let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
        // SAFETY: a new descriptor, ours alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The descriptor to watch.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Takes what has arrived. A signal that comes later makes the descriptor readable again.
    pub fn drain(&self) {
        let mut buffer = [0_u8; size_of::<libc::signalfd_siginfo>()];
        while super::read(self.fd(), &mut buffer).is_ok_and(|len| len > 0) {}
    }
}

/// A signal set as the kernel has it: bit n for signal n + 1. The C library's own calls leave out the signals that it
/// keeps for itself, which a launcher may yet have ignored or blocked.
fn set_mask(mask: u64) -> Result<()> {
    let size = size_of::<u64>();
    let old = ptr::null_mut::<u64>();
    // SAFETY: `mask` is of the size given and lives; no old set is asked for.
    check(unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, old, size) }).map(drop)
}

/// Blocks every signal and gives each its default action, so that children need only [`unblock_signals`].
///
/// # Errors
/// Those of sigprocmask(2).
pub fn block_signals() -> Result<()> {
    set_mask(u64::MAX)?;
    // The kernel's sigaction is four words at most, and zeroes mean SIG_DFL without flags.
    let default = [0_u64; 4];
    let (old, size) = (ptr::null_mut::<u64>(), size_of::<u64>());
    for signal in 1..=64 {
        // SAFETY: the action lives and is as long as the kernel reads. No handler is installed by it, and that of
        // the runtime for stack overflows only explains a crash. Fails for SIGKILL and SIGSTOP, which have no other action.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), old, size) };
    }
    Ok(())
}

/// Lets every signal through, in a child about to execute.
///
/// # Errors
/// Those of sigprocmask(2).
pub fn unblock_signals() -> Result<()> {
    set_mask(0)
}
