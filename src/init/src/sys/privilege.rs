//! Giving up privilege: ids, capabilities, filters, limits. All of it through plain system calls:
//! those of a C library would tell other threads, and there are none.

use super::{Errno, Result, check};

/// A set of capabilities, bit n for capability n of capabilities(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u64);

/// Names in the order of their numbers, capabilities(7), as far as the init ever keeps one.
const NAMES: [&str; 32] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
];

impl Capabilities {
    /// None.
    pub const NONE: Self = Self(0);

    /// The capabilities of these names; a name that [`NAMES`] lacks is left out.
    #[must_use]
    pub fn named(names: &[&str]) -> Self {
        let bit = |name: &&str| NAMES.iter().position(|known| known == name).map_or(0, |number| 1 << number);
        Self(names.iter().map(bit).fold(0, |set, bit| set | bit))
    }

    /// Those of either.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

fn prctl(option: i32, first: u64, second: u64) -> Result<i32> {
    // SAFETY: the options used here take numbers, not pointers.
    check(unsafe { libc::prctl(option, first, second, 0_u64, 0_u64) })
}

/// Drops from the bounding set all but `keep`: what any later exec could ever gain.
///
/// # Errors
/// Those of prctl(2).
pub fn drop_bounding(keep: Capabilities) -> Result<()> {
    for number in 0..64 {
        match prctl(libc::PR_CAPBSET_READ, number, 0) {
            Ok(1) if keep.0 & (1 << number) == 0 => {
                prctl(libc::PR_CAPBSET_DROP, number, 0)?;
            }
            Ok(_) => {}
            // Past the last capability of this kernel.
            Err(Errno(libc::EINVAL)) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Empties the ambient set, where the kernel has one (gVisor has none).
///
/// # Errors
/// Those of prctl(2).
pub fn clear_ambient() -> Result<()> {
    match prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64, 0) {
        Ok(_) | Err(Errno(libc::EINVAL)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Keeps permitted capabilities over the next change from user 0 to another.
///
/// # Errors
/// Those of prctl(2).
pub fn keep_capabilities() -> Result<()> {
    prctl(libc::PR_SET_KEEPCAPS, 1, 0).map(drop)
}

/// Makes `set` the permitted and the effective set and empties the inheritable one.
///
/// # Errors
/// `EPERM` if `set` holds one that is not permitted.
pub fn set_capabilities(set: Capabilities) -> Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    // _LINUX_CAPABILITY_VERSION_3 of <linux/capability.h>: two words for each set.
    let header = Header { version: 0x2008_0522, pid: 0 };
    let word = |bits: u64| Data { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
    let data = [word(set.0), word(set.0 >> 32)];
    // SAFETY: header and data have the layout that this version stands for, and live.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// Becomes user `uid` and group `gid`, with `gid` as only supplementary group.
///
/// # Errors
/// Those of setgroups(2), setresgid(2) and setresuid(2).
pub fn become_user(uid: u32, gid: u32) -> Result<()> {
    // SAFETY: setgroups reads one id from the pointer, which lives; the others take numbers.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 1_usize, &raw const gid))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// Who owns the /proc files of this process until it executes another program: its own user,
/// or (not dumpable) user 0 of its user namespace, and then not even its own user may look into its memory.
///
/// # Errors
/// Those of prctl(2).
pub fn set_dumpable(dumpable: bool) -> Result<()> {
    prctl(libc::PR_SET_DUMPABLE, dumpable.into(), 0).map(drop)
}

/// Makes exec gain nothing, now and in every descendant.
///
/// # Errors
/// Those of prctl(2).
pub fn no_new_privileges() -> Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map(drop)
}

/// Installs a seccomp filter on this process and its descendants.
///
/// # Errors
/// `EACCES` without both [`no_new_privileges`] and `CAP_SYS_ADMIN`; else those of seccomp(2).
pub fn install_filter(program: &'static [libc::sock_filter]) -> Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| Errno(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the program, whose length is right, and writes nothing.
    check(unsafe { libc::syscall(libc::SYS_seccomp, mode, 0_u32, &raw const program) }).map(drop)
}

/// Soft and hard limit of open descriptors, `RLIMIT_NOFILE`.
///
/// # Errors
/// Those of getrlimit(2).
pub fn file_limits() -> Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// Sets them.
///
/// # Errors
/// Those of setrlimit(2).
pub fn set_file_limits((soft, hard): (u64, u64)) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: `limit` lives for the duration of the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_kernels_numbers() {
        assert_eq!(Capabilities::named(&["CAP_CHOWN"]).0, 1);
        assert_eq!(Capabilities::named(&["CAP_SYS_ADMIN", "CAP_SETFCAP"]).0, 1 << 21 | 1 << 31);
    }

    #[test]
    fn every_build_capability_is_known() {
        let set = Capabilities::named(&wire::init::BUILD_CAPABILITIES);
        assert_eq!(set.0.count_ones() as usize, wire::init::BUILD_CAPABILITIES.len());
    }
}
