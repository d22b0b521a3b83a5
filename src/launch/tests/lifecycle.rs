//! A sandbox from start to removal, and that nothing of it is left.
mod common;

use common::{Launcher, ParseId, SLEEP, plan};
use wire::launch::{Answer, Request};

#[test]
fn a_sandbox_starts_is_listed_and_stops() {
    let launcher = Launcher::start(SLEEP, "");
    let base = launcher.base();
    let answer = launcher.start_sandbox(&plan("one", 1, &[base]));
    let Answer::Started { cgroup, phases } = answer else { panic!("{answer:?}") };
    assert_eq!(cgroup, launcher.cgroup_of("one").to_str().unwrap());
    for phase in &phases {
        println!("{:>20} {:>6} us", phase.name, phase.us);
    }
    let Answer::Sandboxes { sandboxes } = launcher.ask(&Request::List, &[]) else { panic!() };
    assert_eq!(sandboxes.len(), 1);
    assert_eq!(sandboxes[0].id, "one".parse_id());
    launcher.stop("one");
    assert!(!launcher.cgroup_of("one").exists());
}
