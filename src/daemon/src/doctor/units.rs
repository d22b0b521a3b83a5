//! The units of systemd and their state, as systemctl tells them to anybody.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wire::api::{Finding, Level};

use super::{fine, mended};

const UNITS: [&str; 6] = [
    "sandboxd.target",
    "sandboxd.socket",
    "sandboxd.service",
    "sandboxd-launch.socket",
    "sandboxd-launch.service",
    "sandboxd-sessions.service",
];
/// How long systemctl may take.
const PATIENCE: Duration = Duration::from_secs(3);
const START: &str = "systemctl enable --now sandboxd.target";
/// So many restarts are no accident any more.
const MANY_RESTARTS: u64 = 5;

/// What is told of a unit.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Unit {
    id: String,
    load: String,
    active: String,
    result: String,
    file: String,
    restarts: u64,
    is_stale: bool,
}

/// Look: one finding if all is well, else one for each unit that is not.
pub fn look() -> Vec<Finding> {
    if !Path::new("/run/systemd/system").exists() {
        return vec![fine("units", "systemd does not run here; the service was started by hand")];
    }
    match ask() {
        Ok(text) => judge(&parse(&text)),
        Err(why) => vec![fine("units", &format!("their state cannot be seen from here: {why}"))],
    }
}

fn ask() -> Result<String, String> {
    let mut command = Command::new("systemctl");
    command.args(["show", "--property=Id,LoadState,ActiveState,Result,UnitFileState,NRestarts,NeedDaemonReload"]);
    command.args(UNITS).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("start systemctl: {error}"))?;
    let begun = Instant::now();
    // Its answer is far shorter than a pipe holds: it need not be read while it runs.
    while child.try_wait().map_err(|error| format!("wait for systemctl: {error}"))?.is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err("systemctl does not answer".to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().map_err(|error| format!("read from systemctl: {error}"))?;
    if !output.status.success() {
        return Err(format!("systemctl ended with {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn parse(text: &str) -> Vec<Unit> {
    let mut units = Vec::new();
    for block in text.split("\n\n") {
        let mut unit = Unit::default();
        for (name, value) in block.lines().filter_map(|line| line.split_once('=')) {
            match name {
                "Id" => value.clone_into(&mut unit.id),
                "LoadState" => value.clone_into(&mut unit.load),
                "ActiveState" => value.clone_into(&mut unit.active),
                "Result" => value.clone_into(&mut unit.result),
                "UnitFileState" => value.clone_into(&mut unit.file),
                "NRestarts" => unit.restarts = value.parse().unwrap_or(0),
                "NeedDaemonReload" => unit.is_stale = value == "yes",
                _ => {}
            }
        }
        if UNITS.contains(&unit.id.as_str()) {
            units.push(unit);
        }
    }
    units
}

fn judge(units: &[Unit]) -> Vec<Finding> {
    if units.iter().all(|unit| unit.load != "loaded") {
        return vec![fine("units", "none is installed; the service was started by hand")];
    }
    if units.iter().all(|unit| unit.active == "inactive") {
        return vec![mended("units", Level::Error, "none of them is started", START)];
    }
    let bad: Vec<Finding> = units.iter().filter_map(|unit| one(unit, units)).collect();
    if bad.is_empty() { vec![fine("units", &format!("{} are as they should be", units.len()))] } else { bad }
}

/// What is wrong with one.
fn one(unit: &Unit, all: &[Unit]) -> Option<Finding> {
    let id = unit.id.as_str();
    let finding = |level, message: String, mend: &str| Some(mended("units", level, &message, mend));
    if unit.load != "loaded" {
        let message = format!("{id} is {}", unit.load.replace('-', " "));
        return finding(Level::Error, message, "install the package again; systemctl unmask what is masked");
    }
    if unit.active == "failed" {
        let mend = format!("journalctl -u {id}, then systemctl reset-failed {id}; {START}");
        return finding(Level::Error, format!("{id} has failed ({})", unit.result), &mend);
    }
    let is_active = |wanted: &str| all.iter().any(|unit| unit.id == wanted && unit.active == "active");
    // What a socket starts when somebody connects need not be there before.
    let waits = id.strip_suffix(".service").is_some_and(|name| is_active(&format!("{name}.socket")));
    if unit.active != "active" && unit.active != "reloading" && !waits {
        let level =
            if id == "sandboxd.target" && is_active("sandboxd.service") { Level::Warning } else { Level::Error };
        return finding(level, format!("{id} is {}", unit.active), START);
    }
    if id == "sandboxd.target" && unit.file == "disabled" {
        return finding(Level::Warning, format!("{id} is not started at boot"), "systemctl enable sandboxd.target");
    }
    if unit.is_stale {
        let message = format!("{id} was changed on disk since systemd read it");
        return finding(Level::Warning, message, "systemctl daemon-reload");
    }
    if unit.restarts > MANY_RESTARTS {
        let message = format!("{id} has ended by itself and been started again {} times", unit.restarts);
        return finding(Level::Warning, message, &format!("journalctl -u {id} says why"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: &str = "NRestarts=0\nResult=success\nId=sandboxd.service\nLoadState=loaded\nActiveState=active\nUnitFileState=indirect\nNeedDaemonReload=no\n";

    fn all() -> Vec<Unit> {
        let text: Vec<String> = UNITS.iter().map(|id| WELL.replace("sandboxd.service", id)).collect();
        parse(&text.join("\n"))
    }

    fn with(id: &str, change: impl Fn(&mut Unit)) -> (Level, String) {
        let mut units = all();
        change(units.iter_mut().find(|unit| unit.id == id).unwrap());
        let findings = judge(&units);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].mend.is_some(), findings[0].level != Level::Ok);
        (findings[0].level, findings[0].message.clone())
    }

    #[test]
    fn what_systemctl_tells_is_read() {
        let units = all();
        assert_eq!(units.len(), UNITS.len());
        let expected = Unit {
            id: "sandboxd.service".into(),
            load: "loaded".into(),
            active: "active".into(),
            result: "success".into(),
            file: "indirect".into(),
            ..Unit::default()
        };
        assert_eq!(units[2], expected);
        assert!(parse("Id=other.service\nLoadState=loaded\n").is_empty());
    }

    #[test]
    fn each_unit_is_well_or_the_finding_says_what_it_is() {
        let set = |field: fn(&mut Unit) -> &mut String, value: &'static str| {
            move |unit: &mut Unit| value.clone_into(field(unit))
        };
        let active = |value| set(|unit| &mut unit.active, value);
        assert_eq!(judge(&all())[0].level, Level::Ok);
        assert_eq!(with("sandboxd-launch.service", active("failed")).0, Level::Error);
        assert_eq!(with("sandboxd.socket", active("inactive")).0, Level::Error);
        assert_eq!(with("sandboxd-sessions.service", active("inactive")).0, Level::Error);
        assert_eq!(with("sandboxd-launch.service", active("inactive")).0, Level::Ok, "its socket starts it");
        assert_eq!(with("sandboxd.service", active("reloading")).0, Level::Ok);
        assert_eq!(with("sandboxd.target", active("inactive")).0, Level::Warning);
        assert_eq!(with("sandboxd.target", set(|unit| &mut unit.file, "disabled")).0, Level::Warning);
        assert_eq!(with("sandboxd-launch.socket", set(|unit| &mut unit.load, "masked")).0, Level::Error);
        assert_eq!(with("sandboxd.service", |unit| unit.is_stale = true).0, Level::Warning);
        assert_eq!(
            with("sandboxd.service", |unit| unit.restarts = 6),
            (Level::Warning, "sandboxd.service has ended by itself and been started again 6 times".into())
        );
    }

    #[test]
    fn a_host_without_our_units_was_started_by_hand() {
        let mut units = all();
        for unit in &mut units {
            "not-found".clone_into(&mut unit.load);
        }
        assert!(judge(&units)[0].message.contains("by hand"));
    }

    #[test]
    fn what_is_stopped_as_a_whole_is_one_finding() {
        let mut units = all();
        for unit in &mut units {
            "inactive".clone_into(&mut unit.active);
        }
        let findings = judge(&units);
        assert!(findings.len() == 1 && findings[0].level == Level::Error, "{findings:?}");
    }
}
