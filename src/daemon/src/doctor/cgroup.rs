//! cgroup v2, each controller, and whether sandboxes get them.

use std::path::Path;

use wire::api::{Finding, Level};

use super::{Host, Known, fine, mended};
use crate::config::{LimitsMode, Settings};
use crate::runtime::About;

/// Controllers, what each is for, and whether a sandbox does not start without it.
const CONTROLLERS: [(&str, &str, bool); 5] = [
    ("memory", "limits of memory", true),
    ("cpu", "limits of CPU time", true),
    ("pids", "limits of processes", true),
    ("cpuset", "CPUs of its own for each sandbox, which nproc then tells", false),
    ("io", "shares of the disk's time (io_weight)", false),
];
const BOOT: &str = "boot with systemd.unified_cgroup_hierarchy=1, so that cgroup2 has this controller";

/// What is found.
pub fn findings(host: &Host, settings: &Settings, known: &Known) -> Vec<Finding> {
    let mut findings = vec![mount(host.cgroup2())];
    let has = |name: &str| host.controllers().iter().any(|controller| controller == name);
    findings.extend(
        CONTROLLERS
            .iter()
            .map(|(name, purpose, needed)| controller(name, purpose, has(name), missing(name, *needed, settings))),
    );
    findings.push(delegation(host.controllers(), &known.launcher, known.serves, settings.limits));
    findings
}

fn mount(cgroup2: Option<&Path>) -> Finding {
    match cgroup2 {
        Some(path) => fine("cgroup v2", &format!("mounted at {}", path.display())),
        None => mended("cgroup v2", Level::Error, "is not mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"),
    }
}

/// How bad it is that a controller is missing.
fn missing(name: &str, needed: bool, settings: &Settings) -> Level {
    match (needed, settings.limits) {
        (true, LimitsMode::Enforce) => Level::Error,
        (true, LimitsMode::BestEffort) => Level::Warning,
        (false, _) if name == "io" && settings.io_weight.is_none() => Level::Ok,
        (false, _) => Level::Warning,
    }
}

fn controller(name: &str, purpose: &str, is_there: bool, missing: Level) -> Finding {
    let subject = format!("cgroup {name}");
    match (is_there, missing) {
        (true, _) => fine(&subject, &format!("is there: {purpose}")),
        (false, Level::Ok) => fine(&subject, &format!("is not there, and nothing asks for it: {purpose}")),
        (false, level) => mended(&subject, level, &format!("is not there: no {purpose}"), BOOT),
    }
}

/// Whether what the host has is given on to where sandboxes are.
fn delegation(host: &[String], launcher: &Result<About, String>, serves: bool, limits: LimitsMode) -> Finding {
    let about = match launcher {
        Ok(about) => about,
        Err(why) if !serves => return fine("delegation", &format!("not known: the launcher was not asked; {why}")),
        Err(why) => {
            let message = format!("not known: the launcher does not say ({why})");
            return mended("delegation", Level::Warning, &message, "start sandboxd-launch");
        }
    };
    let place = about.cgroup.display();
    let given = |name: &str| about.controllers.iter().any(|controller| controller == name);
    let kept: Vec<&str> = CONTROLLERS
        .iter()
        .map(|(name, ..)| *name)
        .filter(|name| host.iter().any(|controller| controller == name) && !given(name))
        .collect();
    if kept.is_empty() {
        let what = if about.controllers.is_empty() { "nothing".to_owned() } else { about.controllers.join(", ") };
        return fine("delegation", &format!("sandboxes have {what}, all that there is, in {place}"));
    }
    let needed = kept.iter().any(|kept| CONTROLLERS.iter().any(|(name, _, needed)| name == kept && *needed));
    let level = if needed && limits == LimitsMode::Enforce { Level::Error } else { Level::Warning };
    let message = format!("sandboxes do not have {} in {place}", kept.join(", "));
    mended(
        "delegation",
        level,
        &message,
        "start sandboxd-sessions.service, which delegates them (Delegate=), and then sandboxd-launch; by hand, write +NAME into cgroup.subtree_control of the directories above",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(controllers: &[&str]) -> Result<About, String> {
        Ok(About {
            version: "1".into(),
            id_base: 0,
            slots: 1,
            cgroup: "/sys/fs/cgroup/x".into(),
            controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
        })
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_missing_mount_is_an_error() {
        assert_eq!(mount(None).level, Level::Error);
        assert_eq!(mount(Some(Path::new("/sys/fs/cgroup"))).level, Level::Ok);
    }

    #[test]
    fn a_missing_controller_is_as_bad_as_what_needs_it() {
        assert_eq!(controller("memory", "p", true, Level::Error).level, Level::Ok);
        for level in [Level::Warning, Level::Error] {
            let finding = controller("memory", "p", false, level);
            assert!(finding.level == level && finding.mend.is_some(), "{finding:?}");
        }
        assert!(controller("io", "p", false, Level::Ok).message.contains("nothing asks for it"));
    }

    #[test]
    fn what_the_host_has_and_sandboxes_have_not_is_not_delegated() {
        let all = names(&["memory", "cpu", "pids", "cpuset", "io"]);
        let level = |host: &[String], launcher, limits| delegation(host, &launcher, true, limits).level;
        assert_eq!(level(&all, about(&["memory", "cpu", "pids", "cpuset", "io"]), LimitsMode::Enforce), Level::Ok);
        assert_eq!(level(&all, about(&["cpu", "pids", "cpuset", "io"]), LimitsMode::Enforce), Level::Error);
        assert_eq!(level(&all, about(&["cpu", "pids", "cpuset", "io"]), LimitsMode::BestEffort), Level::Warning);
        assert_eq!(level(&all, about(&["memory", "cpu", "pids"]), LimitsMode::Enforce), Level::Warning);
        assert_eq!(level(&[], about(&[]), LimitsMode::BestEffort), Level::Ok);
        assert_eq!(level(&all, Err("away".into()), LimitsMode::Enforce), Level::Warning);
        assert_eq!(delegation(&all, &Err("not asked".into()), false, LimitsMode::Enforce).level, Level::Ok);
    }
}
