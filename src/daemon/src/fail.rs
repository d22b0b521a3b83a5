//! Fail points: places where the chaos tests kill the service.
//!
//! `SANDBOXD_FAIL=NAME` kills this process, as `kill -9` would, when it passes the point of that name for the first
//! time; `NAME=COUNT` at the COUNTth pass; `list` prints the names. Without the variable, a point is one load of a flag.
//! A name says what has just been done.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The variable.
pub const VARIABLE: &str = "SANDBOXD_FAIL";

/// Every point, in the order in which a session's life passes them.
pub const NAMES: &[&str] = &[
    "open.admitted",
    "open.prepared",
    "open.recorded",
    "start.listening",
    "start.launched",
    "start.ready",
    "open.promised",
    "open.told",
    "run.started",
    "run.exited",
    "write.begun",
    "write.linked",
    "write.committed",
    "op.recorded",
    "freeze.frozen",
    "hibernate.cleared",
    "hibernate.recorded",
    "wake.admitted",
    "wake.launched",
    "wake.promised",
    "close.recorded",
    "close.deleted",
    "close.removed",
    "sweep.begun",
    "sweep.layer",
    "sweep.workspace",
    "build.started",
    "build.ran",
    "build.committed",
    "build.recorded",
    "pull.fetched",
    "pull.unpacked",
    "pull.recorded",
    "import.unpacked",
    "import.recorded",
    "image.forgotten",
    "image.layer_removed",
];

/// What the variable says cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE}: {0:?} is not NAME or NAME=COUNT; SANDBOXD_FAIL=list prints the names")]
pub struct BadAim(String);

struct Aim {
    name: &'static str,
    left: AtomicU32,
}

static ARMED: AtomicBool = AtomicBool::new(false);
static AIM: OnceLock<Aim> = OnceLock::new();

/// Take aim as the environment says; whether that was to print the names, which is done now.
///
/// # Errors
/// [`BadAim`].
pub fn arm() -> Result<bool, BadAim> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(false) };
    if text == "list" {
        println!("{}", NAMES.join("\n"));
        return Ok(true);
    }
    let (name, count) = parse(&text).ok_or_else(|| BadAim(text.clone()))?;
    tracing::warn!(point = name, count, "{VARIABLE} is set: this process will kill itself");
    AIM.get_or_init(|| Aim { name, left: AtomicU32::new(count) });
    ARMED.store(true, Ordering::Release);
    Ok(false)
}

/// Pass the point `name`.
#[inline]
pub fn point(name: &'static str) {
    if ARMED.load(Ordering::Relaxed) {
        pass(name);
    }
}

#[cold]
fn pass(name: &'static str) {
    let Some(aim) = AIM.get().filter(|aim| aim.name == name) else { return };
    if aim.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // Not reached: the signal comes before the call returns.
        std::process::abort();
    }
}

fn parse(text: &str) -> Option<(&'static str, u32)> {
    let (name, count) = text.split_once('=').unwrap_or((text, "1"));
    let name = NAMES.iter().find(|known| **known == name)?;
    let count = count.parse().ok().filter(|count| *count > 0)?;
    Some((name, count))
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
            } else if path.file_name().unwrap() != "fail.rs" {
                let text = std::fs::read_to_string(&path).unwrap();
                let calls = text.split("fail::point(\"").skip(1);
                found.extend(calls.map(|rest| rest.split('"').next().unwrap().to_owned()));
            }
        }
    }

    #[test]
    fn the_list_is_what_the_source_has() {
        let mut found = BTreeSet::new();
        points(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        let listed: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(found, listed);
    }

    #[test]
    fn an_aim_is_a_name_and_a_count() {
        assert_eq!(parse("open.admitted"), Some(("open.admitted", 1)));
        assert_eq!(parse("run.exited=7"), Some(("run.exited", 7)));
        for bad in ["", "run.exite", "run.exited=0", "run.exited=", "run.exited=x"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        point("open.admitted");
    }
}
