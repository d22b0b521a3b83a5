//! Raw system calls, by number and by every way into the kernel that this processor has.
#![allow(unsafe_code)] // A probe has to ask the kernel for what no safe function would; each block says why it is sound here.

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What a call gave: a value, or an errno(3).
pub type Answer = Result<i64, i32>;

/// A call by the number of this architecture. Pointers in `args` must be valid for what the call does with them.
pub fn call(number: i64, args: [usize; 6]) -> Answer {
    // SAFETY: every caller passes pointers to live values of the layout and length that the call wants, or null, or
    // numbers; what a call changes of the process happens in a child that only reports and ends.
    let value = unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
    if value == -1 { Err(errno()) } else { Ok(value) }
}

/// The errno of the last call.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A call through `int 0x80`: numbers of i386, arguments of 32 bits.
#[cfg(target_arch = "x86_64")]
pub fn call_i386(number: i32, first: i32) -> Answer {
    let mut value = i64::from(number);
    // SAFETY: the calls made take numbers alone. rbx is saved by hand, as the compiler keeps it for itself; the gate
    // clears r8 to r11.
    unsafe {
        std::arch::asm!(
            "xchg {first}, rbx",
            "int 0x80",
            "xchg {first}, rbx",
            first = inout(reg) i64::from(first) => _,
            inout("rax") value,
            in("rcx") 0, in("rdx") 0, in("rsi") 0, in("rdi") 0,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    let value = value as i32;
    if (-4095..0).contains(&value) { Err(-value) } else { Ok(value.into()) }
}

/// There is no such gate.
#[cfg(not(target_arch = "x86_64"))]
pub fn call_i386(_number: i32, _first: i32) -> Answer {
    Err(libc::ENOSYS)
}

/// A copy of this process; `None` in the copy.
pub fn fork() -> Result<Option<i32>, i32> {
    // SAFETY: this program has one thread, so the copy may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(errno()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// End at once.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit(2) takes any number and does not return.
    unsafe { libc::_exit(code) }
}

/// Wait for a child: its wait status.
pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } == -1 && errno() == libc::EINTR {}
    status
}

/// A pipe: read end, write end.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), i32> {
    let mut fds = [0; 2];
    // SAFETY: two descriptors are stored into `fds`, and nobody else owns them.
    unsafe {
        if libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) == -1 {
            return Err(errno());
        }
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// Run `act` in a child and tell what it said, or which signal ended it. What hangs is ended after `seconds`.
pub fn in_child(seconds: u32, act: impl FnOnce() -> String) -> String {
    let Ok((read, write)) = pipe() else { return "no pipe".to_owned() };
    match fork() {
        Err(errno) => format!("no child: {}", crate::name::errno(errno)),
        Ok(None) => {
            // SAFETY: alarm(2) takes any number; its signal ends this child.
            unsafe { libc::alarm(seconds) };
            let said = act();
            // SAFETY: the bytes live; a reader that is gone makes no difference any more.
            unsafe { libc::write(write.as_raw_fd(), said.as_ptr().cast(), said.len()) };
            exit(0)
        }
        Ok(Some(pid)) => {
            drop(write);
            let mut said = String::new();
            let _ = std::fs::File::from(read).read_to_string(&mut said);
            let status = wait(pid);
            if libc::WIFSIGNALED(status) { crate::name::signal(libc::WTERMSIG(status)) } else { said }
        }
    }
}

/// What becomes of this process when `signal` comes: ignored if `ignore`, else the kernel's default.
pub fn on_signal(signal: i32, ignore: bool) {
    let action = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: no handler of ours is installed.
    unsafe { libc::signal(signal, action) };
}

/// A descriptor that a call gave, owned from now on.
pub fn own(fd: i64) -> OwnedFd {
    // SAFETY: callers pass what a call that makes a descriptor has just returned.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// Map `bytes` of anonymous memory and touch each page.
pub fn touch_memory(bytes: usize) -> Answer {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of its own is made, and each write is within it.
    unsafe {
        let place = libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if place == libc::MAP_FAILED {
            return Err(errno());
        }
        for offset in (0..bytes).step_by(4096) {
            place.cast::<u8>().add(offset).write_volatile(1);
        }
    }
    Ok(0)
}
