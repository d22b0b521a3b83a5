//! `sandboxctl run`, `stop` and `shell`: output as it comes, statuses, signals, lines.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use it::daemon::{Options, binary, wait_for};
use it::{Session, shared};
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::{Done, ctl, feed, finish, on_terminal};
use crate::cli_context::Home;

/// How long anything here may take that does not wait for anything.
const SOON: Duration = Duration::from_secs(20);

fn run(s: &Session, options: &[&str], argv: &[&str]) -> Command {
    ctl(shared(), &[&["run", &s.id], options, &["--"], argv].concat())
}

fn sh(s: &Session, line: &str) -> Done {
    finish(run(s, &[], &["sh", "-c", line]))
}

/// Start it, and wait for the first line of its output.
fn begin(mut command: Command) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, line)
}

fn kill(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Its exit status, which has to come soon.
#[track_caller]
fn ended(mut child: Child) -> i32 {
    let status = wait_for(SOON, || child.try_wait().unwrap());
    status.unwrap_or_else(|| panic!("it goes on")).code().unwrap()
}

/// Whether a process of the session has this for its arguments.
fn runs(s: &Session, what: &str) -> bool {
    let line = format!(
        "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null | grep -qx '{what} ' && echo yes; done; true"
    );
    s.sh(&line).stdout().contains("yes")
}

#[test]
fn output_comes_while_the_command_runs_and_the_status_is_its_own() {
    let s = shared().session("base");
    let line = "echo first; echo aside >&2; while ! [ -e go ]; do sleep 0.05; done; echo second; exit 7";
    let (child, mut out, first) = begin(run(&s, &[], &["sh", "-c", line]));
    assert_eq!(first, "first\n", "before the command could go on");
    s.sh("touch go").expect("");
    let (mut rest, mut aside) = (String::new(), String::new());
    out.read_to_string(&mut rest).unwrap();
    let mut child = child;
    child.stderr.take().unwrap().read_to_string(&mut aside).unwrap();
    assert_eq!((rest.as_str(), aside.as_str(), ended(child)), ("second\n", "aside\n", 7));
}

#[test]
fn bytes_are_what_the_command_wrote() {
    let s = shared().session("base");
    let all: Vec<u8> = (0..=255u8).cycle().take(3 << 20).collect();
    shared().client.post_bytes(&s.path("/files/write?path=/workspace/all"), &all).expect(204);
    let done = sh(&s, "cat all");
    done.expect(0);
    assert!(done.stdout == all, "{} bytes of {}", done.stdout.len(), all.len());
}

#[test]
fn every_end_has_its_status() {
    let s = shared().session("base");
    sh(&s, "exit 3").expect(3);
    sh(&s, "kill -9 $$").expect(137);
    let late = finish(run(&s, &["--timeout", "0.3"], &["sleep", "60"]));
    assert!(late.expect(124).is_empty() && late.stderr.contains("deadline"), "{late:?}");
    let much = sh(&s, "yes");
    much.expect(125);
    assert!(much.stderr.contains("wrote more than"), "{much:?}");
    let none = finish(run(&s, &[], &["/no/such/program"]));
    none.expect(127);
    let gone = finish(ctl(shared(), &["run", "it-no-such-session", "--", "true"]));
    assert!(gone.expect(66).is_empty(), "{gone:?}");
}

#[test]
fn signals_stop_the_command_with_all_that_it_started() {
    let s = shared().session("base");
    for (signal, status, seconds) in [(Signal::INT, 130, "61"), (Signal::TERM, 143, "62"), (Signal::HUP, 129, "63")] {
        for json in [&[][..], &["--json"]] {
            let line = format!("sleep {seconds} & touch started; echo started; wait");
            let mut command = run(&s, json, &["sh", "-c", &line]);
            s.sh("rm -f started").expect("");
            let child = command.spawn().unwrap();
            wait_for(SOON, || (s.sh("test -e started").code() == Some(0)).then_some(())).expect("it starts");
            wait_for(SOON, || runs(&s, &format!("sleep {seconds}")).then_some(())).expect("it runs");
            kill(&child, signal);
            assert_eq!(ended(child), status);
            assert!(!runs(&s, &format!("sleep {seconds}")), "{signal:?} {json:?}");
        }
    }
}

#[test]
fn whoever_goes_away_stops_the_command() {
    let s = shared().session("base");
    let (child, out, _) = begin(run(&s, &[], &["sh", "-c", "while sleep 0.0765; do echo again; done"]));
    drop(out);
    assert_eq!(ended(child), 141);
    let (mut child, _out, _) = begin(run(&s, &[], &["sh", "-c", "echo; sleep 64"]));
    child.kill().unwrap();
    child.wait().unwrap();
    let is_gone = || (!runs(&s, "sleep 64") && !runs(&s, "sleep 0.0765")).then_some(());
    wait_for(SOON, is_gone).expect("what nobody waits for is stopped");
}

#[test]
fn a_reader_that_stands_still_does_not_keep_an_interrupt_away() {
    let s = shared().session("base");
    // What it writes may fit into all the buffers between here and there, or not: it runs for as long in both cases.
    let line = "yes | head -c 4000000; sleep 65";
    let shell = format!("sh -c {line}");
    let (child, _out, _) = begin(run(&s, &[], &["sh", "-c", line]));
    wait_for(SOON, || runs(&s, &shell).then_some(())).expect("it runs");
    kill(&child, Signal::INT);
    // Its output is not read: the first stops the command, the second does not wait for the output.
    wait_for(SOON, || (!runs(&s, &shell)).then_some(())).expect("it is stopped");
    kill(&child, Signal::INT);
    assert_eq!(ended(child), 130);
    wait_for(SOON, || (!runs(&s, "sleep 65")).then_some(())).expect("it is stopped");
}

#[test]
fn another_client_stops_a_run_by_its_name() {
    let s = shared().session("base");
    let name = "00000000000000000000000000c0ffee";
    let (child, _out, _) = begin(run(&s, &["--run-id", name], &["sh", "-c", "echo; sleep 66"]));
    finish(ctl(shared(), &["stop", &s.id, name])).expect(0);
    assert_eq!(ended(child), 143);
    finish(ctl(shared(), &["stop", &s.id, name])).expect(0);
    wait_for(SOON, || (!runs(&s, "sleep 66")).then_some(())).expect("what it has started is stopped");
}

#[test]
fn json_is_one_document_with_the_command_s_status() {
    let s = shared().session("base");
    let done = finish(run(&s, &["--json"], &["sh", "-c", "echo out; echo err >&2; exit 4"]));
    let answer: serde_json::Value = serde_json::from_str(&done.expect(4)).unwrap();
    assert_eq!(
        (&answer["stdout"], &answer["stderr"], &answer["exit_code"]),
        (&"out\n".into(), &"err\n".into(), &4.into())
    );
    assert!(done.stderr.is_empty(), "{done:?}");
}

#[test]
fn a_shell_carries_directory_and_variables_from_line_to_line() {
    let s = shared().session("base");
    let lines = "mkdir -p 'a b' && cd 'a b'\npwd\n\nexport WHO=\"it's me\"\necho \"$WHO\" \\\n  twice\nfalse\ncd /nowhere\npwd\n";
    let done = feed(ctl(shared(), &["shell", &s.id]), lines.as_bytes());
    assert_eq!(done.expect(0), "/workspace/a b\nit's me twice\n/workspace/a b\n");
    assert!(done.stderr.contains("nowhere") && !done.stderr.contains('$'), "no prompt where nobody types: {done:?}");
    let status = |lines: &str| feed(ctl(shared(), &["shell", &s.id]), lines.as_bytes()).code;
    assert_eq!(
        (status("false"), status("(exit 9)\nexit"), status("true\nexit 5\ntouch never\n"), status("")),
        (1, 9, 5, 0)
    );
    s.sh("test ! -e never && ls -A /tmp").expect("");
    // What the log shows is the line.
    let log = finish(ctl(shared(), &["operations", "--session", &s.id, "-q", "WHO=", "--json"])).json();
    assert!(log["operations"][0]["target"].as_str().unwrap().contains("export WHO="), "{log}");
}

#[test]
fn a_shell_that_is_interrupted_stops_its_line() {
    let s = shared().session("base");
    let mut command = ctl(shared(), &["shell", &s.id]);
    command.stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"sleep 67\n").unwrap();
    wait_for(SOON, || runs(&s, "sleep 67").then_some(())).expect("it starts");
    kill(&child, Signal::INT);
    assert_eq!(ended(child), 130);
    wait_for(SOON, || (!runs(&s, "sleep 67")).then_some(())).expect("its line is stopped");
}

#[test]
fn what_a_shell_carries_outlives_a_sandbox_that_was_put_to_sleep() {
    let clocks = [("SANDBOXD_HIBERNATE_AFTER", "1"), ("SANDBOXD_CLEANUP_INTERVAL", "1"), ("SANDBOXD_PREWARM", "false")];
    let daemon = clocks.iter().fold(Options::new(), |options, (name, value)| options.env(name, value)).start();
    let s = daemon.session("base");
    let mut child = ctl(&daemon, &["shell", &s.id]).stdin(Stdio::piped()).spawn().unwrap();
    let mut keys = child.stdin.take().unwrap();
    keys.write_all(b"cd /usr/bin; export WHO=me\n").unwrap();
    let asleep = || (daemon.client.get(&s.path("")).json()["state"] == "hibernated").then_some(());
    wait_for(SOON, asleep).expect("it goes to sleep");
    keys.write_all(b"echo $WHO; pwd\n").unwrap();
    drop(keys);
    let mut shown = String::new();
    child.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    assert_eq!((shown.as_str(), ended(child)), ("me\n/usr/bin\n", 0));
}

#[test]
fn on_a_terminal_a_shell_prompts_and_keeps_its_history() {
    let s = shared().session("base");
    let home = Home::new("history");
    let line = format!("{} shell {}", binary("sandboxctl").display(), s.id);
    let mut typed = on_terminal(&ctl(shared(), &[]), &line);
    typed.env("HOME", &home.0).stdin(Stdio::piped());
    let mut child = typed.spawn().unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let shown = Arc::new(Mutex::new(String::new()));
    let seen = shown.clone();
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = screen.read(&mut piece) {
            seen.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..count]));
        }
    });
    // What is typed before a prompt is not for the editor: each line waits for its own.
    for (number, line) in ["cd /tmp", "pwd", " echo of no interest", "exit 6"].iter().enumerate() {
        let prompts = || (shown.lock().unwrap().matches("$ ").count() > number).then_some(());
        wait_for(SOON, prompts).unwrap_or_else(|| panic!("no prompt for {line:?}: {}", shown.lock().unwrap()));
        std::thread::sleep(Duration::from_millis(100));
        keys.write_all(format!("{line}\r").as_bytes()).unwrap();
    }
    assert_eq!(ended(child), 6);
    reader.join().unwrap();
    let shown = shown.lock().unwrap().clone();
    assert!(
        shown.contains("Each line is a process of its own") && shown.contains(&format!("{}:/tmp$ ", s.id)),
        "{shown}"
    );
    let history = home.0.join(".local/state/sandboxctl/history");
    let kept = std::fs::read_to_string(&history).unwrap();
    assert!(kept.contains("pwd\n") && !kept.contains("of no interest"), "{kept}");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&history).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}
