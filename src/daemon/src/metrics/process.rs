//! The process itself, under the names that every Prometheus client gives it.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Kind, Text};

/// Clock ticks of /proc a second, on every architecture that Linux has users on.
const TICKS: f64 = 100.0;

/// When this process began, Unix seconds, as near as [`begin`] was called.
static BEGAN: LazyLock<f64> =
    LazyLock::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));

/// Note when the process began.
pub fn begin() {
    LazyLock::force(&BEGAN);
}

/// Write what the process uses.
pub fn write(text: &mut Text) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    text.single("process_start_time_seconds", Kind::Gauge, "When the service began, Unix seconds.", *BEGAN);
    text.single("process_cpu_seconds_total", Kind::Counter, "CPU time of the service.", cpu(&stat));
    text.single("process_resident_memory_bytes", Kind::Gauge, "Memory of the service.", resident(&status));
    text.single("process_open_fds", Kind::Gauge, "Descriptors that the service has open.", files);
}

/// User and system time of `/proc/PID/stat`, the 14th and 15th field; a name before them may hold anything.
fn cpu(stat: &str) -> f64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS
}

fn resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let stat = "7 (a) b 1 2) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 9 0 100 5 6";
        assert!((cpu(stat) - 2.0).abs() < 1e-9);
        assert_eq!(resident("Name:\tx\nVmRSS:\t   2048 kB\n"), 2 << 20);
    }
}
