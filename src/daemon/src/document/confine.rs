//! What a child gives up before it reads a document.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use rustix::process::{Resource, Rlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// CPU time of a child, in seconds; at the end of it the kernel kills it.
pub(super) const CPU_SECONDS: u64 = 10;
/// Address space of a child, in bytes.
const MEMORY: u64 = 512 << 20;
/// Stack of a child, in bytes: its parsers recurse.
const STACK: u64 = 32 << 20;

/// What a parser needs beside memory and its two pipes.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
];

/// Give up everything but memory, standard input and standard output. What is not allowed fails.
///
/// # Errors
/// In words; the child must end.
pub(super) fn confine() -> Result<(), String> {
    // Under memory pressure this goes first. It is a courtesy: without /proc it stays undone.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let limits = [
        (Resource::Cpu, CPU_SECONDS),
        (Resource::As, MEMORY),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
        (Resource::Nofile, 3),
        (Resource::Nproc, 0),
    ];
    for (resource, limit) in limits {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        rustix::process::setrlimit(resource, limit).map_err(|e| format!("set a limit: {e}"))?;
    }
    // It may be lower by somebody's will, and is not ours to raise.
    let _ = rustix::process::setrlimit(Resource::Stack, Rlimit { current: Some(STACK), maximum: Some(STACK) });
    // This sets no_new_privs as well.
    let filter = filter(libc::STDIN_FILENO, libc::STDOUT_FILENO).map_err(|e| format!("compile the filter: {e}"))?;
    seccompiler::apply_filter(&filter).map_err(|e| format!("apply the filter: {e}"))
}

/// It reads `input` and writes `output`: a descriptor that whoever started the service left open is worth nothing.
fn filter(input: RawFd, output: RawFd) -> Result<BpfProgram, seccompiler::BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let mut rules: BTreeMap<libc::c_long, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // Memory, but none that is executable, and none of a file.
    let executable = u64::from(libc::PROT_EXEC.unsigned_abs());
    let anonymous = u64::from(libc::MAP_ANONYMOUS.unsigned_abs());
    let data = || when(2, MaskedEq(executable), 0);
    let conditional = [
        (libc::SYS_read, vec![when(0, Eq, u64::from(input.unsigned_abs()))?]),
        (libc::SYS_write, vec![when(0, Eq, u64::from(output.unsigned_abs()))?]),
        (libc::SYS_mmap, vec![data()?, when(3, MaskedEq(anonymous), anonymous)?]),
        (libc::SYS_mprotect, vec![data()?]),
    ];
    for (call, conditions) in conditional {
        rules.insert(call, vec![SeccompRule::new(conditions)?]);
    }
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}

fn when(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_confined_thread_can_work_and_nothing_else() {
        let (mut input, feed) = std::io::pipe().unwrap();
        let (mut other, mut output) = std::io::pipe().unwrap();
        let filter = filter(input.as_raw_fd(), output.as_raw_fd()).unwrap();
        (&feed).write_all(b"document").unwrap();
        // A filter is a thread's own; the limits are not, so they are tested with the child itself.
        let wrong = std::thread::spawn(move || {
            seccompiler::apply_filter(&filter).unwrap();
            let mut document = vec![0; 8 << 20];
            let count = input.read(&mut document).unwrap();
            output.write_all(&document[..count]).unwrap();
            assert_eq!(&document[..count], b"document");
            assert!(std::panic::catch_unwind(|| document[8 << 20]).is_err());
            let mut wrong = Vec::new();
            for (what, allowed) in [
                ("another descriptor to read", other.read(&mut document).is_ok()),
                ("another descriptor to write", (&feed).write(b"x").is_ok()),
                ("open", std::fs::File::open("/etc/passwd").is_ok()),
                ("socket", std::net::TcpListener::bind("127.0.0.1:0").is_ok()),
                ("thread", std::thread::Builder::new().spawn(|| {}).is_ok()),
                ("program", std::process::Command::new("/bin/true").spawn().is_ok()),
                ("signal", rustix::process::test_kill_process(rustix::process::Pid::INIT).is_ok()),
            ] {
                wrong.extend(allowed.then_some(what));
            }
            wrong
        })
        .join()
        .unwrap();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
