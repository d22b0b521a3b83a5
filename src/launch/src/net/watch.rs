//! Watching whether somebody removes the packet filter's table: the kernel says so to whoever listens (nfnetlink's group of
//! nf_tables), at once.
//!
//! Every change of every table is told there, so most of what comes is not about ours; whoever reads too late is told that
//! he has missed something, which counts as ours.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::Settings;
use super::netlink::messages;
use super::nft::is_removal;

/// `NFNLGRP_NFTABLES`, as bind(2) has groups: a bit for each.
const GROUPS: u32 = 1 << 6;
/// Datagrams that are read at once; the others are there at the next look.
const AT_ONCE: usize = 64;

/// Whoever listens.
#[derive(Debug)]
pub struct Watch {
    socket: OwnedFd,
    table: String,
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Watch {
    /// Listen, in this network namespace, for what happens to the table of these settings.
    ///
    /// # Errors
    /// What socket(2) and bind(2) say.
    pub fn begin(settings: &Settings) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self { socket, table: settings.table() })
    }

    /// Read what was told; whether the table may have been removed.
    ///
    /// # Errors
    /// What recv(2) says: nothing more will be told.
    pub fn is_removed(&self) -> Result<bool, Errno> {
        let mut buffer = vec![0; 64 * 1024];
        let mut removed = false;
        for _ in 0..AT_ONCE {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => {
                    let told = buffer.get(..length).unwrap_or_default();
                    removed |= messages(told).any(|(kind, _, payload)| is_removal(kind, payload, &self.table));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(removed),
                // The kernel had more to tell than there was room for.
                Err(Errno::NOBUFS) => removed = true,
                Err(errno) => return Err(errno),
            }
        }
        Ok(removed)
    }
}
