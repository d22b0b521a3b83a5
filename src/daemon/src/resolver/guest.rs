//! Who is answered, and what about.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use wire::id::SessionId;
use wire::launch::{EgressRule, NO_INTERNET, Permit, Protocol};

/// Questions of one sandbox under way.
const QUESTIONS: usize = 64;
/// Addresses of one sandbox that are remembered as permitted; more are permitted again.
const REMEMBERED: usize = 4096;

/// A port of one protocol.
type Port = (Protocol, u16);
/// What was permitted, and until when an answer may rely on it.
type Permitted = HashMap<(Ipv4Addr, Option<Port>), Instant>;

/// A name that may be asked for, or every name below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRule {
    /// In lower case, without a dot at its end.
    pub name: String,
    /// Whether the names below it are meant, and not itself.
    pub below: bool,
    /// The ports that its addresses are permitted on; none: all.
    pub ports: Vec<(Protocol, u16)>,
}

/// What a sandbox may ask for, and be answered.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// The names; absent: every one, and the packet filter lets their addresses pass by itself.
    pub names: Option<Vec<NameRule>>,
    /// What the operator allowed of ranges that are no internet.
    pub reach: Vec<EgressRule>,
}

/// A sandbox that is answered.
#[derive(Debug)]
pub struct Guest {
    /// Its session.
    pub id: SessionId,
    /// Its slot.
    pub slot: u32,
    terms: Terms,
    /// Packets that the packet filter has refused, as was last looked.
    pub packets: AtomicU64,
    refused: AtomicU64,
    permitted: Mutex<Permitted>,
    /// Questions that may still be asked.
    pub questions: Semaphore,
}

impl Guest {
    pub(super) fn new(id: SessionId, slot: u32, terms: Terms) -> Self {
        Self {
            id,
            slot,
            terms,
            packets: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            permitted: Mutex::new(HashMap::new()),
            questions: Semaphore::new(QUESTIONS),
        }
    }

    /// Questions and answers that it was refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it may ask for `name`, which is in lower case without a dot at its end.
    pub(super) fn may_ask(&self, name: &str) -> bool {
        self.terms.names.is_none() || self.rules(name).next().is_some()
    }

    /// Whether it may learn of `address`: one that is internet, or that the operator lets it reach.
    pub(super) fn may_learn(&self, address: Ipv4Addr) -> bool {
        let covered = |first: Ipv4Addr, prefix: u8| {
            let rest = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
            u32::from(address) | rest == u32::from(first) | rest
        };
        let internet = !NO_INTERNET.iter().any(|(first, prefix)| covered(*first, *prefix));
        internet || self.terms.reach.iter().any(|rule| covered(rule.address, rule.prefix))
    }

    /// What has to be permitted before it is told that `name` has these addresses; nothing where every name may be asked for.
    pub(super) fn permits(&self, name: &str, addresses: &[Ipv4Addr], seconds: u32) -> Vec<Permit> {
        if self.terms.names.is_none() {
            return Vec::new();
        }
        let ports: Vec<Option<Port>> = match self.rules(name).any(|rule| rule.ports.is_empty()) {
            true => vec![None],
            false => self.rules(name).flat_map(|rule| rule.ports.iter().copied().map(Some)).collect(),
        };
        let (permitted, until) = (self.permitted(), Instant::now() + Duration::from_secs(seconds.into()));
        let all = addresses.iter().flat_map(|address| ports.iter().map(move |port| (*address, *port)));
        // A permit that lasts longer than the answer need not be given again.
        all.filter(|key| permitted.get(key).is_none_or(|end| *end < until))
            .map(|(address, port)| Permit { address, port, seconds })
            .collect()
    }

    /// These were permitted.
    pub(super) fn remember(&self, permits: &[Permit], beyond: u32) {
        let mut permitted = self.permitted();
        if permitted.len() > REMEMBERED {
            permitted.clear();
        }
        let now = Instant::now();
        permitted.extend(permits.iter().map(|permit| {
            let lasts = Duration::from_secs(permit.seconds.saturating_sub(beyond).into());
            ((permit.address, permit.port), now + lasts)
        }));
    }

    fn rules<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a NameRule> {
        self.terms.names.iter().flatten().filter(move |rule| match name.strip_suffix(rule.name.as_str()) {
            Some("") => !rule.below,
            Some(before) => rule.below && before.ends_with('.'),
            None => false,
        })
    }

    fn permitted(&self) -> MutexGuard<'_, Permitted> {
        self.permitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everybody who is answered, by address.
#[derive(Debug, Default)]
pub struct Guests(Mutex<HashMap<Ipv4Addr, Arc<Guest>>>);

/// That a sandbox is answered; it ends when this is dropped.
#[derive(Debug)]
pub struct Lease {
    address: Ipv4Addr,
    guest: Arc<Guest>,
    guests: Arc<Guests>,
}

impl Lease {
    /// Who.
    #[must_use]
    pub fn guest(&self) -> &Guest {
        &self.guest
    }
}

impl Guests {
    pub(super) fn admit(self: &Arc<Self>, address: Ipv4Addr, guest: Guest) -> Lease {
        let guest = Arc::new(guest);
        self.lock().insert(address, guest.clone());
        Lease { address, guest, guests: self.clone() }
    }

    pub(super) fn find(&self, address: Ipv4Addr) -> Option<Arc<Guest>> {
        self.lock().get(&address).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Guest>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ipv4Addr, Arc<Guest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut guests = self.guests.lock();
        // The address may be somebody else's by now.
        if guests.get(&self.address).is_some_and(|guest| Arc::ptr_eq(guest, &self.guest)) {
            guests.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(names: Option<&[(&str, bool, &[Port])]>) -> Guest {
        let rule = |(name, below, ports): &(&str, bool, &[Port])| NameRule {
            name: (*name).to_owned(),
            below: *below,
            ports: ports.to_vec(),
        };
        let names = names.map(|names| names.iter().map(rule).collect());
        let reach = EgressRule { address: [10, 0, 5, 0].into(), prefix: 24, ports: None, protocol: None };
        Guest::new(SessionId::parse("s").unwrap(), 1, Terms { names, reach: vec![reach] })
    }

    #[test]
    fn a_name_is_asked_for_by_itself_or_from_below() {
        let guest = guest(Some(&[("pypi.org", false, &[]), ("example.com", true, &[])]));
        for good in ["pypi.org", "a.example.com", "a.b.example.com"] {
            assert!(guest.may_ask(good), "{good}");
        }
        for bad in ["", "org", "x.pypi.org", "notpypi.org", "example.com", "badexample.com", "pypi.org.evil.net"] {
            assert!(!guest.may_ask(bad), "{bad}");
        }
        assert!(self::guest(None).may_ask("anything.at.all"));
    }

    #[test]
    fn nobody_learns_of_an_address_that_is_no_internet() {
        let guest = guest(None);
        for bad in
            [[127, 0, 0, 1], [10, 0, 4, 1], [169, 254, 169, 254], [192, 168, 0, 1], [198, 19, 0, 1], [0, 0, 0, 0]]
        {
            assert!(!guest.may_learn(bad.into()), "{bad:?}");
        }
        assert!(guest.may_learn([10, 0, 5, 9].into()) && guest.may_learn([1, 1, 1, 1].into()));
    }

    #[test]
    fn permits_are_per_port_and_given_once() {
        let guest = guest(Some(&[("a.org", false, &[(Protocol::Tcp, 443)]), ("b.org", false, &[])]));
        let addresses = [[1, 1, 1, 1].into(), [2, 2, 2, 2].into()];
        let permits = guest.permits("a.org", &addresses, 60);
        assert_eq!(permits.len(), 2);
        assert_eq!(permits[0].port, Some((Protocol::Tcp, 443)));
        let longer: Vec<Permit> = permits.iter().map(|permit| Permit { seconds: 300, ..*permit }).collect();
        guest.remember(&longer, 60);
        assert!(guest.permits("a.org", &addresses, 60).is_empty());
        assert_eq!(guest.permits("b.org", &addresses, 60)[0].port, None);
        assert!(guest.permits("a.org", &addresses, 3600).len() == 2);
        assert!(self::guest(None).permits("a.org", &addresses, 60).is_empty());
    }
}
