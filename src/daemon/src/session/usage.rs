//! What a sandbox uses, from its cgroup's files: two readings make a rate, and nobody waits for the second.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use wire::api::SessionUsage;
use wire::init::{Met, Status};

/// Reads one cgroup. Its files are the kernel's own: nothing in the sandbox can name or replace them.
#[derive(Debug)]
pub struct Meter {
    cgroup: PathBuf,
    last: Mutex<Option<(Instant, u64)>>,
    /// Microseconds of CPU that were told of.
    told: AtomicU64,
}

impl Meter {
    /// The meter of this cgroup directory.
    #[must_use]
    pub fn new(cgroup: PathBuf) -> Self {
        let meter = Self { cgroup, last: Mutex::new(None), told: AtomicU64::new(0) };
        let first = meter.cpu_us().map(|cpu| (Instant::now(), cpu));
        *meter.last.lock().unwrap_or_else(PoisonError::into_inner) = first;
        meter
    }

    /// What is used now. What this host's kernel does not account is null.
    #[must_use]
    pub fn read(&self) -> SessionUsage {
        let commands = self.cgroup.join("commands");
        SessionUsage {
            memory_bytes: self.memory_bytes(),
            memory_limit_bytes: number(&commands.join("memory.max")),
            cpu_percent: self.cpu_percent(),
            pids: number(&self.cgroup.join("pids.current")).or_else(|| count(&self.cgroup, 4)),
            network: None,
        }
    }

    /// Memory in use, in bytes; none where the kernel does not account it.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        number(&self.cgroup.join("memory.current"))
    }

    /// CPU time since this was last asked, in microseconds.
    #[must_use]
    pub fn spent_us(&self) -> u64 {
        let now = self.cpu_us().unwrap_or(0);
        now.saturating_sub(self.told.fetch_max(now, Ordering::Relaxed))
    }

    /// The limit that made a command fail, in words, if one did: as the kernel has it now.
    #[must_use]
    pub fn limit_met(&self, status: Status, met: Met) -> Option<String> {
        if met.memory {
            // A limit that was never reached has killed nobody.
            let reached = counted(&self.cgroup.join("commands/memory.events"), "oom ").is_some_and(|times| times > 0);
            let limit = number(&self.cgroup.join("commands/memory.max")).filter(|_| reached);
            let text =
                limit.map_or_else(|| "memory of the host".into(), |bytes| format!("memory limit {}", size(bytes)));
            return Some(text);
        }
        // A fork that failed and was put up with is no failure.
        (met.pids && status != Status::Code(0)).then(|| self.process_limit())
    }

    /// The limit of processes, in words.
    #[must_use]
    pub fn process_limit(&self) -> String {
        let limit = number(&self.cgroup.join("commands/pids.max"));
        limit.map_or_else(|| "process limit of the host".into(), |pids| format!("process limit {pids}"))
    }

    /// CPU time per wall time since the last reading, 100 for one whole CPU.
    #[allow(clippy::cast_precision_loss)] // microseconds of CPU fit 53 bits for 285 years
    fn cpu_percent(&self) -> Option<f64> {
        let (now, cpu) = (Instant::now(), self.cpu_us()?);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (then, before) = last.replace((now, cpu))?;
        let wall = now.duration_since(then).as_micros() as f64;
        (wall > 0.0).then(|| (cpu.saturating_sub(before) as f64 / wall * 1000.0).round() / 10.0)
    }

    fn cpu_us(&self) -> Option<u64> {
        counted(&self.cgroup.join("cpu.stat"), "usage_usec ")
    }
}

/// Bytes in the largest unit that they are whole in.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}

fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number after `key` at the beginning of a line.
fn counted(file: &Path, key: &str) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
}

/// Processes in a cgroup and those below it, where the kernel does not count them.
fn count(cgroup: &Path, depth: u32) -> Option<u64> {
    let own = std::fs::read_to_string(cgroup.join("cgroup.procs")).ok()?.lines().count();
    let mut total = u64::try_from(own).ok()?;
    if depth > 0 {
        for entry in std::fs::read_dir(cgroup).ok()?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                total += count(&entry.path(), depth - 1).unwrap_or(0);
            }
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_as_the_kernel_has_it() {
        let cgroup = tempfile::tempdir().unwrap();
        let meter = Meter::new(cgroup.path().to_owned());
        let met = |memory, pids| Met { memory, pids };
        let killed = Status::Signal(9);
        assert_eq!(meter.limit_met(killed, met(true, false)).unwrap(), "memory of the host");
        std::fs::create_dir(cgroup.path().join("commands")).unwrap();
        std::fs::write(cgroup.path().join("commands/memory.max"), "67108864\n").unwrap();
        std::fs::write(cgroup.path().join("commands/pids.max"), "64\n").unwrap();
        std::fs::write(cgroup.path().join("commands/memory.events"), "max 9\noom 0\noom_kill 1\n").unwrap();
        assert_eq!(meter.limit_met(killed, met(true, false)).unwrap(), "memory of the host");
        std::fs::write(cgroup.path().join("commands/memory.events"), "max 9\noom 1\noom_kill 1\n").unwrap();
        assert_eq!(meter.limit_met(killed, met(true, true)).unwrap(), "memory limit 64 MiB");
        assert_eq!(meter.limit_met(Status::Code(2), met(false, true)).unwrap(), "process limit 64");
        assert_eq!(meter.limit_met(Status::Code(0), met(false, true)), None);
        assert_eq!(meter.limit_met(killed, met(false, false)), None);
    }

    #[test]
    fn time_is_told_once() {
        let cgroup = tempfile::tempdir().unwrap();
        let meter = Meter::new(cgroup.path().to_owned());
        assert_eq!(meter.spent_us(), 0);
        std::fs::write(cgroup.path().join("cpu.stat"), "usage_usec 500\n").unwrap();
        assert_eq!((meter.spent_us(), meter.spent_us()), (500, 0));
        std::fs::write(cgroup.path().join("cpu.stat"), "usage_usec 700\n").unwrap();
        assert_eq!(meter.spent_us(), 200);
    }

    #[test]
    fn sizes_are_in_the_largest_whole_unit() {
        let all = [(0, "0 bytes"), (1000, "1000 bytes"), (1 << 30, "1 GiB"), (1536 << 20, "1536 MiB"), (4096, "4 KiB")];
        for (bytes, text) in all {
            assert_eq!(size(bytes), text);
        }
    }
}
