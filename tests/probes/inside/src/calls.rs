//! System calls that a sandbox has no business with. Each is made so that it would do something, or at
//! least be looked at by the kernel's own code, where nothing stops it, and yet harms no host that lets it: bad
//! arguments come after the check of privilege.

use std::os::fd::AsRawFd;

use crate::sys::{self, Answer, call};

const NOWHERE: usize = usize::MAX;
const HERE: usize = libc::AT_FDCWD as usize;

/// A call, by its name.
type Call = (&'static str, fn() -> Answer);

/// Every call, by the name in the table of expected answers.
pub const CALLS: &[Call] = &[
    ("unshare user", || unshare(libc::CLONE_NEWUSER)),
    ("unshare mount", || unshare(libc::CLONE_NEWNS)),
    ("unshare net", || unshare(libc::CLONE_NEWNET)),
    ("unshare pid", || unshare(libc::CLONE_NEWPID)),
    ("unshare time", || unshare(0x80)),
    ("clone user", || clone(libc::CLONE_NEWUSER)),
    ("clone mount", || clone(libc::CLONE_NEWNS)),
    ("clone3 user", || clone3(libc::CLONE_NEWUSER)),
    ("setns", setns),
    ("mount tmpfs", || mount(c"none", c"/mnt", c"tmpfs", 0)),
    ("mount proc", || mount(c"none", c"/mnt", c"proc", 0)),
    ("mount bind", || mount(c"/", c"/mnt", c"", libc::MS_BIND)),
    ("mount remount", || mount(c"none", c"/", c"", libc::MS_REMOUNT | libc::MS_BIND)),
    ("mount propagation", || mount(c"none", c"/", c"", libc::MS_SHARED | libc::MS_REC)),
    ("umount2", || call(libc::SYS_umount2, [c"/mnt".as_ptr() as usize, libc::MNT_DETACH as usize, 0, 0, 0, 0])),
    ("open_tree", || call(libc::SYS_open_tree, [HERE, c"/".as_ptr() as usize, 1, 0, 0, 0])),
    ("move_mount", || {
        let empty = c"".as_ptr() as usize;
        call(libc::SYS_move_mount, [NOWHERE, empty, NOWHERE, empty, 0x44, 0])
    }),
    ("fsopen", || call(libc::SYS_fsopen, [c"tmpfs".as_ptr() as usize, 0, 0, 0, 0, 0])),
    ("fspick", || call(libc::SYS_fspick, [HERE, c"/".as_ptr() as usize, 0, 0, 0, 0])),
    ("fsconfig", || call(libc::SYS_fsconfig, [NOWHERE, 6, 0, 0, 0, 0])),
    ("fsmount", || call(libc::SYS_fsmount, [NOWHERE, 0, 0, 0, 0, 0])),
    ("mount_setattr", mount_setattr),
    ("pivot_root", || call(libc::SYS_pivot_root, [c"/".as_ptr() as usize, c"/".as_ptr() as usize, 0, 0, 0, 0])),
    ("chroot", || call(libc::SYS_chroot, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0])),
    ("mknod device", || {
        call(libc::SYS_mknod, [c"/tmp/disk".as_ptr() as usize, (libc::S_IFBLK | 0o666) as usize, 0x800, 0, 0, 0])
    }),
    ("open_by_handle_at", open_by_handle),
    ("add_key", || {
        let (kind, name) = (c"user".as_ptr() as usize, c"probe".as_ptr() as usize);
        call(libc::SYS_add_key, [kind, name, name, 1, -2_isize as usize, 0])
    }),
    ("request_key", || {
        call(
            libc::SYS_request_key,
            [c"user".as_ptr() as usize, c"no such probe".as_ptr() as usize, 0, -2_isize as usize, 0, 0],
        )
    }),
    ("keyctl", || call(libc::SYS_keyctl, [0, -3_isize as usize, 1, 0, 0, 0])),
    ("bpf", bpf),
    ("perf_event_open", perf_event_open),
    ("io_uring_setup", io_uring_setup),
    ("io_uring_enter", || call(libc::SYS_io_uring_enter, [NOWHERE, 1, 1, 0, 0, 0])),
    ("io_uring_register", || call(libc::SYS_io_uring_register, [NOWHERE, 0, 0, 0, 0, 0])),
    ("userfaultfd", || call(libc::SYS_userfaultfd, [0; 6])),
    ("fanotify_init", || call(libc::SYS_fanotify_init, [0; 6])),
    ("ptrace init", || call(libc::SYS_ptrace, [0x4206, 1, 0, 0, 0, 0])),
    ("ptrace another command", || with_sibling(|pid| call(libc::SYS_ptrace, [0x4206, pid, 0, 0, 0, 0]))),
    ("process_vm_readv", || with_sibling(|pid| vm(libc::SYS_process_vm_readv, pid))),
    ("process_vm_writev", || with_sibling(|pid| vm(libc::SYS_process_vm_writev, pid))),
    ("process_madvise", || call(libc::SYS_process_madvise, [NOWHERE, 0, 0, 20, 0, 0])),
    ("kcmp", || with_sibling(|pid| call(libc::SYS_kcmp, [std::process::id() as usize, pid, 1, 0, 0, 0]))),
    ("pidfd_getfd", || {
        with_sibling(|pid| {
            let fd = sys::own(call(libc::SYS_pidfd_open, [pid, 0, 0, 0, 0, 0])?);
            call(libc::SYS_pidfd_getfd, [fd.as_raw_fd() as usize, 0, 0, 0, 0, 0])
        })
    }),
    ("kill init", || call(libc::SYS_kill, [1, libc::SIGTERM as usize, 0, 0, 0, 0])),
    ("socket packet", || socket(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    ("socket raw", || socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
    ("socket raw 6", || socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6)),
    ("socket vsock", || socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    ("socket alg", || socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    ("socket key", || socket(15, libc::SOCK_RAW, 2)),
    ("socket xdp", || socket(44, libc::SOCK_RAW, 0)),
    ("socket bluetooth", || socket(31, libc::SOCK_RAW, 1)),
    ("socket can", || socket(29, libc::SOCK_RAW, 1)),
    ("socket tipc", || socket(30, libc::SOCK_SEQPACKET, 0)),
    ("netlink address", crate::netlink::add_address),
    ("netlink link", crate::netlink::add_link),
    ("netlink nft", crate::netlink::add_table),
    ("netlink nflog", crate::netlink::bind_log),
    ("netlink audit", crate::netlink::set_audit),
    ("ioctl address", crate::netlink::set_address),
    ("i386 getpid", || sys::call_i386(20, 0)),
    ("i386 unshare", || sys::call_i386(310, libc::CLONE_NEWUSER)),
    ("x32 getpid", || call(0x4000_0000 | libc::SYS_getpid, [0; 6])),
    ("x32 unshare", || call(0x4000_0000 | libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0])),
    ("personality no randomisation", || call(libc::SYS_personality, [0x4_0000, 0, 0, 0, 0, 0])),
    ("personality read implies exec", || call(libc::SYS_personality, [0x40_0000, 0, 0, 0, 0, 0])),
    ("kexec_load", || call(libc::SYS_kexec_load, [0, 0, 0, 0xffff, 0, 0])),
    ("kexec_file_load", || call(libc::SYS_kexec_file_load, [NOWHERE, NOWHERE, 0, 0, 0xffff, 0])),
    ("init_module", || call(libc::SYS_init_module, [0, 0, c"".as_ptr() as usize, 0, 0, 0])),
    ("finit_module", || call(libc::SYS_finit_module, [NOWHERE, c"".as_ptr() as usize, 0, 0, 0, 0])),
    ("delete_module", || {
        call(libc::SYS_delete_module, [c"no_such_probe".as_ptr() as usize, libc::O_NONBLOCK as usize, 0, 0, 0, 0])
    }),
    ("reboot", || call(libc::SYS_reboot, [0; 6])),
    ("swapon", || call(libc::SYS_swapon, [c"/no/such/probe".as_ptr() as usize, 0, 0, 0, 0, 0])),
    ("swapoff", || call(libc::SYS_swapoff, [c"/no/such/probe".as_ptr() as usize, 0, 0, 0, 0, 0])),
    ("quotactl", || call(libc::SYS_quotactl, [0x8000_0400, c"/no/such/probe".as_ptr() as usize, 0, 0, 0, 0])),
    ("acct", || call(libc::SYS_acct, [c"/no/such/probe".as_ptr() as usize, 0, 0, 0, 0, 0])),
    ("settimeofday", || {
        let time = libc::timeval { tv_sec: 1, tv_usec: -1 };
        call(libc::SYS_settimeofday, [&raw const time as usize, 0, 0, 0, 0, 0])
    }),
    ("clock_settime", || {
        let time = libc::timespec { tv_sec: 1, tv_nsec: -1 };
        call(libc::SYS_clock_settime, [0, &raw const time as usize, 0, 0, 0, 0])
    }),
    ("adjtimex", adjtimex),
    ("sethostname", || call(libc::SYS_sethostname, [c"probe".as_ptr() as usize, 5, 0, 0, 0, 0])),
    ("setdomainname", || call(libc::SYS_setdomainname, [c"probe".as_ptr() as usize, 5, 0, 0, 0, 0])),
    ("syslog", || call(libc::SYS_syslog, [10, 0, 0, 0, 0, 0])),
    ("iopl", || call(libc::SYS_iopl, [3, 0, 0, 0, 0, 0])),
    ("ioperm", || call(libc::SYS_ioperm, [0x80, 1, 1, 0, 0, 0])),
    ("vhangup", || {
        let _ = call(libc::SYS_setsid, [0; 6]);
        call(libc::SYS_vhangup, [0; 6])
    }),
    ("setresuid", || call(libc::SYS_setresuid, [4321, 4321, 4321, 0, 0, 0])),
    ("setgroups", || {
        let group = 4321_u32;
        call(libc::SYS_setgroups, [1, &raw const group as usize, 0, 0, 0, 0])
    }),
    ("capset", capset),
    ("chown to another", || on_file(|path| call(libc::SYS_chown, [path, 4321, 4321, 0, 0, 0]))),
    ("file capability", || on_file(|path| set_attribute(path, c"security.capability", &CAPABILITY))),
    ("trusted attribute", || on_file(|path| set_attribute(path, c"trusted.overlay.opaque", b"y"))),
    ("sched_setscheduler", || {
        let priority = 1_i32;
        call(libc::SYS_sched_setscheduler, [0, 1, &raw const priority as usize, 0, 0, 0])
    }),
    ("setpriority", || call(libc::SYS_setpriority, [0, 0, -20_isize as usize, 0, 0, 0])),
    ("ioprio_set", || call(libc::SYS_ioprio_set, [1, 0, 1 << 13, 0, 0, 0])),
    ("raise a hard limit", || {
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 30_000_000 };
        call(libc::SYS_prlimit64, [0, libc::RLIMIT_CORE as usize, &raw const limit as usize, 0, 0, 0])
    }),
];

/// `vfs_cap_data` of version 2, effective, with every capability.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 255, 255, 255, 255, 0, 0, 0, 0, 255, 1, 0, 0, 0, 0, 0, 0];

fn unshare(flags: i32) -> Answer {
    call(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0])
}

fn clone(flags: i32) -> Answer {
    let pid = call(libc::SYS_clone, [(flags | libc::SIGCHLD) as usize, 0, 0, 0, 0, 0])?;
    if pid == 0 { sys::exit(0) } else { Ok(pid) }
}

fn clone3(flags: i32) -> Answer {
    let args = [flags as u64, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0];
    let pid = call(libc::SYS_clone3, [args.as_ptr() as usize, size_of_val(&args), 0, 0, 0, 0])?;
    if pid == 0 { sys::exit(0) } else { Ok(pid) }
}

fn setns() -> Answer {
    let own = std::fs::File::open("/proc/self/ns/uts").map_err(|e| e.raw_os_error().unwrap_or(0))?;
    call(libc::SYS_setns, [own.as_raw_fd() as usize, 0, 0, 0, 0, 0])
}

fn mount(source: &std::ffi::CStr, target: &std::ffi::CStr, kind: &std::ffi::CStr, flags: u64) -> Answer {
    let text = |text: &std::ffi::CStr| text.as_ptr() as usize;
    call(libc::SYS_mount, [text(source), text(target), text(kind), flags as usize, 0, 0])
}

fn mount_setattr() -> Answer {
    let attributes = [0_u64; 4];
    let place = c"/".as_ptr() as usize;
    call(libc::SYS_mount_setattr, [HERE, place, 0, attributes.as_ptr() as usize, size_of_val(&attributes), 0])
}

/// A handle of the root directory is easily had; to open it is to reach past every mount.
fn open_by_handle() -> Answer {
    let mut handle = [0_u32; 34];
    handle[0] = 128;
    let mut mount = 0_i32;
    let (place, at) = (c"/tmp".as_ptr() as usize, &raw mut mount as usize);
    call(libc::SYS_name_to_handle_at, [HERE, place, handle.as_mut_ptr() as usize, at, 0, 0])?;
    let root = std::fs::File::open("/tmp").map_err(|e| e.raw_os_error().unwrap_or(0))?;
    call(libc::SYS_open_by_handle_at, [root.as_raw_fd() as usize, handle.as_ptr() as usize, 0, 0, 0, 0])
}

fn bpf() -> Answer {
    // BPF_MAP_CREATE of an array: kind, size of a key, size of a value, entries.
    let map = [2_u32, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    call(libc::SYS_bpf, [0, map.as_ptr() as usize, size_of_val(&map), 0, 0, 0])
}

fn perf_event_open() -> Answer {
    // A software event (1), size 112, the CPU's clock (0).
    let mut event = [0_u8; 112];
    event[0] = 1;
    event[4] = 112;
    call(libc::SYS_perf_event_open, [event.as_ptr() as usize, 0, NOWHERE, NOWHERE, 0, 0])
}

fn io_uring_setup() -> Answer {
    let mut parameters = [0_u8; 120];
    call(libc::SYS_io_uring_setup, [4, parameters.as_mut_ptr() as usize, 0, 0, 0, 0])
}

fn vm(number: i64, pid: usize) -> Answer {
    let mut here = [0_u8; 8];
    // The sibling is a copy of this process, so the address is one of its own as well.
    let piece = libc::iovec { iov_base: here.as_mut_ptr().cast(), iov_len: here.len() };
    let (piece, one) = (&raw const piece as usize, 1);
    call(number, [pid, piece, one, piece, one, 0])
}

/// Another process of the same user while `act` runs.
fn with_sibling(act: impl FnOnce(usize) -> Answer) -> Answer {
    match sys::fork()? {
        None => {
            std::thread::sleep(std::time::Duration::from_secs(3));
            sys::exit(0)
        }
        Some(pid) => {
            let answer = act(pid as usize);
            let _ = call(libc::SYS_kill, [pid as usize, libc::SIGKILL as usize, 0, 0, 0, 0]);
            sys::wait(pid);
            answer
        }
    }
}

fn on_file(act: impl FnOnce(usize) -> Answer) -> Answer {
    std::fs::write("/tmp/probe-file", "x").map_err(|e| e.raw_os_error().unwrap_or(0))?;
    act(c"/tmp/probe-file".as_ptr() as usize)
}

fn set_attribute(path: usize, name: &std::ffi::CStr, value: &[u8]) -> Answer {
    call(libc::SYS_setxattr, [path, name.as_ptr() as usize, value.as_ptr() as usize, value.len(), 0, 0])
}

fn socket(family: i32, kind: i32, protocol: i32) -> Answer {
    call(libc::SYS_socket, [family as usize, kind as usize, protocol as usize, 0, 0, 0])
}

fn adjtimex() -> Answer {
    // ADJ_TICK with a tick that no kernel takes: refused for that only after the check of privilege.
    let mut timex = [0_u64; 32];
    timex[0] = 0x4000;
    call(libc::SYS_adjtimex, [timex.as_mut_ptr() as usize, 0, 0, 0, 0, 0])
}

/// `CAP_SYS_ADMIN`, permitted and effective.
fn capset() -> Answer {
    let header = [0x2008_0522_u32, 0];
    let admin = 1_u32 << 21;
    let sets = [admin, admin, 0, 0, 0, 0];
    call(libc::SYS_capset, [header.as_ptr() as usize, sets.as_ptr() as usize, 0, 0, 0, 0])
}
