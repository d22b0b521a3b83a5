//! Asking the kernel to change networks and to tell of others, by netlink(7) and ioctl.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::{Answer, call, own};

const ROUTE: usize = 0;
const AUDIT: usize = 9;
const NETFILTER: usize = 12;
/// `NLM_F_REQUEST | NLM_F_ACK`, and `| NLM_F_CREATE`.
const ASK: u16 = 0x5;
const CREATE: u16 = 0x405;

fn socket(protocol: usize) -> Result<OwnedFd, i32> {
    let kind = (libc::SOCK_RAW | libc::SOCK_CLOEXEC) as usize;
    call(libc::SYS_socket, [libc::AF_NETLINK as usize, kind, protocol, 0, 0, 0]).map(own)
}

fn header(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    message.extend(body);
    message
}

/// Send messages and give the error in the first answer.
fn ask(protocol: usize, message: &[u8]) -> Answer {
    let socket = socket(protocol)?;
    let fd = socket.as_raw_fd() as usize;
    call(libc::SYS_sendto, [fd, message.as_ptr() as usize, message.len(), 0, 0, 0])?;
    let mut answer = [0_u8; 4096];
    let count = call(libc::SYS_recvfrom, [fd, answer.as_mut_ptr() as usize, answer.len(), 0, 0, 0])?;
    // NLMSG_ERROR: the header, then the error as a negative number.
    if count < 20 || answer[4] != 2 {
        return Ok(count);
    }
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(0),
        error => Err(-error),
    }
}

/// An attribute: its length, its kind, its value.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// `RTM_NEWADDR`: another address on the first interface.
pub fn add_address() -> Answer {
    let mut body = vec![libc::AF_INET as u8, 8, 0, 0, 1, 0, 0, 0];
    body.extend(attribute(2, &[10, 99, 99, 99]));
    body.extend(attribute(1, &[10, 99, 99, 99]));
    ask(ROUTE, &header(20, CREATE, &body))
}

/// `RTM_NEWLINK`: an interface.
pub fn add_link() -> Answer {
    let mut body = vec![0; 16];
    body.extend(attribute(3, b"probe0\0"));
    body.extend(attribute(18, &attribute(1, b"veth")));
    ask(ROUTE, &header(16, CREATE, &body))
}

/// A table of nftables, in a batch.
pub fn add_table() -> Answer {
    let group = [0_u8, 0, 0, 10];
    let mut body = vec![libc::AF_INET as u8, 0, 0, 0];
    body.extend(attribute(1, b"probe\0"));
    let batch = [header(16, 1, &group), header(10 << 8, CREATE, &body), header(17, 1, &group)].concat();
    ask(NETFILTER, &batch)
}

/// Packets as nflog tells them: `NFULNL_MSG_CONFIG`, bind.
pub fn bind_log() -> Answer {
    let mut body = vec![libc::AF_UNSPEC as u8, 0, 0, 0];
    body.extend(attribute(1, &[1]));
    ask(NETFILTER, &header((4 << 8) | 1, ASK, &body))
}

/// `AUDIT_GET`: how the host audits.
pub fn set_audit() -> Answer {
    ask(AUDIT, &header(1000, ASK, &[]))
}

/// `SIOCSIFADDR` on the loopback device.
pub fn set_address() -> Answer {
    let socket = call(libc::SYS_socket, [libc::AF_INET as usize, libc::SOCK_DGRAM as usize, 0, 0, 0, 0]).map(own)?;
    let mut request = [0_u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16..18].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    request[20..24].copy_from_slice(&[127, 0, 0, 9]);
    call(libc::SYS_ioctl, [socket.as_raw_fd() as usize, 0x8916, request.as_ptr() as usize, 0, 0, 0])
}
