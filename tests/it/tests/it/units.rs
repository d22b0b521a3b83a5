//! The units of systemd: what they let the programs do, as `systemd-analyze security` sees it, is what docs/security.md says.

use std::fs;
use std::process::Command;

use it::daemon::repository;

/// The exposure of a unit of this repository, 0 to 10. `None`: no systemd-analyze that reads files (systemd 250 and newer).
fn exposure(unit: &str) -> Option<f32> {
    let file = repository().join("systemd").join(unit);
    let output = Command::new("systemd-analyze").args(["security", "--offline=true", "--no-pager"]).arg(&file).output();
    let text = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
    let line = text.lines().find(|line| line.contains("Overall exposure level"))?;
    line.rsplit(':').next()?.split_whitespace().next()?.parse().ok()
}

#[test]
fn the_exposure_of_each_unit_is_what_the_documentation_says() {
    let documented = fs::read_to_string(repository().join("docs/security.md")).unwrap();
    for (unit, most) in
        [("sandboxd.service", 2.0), ("sandboxd-launch.service", 6.5), ("sandboxd-sessions.service", 3.0)]
    {
        let Some(exposure) = exposure(unit) else {
            return it::skipped("no systemd-analyze of systemd 250 or newer on this machine");
        };
        println!("{unit}: {exposure:.1}");
        assert!(exposure <= most, "{unit}: {exposure:.1}, at most {most:.1}");
        let row = documented.lines().find(|line| line.starts_with(&format!("| `{unit}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/security.md says nothing of {unit}"));
        let said: f32 = row.split('|').nth(2).unwrap().trim().parse().unwrap();
        // Releases of systemd differ in what they count.
        assert!((said - exposure).abs() <= 0.5, "{unit}: {exposure:.1}, docs/security.md says {said:.1}");
    }
}

#[test]
fn a_stop_of_the_service_alone_ends_no_sandbox() {
    let unit = |name: &str| fs::read_to_string(repository().join("systemd").join(name)).unwrap();
    // Sandboxes are in a unit that neither program's unit takes along.
    assert!(unit("launch.toml").contains("sandboxd.slice/sandboxd-sessions.service"));
    for name in ["sandboxd.service", "sandboxd-launch.service"] {
        let text = unit(name);
        assert!(text.contains("PartOf=sandboxd.target"), "{name}");
        for line in text.lines().filter(|line| line.contains("sandboxd-sessions")) {
            let takes_along = ["BindsTo=", "Conflicts=", "PropagatesStopTo="].iter().any(|key| line.starts_with(key));
            assert!(!takes_along, "{name}: {line}");
        }
    }
    assert!(unit("sandboxd-sessions.service").contains("Delegate="));
}
