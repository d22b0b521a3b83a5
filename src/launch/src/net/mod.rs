//! Networks of sandboxes: a device in the sandbox, and a packet filter that stands before it does.
//!
//! | module | what it is |
//! |---|---|
//! | `pool` | which address a slot has |
//! | `link` | the pair of devices, over rtnetlink |
//! | `ruleset` | the packet filter's table and the chains of policies, by the program `nft` |
//! | `nft` | elements of its sets, over netlink |
//! | `forwarding` | the host's own devices |
//! | `netlink` | messages |
//! | `watch` | whether somebody removes the table |
//!
//! What holds is keyed by the name of the host's device, and what has no element there is refused: there is no moment
//! at which a packet passes unseen, whatever dies in between. A sandbox's cgroup bears, as an extended attribute, which
//! slot and policy it has: so whoever stops it, or starts the launcher again, knows what to remove and what to write.

mod forwarding;
mod link;
mod netlink;
mod nft;
mod pool;
mod ruleset;
#[cfg(test)]
mod tests;
mod watch;

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use wire::id::SessionId;
use wire::launch::{Answer, Egress, EgressRule, Permit, Plan, Refusals};

use crate::cgroup::CgroupRoot;
use crate::error::{Error, Failure, Result, Step};
use link::Pair;
use nft::{Element, Nft, Set};
pub use pool::Range;
pub use watch::Watch;

/// Where a cgroup bears its network.
const ATTRIBUTE: &str = "trusted.sandboxd.network";
/// Longest such attribute: two lists of rules.
const MAX_ATTRIBUTE: usize = 32 * 1024;
/// What the names of launchers' tables begin with.
const PREFIX: &str = "sandboxd_";
/// Sets whose keys begin with a sandbox's interface.
const SETS: [&str; 4] = ["policies", "permitted", "permitted_ports", "refused"];

/// `[network]` in the launcher's configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Addresses of sandboxes, at least two more than there are slots. No other machine that this host speaks to, and no
    /// network of its own, may use any of them.
    pub pool: Range,
    /// What names of devices begin with; the table of the packet filter is called `sandboxd_` and this. 1 to 8 lower-case
    /// letters and digits that no other device's name begins with.
    #[serde(default = "default_name")]
    pub name: String,
    /// Port at which the service answers sandboxes' questions for names.
    #[serde(default = "default_resolver_port")]
    pub resolver_port: u16,
    /// Devices over which answers from the internet arrive; empty: those of the default routes. Forwarding is switched
    /// on for them.
    #[serde(default)]
    pub uplinks: Vec<String>,
    /// Ranges that are no internet, and that the service may let sandboxes reach.
    #[serde(default)]
    pub may_reach: Vec<Range>,
    /// Whether the kernel logs what is refused, at most 20 packets a second.
    #[serde(default)]
    pub log: bool,
}

fn default_name() -> String {
    "sbx".to_owned()
}
fn default_resolver_port() -> u16 {
    8053
}

impl Settings {
    /// What is wrong with it where there are `slots` slots: the key and what is allowed.
    ///
    /// # Errors
    /// The first that is.
    pub fn check(&self, slots: u32) -> Result<(), (&'static str, String)> {
        if self.pool.len() < u64::from(slots) + 2 {
            return Err(("network.pool", format!("{} has fewer addresses than slots + 2 ({})", self.pool, slots + 2)));
        }
        let sound = |name: &str, most: usize| {
            (1..=most).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        if !sound(&self.name, 8) {
            return Err(("network.name", format!("{:?} does not match [a-z0-9]{{1,8}}", self.name)));
        }
        if self.resolver_port < 1024 {
            return Err(("network.resolver_port", format!("{} is not within 1024..=65535", self.resolver_port)));
        }
        let device = |name: &String| {
            (1..16).contains(&name.len()) && !name.contains(['/', ' ']) && ![".", ".."].contains(&name.as_str())
        };
        match self.uplinks.iter().find(|name| !device(name)) {
            Some(name) => Err(("network.uplinks", format!("{name:?} is no name of a device"))),
            None => Ok(()),
        }
    }

    /// What sandboxes are told of the resolver, resolv.conf(5).
    #[must_use]
    pub fn resolv_conf(&self) -> String {
        format!("nameserver {}\n", self.pool.gateway())
    }

    fn table(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    fn device(&self, slot: u32) -> String {
        format!("{}{slot}", self.name)
    }

    fn slot(&self, device: &[u8]) -> Option<u32> {
        std::str::from_utf8(device).ok()?.strip_prefix(&self.name)?.parse().ok()
    }
}

/// What a sandbox's cgroup bears.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    slot: u32,
    egress: Egress,
}

/// Check what a plan asks of its network.
///
/// # Errors
/// [`Error::Refused`].
pub fn check(egress: &Egress, settings: Option<&Settings>) -> Result<(), Error> {
    let refused = |field, reason: String| Err(Error::Refused { field, reason });
    let Some(settings) = settings else {
        return refused("network", "this host gives none: launch.toml has no [network]".to_owned());
    };
    for (field, rules) in [("egress.deny", &egress.deny), ("egress.allow", &egress.allow)] {
        if rules.len() > wire::launch::MAX_EGRESS_RULES {
            return refused(field, format!("more than {} rules", wire::launch::MAX_EGRESS_RULES));
        }
        for rule in rules {
            let Some(range) = Range::new(rule.address, rule.prefix) else {
                return refused(field, format!("{}/{} is no range", rule.address, rule.prefix));
            };
            if rule.ports.is_some_and(|(first, last)| first > last) {
                return refused(field, format!("ports of {range}: the last comes before the first"));
            }
        }
    }
    match egress.allow.iter().find(|rule| ruleset::place(rule, settings).is_none()) {
        Some(EgressRule { address, prefix, .. }) => {
            let reason = format!("{address}/{prefix} is no internet, nor within network.may_reach of launch.toml");
            refused("egress.allow", reason)
        }
        None => Ok(()),
    }
}

/// Make ready what every sandbox's network needs.
///
/// # Errors
/// What is missing on this host.
pub fn prepare(settings: Option<&Settings>, cgroups: &CgroupRoot) -> Result<Answer, Error> {
    check(&Egress::default(), settings)?;
    let Some(settings) = settings else { return Ok(Answer::Done) };
    let mut nft = open()?;
    ensure(&mut nft, settings, cgroups)?;
    forwarding::on(&mut nft, settings, cgroups.as_fd())?;
    let (gateway, resolver_port) = (settings.pool.gateway(), settings.resolver_port);
    let warnings = warnings(&mut nft, settings).step(|| "look for other packet filters")?;
    Ok(Answer::Network { gateway, resolver_port, warnings })
}

/// Give the sandbox that has just been started what its plan says.
///
/// # Errors
/// The step that failed; [`forget`] removes what was made.
pub fn attach(plan: &Plan, settings: Option<&Settings>, cgroups: &CgroupRoot) -> Result<()> {
    let (Some(settings), Some(cgroup)) = (settings, cgroups.open_sandbox(&plan.id)) else { return Ok(()) };
    let record = serde_json::to_vec(&Record { slot: plan.slot, egress: plan.egress.clone() });
    let record = record.step(|| "write down the network")?;
    rustix::fs::fsetxattr(&cgroup, ATTRIBUTE, &record, XattrFlags::empty()).step(|| "write down the network")?;
    let mut nft = open()?;
    ensure(&mut nft, settings, cgroups)?;
    let chain = ruleset::ensure_policy(&mut nft, settings, &plan.egress)?;
    forwarding::on(&mut nft, settings, cgroups.as_fd())?;
    let name = settings.device(plan.slot);
    clear(&mut nft, settings, &name)?;
    let inside = link::namespace_of(first_process(&cgroup)?)?;
    let pair = Pair { name: &name, gateway: settings.pool.gateway(), address: settings.pool.address(plan.slot) };
    pair.make(inside.as_fd())?;
    let table = settings.table();
    nft.put(Set { table: &table, name: "policies" }, &Element::of(&name).leading_to(&chain))
        .step(|| format!("let {name} through the packet filter"))
}

/// Remove what a sandbox's network left in the packet filter: that which `slot` had.
///
/// # Errors
/// The kernel's answer.
pub fn forget(slot: Option<u32>, settings: Option<&Settings>) -> Result<()> {
    let (Some(slot), Some(settings)) = (slot, settings) else { return Ok(()) };
    let name = settings.device(slot);
    clear(&mut open()?, settings, &name)
}

/// The slot of the network of the sandbox `id`, if it has one.
#[must_use]
pub fn slot_of(cgroups: &CgroupRoot, id: &SessionId) -> Option<u32> {
    record(cgroups, id).map(|record| record.slot)
}

/// Let `id` reach what its names were resolved to.
///
/// # Errors
/// It has no network, or the kernel's answer.
pub fn permit(id: &SessionId, permits: &[Permit], settings: Option<&Settings>, cgroups: &CgroupRoot) -> Result<()> {
    let (Some(settings), Some(slot)) = (settings, slot_of(cgroups, id)) else {
        return Err(Failure::new(format!("permit addresses to sandbox {id}: it has no network")));
    };
    let (mut nft, table, name) = (open()?, settings.table(), settings.device(slot));
    for permit in permits {
        let set = if permit.port.is_some() { "permitted_ports" } else { "permitted" };
        nft.put(Set { table: &table, name: set }, &Element::permit(&name, permit))
            .step(|| format!("permit {} to {name}", permit.address))?;
    }
    Ok(())
}

/// What each sandbox was refused.
///
/// # Errors
/// The kernel's answer.
pub fn refusals(settings: Option<&Settings>) -> Result<Answer> {
    let Some(settings) = settings else { return Ok(Answer::Refusals { refusals: Vec::new() }) };
    let table = settings.table();
    let found = match open()?.elements(Set { table: &table, name: "refused" }) {
        // Nobody has had a network yet.
        Err(Errno::NOENT) => Vec::new(),
        found => found.step(|| "count what was refused")?,
    };
    let count =
        |(key, packets): (Vec<u8>, u64)| Some(Refusals { slot: settings.slot(nft::interface_of(&key))?, packets });
    Ok(Answer::Refusals { refusals: found.into_iter().filter_map(count).collect() })
}

/// At the start of the launcher: write the table if there are sandboxes that need it, remove what is nobody's.
///
/// # Errors
/// As for [`prepare`].
pub fn sweep(settings: Option<&Settings>, cgroups: &CgroupRoot) -> Result<()> {
    let Some(settings) = settings else { return Ok(()) };
    let records = records(cgroups)?;
    if records.is_empty() {
        return remove(settings, cgroups.as_fd());
    }
    let mut nft = open()?;
    ruleset::ensure(&mut nft, settings)?;
    let table = settings.table();
    let kept: Vec<String> = records.iter().map(|record| settings.device(record.slot)).collect();
    for set in SETS.map(|name| Set { table: &table, name }) {
        for (key, _) in nft.elements(set).step(|| "look through the packet filter")? {
            if !kept.iter().any(|name| name.as_bytes() == nft::interface_of(&key)) {
                nft.take(set, &key).step(|| "sweep the packet filter")?;
            }
        }
    }
    restore(&mut nft, settings, &records)
}

/// After somebody has removed the table: write it again, if a sandbox that runs needs it; whether one does.
///
/// # Errors
/// As for [`prepare`].
pub fn mend(settings: Option<&Settings>, cgroups: &CgroupRoot) -> Result<bool> {
    let Some(settings) = settings else { return Ok(false) };
    if records(cgroups)?.is_empty() {
        return Ok(false);
    }
    let mut nft = open()?;
    ensure(&mut nft, settings, cgroups)?;
    forwarding::on(&mut nft, settings, cgroups.as_fd())?;
    Ok(true)
}

/// Write the table if somebody has removed it, or nobody written it yet; with what running sandboxes have in it.
fn ensure(nft: &mut Nft, settings: &Settings, cgroups: &CgroupRoot) -> Result<()> {
    if ruleset::ensure(nft, settings)? { restore(nft, settings, &records(cgroups)?) } else { Ok(()) }
}

fn records(cgroups: &CgroupRoot) -> Result<Vec<Record>> {
    Ok(cgroups.list()?.iter().filter_map(|sandbox| record(cgroups, &sandbox.id)).collect())
}

fn restore(nft: &mut Nft, settings: &Settings, records: &[Record]) -> Result<()> {
    let table = settings.table();
    for record in records {
        let (name, chain) = (settings.device(record.slot), ruleset::ensure_policy(nft, settings, &record.egress)?);
        nft.put(Set { table: &table, name: "policies" }, &Element::of(&name).leading_to(&chain))
            .step(|| format!("let {name} through the packet filter"))?;
    }
    Ok(())
}

/// Remove the table, where no sandbox needs it any more.
///
/// # Errors
/// As for [`prepare`].
pub fn end(settings: Option<&Settings>, cgroups: &CgroupRoot) -> Result<()> {
    let Some(settings) = settings else { return Ok(()) };
    // Without the directory there are none.
    let needed = cgroups.list().unwrap_or_default().iter().any(|sandbox| record(cgroups, &sandbox.id).is_some());
    if needed { Ok(()) } else { remove(settings, cgroups.as_fd()) }
}

/// A packet that our table accepts is dropped all the same where another one drops it, Docker's, say.
fn warnings(nft: &mut Nft, settings: &Settings) -> Result<Vec<String>, Errno> {
    let name = &settings.name;
    let warning = |nft::Dropping { forward, table, chain }: nft::Dropping| {
        let what = match forward {
            true => format!("what comes from and goes to {name}*"),
            false => format!("what comes from {name}* to port {}", settings.resolver_port),
        };
        format!(
            "the packet filter's chain {chain} of table {table} drops {what}, unless a rule of its own accepts that"
        )
    };
    Ok(nft.dropping_chains()?.into_iter().take(8).map(warning).collect())
}

fn remove(settings: &Settings, cgroups: BorrowedFd<'_>) -> Result<()> {
    // A host without nf_tables, or where it was never used, has nothing to remove, and need not have `nft`.
    let Ok(mut nft) = Nft::open() else { return Ok(()) };
    match nft.has_chain(&settings.table(), "refuse") {
        Ok(true) => forwarding::off(&mut nft, settings, cgroups).and_then(|()| ruleset::remove(settings)),
        // Nobody has had a network, or somebody has flushed the table.
        Ok(false) => forwarding::off(&mut nft, settings, cgroups),
        Err(_) => Ok(()),
    }
}

fn open() -> Result<Nft> {
    Nft::open().step(|| "use the packet filter (nf_tables) of this kernel")
}

fn record(cgroups: &CgroupRoot, id: &SessionId) -> Option<Record> {
    let dir = cgroups.open_sandbox(id)?;
    let mut bytes = vec![0; MAX_ATTRIBUTE];
    let length = rustix::fs::fgetxattr(&dir, ATTRIBUTE, &mut bytes[..]).ok()?;
    serde_json::from_slice(&bytes[..length]).ok()
}

/// The process that the sandbox's namespaces are asked of: PID 1, in a cgroup without its commands.
fn first_process(cgroup: impl AsFd) -> Result<u32> {
    let step = || "find the sandbox's init";
    let processes = crate::cgroup::processes(cgroup, "init").step(step)?;
    processes.into_iter().next().ok_or_else(|| Failure::new("find the sandbox's init: it has ended"))
}

/// Remove every element of the device `name`.
fn clear(nft: &mut Nft, settings: &Settings, name: &str) -> Result<()> {
    let table = settings.table();
    let step = || format!("remove {name} from the packet filter");
    for set in SETS.map(|name| Set { table: &table, name }) {
        let found = match nft.elements(set) {
            Err(Errno::NOENT) => continue,
            found => found.step(step)?,
        };
        for (key, _) in found.into_iter().filter(|(key, _)| nft::interface_of(key) == name.as_bytes()) {
            nft.take(set, &key).step(step)?;
        }
    }
    Ok(())
}
