//! The ceilings in force for one runtime, and what they are in cgroup's terms.

use wire::launch::Limits;

use super::policy::Policy;
use crate::catalog::{RuntimeLimits, Size};

/// Length of a period of `cpu.max`, microseconds.
const PERIOD_US: f64 = 100_000.0;

/// Least memory that the launcher takes for a ceiling, in bytes.
const MIN_MEMORY: u64 = 64 << 10;
/// Most processes that Linux has, on 64 bits.
const MAX_PIDS: u64 = 4_194_304;

/// What a sandbox may use at most: the runtime's own value, else the service's. Absent: no ceiling.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ceilings {
    /// Memory.
    pub mem_limit: Option<Size>,
    /// Memory and swap together; absent: no swap.
    pub memswap_limit: Option<Size>,
    /// CPUs.
    pub cpus: Option<f64>,
    /// CPU weight as `docker run --cpu-shares` has it.
    pub cpu_shares: Option<u64>,
    /// Processes.
    pub pids_limit: Option<u64>,
    /// I/O weight.
    pub io_weight: Option<u64>,
    /// Open files of one process.
    pub open_files: Option<u64>,
    /// Size of `/tmp`; absent: it is on the write layer.
    pub tmpfs_size: Option<Size>,
}

impl Ceilings {
    /// Those in force for the runtime called `alias`.
    #[must_use]
    pub fn of(alias: &str, policy: &Policy) -> Self {
        let none = RuntimeLimits::default();
        let own = policy.runtimes.get(alias).unwrap_or(&none);
        let all = &policy.limits;
        Self {
            mem_limit: own.mem_limit.clone().or_else(|| all.mem_limit.clone()),
            memswap_limit: own.memswap_limit.clone().or_else(|| all.memswap_limit.clone()),
            cpus: own.cpus.or(all.cpus),
            cpu_shares: own.cpu_shares.or(all.cpu_shares),
            pids_limit: own.pids_limit.or(all.pids_limit),
            io_weight: own.io_weight.or(all.io_weight),
            open_files: own.open_files.or(all.open_files),
            tmpfs_size: own.tmpfs_size.clone().or_else(|| all.tmpfs_size.clone()),
        }
    }

    /// As the launcher wants them.
    #[must_use]
    pub fn limits(&self) -> Limits {
        // Below that no command starts at all, and the launcher says no.
        let memory_bytes = self.mem_limit.as_ref().map(|size| size.bytes().max(MIN_MEMORY));
        let both = self.memswap_limit.as_ref().map(Size::bytes);
        Limits {
            memory_bytes,
            // No swap unless asked for; with a runtime's own memory above the service's sum: none either.
            swap_bytes: memory_bytes.map(|memory| both.map_or(0, |both| both.saturating_sub(memory))),
            cpu_quota_us: self.cpus.map(quota),
            cpu_weight: self.cpu_shares.map(weight),
            // A ceiling above the kernel's own (PID_MAX_LIMIT) is that one.
            pids: self.pids_limit.map(|pids| pids.min(MAX_PIDS)),
            cpus: self.cpus.map(visible),
            io_weight: self.io_weight,
            files: self.open_files,
            ..Limits::default()
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 < cpus ≤ 1024, checked where it is read
fn quota(cpus: f64) -> u64 {
    // The kernel's least quota is 1 ms.
    ((cpus * PERIOD_US).round() as u64).max(1000)
}

/// CPUs that programs are to see: so many that they can use up the quota.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // as above
fn visible(cpus: f64) -> u32 {
    (cpus.ceil() as u32).max(1)
}

/// cgroup v1 shares (2 to 262144) as a v2 weight (1 to 10000), as the OCI runtimes convert them.
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9_999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_cannot_have_is_the_nearest_that_it_can() {
        let limits =
            Ceilings { pids_limit: Some(u64::MAX), mem_limit: Size::parse("1").ok(), ..Ceilings::default() }.limits();
        assert_eq!((limits.pids, limits.memory_bytes), (Some(MAX_PIDS), Some(MIN_MEMORY)));
    }

    #[test]
    fn shares_span_the_weights() {
        assert_eq!((weight(2), weight(262_144), weight(1024)), (1, 10_000, 39));
    }

    #[test]
    fn half_a_cpu_more_shows_one_more() {
        assert_eq!([0.1, 1.0, 1.5, 2.0].map(visible), [1, 1, 2, 2]);
    }

    #[test]
    fn swap_is_none_unless_asked_for() {
        let size = |text| Some(Size::parse(text).unwrap());
        let mut ceilings = Ceilings {
            mem_limit: size("1g"),
            memswap_limit: None,
            cpus: Some(1.5),
            cpu_shares: None,
            pids_limit: Some(9),
            io_weight: None,
            open_files: None,
            tmpfs_size: None,
        };
        let limits = ceilings.limits();
        assert_eq!(
            (limits.memory_bytes, limits.swap_bytes, limits.cpu_quota_us),
            (Some(1 << 30), Some(0), Some(150_000))
        );
        ceilings.memswap_limit = size("3g");
        assert_eq!(ceilings.limits().swap_bytes, Some(2 << 30));
        ceilings.memswap_limit = size("1m");
        assert_eq!(ceilings.limits().swap_bytes, Some(0));
        ceilings.mem_limit = None;
        assert_eq!(ceilings.limits().swap_bytes, None);
    }
}
