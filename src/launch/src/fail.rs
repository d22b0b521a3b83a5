//! Fail points: places where the chaos tests kill the launcher.
//!
//! `SANDBOXD_LAUNCH_FAIL=NAME` kills the launcher, as `kill -9` would, when it or one of its children passes the point of
//! that name for the first time; `list` prints the names. Only the first pass can be meant: each request is carried out in
//! a child of its own, which counts for itself. A name says what has just been done.

use std::sync::OnceLock;

use rustix::process::{Pid, Signal, getpid, kill_process};

/// The variable.
pub const VARIABLE: &str = "SANDBOXD_LAUNCH_FAIL";

/// Every point.
pub const NAMES: &[&str] = &[
    "start.cgroup",
    "start.mounts",
    "start.rootfs",
    "start.built",
    "start.started",
    "stop.stopped",
    "forget.removed",
    "workspace.removed",
    "unpack.unpacked",
    "commit.committed",
];

struct Aim {
    name: &'static str,
    launcher: Pid,
}

static AIM: OnceLock<Aim> = OnceLock::new();

/// Take aim as the environment says; whether that was to print the names, which is done now.
///
/// # Errors
/// The variable names no point.
pub fn arm() -> Result<bool, String> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(false) };
    if text == "list" {
        println!("{}", NAMES.join("\n"));
        return Ok(true);
    }
    let Some(name) = NAMES.iter().find(|name| **name == text) else {
        return Err(format!("{VARIABLE}: {text:?} is no point; {VARIABLE}=list prints the names"));
    };
    eprintln!("sandboxd-launch: {VARIABLE}={name}: this process will kill itself");
    AIM.get_or_init(|| Aim { name, launcher: getpid() });
    Ok(false)
}

/// Pass the point `name`.
#[inline]
pub fn point(name: &'static str) {
    if let Some(aim) = AIM.get() {
        pass(aim, name);
    }
}

#[cold]
fn pass(aim: &Aim, name: &'static str) {
    if aim.name == name {
        for pid in [aim.launcher, getpid()] {
            let _ = kill_process(pid, Signal::KILL);
        }
        // Not reached: the second signal was ours.
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn points(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                points(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let calls = text.split("fail::point(\"").skip(1);
            found.extend(calls.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }

    #[test]
    fn the_list_is_what_the_source_has() {
        let mut found = BTreeSet::new();
        points(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        let listed: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(found.into_iter().filter(|name| name.contains('.')).collect::<BTreeSet<_>>(), listed);
    }
}
