//! The control socket: messages with descriptors, unix(7). And the loopback interface.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use super::{Errno, Result, check};

/// Most descriptors taken from one message; with more of them it counts as truncated.
const MAX_DESCRIPTORS: usize = 8;
/// `CMSG_SPACE` of so many, in units that are aligned for a `cmsghdr`.
const CONTROL_WORDS: usize = (16 + MAX_DESCRIPTORS * 4).div_ceil(8);

/// A message.
#[derive(Debug)]
pub struct Received {
    /// Its bytes, at the start of the buffer. 0 also when the peer is gone.
    pub len: usize,
    /// Its descriptors, closed on exec.
    pub fds: Vec<OwnedFd>,
    /// Whether bytes or descriptors were cut off.
    pub truncated: bool,
}

/// The next connection on `listener`: not blocking, closed on exec.
///
/// # Errors
/// Those of accept4(2).
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for, so both pointers may be null.
    let fd = check(unsafe { libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags) })?;
    // SAFETY: a new descriptor, ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes one message without waiting.
///
/// # Errors
/// `EAGAIN` if there is none, else those of recvmsg(2).
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a msghdr of zeroes is a valid, empty one.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points to one part and a control buffer, both valid for writing of the lengths given.
    let len = check(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) })?;
    let truncated = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    // SAFETY: the kernel has just filled in `message`, whose control buffer is still alive.
    let fds = unsafe { take_descriptors(&message) };
    Ok(Received { len: usize::try_from(len).map_err(|_| Errno(libc::EIO))?, fds, truncated })
}

/// Owns the descriptors that came with `message`.
///
/// # Safety
/// `message` was filled in by recvmsg, was not read before, and its control buffer lives.
unsafe fn take_descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: by this function's contract the headers are the kernel's, within the buffer, and aligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header);
                let bytes = ((*header).cmsg_len as usize).saturating_sub(data as usize - header as usize);
                for i in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.cast::<RawFd>().add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

/// Sends one message without waiting and without `SIGPIPE`.
///
/// # Errors
/// `EAGAIN` if the peer takes no more now, `ETOOMANYREFS` if too many descriptors are under way,
/// else those of sendmsg(2).
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a msghdr of zeroes is a valid, empty one.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if fds.len() > MAX_DESCRIPTORS {
        return Err(Errno(libc::EINVAL));
    }
    if !fds.is_empty() {
        let size = size_of_val(fds) as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE, CMSG_LEN, CMSG_FIRSTHDR and CMSG_DATA compute; the buffer holds one header with
        // up to MAX_DESCRIPTORS numbers, which was just checked.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (i, fd) in fds.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `message` points to one part and, with descriptors, to a control buffer; both live.
    check(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) }).map(drop)
}

/// Brings the loopback interface of this network namespace up, netdevice(7).
///
/// # Errors
/// `EPERM` where the namespace is not ours to configure, `ENODEV` where it has none.
pub fn loopback_up() -> Result<()> {
    // SAFETY: socket takes numbers.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a new descriptor, ours alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an ifreq of zeroes is a valid, empty one.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    // SAFETY: both calls take an ifreq, which lives; the first fills in the flags that the second reads.
    unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request))?;
    }
    Ok(())
}
