//! What this host has and lacks, for whoever operates it: findings, each with its mend.
//!
//! Every finding is a function of what was read, which its tests give it; the reading is here and
//! in [`sys`]. Nothing here changes anything, and everything is bounded: the slowest, systemd and the resolvers, take
//! seconds at most.

mod cgroup;
mod clock;
mod disk;
mod filter;
mod host;
mod ids;
mod kernel;
mod names;
mod sys;
mod units;
mod versions;

use std::io::Read;
use std::path::{Path, PathBuf};

use wire::api::{DoctorReport, Finding, Level};
use wire::launch::DiskEnforcement;

pub use host::Host;

use crate::config::Settings;
use crate::runtime::About;

/// Largest file that is read, in bytes: nothing that is looked at is longer.
const FILE_MAX: u64 = 1 << 20;
/// Where the launcher's configuration is, where one is installed.
const LAUNCH_FILE: &str = "/etc/sandboxd/launch.toml";

/// What is known already when the doctor comes.
#[derive(Debug, Clone)]
pub struct Known {
    /// Whether a runtime needs a network.
    pub networks: bool,
    /// Who holds sessions to their share of the disk, as far as the launcher has said.
    pub enforcement: Option<DiskEnforcement>,
    /// The launcher, or why it did not say.
    pub launcher: Result<About, String>,
    /// Whether this process is the service, and not somebody who looks in its place.
    pub serves: bool,
}

/// Everything that was found, worst first. Blocks for up to some seconds.
#[must_use]
pub fn report(host: &Host, settings: &Settings, known: &Known) -> DoctorReport {
    let mut findings = vec![host.limits(settings)];
    findings.extend(cgroup::findings(host, settings, known));
    findings.extend(kernel::findings());
    findings.extend(disk::findings(settings, known.enforcement));
    findings.push(ids::look(known.launcher.as_ref().ok(), &file(Path::new(LAUNCH_FILE))));
    findings.push(filter::look(known.networks));
    findings.push(names::look(&settings.dns_upstreams, known.networks));
    findings.push(clock::look(&settings.state_dir));
    findings.extend(units::look());
    findings.extend(versions::findings(settings, known));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    DoctorReport { findings, version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// A file's text; nothing where it is not there, or is no text.
fn file(path: &Path) -> String {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
    if read.is_ok() { text } else { String::new() }
}

/// The first of these paths that is a file.
fn first_of(paths: &[&str]) -> Option<PathBuf> {
    paths.iter().map(PathBuf::from).find(|path| path.is_file())
}

fn fine(subject: &str, message: &str) -> Finding {
    Finding { subject: subject.to_owned(), level: Level::Ok, message: message.to_owned(), mend: None }
}

fn mended(subject: &str, level: Level, message: &str, mend: &str) -> Finding {
    Finding { subject: subject.to_owned(), level, message: message.to_owned(), mend: Some(mend.to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn this_host_is_looked_at_and_everything_that_is_lacking_has_its_mend() {
        let text =
            format!("token = '{}'\nstate_dir = '/tmp'\nlimits = 'best-effort'\n", "a-token-of-a-test-".repeat(2));
        let raw = crate::config::Raw::gather(Path::new("test"), &text, []).unwrap();
        let settings = crate::config::load(&raw).unwrap();
        let known = Known { networks: false, enforcement: None, launcher: Err("nobody answers".into()), serves: false };
        let report = report(&Host::look(), &settings, &known);
        let subjects: BTreeSet<&str> = report.findings.iter().map(|finding| finding.subject.as_str()).collect();
        for subject in [
            "limits",
            "cgroup v2",
            "cgroup memory",
            "cgroup cpu",
            "cgroup pids",
            "cgroup cpuset",
            "cgroup io",
            "delegation",
            "kernel",
            "kernel features",
            "overlay",
            "user namespaces",
            "other namespaces",
            "disk",
            "disk quota",
            "file system",
            "subordinate ids",
            "nftables",
            "DNS",
            "clock",
            "units",
            "launcher",
            "versions",
        ] {
            assert!(subjects.contains(subject), "{subject} is not looked at: {subjects:?}");
        }
        for finding in &report.findings {
            assert_eq!(finding.mend.is_some(), finding.level != Level::Ok, "{finding:?}");
            assert!(!finding.message.contains('\n'), "{finding:?}");
        }
        assert!(report.findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.level)));
    }
}
