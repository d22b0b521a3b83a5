//! What there is now, for `GET /metrics`: sessions by state, and what tenants use.
//!
//! Tenants are named by clients, so only the first [`TENANTS`] that this process sees have a name in the figures; the others
//! share [`OTHERS`]. CPU time is added up at each look and at each sandbox's end, so that it never falls.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use wire::id::Tenant;

use super::handle::{Live, Session};
use super::network;
use super::registry::Registry;
use super::state::State;

/// Tenants that have a name of their own.
const TENANTS: usize = 100;
/// What sessions without a tenant are counted under. No tenant is called so, nor like the next.
const NOBODY: &str = "_none";
/// What further tenants are counted under.
const OTHERS: &str = "_other";

/// Every state, as it is called.
const STATES: [(State, &str); 7] = [
    (State::Opening, "opening"),
    (State::Running, "running"),
    (State::Frozen, "frozen"),
    (State::Dozing, "dozing"),
    (State::Asleep, "asleep"),
    (State::Waking, "waking"),
    (State::Closing, "closing"),
];

/// What there is.
#[derive(Debug, Default)]
pub struct Census {
    /// How many sessions are in each state.
    pub states: Vec<(&'static str, usize)>,
    /// By tenant.
    pub tenants: Vec<TenantUse>,
    /// Packets that were refused to sandboxes that run.
    pub refused_packets: u64,
    /// Names, likewise.
    pub refused_names: u64,
}

/// What a tenant uses.
#[derive(Debug, Clone)]
pub struct TenantUse {
    /// Its name, or one of ours that none has.
    pub name: String,
    /// Sessions now.
    pub sessions: usize,
    /// Bytes of memory now.
    pub memory: u64,
    /// Microseconds of CPU since this process began.
    pub cpu_us: u64,
}

/// CPU time of tenants that were seen, in microseconds.
#[derive(Debug, Default)]
pub struct Tallies(Mutex<BTreeMap<String, u64>>);

impl Tallies {
    /// Add what a sandbox has used since the last time, now that it ends.
    pub fn end(&self, session: &Session) {
        if let Some(live) = session.sandbox() {
            self.count(session.tenant.as_ref(), &live);
        }
    }

    /// The same; the name that it is counted under.
    fn count(&self, tenant: Option<&Tenant>, live: &Live) -> String {
        let spent = live.meter.spent_us();
        let mut tallies = self.lock();
        let name = label(&tallies, tenant);
        *tallies.entry(name.clone()).or_default() += spent;
        name
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a tenant is counted under.
fn label(known: &BTreeMap<String, u64>, tenant: Option<&Tenant>) -> String {
    match tenant.map(Tenant::as_str) {
        None => NOBODY.to_owned(),
        Some(name) if known.contains_key(name) || known.len() < TENANTS => name.to_owned(),
        Some(_) => OTHERS.to_owned(),
    }
}

impl Registry {
    /// Look. Reads two files for each sandbox that runs.
    #[must_use]
    pub fn census(&self) -> Census {
        let sessions = self.all();
        let states: Vec<State> = sessions.iter().map(|session| session.state()).collect();
        let count = |state: State| states.iter().filter(|other| **other == state).count();
        let mut census =
            Census { states: STATES.map(|(state, name)| (name, count(state))).to_vec(), ..Census::default() };
        let mut now: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for session in &sessions {
            let tenant = session.tenant.as_ref();
            let Some(live) = session.sandbox() else {
                let name = label(&self.deps.tallies.lock(), tenant);
                now.entry(name).or_default().0 += 1;
                continue;
            };
            let memory = live.meter.memory_bytes().unwrap_or(0);
            let of = now.entry(self.deps.tallies.count(tenant, &live)).or_default();
            (of.0, of.1) = (of.0 + 1, of.1 + memory);
            if let Some(refused) = live.network.as_ref().map(network::usage) {
                census.refused_packets += refused.refused_packets;
                census.refused_names += refused.refused_names;
            }
        }
        let mut tallies = self.deps.tallies.lock();
        // A tenant that has never had a sandbox is one as well.
        now.keys().for_each(|name| {
            tallies.entry(name.clone()).or_default();
        });
        census.tenants = tallies
            .iter()
            .map(|(name, cpu_us)| {
                let (sessions, memory) = now.get(name).copied().unwrap_or_default();
                TenantUse { name: name.clone(), sessions, memory, cpu_us: *cpu_us }
            })
            .collect();
        census
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_names_up_to_a_bound() {
        let tenant = |number: usize| Tenant::parse(&format!("t{number}")).ok();
        let mut known = BTreeMap::new();
        for number in 0..TENANTS + 50 {
            let name = label(&known, tenant(number).as_ref());
            assert_eq!(name == OTHERS, number >= TENANTS, "{name}");
            known.insert(name, 0);
        }
        assert_eq!(label(&known, tenant(3).as_ref()), "t3");
        assert_eq!(label(&known, None), NOBODY);
        for name in [NOBODY, OTHERS] {
            assert!(Tenant::parse(name).is_err(), "a tenant may be called {name}");
        }
    }
}
