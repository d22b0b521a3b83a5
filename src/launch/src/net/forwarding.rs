//! Forwarding by the host's own devices, those that lead to the internet: switched on for them alone, and off again.
//!
//! Which devices did not forward before stands in the packet filter's table before they do, and on the directory of the
//! sandboxes' cgroups, as an extended attribute: so whoever ends it knows what to undo, whatever has died in between, and
//! also after somebody has flushed every table. Launchers beside each other, of another name each, have a table each:
//! a device that several of them have made forward, the last of them has stop.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use wire::journal::Priority;

use super::link;
use super::nft::{Element, Nft, Set, interface_of};
use super::{PREFIX, Settings};
use crate::error::{Result, Step};
use crate::log;

/// The set of our table.
const FORWARDED: &str = "forwarded";
/// The attribute: names of devices, each on a line of its own.
const ATTRIBUTE: &str = "trusted.sandboxd.forwarded";
/// Longest such attribute.
const MAX_ATTRIBUTE: usize = 4096;

/// Have the kernel forward what arrives over the devices to the internet. What may pass is the packet filter's to say.
///
/// # Errors
/// The step that failed.
pub fn on(nft: &mut Nft, settings: &Settings, cgroups: BorrowedFd<'_>) -> Result<()> {
    let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    let default = routes.lines().filter_map(default_device).map(str::to_owned);
    let uplinks: Vec<String> = if settings.uplinks.is_empty() { default.collect() } else { settings.uplinks.clone() };
    let table = settings.table();
    for device in &uplinks {
        let step = || format!("write down that {device} did not forward");
        let (forwards, mut noted) = (forwards(device), noted(cgroups));
        let is_noted = noted.contains(device);
        if forwards && !is_noted && !others(nft, settings, device).step(step)? {
            continue;
        }
        if !is_noted {
            noted.push(device.clone());
            rustix::fs::fsetxattr(cgroups, ATTRIBUTE, noted.join("\n").as_bytes(), XattrFlags::empty()).step(step)?;
        }
        nft.put(Set { table: &table, name: FORWARDED }, &Element::of(device)).step(step)?;
        if !forwards {
            link::set("ipv4", device, "forwarding", "1")?;
            log::say(
                Priority::Info,
                &format!("IPv4 forwarding is switched on for {device}, for sandboxes with a network"),
            );
        }
    }
    Ok(())
}

/// Undo [`on`], unless another launcher needs it, or somebody has since had the whole host forward.
///
/// # Errors
/// The step that failed.
pub fn off(nft: &mut Nft, settings: &Settings, cgroups: BorrowedFd<'_>) -> Result<()> {
    let step = || "look which devices were made to forward";
    let mut all: BTreeSet<String> = devices(nft, &settings.table()).step(step)?.into_iter().collect();
    all.extend(noted(cgroups));
    for device in all {
        // One that is gone forwards nothing.
        if forwards("all") || !forwards(&device) || others(nft, settings, &device).step(step)? {
            continue;
        }
        link::set("ipv4", &device, "forwarding", "0")?;
        log::say(Priority::Info, &format!("IPv4 forwarding is switched off for {device} again"));
    }
    match rustix::fs::fremovexattr(cgroups, ATTRIBUTE) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(errno) => Err(errno).step(|| "forget which devices were made to forward"),
    }
}

/// What the directory of the cgroups bears.
fn noted(cgroups: BorrowedFd<'_>) -> Vec<String> {
    let mut bytes = vec![0; MAX_ATTRIBUTE];
    let length = rustix::fs::fgetxattr(cgroups, ATTRIBUTE, &mut bytes[..]).unwrap_or(0);
    let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into_owned();
    text.lines().map(str::to_owned).collect()
}

/// Whether the table of another launcher says that it had `device` forward.
fn others(nft: &mut Nft, settings: &Settings, device: &str) -> Result<bool, Errno> {
    let own = settings.table();
    for table in nft.tables()?.into_iter().filter(|table| table.starts_with(PREFIX) && *table != own) {
        if devices(nft, &table)?.iter().any(|other| other == device) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn devices(nft: &mut Nft, table: &str) -> Result<Vec<String>, Errno> {
    let found = match nft.elements(Set { table, name: FORWARDED }) {
        // A table that has gone meanwhile, or of a version that did not write it down.
        Err(Errno::NOENT) => return Ok(Vec::new()),
        found => found?,
    };
    Ok(found.iter().map(|(key, _)| String::from_utf8_lossy(interface_of(key)).into_owned()).collect())
}

/// Whether the host forwards what arrives over `device`; `all`: whether that was said of every one.
fn forwards(device: &str) -> bool {
    let now = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{device}/forwarding")).unwrap_or_default();
    now.trim() == "1"
}

/// The device of a line of `/proc/PID/net/route`, if that is a default route.
fn default_device(line: &str) -> Option<&str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    (fields.len() > 7 && fields[1] == "00000000" && fields[7] == "00000000").then(|| fields[0])
}
