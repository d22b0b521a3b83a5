//! Starting the init in namespaces, and the system calls that a probe tries: the unsafe part of these tests.
#![allow(unsafe_code, reason = "fork, exec and raw system calls")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// What the new process needs; descriptors are numbers above 4.
pub struct Start<'a> {
    pub cgroup: BorrowedFd<'a>,
    pub listener: RawFd,
    pub commands: RawFd,
    /// Read end of a pipe with one byte in it once the maps are written.
    pub mapped: RawFd,
    pub program: &'a CStr,
    pub argv: &'a [*const libc::c_char],
}

/// Forks into new namespaces; there: mounts `/proc`, becomes user 0, executes. The pid here.
pub fn start(start: &Start<'_>) -> io::Result<i32> {
    // SAFETY: a clone_args of zeroes is a valid one.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = CLONE_INTO_CGROUP
        | (libc::CLONE_NEWUSER
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = start.cgroup.as_raw_fd() as u64;
    // SAFETY: nothing is shared; the child does only system calls until it executes or exits.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of_val(&args)) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: this is the child.
        0 => unsafe { become_init(start) },
        pid => Ok(pid as i32),
    }
}

unsafe fn become_init(start: &Start<'_>) -> ! {
    let null: *const libc::c_char = std::ptr::null();
    let env = [null];
    let mut byte = 0_u8;
    // SAFETY: every pointer is to a live value or a literal that ends with NUL.
    unsafe {
        let mapped = libc::read(start.mapped, (&raw mut byte).cast(), 1) == 1;
        let ok = mapped
            && libc::syscall(libc::SYS_setresgid, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0
            && libc::mount(c"none".as_ptr(), c"/".as_ptr(), null.cast(), libc::MS_REC | libc::MS_PRIVATE, null.cast())
                == 0
            && libc::mount(c"proc".as_ptr(), c"/proc".as_ptr(), c"proc".as_ptr(), 0, null.cast()) == 0
            && libc::dup2(start.listener, 3) == 3
            && libc::dup2(start.commands, 4) == 4;
        if ok {
            libc::execve(start.program.as_ptr(), start.argv.as_ptr(), env.as_ptr());
        }
        libc::_exit(99)
    }
}

/// Waits for the init itself.
pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

/// A raw system call: 0, or its errno.
pub fn raw(number: i64, args: [u64; 6]) -> i32 {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the probe passes no pointer that the kernel could write through: all are null, small or invalid.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if answer == -1 { io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

/// Ends the process without returning to the test harness.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit touches nothing.
    unsafe { libc::_exit(code) }
}

/// getpid through the 32-bit entry of x86_64.
#[cfg(target_arch = "x86_64")]
pub fn getpid_32() -> i64 {
    let mut answer: i64 = 20;
    // SAFETY: system call 20 of that table takes nothing and changes nothing; r8 to r11 may be lost.
    unsafe {
        std::arch::asm!("int 0x80", inout("rax") answer, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    answer
}
