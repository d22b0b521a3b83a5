//! Every unsafe block of the launcher: the system calls that no safe crate offers.
#![allow(unsafe_code)] // These calls change what a process is; each block says why it is sound.

pub mod project;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// clone3(2); the constant of the libc crate is too narrow for its value.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a [`fork`] this is.
pub enum Forked {
    /// The new process.
    Child,
    /// The old one, with what it needs to wait for the new one.
    Parent(Child),
}

/// A child process, named by a descriptor that cannot come to mean another.
pub struct Child {
    /// Readable when it has ended, pidfd_open(2).
    pub pidfd: OwnedFd,
    /// Its number, valid until it is waited for.
    pub pid: Pid,
}

/// Fork, the child born in the cgroup `cgroup` if there is one (clone3(2), `CLONE_INTO_CGROUP`):
/// moving it there later would cost an RCU grace period, some 11 ms.
///
/// # Errors
/// What clone3(2) says.
pub fn fork(cgroup: Option<BorrowedFd<'_>>) -> Result<Forked, Errno> {
    let mut pidfd: RawFd = -1;
    // SAFETY: `clone_args` is plain integers, for which all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).unwrap_or_default();
    }
    // SAFETY: `args` outlives the call and its size is its own. The launcher has exactly one thread
    // (there is no thread crate in it), so the child may run any code: no lock is held by another.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(last_errno()),
        0 => Ok(Forked::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::OVERFLOW)?;
            // SAFETY: the kernel stored a new descriptor here, which nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Forked::Parent(Child { pidfd, pid }))
        }
    }
}

/// End this process at once: no destructor, no exit handler of the parent that it is a copy of.
pub fn exit(status: i32) -> ! {
    // SAFETY: _exit(2) takes any status and does not return.
    unsafe { libc::_exit(status) }
}

/// unshare(2).
///
/// # Errors
/// What unshare(2) says.
pub fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: the hazard is `FILES` with several threads; there is one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Attributes to set on a mount, mount_setattr(2).
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Set `attributes` (`MOUNT_ATTR_…`) on the mount `mount`, and the id mapping of `userns` if given. It leaves its
/// peers: on most hosts mounts are shared (mount_namespaces(7)), and a clone of one would be too.
///
/// # Errors
/// What mount_setattr(2) says.
pub fn mount_setattr(mount: BorrowedFd<'_>, attributes: u64, userns: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut attr = MountAttr { set: attributes, propagation: libc::MS_PRIVATE, ..MountAttr::default() };
    if let Some(userns) = userns {
        attr.set |= libc::MOUNT_ATTR_IDMAP;
        attr.userns_fd = u64::try_from(userns.as_raw_fd()).unwrap_or_default();
    }
    // SAFETY: the path is an empty C string, `attr` has the layout of `struct mount_attr` version 0 and outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Create and open files as `uid`:`gid` from now on (setfsuid(2)); 0 is the launcher itself again.
pub fn set_fs_ids(uid: u32, gid: u32) {
    // A change of these ids takes it away (prctl(2), PR_SET_PDEATHSIG).
    let tied = rustix::process::parent_process_death_signal();
    let parent = rustix::process::getppid();
    // SAFETY: both take any number and touch this thread's credentials only.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
    if let Ok(Some(signal)) = tied {
        let _ = rustix::process::set_parent_process_death_signal(Some(signal));
        // A parent that died in between has sent nothing.
        if rustix::process::getppid() != parent {
            exit(1);
        }
    }
}

/// Make `fd` the descriptor `number`, kept over execve(2).
///
/// # Errors
/// What dup2(2) says.
pub fn place_fd(fd: BorrowedFd<'_>, number: RawFd) -> Result<(), Errno> {
    if fd.as_raw_fd() == number {
        return rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty());
    }
    // SAFETY: nothing is closed that anybody owns: every number that is placed was reserved at the start
    // ([`reserve_low_fds`]), and what a child put there is not used by that child itself.
    if unsafe { libc::dup2(fd.as_raw_fd(), number) } == number { Ok(()) } else { Err(last_errno()) }
}

/// Move `fd` to a number of 16 or more, out of the way of [`place_fd`].
///
/// # Errors
/// What fcntl(2) says.
pub fn move_up(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 16)
}

/// Keep all numbers below 6 taken, for [`place_fd`] to replace in children: while what is returned lives, nothing else
/// gets one of them.
///
/// # Errors
/// `/dev/null` cannot be opened.
pub fn reserve_low_fds() -> Result<Vec<OwnedFd>, Errno> {
    let mut reserved = Vec::new();
    loop {
        let fd = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        if fd.as_raw_fd() >= 6 {
            return Ok(reserved);
        }
        reserved.push(fd);
    }
}

/// The descriptor that systemd passed as number `number` (sd_listen_fds(3)), if it is open.
pub fn inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) on a number that may be closed fails with EBADF and does nothing.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open and was passed to this process by its starter; called once, at start, before anything else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Close every descriptor from `first` on.
pub fn close_from(first: u32) {
    // SAFETY: values of this process that own one of these are never used again, nor dropped: the callers end by `exit`.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, u32::MAX, 0);
    }
}

/// Remove variables from the environment.
pub fn forget_environment(names: &[&str]) {
    for name in names {
        // SAFETY: there is one thread, so nobody reads the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
}

/// Have `signals` delivered on a descriptor (signalfd(2)) instead of interrupting.
///
/// # Errors
/// What sigprocmask(2) and signalfd(2) say.
pub fn signal_fd(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised by sigemptyset before use and outlives the calls; the new descriptor is ours alone.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Give every signal its default action and block none, as a program expects to find them.
pub fn reset_signals() {
    // `struct sigaction` of the kernel: handler, flags, restorer, mask. By system call, because the C library
    // keeps two signals to itself, and whoever started the launcher may have had them ignored.
    let default = [0_u64; 4];
    // SAFETY: default actions run no code of ours; numbers that cannot be set (KILL, STOP) are refused without
    // effect; `default` is as large as what the kernel reads, with its mask of 8 bytes.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null_mut::<u64>(), 8_usize);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Ignore SIGPIPE again after [`reset_signals`], in a process that writes to sockets and pipes.
pub fn ignore_sigpipe() {
    // SAFETY: ignoring a signal runs no code.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
}

/// Have SIGALRM end this process after `seconds`, whoever else forgets it.
pub fn end_after(seconds: u32) {
    // SAFETY: alarm(2) takes any number.
    unsafe {
        libc::alarm(seconds);
    }
}

/// Run only when nobody else wants the processor or the disk (setpriority(2), ioprio_set(2)); best effort.
pub fn run_in_background() {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3 << 13;
    // SAFETY: both take numbers and touch this process only.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE);
    }
}

fn last_errno() -> Errno {
    io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
