//! `sandboxctl doctor`: what the host has and lacks, asked of the service, and looked at without it where there is none.

use std::collections::BTreeMap;

use it::shared;
use serde_json::Value;

use crate::cli::{bare, ctl, finish, go};

/// Everything that a service says of its host.
const SUBJECTS: [&str; 25] = [
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
    "file system",
    "disk",
    "disk quota",
    "subordinate ids",
    "nftables",
    "network",
    "DNS",
    "clock",
    "units",
    "launcher",
    "versions",
    "sandboxctl",
];

fn by_subject(report: &Value) -> BTreeMap<String, Value> {
    let findings = report["findings"].as_array().unwrap_or_else(|| panic!("{report}"));
    findings.iter().map(|finding| (finding["subject"].as_str().unwrap().to_owned(), finding.clone())).collect()
}

/// The findings as a program reads them, with the exit status that goes with the worst of them.
#[track_caller]
fn checked(report: &Value, code: i32) -> BTreeMap<String, Value> {
    let findings = by_subject(report);
    for finding in findings.values() {
        assert_eq!(finding["mend"].is_string(), finding["level"] != "ok", "{finding}");
    }
    let worst = |level: &str| findings.values().any(|finding| finding["level"] == level);
    let status = if worst("error") { 2 } else { i32::from(worst("warning")) };
    assert_eq!(code, status, "{report}");
    findings
}

#[test]
fn everything_is_looked_at_and_what_is_lacking_has_its_mend() {
    let done = go("doctor --json");
    let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let findings = checked(&report, done.code);
    for subject in SUBJECTS {
        assert!(findings.contains_key(subject), "{subject} is not looked at: {report}");
    }
    // What is so wherever these tests run.
    for subject in ["kernel", "kernel features", "user namespaces", "launcher", "versions", "sandboxctl", "file system"]
    {
        assert_eq!(findings[subject]["level"], "ok", "{}", findings[subject]);
    }
    let version = env!("CARGO_PKG_VERSION");
    let versions = findings["versions"]["message"].as_str().unwrap();
    assert_eq!(versions, format!("service {version}, launcher {version}"));
    assert!(
        findings["delegation"]["message"].as_str().unwrap().contains("/sandboxd-dev-"),
        "{}",
        findings["delegation"]
    );
    let text = go("doctor");
    assert_eq!(text.code, done.code);
    let shown = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(SUBJECTS.iter().all(|subject| shown.contains(subject)), "{shown}");
    assert_eq!(shown.contains("\n           "), done.code != 0, "mends stand under what they mend: {shown}");
}

#[test]
fn a_service_that_is_away_is_an_error_and_the_host_is_looked_at_all_the_same() {
    for address in ["--socket /nonexistent/sandboxd.sock", "--url http://127.0.0.1:9"] {
        let mut command = bare();
        command.args(address.split(' ')).args(["doctor", "--json"]);
        let done = finish(command);
        let report: Value = serde_json::from_str(&done.expect(2)).unwrap();
        let findings = checked(&report, 2);
        assert_eq!(findings["service"]["level"], "error");
        assert!(findings["service"]["message"].as_str().unwrap().contains("connect to"), "{}", findings["service"]);
        for subject in ["kernel", "cgroup memory", "subordinate ids", "clock", "DNS", "units", "disk"] {
            assert!(findings.contains_key(subject), "{subject} is not looked at: {report}");
        }
        assert_eq!(findings["kernel"]["level"], "ok");
    }
}

#[test]
fn a_service_that_refuses_says_nothing_of_its_host() {
    let mut command = ctl(shared(), &["doctor", "--json"]);
    command.env("SANDBOXD_TOKEN", "wrong");
    let report: Value = serde_json::from_str(&finish(command).expect(2)).unwrap();
    let findings = checked(&report, 2);
    assert_eq!(findings.len(), 1, "{report}");
    assert!(findings["service"]["mend"].as_str().unwrap().contains("token"), "{report}");
}
