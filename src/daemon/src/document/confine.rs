//! What a child gives up before it reads a document.

use std::collections::BTreeMap;

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

/// What a parser needs, once it has its input: memory, its two pipes, and an end.
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
    libc::SYS_read,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write,
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
    let filter = filter().map_err(|e| format!("compile the filter: {e}"))?;
    seccompiler::apply_filter(&filter).map_err(|e| format!("apply the filter: {e}"))
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<libc::c_long, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // Memory, but none that is executable.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let executable = u64::from(libc::PROT_EXEC.unsigned_abs());
        let never = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(executable), 0)?;
        rules.insert(call, vec![SeccompRule::new(vec![never])?]);
    }
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_confined_thread_can_work_and_nothing_else() {
        let filter = filter().unwrap();
        let (mut input, output) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut &output, b"document").unwrap();
        drop(output);
        // A filter is a thread's own; the limits are not, so they are tested with the child itself.
        std::thread::spawn(move || {
            seccompiler::apply_filter(&filter).unwrap();
            let mut document = Vec::with_capacity(8 << 20);
            input.read_to_end(&mut document).unwrap();
            assert_eq!(document, b"document");
            assert!(std::panic::catch_unwind(|| document[100]).is_err());
            for (what, allowed) in [
                ("open", std::fs::File::open("/etc/passwd").is_ok()),
                ("socket", std::net::TcpListener::bind("127.0.0.1:0").is_ok()),
                ("thread", std::thread::Builder::new().spawn(|| {}).is_ok()),
                ("program", std::process::Command::new("/bin/true").spawn().is_ok()),
                ("signal", rustix::process::test_kill_process(rustix::process::Pid::INIT).is_ok()),
            ] {
                assert!(!allowed, "{what}");
            }
        })
        .join()
        .unwrap();
    }
}
