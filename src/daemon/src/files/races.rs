//! A hostile sandbox beside every operation: it swaps components for links that lead out, as fast as it can.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::testing::{Fixture, MAX, SECRET};
use super::{FileError, Why};

/// Rounds of each race, at least, on a machine that has the time.
const ROUNDS: usize = 4_000;
/// How often each side must have won before a race is over.
const WINS: usize = 100;
/// After which time fewer rounds will do, if each side has won: on a machine that has others to serve.
const ENOUGH: Duration = Duration::from_secs(30);
/// Until when each must have.
const PATIENCE: Duration = Duration::from_secs(900);

/// Runs `attack` over and over beside `rounds` rounds of `round` (or as many as there are in [`ENOUGH`]), and further ones until one says that both sides have
/// won; then checks that nothing outside was touched.
fn race(fixture: &Fixture, rounds: usize, attack: impl Fn() + Sync, mut round: impl FnMut() -> bool) {
    let start = Instant::now();
    let work = || {
        let mut done = 0;
        while !(round() && (done >= rounds || start.elapsed() > ENOUGH)) {
            done += 1;
            assert!(start.elapsed() < PATIENCE, "one side has not won in {done} rounds");
        }
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                attack();
            }
        });
        // Also when an assertion in `work` fails: the scope waits for the thread.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    fixture.assert_outside_untouched();
}

/// Exchanges two names of the workspace, if both are there.
fn exchange(fixture: &Fixture, a: &str, b: &str) {
    let _ = renameat_with(CWD, fixture.host(a), CWD, fixture.host(b), RenameFlags::EXCHANGE);
}

/// How often an operation was done, and how often the sandbox won.
#[derive(Default)]
struct Score {
    done: usize,
    left_to_sandbox: usize,
}

impl Score {
    fn count<T>(&mut self, result: Result<T, FileError>) -> Option<T> {
        match result {
            Ok(value) => {
                self.done += 1;
                Some(value)
            }
            // `Outside`: moved out of the directory in which it was found (openat2(2), `EXDEV`).
            Err(FileError::NotNative { why: Why::Link | Why::Changed | Why::Unclear | Why::Outside, .. }) => {
                self.left_to_sandbox += 1;
                None
            }
            Err(FileError::NotFound { .. }) => None,
            Err(error) => panic!("{error:?}"),
        }
    }

    fn both_won(&self) -> bool {
        self.done >= WINS && self.left_to_sandbox >= WINS
    }
}

#[test]
fn a_parent_that_becomes_a_link_is_never_followed() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.host("d")).unwrap();
    std::fs::write(fixture.host("d/secret"), b"inside").unwrap();
    symlink(fixture.outside(""), fixture.host("link")).unwrap();
    let workspace = &fixture.workspace;
    let (mut reads, mut writes, mut others) = (Score::default(), Score::default(), Score::default());
    let round = || {
        if let Some(bytes) = reads.count(workspace.read("/workspace/d/secret", MAX)) {
            assert_eq!(bytes, b"inside");
        }
        writes.count(workspace.write("/workspace/d/secret", b"inside", MAX));
        writes.count(workspace.write("/workspace/d/deep/new", b"inside", MAX));
        if let Some(entry) = others.count(workspace.stat("/workspace/d/secret")) {
            assert_ne!(entry.size, Some(SECRET.len() as u64));
        }
        if let Some(entries) = others.count(workspace.list("/workspace/d")) {
            assert!(entries.iter().all(|entry| entry.size != Some(SECRET.len() as u64)));
        }
        others.count(workspace.mkdir("/workspace/d/x/y"));
        others.count(workspace.realpath("/workspace/d/secret"));
        others.count(workspace.remove("/workspace/d/x"));
        others.count(workspace.read("/workspace/d/../d/secret", MAX));
        others.count(workspace.remove("/workspace/d/secret"));
        reads.both_won() && writes.both_won() && others.both_won()
    };
    race(&fixture, ROUNDS, || exchange(&fixture, "d", "link"), round);
}

#[test]
fn a_target_that_becomes_a_link_is_replaced_or_left_alone() {
    let fixture = Fixture::new();
    let workspace = &fixture.workspace;
    std::fs::write(fixture.host("f"), b"inside").unwrap();
    let attack = || {
        std::fs::write(fixture.host("plain"), b"inside").unwrap();
        std::fs::rename(fixture.host("plain"), fixture.host("f")).unwrap();
        symlink(fixture.outside("secret"), fixture.host("link")).unwrap();
        std::fs::rename(fixture.host("link"), fixture.host("f")).unwrap();
    };
    let (mut reads, mut writes) = (Score::default(), Score::default());
    let round = || {
        writes.count(workspace.write("/workspace/f", b"inside", MAX));
        if let Some(bytes) = reads.count(workspace.read("/workspace/f", MAX)) {
            assert_eq!(bytes, b"inside");
        }
        reads.both_won() && writes.both_won()
    };
    race(&fixture, ROUNDS, attack, round);
}

#[test]
fn a_tree_is_removed_without_what_its_links_lead_to() {
    let fixture = Fixture::new();
    let workspace = &fixture.workspace;
    let mut score = Score::default();
    let attack = || {
        // What was exchanged before is a directory.
        let _ = workspace.remove("/workspace/link");
        let _ = symlink(fixture.outside(""), fixture.host("link"));
        exchange(&fixture, "t/a", "link");
        exchange(&fixture, "t/a/b", "link");
        let _ = std::fs::rename(fixture.host("t/a/b/c"), fixture.host("moved"));
    };
    let round = || {
        for path in ["t/a/b/c/d", "t/a/secret", "t/b", "t/a/b/secret", "link", "moved"] {
            let _ = workspace.write(&format!("/workspace/{path}/secret"), b"inside", MAX);
        }
        score.count(workspace.remove("/workspace/t"));
        let _ = workspace.remove("/workspace/moved");
        score.both_won()
    };
    race(&fixture, ROUNDS / 20, attack, round);
}

#[test]
fn a_file_that_becomes_a_fifo_does_not_hold_the_service_up() {
    let fixture = Fixture::new();
    let workspace = &fixture.workspace;
    std::fs::write(fixture.host("f"), b"inside").unwrap();
    rustix::fs::mkfifoat(CWD, fixture.host("fifo"), rustix::fs::Mode::RWXU).unwrap();
    let mut seen = [0; 2];
    let round = || {
        match workspace.read("/workspace/f", MAX) {
            Ok(bytes) => {
                assert_eq!(bytes, b"inside");
                seen[0] += 1;
            }
            Err(FileError::NotNative { why: Why::Special, .. }) => seen[1] += 1,
            Err(error) => panic!("{error:?}"),
        }
        seen.iter().all(|count| *count >= WINS)
    };
    race(&fixture, ROUNDS, || exchange(&fixture, "f", "fifo"), round);
}
