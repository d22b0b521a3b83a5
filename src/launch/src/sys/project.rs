//! Project ids of files, and the quotas of projects: ioctl(2) and quotactl_fd(2), which no safe crate offers.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use wire::launch::DiskUsage;

use super::last_errno;

/// `linux/fs.h`: what is made in such a directory gets its project.
const PROJINHERIT: u32 = 0x200;
/// `linux/fs.h`: `_IOR('X', 31, struct fsxattr)` and `_IOW('X', 32, struct fsxattr)`.
const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581f;
const FS_IOC_FSSETXATTR: libc::Ioctl = 0x401c_5820;
/// `linux/quota.h`: the third kind, after users and groups.
const PRJQUOTA: u32 = 2;
/// `linux/dqblk_xfs.h`, of any file system: which quotas are on. Its version, and the flag of enforced project quotas.
const Q_XGETQSTATV: u32 = 0x5808;
const STATV_VERSION: u8 = 1;
const PDQ_ENFD: u16 = 1 << 5;
/// The unit of limits, in bytes (`QIF_DQBLKSIZE`).
const LIMIT_UNIT: u64 = 1024;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct FsXattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    pad: [u8; 8],
}

/// `struct fs_quota_statv`, with more room than the kernel fills (160 bytes).
#[repr(C, align(8))]
struct QuotaState {
    version: u8,
    pad: u8,
    flags: u16,
    rest: [u8; 252],
}

/// Whose a file is, as quotas count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Project {
    /// The project; 0: none.
    pub id: u32,
    /// Whether it is handed on to what is made in this directory.
    pub inherited: bool,
}

/// The project of a file or directory.
///
/// # Errors
/// What ioctl(2) says: `ENOTTY` where there are none.
pub fn project(file: BorrowedFd<'_>) -> Result<Project, Errno> {
    let attributes = attributes(file)?;
    Ok(Project { id: attributes.project, inherited: attributes.flags & PROJINHERIT != 0 })
}

/// Give a file or directory to a project.
///
/// # Errors
/// What ioctl(2) says.
pub fn set_project(file: BorrowedFd<'_>, project: Project) -> Result<(), Errno> {
    let mut attributes = attributes(file)?;
    attributes.project = project.id;
    attributes.flags = if project.inherited { attributes.flags | PROJINHERIT } else { attributes.flags & !PROJINHERIT };
    // SAFETY: the kernel reads one `struct fsxattr`, whose layout this is, and which outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSSETXATTR, &raw const attributes) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

fn attributes(file: BorrowedFd<'_>) -> Result<FsXattr, Errno> {
    let mut attributes = FsXattr::default();
    // SAFETY: the kernel writes one `struct fsxattr`, whose layout this is; any bytes are valid ones of it.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR, &raw mut attributes) };
    if result == 0 { Ok(attributes) } else { Err(last_errno()) }
}

/// Whether the file system of `dir` counts and enforces project quotas.
///
/// # Errors
/// What quotactl_fd(2) says: `ENOSYS` where there are none.
pub fn enforces_projects(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut state = QuotaState { version: STATV_VERSION, pad: 0, flags: 0, rest: [0; 252] };
    quotactl(dir, Q_XGETQSTATV, 0, (&raw mut state).cast())?;
    Ok(state.flags & PDQ_ENFD != 0)
}

/// Limit what a project may have on the file system of `dir`, in bytes and inodes; 0: nothing is limited.
///
/// # Errors
/// What quotactl_fd(2) says.
pub fn set_project_limits(dir: BorrowedFd<'_>, project: u32, bytes: u64, inodes: u64) -> Result<(), Errno> {
    let mut quota = no_quota();
    quota.dqb_bhardlimit = bytes / LIMIT_UNIT;
    quota.dqb_ihardlimit = inodes;
    quota.dqb_valid = libc::QIF_LIMITS;
    quotactl(dir, libc::Q_SETQUOTA.cast_unsigned(), project, (&raw mut quota).cast())
}

/// What a project has on the file system of `dir`.
///
/// # Errors
/// What quotactl_fd(2) says.
pub fn project_usage(dir: BorrowedFd<'_>, project: u32) -> Result<DiskUsage, Errno> {
    let mut quota = no_quota();
    match quotactl(dir, libc::Q_GETQUOTA.cast_unsigned(), project, (&raw mut quota).cast()) {
        // xfs says that of a project which nobody has used yet.
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    Ok(DiskUsage { bytes: quota.dqb_curspace, inodes: quota.dqb_curinodes, complete: true })
}

fn no_quota() -> libc::dqblk {
    // SAFETY: `struct if_dqblk` is plain integers, for which all zeroes is a valid value.
    unsafe { std::mem::zeroed() }
}

/// quotactl_fd(2) on the projects of the file system of `dir`. `data` is what `command` reads or writes.
fn quotactl(dir: BorrowedFd<'_>, command: u32, project: u32, data: *mut libc::c_void) -> Result<(), Errno> {
    let command = (command << 8) | PRJQUOTA;
    // SAFETY: the callers pass, for their command, a structure of the kernel's layout that outlives the call and is
    // theirs alone.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, dir.as_raw_fd(), command, project, data) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}
