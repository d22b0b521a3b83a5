//! What a run costs over starting the same program directly. Prints; the bound is only against a mistake.

use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use wire::init::FromInit;

use crate::sandbox::{Sandbox, command};

const ROUNDS: usize = 300;

fn median(mut each: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let before = Instant::now();
            each();
            before.elapsed()
        })
        .collect();
    times.sort();
    times[ROUNDS / 2]
}

#[test]
fn a_run_costs_little_over_a_bare_start() {
    let before = Instant::now();
    let sandbox = Sandbox::new();
    println!("sandbox with its namespaces ready in {:?}", before.elapsed());
    let bare = median(|| {
        let output = Program::new("/usr/bin/true").env_clear().stdin(Stdio::null()).output();
        assert!(output.unwrap().status.success());
    });
    let exited = median(|| {
        let mut run = sandbox.client.run(command(&["/usr/bin/true"]));
        run.read_all();
        assert!(matches!(sandbox.client.message(), FromInit::Exited { .. }));
        assert!(matches!(sandbox.client.message(), FromInit::Emptied { .. }));
    });
    println!("init: {}", sandbox.memory());
    println!("true: bare {bare:?}, run to Emptied {exited:?}");
    assert!(exited < bare + Duration::from_millis(20));
}
