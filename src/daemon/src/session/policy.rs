//! What may change while the service runs: ceilings and lifetimes, as one value that is replaced whole.
//!
//! Two ways lead here, `PUT /policy` and the overrides file, through one function. What a runtime *is*, and
//! whether it is isolated, is not here: that is the operator's, and a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use wire::api::{PolicyUpdate, RuntimeLimitsUpdate};

use crate::catalog::{Runtime, RuntimeLimits, Size};
use crate::config::Settings;

/// Ceilings and lifetimes in force. Durations are seconds; absent: off, no ceiling.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// What a request that names no runtime gets.
    pub default_runtime: String,
    /// Sandboxes resident or starting.
    pub max_sessions: Option<u64>,
    /// Sessions resident and asleep.
    pub max_open_sessions: Option<u64>,
    /// Sessions of one tenant.
    pub max_sessions_per_tenant: Option<u64>,
    /// After how long idle a session may be hibernated for a newcomer.
    pub evict_idle_after: Option<u64>,
    /// After how long idle a session is closed; 0: never.
    pub idle_timeout: u64,
    /// Longest command.
    pub execute_timeout: u64,
    /// Largest file that is served, bytes.
    pub max_read_bytes: u64,
    /// How long an unopened workspace is kept.
    pub workspace_ttl: Option<u64>,
    /// How long a stopped sandbox's write layer is kept.
    pub container_ttl: Option<u64>,
    /// Default ceilings of a sandbox.
    pub limits: RuntimeLimits,
    /// Ceilings of single runtimes, by alias: what the catalogue says, changed.
    pub runtimes: BTreeMap<String, RuntimeLimits>,
}

/// An update asks for something that is not there to be changed. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such alias on the allowlist.
    #[error("Unknown runtime {alias:?}; allowed: {allowed}")]
    UnknownRuntime {
        /// What was named.
        alias: String,
        /// What may be, sorted.
        allowed: String,
    },
    /// A field holds something that it may not.
    #[error("{field}: {reason}")]
    Field {
        /// Its name, dotted below `runtimes`.
        field: String,
        /// What is allowed.
        reason: String,
    },
}

impl Policy {
    /// What the settings say at the start.
    #[must_use]
    pub fn new(settings: &Settings, default_runtime: String, runtimes: &[Arc<Runtime>]) -> Self {
        Self {
            default_runtime,
            max_sessions: settings.max_sessions,
            max_open_sessions: settings.max_open_sessions,
            max_sessions_per_tenant: settings.max_sessions_per_tenant,
            evict_idle_after: settings.evict_idle_after,
            idle_timeout: settings.idle_timeout,
            execute_timeout: settings.execute_timeout,
            max_read_bytes: settings.max_read_bytes,
            workspace_ttl: settings.workspace_ttl,
            container_ttl: settings.container_ttl,
            limits: RuntimeLimits {
                mem_limit: settings.mem_limit.clone(),
                memswap_limit: settings.memswap_limit.clone(),
                cpus: settings.cpus,
                cpu_shares: settings.cpu_shares,
                pids_limit: settings.pids_limit,
                io_weight: settings.io_weight,
                open_files: settings.open_files,
                tmpfs_size: settings.tmpfs_size.clone(),
            },
            runtimes: runtimes.iter().map(|runtime| (runtime.alias.clone(), runtime.limits.clone())).collect(),
        }
    }

    /// This policy with an update applied: whole, or not at all.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn updated(&self, update: &PolicyUpdate) -> Result<Self, PolicyError> {
        let mut next = self.clone();
        if let Some(alias) = &update.default_runtime {
            let alias = alias.as_deref().unwrap_or_default();
            self.known(alias)?;
            next.default_runtime = alias.to_owned();
        }
        replace(&mut next.max_sessions, update.max_sessions);
        replace(&mut next.max_open_sessions, update.max_open_sessions);
        replace(&mut next.max_sessions_per_tenant, update.max_sessions_per_tenant);
        replace(&mut next.evict_idle_after, update.evict_idle_after);
        replace(&mut next.workspace_ttl, update.workspace_ttl);
        replace(&mut next.container_ttl, update.container_ttl);
        required("idle_timeout", &mut next.idle_timeout, update.idle_timeout, 0)?;
        required("execute_timeout", &mut next.execute_timeout, update.execute_timeout, 1)?;
        required("max_read_bytes", &mut next.max_read_bytes, update.max_read_bytes, 1)?;
        let defaults = RuntimeLimitsUpdate {
            mem_limit: update.mem_limit.clone(),
            memswap_limit: update.memswap_limit.clone(),
            cpus: update.cpus,
            cpu_shares: update.cpu_shares,
            pids_limit: update.pids_limit,
            io_weight: update.io_weight,
            open_files: update.open_files,
            tmpfs_size: update.tmpfs_size.clone(),
        };
        limits("", &mut next.limits, &defaults)?;
        for (alias, update) in update.runtimes.iter().flatten().flatten() {
            self.known(alias)?;
            let own = next.runtimes.entry(alias.clone()).or_default();
            limits(&format!("runtimes.{alias}."), own, update)?;
        }
        Ok(next)
    }

    fn known(&self, alias: &str) -> Result<(), PolicyError> {
        if self.runtimes.contains_key(alias) {
            return Ok(());
        }
        let allowed = self.runtimes.keys().cloned().collect::<Vec<_>>().join(", ");
        Err(PolicyError::UnknownRuntime { alias: alias.to_owned(), allowed })
    }
}

fn replace<T>(value: &mut Option<T>, update: Option<Option<T>>) {
    if let Some(update) = update {
        *value = update;
    }
}

fn field(field: &str, reason: impl Into<String>) -> PolicyError {
    PolicyError::Field { field: field.to_owned(), reason: reason.into() }
}

/// A value that cannot be off.
fn required(name: &str, value: &mut u64, update: Option<Option<u64>>, least: u64) -> Result<(), PolicyError> {
    match update {
        None => Ok(()),
        Some(Some(new)) if new >= least => {
            *value = new;
            Ok(())
        }
        Some(Some(_)) => Err(field(name, format!("Input should be greater than or equal to {least}"))),
        Some(None) => Err(field(name, "cannot be null")),
    }
}

fn size(name: &str, value: &mut Option<Size>, update: Option<&Option<String>>) -> Result<(), PolicyError> {
    match update {
        None => {}
        Some(None) => *value = None,
        Some(Some(text)) => *value = Some(Size::parse(text).map_err(|error| field(name, error.to_string()))?),
    }
    Ok(())
}

fn limits(prefix: &str, value: &mut RuntimeLimits, update: &RuntimeLimitsUpdate) -> Result<(), PolicyError> {
    let name = |field: &str| format!("{prefix}{field}");
    size(&name("mem_limit"), &mut value.mem_limit, update.mem_limit.as_ref())?;
    size(&name("memswap_limit"), &mut value.memswap_limit, update.memswap_limit.as_ref())?;
    size(&name("tmpfs_size"), &mut value.tmpfs_size, update.tmpfs_size.as_ref())?;
    if let Some(Some(cpus)) = update.cpus
        && !(cpus > 0.0 && cpus <= 1024.0)
    {
        return Err(field(&name("cpus"), "Input should be greater than 0 and at most 1024"));
    }
    for (key, number) in [("cpu_shares", update.cpu_shares), ("pids_limit", update.pids_limit)] {
        if number == Some(Some(0)) {
            return Err(field(&name(key), "Input should be greater than 0"));
        }
    }
    for (key, number, least, most) in
        [("io_weight", update.io_weight, 1, 10_000), ("open_files", update.open_files, 64, 1_048_576)]
    {
        if number.flatten().is_some_and(|number| !(least..=most).contains(&number)) {
            return Err(field(&name(key), format!("Input should be {least} to {most}")));
        }
    }
    replace(&mut value.io_weight, update.io_weight);
    replace(&mut value.open_files, update.open_files);
    replace(&mut value.cpus, update.cpus);
    replace(&mut value.cpu_shares, update.cpu_shares);
    replace(&mut value.pids_limit, update.pids_limit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy {
            default_runtime: "a".into(),
            max_sessions: Some(20),
            max_open_sessions: None,
            max_sessions_per_tenant: None,
            evict_idle_after: None,
            idle_timeout: 1800,
            execute_timeout: 300,
            max_read_bytes: 1024,
            workspace_ttl: None,
            container_ttl: None,
            limits: RuntimeLimits { tmpfs_size: Size::parse("64m").ok(), ..RuntimeLimits::default() },
            runtimes: BTreeMap::from([("a".into(), RuntimeLimits::default()), ("b".into(), RuntimeLimits::default())]),
        }
    }

    fn update(json: &str) -> Result<Policy, PolicyError> {
        policy().updated(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn absent_leaves_alone_and_null_clears() {
        assert_eq!(update("{}").unwrap(), policy());
        let next =
            update(r#"{"max_sessions": null, "evict_idle_after": 0, "tmpfs_size": null, "mem_limit": "2g"}"#).unwrap();
        assert_eq!((next.max_sessions, next.evict_idle_after, next.limits.tmpfs_size), (None, Some(0), None));
        assert_eq!(next.limits.mem_limit.unwrap().bytes(), 2 << 30);
        let next = update(r#"{"runtimes": {"b": {"pids_limit": 9, "cpus": 0.5}}, "default_runtime": "b"}"#).unwrap();
        assert_eq!((next.runtimes["b"].pids_limit, next.runtimes["b"].cpus), (Some(9), Some(0.5)));
        assert_eq!(next.default_runtime, "b");
    }

    #[test]
    fn what_is_refused_is_named_and_changes_nothing() {
        for (json, name) in [
            (r#"{"execute_timeout": 0}"#, "execute_timeout"),
            (r#"{"execute_timeout": null}"#, "execute_timeout"),
            (r#"{"cpus": 0}"#, "cpus"),
            (r#"{"pids_limit": 0}"#, "pids_limit"),
            (r#"{"io_weight": 0}"#, "io_weight"),
            (r#"{"runtimes": {"a": {"open_files": 63}}}"#, "runtimes.a.open_files"),
            (r#"{"runtimes": {"a": {"tmpfs_size": "x"}}}"#, "runtimes.a.tmpfs_size"),
            (r#"{"mem_limit": "much"}"#, "mem_limit"),
            (r#"{"runtimes": {"a": {"mem_limit": "much"}}}"#, "runtimes.a.mem_limit"),
            (r#"{"runtimes": {"c": {}}}"#, "\"c\""),
            (r#"{"default_runtime": "c"}"#, "\"c\""),
            (r#"{"default_runtime": null}"#, "allowed: a, b"),
        ] {
            assert!(update(json).unwrap_err().to_string().contains(name), "{json}");
        }
        for json in [r#"{"network_mode": "none"}"#, r#"{"runtimes": {"a": {"image": "x"}}}"#, r#"{"max_sessions": -1}"#]
        {
            assert!(serde_json::from_str::<PolicyUpdate>(json).is_err(), "{json}");
        }
    }
}
