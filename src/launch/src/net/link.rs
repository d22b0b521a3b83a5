//! The wire between a sandbox and the host: a pair of veth devices, rtnetlink(7).
//!
//! ```text
//! host                                 sandbox's network namespace
//!   sbx42  GATEWAY, route to ADDRESS     eth0  ADDRESS/32, default route via GATEWAY
//! ```
//! Every sandbox sees the same gateway, and no other address on its link: there is no net between sandboxes. The
//! pair ends with the sandbox's network namespace.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::netdevice;
use rustix::thread::LinkNameSpaceType;

use super::netlink::{CREATE, EXCL, Message, Socket};
use crate::error::{Failure, Result, Step};

/// What a sandbox calls its end.
pub const INSIDE: &str = "eth0";

/// Attributes, linux/if_link.h, if_addr.h, rtnetlink.h, veth.h.
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_DST: u16 = 1;
const IFF_UP: u32 = 1;

/// Settings of a host's end, below `/proc/sys/net`: it forwards, answers for no address but its own, and believes no
/// sender that it has no route to.
const OUTSIDE_SETTINGS: [(&str, &str, &str); 7] = [
    ("ipv6", "disable_ipv6", "1"),
    ("ipv4", "forwarding", "1"),
    ("ipv4", "rp_filter", "1"),
    ("ipv4", "arp_ignore", "1"),
    ("ipv4", "accept_redirects", "0"),
    ("ipv4", "send_redirects", "0"),
    ("ipv4", "route_localnet", "0"),
];

/// A pair that is to be made.
pub struct Pair<'a> {
    /// The host's end.
    pub name: &'a str,
    /// The host's address on it.
    pub gateway: Ipv4Addr,
    /// The sandbox's.
    pub address: Ipv4Addr,
}

impl Pair<'_> {
    /// Make the pair, one end in the network namespace `inside`, and set both ends up. One of the same name, of a
    /// namespace that is on its way out, gives way.
    ///
    /// # Errors
    /// The step that failed; the pair may be there.
    pub fn make(&self, inside: BorrowedFd<'_>) -> Result<()> {
        let name = self.name;
        let mut host = Socket::open(None).step(|| "open a socket for network devices")?;
        let made = host.request(self.veth(inside)).or_else(|errno| match errno {
            Errno::EXIST => remove(name).and_then(|()| host.request(self.veth(inside))),
            other => Err(other),
        });
        made.step(|| format!("make network device {name}"))?;
        for (family, key, value) in OUTSIDE_SETTINGS {
            set(family, name, key, value)?;
        }
        let index = netdevice::name_to_index(&host, name).step(|| format!("find network device {name}"))?;
        host.request(address(index, self.gateway)).step(|| format!("give {name} its address"))?;
        host.request(up(index)).step(|| format!("set {name} up"))?;
        host.request(route(index, Some(self.address), None)).step(|| format!("set the route to {name}"))?;
        let mut sandbox = enter(inside)?;
        let step = |what: &'static str| move || format!("{what} of the sandbox behind {name}");
        let index = netdevice::name_to_index(&sandbox, INSIDE).step(step("find the network device"))?;
        sandbox.request(address(index, self.address)).step(step("set the address"))?;
        sandbox.request(up(index)).step(step("set up the network device"))?;
        sandbox.request(route(index, Some(self.gateway), None)).step(step("set the route to the gateway"))?;
        sandbox.request(route(index, None, Some(self.gateway))).step(step("set the default route"))
    }

    fn veth(&self, inside: BorrowedFd<'_>) -> Message {
        let mut message = Message::new(libc::RTM_NEWLINK, CREATE | EXCL, &link_header(0, 0));
        message.put_text(IFLA_IFNAME, self.name);
        message.nest(IFLA_LINKINFO, |info| {
            info.put_text(IFLA_INFO_KIND, "veth");
            info.nest(IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |peer| {
                    peer.raw(&link_header(0, 0));
                    peer.put_text(IFLA_IFNAME, INSIDE);
                    peer.put(IFLA_NET_NS_FD, &inside.as_raw_fd().to_ne_bytes());
                });
            });
        });
        message
    }
}

/// Remove a device of this namespace; done also if there is none.
///
/// # Errors
/// The kernel's answer.
pub fn remove(name: &str) -> Result<(), Errno> {
    let mut message = Message::new(libc::RTM_DELLINK, 0, &link_header(0, 0));
    message.put_text(IFLA_IFNAME, name);
    match Socket::open(None)?.request(message) {
        Err(Errno::NODEV) => Ok(()),
        other => other,
    }
}

/// The network namespace of the process `pid`, which must not be the launcher's own.
///
/// # Errors
/// It has ended, or it is the launcher's.
pub fn namespace_of(pid: u32) -> Result<OwnedFd> {
    let step = || format!("open the network namespace of process {pid}");
    let open = |path: &str| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let theirs = open(&format!("/proc/{pid}/ns/net")).step(step)?;
    let (own, its) = (rustix::fs::stat("/proc/thread-self/ns/net").step(step)?, rustix::fs::fstat(&theirs).step(step)?);
    if (own.st_dev, own.st_ino) == (its.st_dev, its.st_ino) {
        return Err(Failure::new(format!("{}: it is the host's", step())));
    }
    Ok(theirs)
}

/// A socket that works in the namespace `inside`, in which IPv6 is switched off for all devices to come and for ours.
fn enter(inside: BorrowedFd<'_>) -> Result<Socket> {
    let step = || "enter the sandbox's network namespace";
    let own =
        rustix::fs::open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step(step)?;
    move_to(inside).step(step)?;
    let made = Socket::open(None).step(|| "open a socket for the sandbox's network devices");
    let set = ["default", INSIDE].into_iter().try_for_each(|device| set("ipv6", device, "disable_ipv6", "1"));
    move_to(own.as_fd()).step(|| "go back to the host's network namespace")?;
    set.and(made)
}

fn move_to(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
}

/// Write a setting of a device, of the namespace that this process is in. A kernel without that family has none to write.
///
/// # Errors
/// What open(2) and write(2) say.
pub fn set(family: &str, device: &str, key: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{family}/conf/{device}/{key}");
    let fd = match rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) if family == "ipv6" => return Ok(()),
        opened => opened.step(|| format!("open {path}"))?,
    };
    rustix::io::write(fd.as_fd(), value.as_bytes()).step(|| format!("write {value} to {path}"))?;
    Ok(())
}

/// `struct ifinfomsg`.
fn link_header(index: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn up(index: u32) -> Message {
    Message::new(libc::RTM_SETLINK, 0, &link_header(index, IFF_UP))
}

/// `local` alone on device `index`: `struct ifaddrmsg` and two attributes.
fn address(index: u32, local: Ipv4Addr) -> Message {
    let mut header = [u8::try_from(libc::AF_INET).unwrap_or_default(), 32, 0, 0, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut message = Message::new(libc::RTM_NEWADDR, CREATE | EXCL, &header);
    message.put(IFA_LOCAL, &local.octets());
    message.put(IFA_ADDRESS, &local.octets());
    message
}

/// To `to`, or everywhere, on device `index`, directly or through `via`: `struct rtmsg`.
fn route(index: u32, to: Option<Ipv4Addr>, via: Option<Ipv4Addr>) -> Message {
    let scope = if via.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
    let header = [
        u8::try_from(libc::AF_INET).unwrap_or_default(),
        if to.is_some() { 32 } else { 0 },
        0,
        0,
        libc::RT_TABLE_MAIN,
        libc::RTPROT_STATIC,
        scope,
        libc::RTN_UNICAST,
        0,
        0,
        0,
        0,
    ];
    let mut message = Message::new(libc::RTM_NEWROUTE, CREATE | EXCL, &header);
    if let Some(to) = to {
        message.put(RTA_DST, &to.octets());
    }
    if let Some(via) = via {
        message.put(RTA_GATEWAY, &via.octets());
    }
    message.put(RTA_OIF, &index.to_ne_bytes());
    message
}
