//! Using up what others need: a neighbour session and the API are measured meanwhile.
//!
//! Storms that only a cgroup controller bounds (processes, memory, processor) run where the host has it, and are
//! left out where it has not: a test must not take its machine down.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use it::http::{Connection, Endpoint};
use it::{Outcome, Session};
use serde_json::json;

use crate::ground::{Ground, inside, run};
use crate::report::{Control, Report, Row};

/// How long each measurement takes.
const MEASURE: Duration = Duration::from_millis(1500);
/// What a busy machine adds by itself to the slowest of a hundred, beside twice the time without a storm, in milliseconds:
/// another number for machines that are slower (`PROBES_NOISE_MS`).
const NOISE: u64 = 250;
/// How often what holds the others up is tried: the machine may have been somebody else's meanwhile, once.
const TIMES: usize = 3;
/// How long after its end is asked for a command may still be seen: two seconds of grace, and what a busy machine adds.
const ENDS_WITHIN: Duration = Duration::from_secs(15);
/// How long a file that nobody writes any more stays as it is, to be believed.
const QUIET: Duration = Duration::from_secs(1);
/// Output that the flood makes, in MiB, and what the service may need for it.
const FLOOD: &str = "512";
const FLOOD_MEMORY: u64 = 64;

/// The slowest of a hundred answers.
#[derive(Debug, Clone, Copy)]
struct Slowest {
    api: Duration,
    run: Duration,
}

impl Slowest {
    fn text(self) -> String {
        format!("p99 {:.0} and {:.0} ms", self.api.as_secs_f64() * 1e3, self.run.as_secs_f64() * 1e3)
    }

    fn bears(self, storm: Self) -> bool {
        let noise = std::env::var("PROBES_NOISE_MS").ok().and_then(|text| text.parse().ok()).unwrap_or(NOISE);
        let noise = Duration::from_millis(noise);
        storm.api <= self.api * 2 + noise && storm.run <= self.run * 2 + noise
    }
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get((times.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(Duration::MAX)
}

/// Ask the API and run a command of the neighbour's in turns.
fn measure(ground: &Ground, neighbour: &Session, length: Duration) -> Slowest {
    let (mut api, mut commands) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    while begun.elapsed() < length || api.len() < 20 {
        let at = Instant::now();
        let _ = ground.daemon.client.get("/healthz").expect(200);
        api.push(at.elapsed());
        let at = Instant::now();
        run(neighbour, &["identity"]).expect_code(0);
        commands.push(at.elapsed());
    }
    Slowest { api: p99(api), run: p99(commands) }
}

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    let controllers = controllers();
    report.class("denial of service: bounded by the sandbox itself");
    let neighbour = ground.session("user");
    for (what, arguments, expected) in [
        ("descriptors", ["storm", "descriptors", "2", ""].as_slice(), "EMFILE"),
        ("3,000 zombies", &["storm", "zombies", "3000", "2"], "DONE"),
        ("filling /tmp", &["storm", "fill", "/tmp", "256"], "ENOSPC"),
        ("filling /dev/shm", &["storm", "fill", "/dev/shm", "256"], "ENOSPC"),
        ("inodes of /tmp", &["storm", "inodes", "/tmp", "200000"], "ENOSPC"),
    ] {
        let arguments: Vec<&str> = arguments.iter().copied().filter(|argument| !argument.is_empty()).collect();
        storm(ground, report, &neighbour, what, &arguments, expected);
    }
    flood(ground, report, &neighbour);
    unread(ground, report, &neighbour);
    signals(ground, report);
    outliving(ground, report);
    report.class("denial of service: bounded by controllers");
    for (what, arguments, controller, expected) in [
        ("a fork bomb", ["storm", "forks", "20000", "2"], "pids", "EAGAIN"),
        ("50,000 zombies", ["storm", "zombies", "50000", "2"], "pids", "EAGAIN"),
        ("memory by pages", ["storm", "memory", "8192", ""], "memory", ""),
        ("memory by files of /dev/shm and /tmp", ["storm", "fill", "/dev/shm", "8192"], "memory", ""),
        ("a storm of the processor", ["storm", "processor", "64", "4"], "cpu", "DONE"),
    ] {
        if controllers.iter().any(|name| name == controller) {
            let arguments: Vec<&str> = arguments.into_iter().filter(|argument| !argument.is_empty()).collect();
            storm(ground, report, &neighbour, what, &arguments, expected);
        } else {
            let control = Control::LeftOut(format!("needs the VM: no {controller} controller here"));
            row(report, what, "the others are served", "not tried", true, control);
        }
    }
    for what in ["filling the workspace", "inodes of the workspace"] {
        quota(ground, report, &neighbour, what);
    }
}

fn row(report: &mut Report, probe: &str, expected: &str, got: &str, held: bool, control: Control) {
    let (probe, expected, got) = (probe.to_owned(), expected.to_owned(), got.to_owned());
    report.add(&Row { probe, expected, got, held, control });
}

/// The controllers of the unified hierarchy.
fn controllers() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
    let path = Path::new(mount.unwrap_or("/sys/fs/cgroup")).join("cgroup.controllers");
    fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// What came of a storm, and how the others were served before and meanwhile.
struct Weather {
    got: String,
    bounded: bool,
    control: Control,
    calm: Slowest,
    busy: Slowest,
}

/// Raise a storm until the others are served meanwhile, a few times at most. One that is not bounded is not raised again.
fn endure(report: &mut Report, what: &str, expected: &str, mut raise: impl FnMut() -> Weather) {
    let mut seen = raise();
    for _ in 1..TIMES {
        if !seen.bounded || seen.calm.bears(seen.busy) {
            break;
        }
        println!("({what}: once more, after {}, {} before)", seen.busy.text(), seen.calm.text());
        seen = raise();
    }
    let held = seen.bounded && seen.calm.bears(seen.busy);
    row(report, what, expected, &format!("{}, {}", seen.got, seen.busy.text()), held, seen.control);
}

/// Run it in a session of its own, measure meanwhile, and see that the session is well afterwards.
fn storm(ground: &Ground, report: &mut Report, neighbour: &Session, what: &str, arguments: &[&str], expected: &str) {
    endure(report, what, "bounded; the others are served", || raise(ground, neighbour, arguments, expected));
}

fn raise(ground: &Ground, neighbour: &Session, arguments: &[&str], expected: &str) -> Weather {
    let session = ground.session("user");
    let calm = measure(ground, neighbour, MEASURE);
    let (outcome, busy) = beside(ground, neighbour, || run(&session, arguments));
    let said =
        outcome.body["stdout"].as_str().unwrap_or_default().trim().rsplit('\t').next().unwrap_or_default().to_owned();
    let ended = outcome.code().is_none_or(|code| code != 0);
    let bounded = if expected.is_empty() { ended || !said.starts_with("DONE") } else { said.starts_with(expected) };
    let well = run(&session, &["identity"]).code() == Some(0);
    let got = if said.is_empty() { outcome.body["exit_code"].to_string() } else { said };
    let control = Control::of(outcome.took > Duration::from_millis(5), format!("before {}", calm.text()));
    Weather { got, bounded: bounded && well, control, calm, busy }
}

/// Do something in a thread and measure until it is over.
fn beside<T: Send>(ground: &Ground, neighbour: &Session, act: impl FnOnce() -> T + Send) -> (T, Slowest) {
    std::thread::scope(|scope| {
        let acting = scope.spawn(act);
        let mut slowest = measure(ground, neighbour, MEASURE);
        while !acting.is_finished() {
            let more = measure(ground, neighbour, MEASURE);
            slowest = Slowest { api: slowest.api.max(more.api), run: slowest.run.max(more.run) };
        }
        (acting.join().expect("the storm ends"), slowest)
    })
}

/// The most memory that the service has ever had, in MiB.
fn peak(ground: &Ground) -> u64 {
    let kib = |pid| it::host::status(pid, "VmHWM").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    it::host::children(ground.daemon.pid).into_iter().filter_map(kib).max().unwrap_or(0) >> 10
}

fn flood(ground: &Ground, report: &mut Report, neighbour: &Session) {
    let session = ground.session("user");
    endure(report, "512 MiB of output", "limited, < 64 MiB of memory", || {
        let calm = measure(ground, neighbour, MEASURE);
        let before = peak(ground);
        let (outcome, busy): (Outcome, Slowest) =
            beside(ground, neighbour, || run(&session, &["storm", "flood", FLOOD]));
        let grown = peak(ground).saturating_sub(before);
        let limited = outcome.body["output_limited"] == json!(true);
        let got = format!("limited: {limited}, {grown} MiB of memory");
        let control = Control::of(limited, format!("before {}", calm.text()));
        Weather { got, bounded: limited && grown < FLOOD_MEMORY, control, calm, busy }
    });
}

/// A client asks for output as it comes, and reads none of it.
fn unread(ground: &Ground, report: &mut Report, neighbour: &Session) {
    endure(report, "output that nobody reads", "< 64 MiB of memory", || {
        let session = ground.session("user");
        let calm = measure(ground, neighbour, MEASURE);
        let before = peak(ground);
        let mut stream = ask_for_flood(ground, &session);
        let busy = measure(ground, neighbour, MEASURE * 2);
        let grown = peak(ground).saturating_sub(before);
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
        let mut first = [0; 4096];
        let begun = stream.read(&mut first).unwrap_or(0) > 0;
        drop(stream);
        let well = run(&session, &["identity"]).code() == Some(0);
        let got = format!("{grown} MiB of memory, session {}", if well { "well" } else { "gone" });
        let control = Control::of(begun, format!("it flows; before {}", calm.text()));
        Weather { got, bounded: grown < FLOOD_MEMORY && well, control, calm, busy }
    });
}

/// A connection on which a command's output has been asked for, as it comes.
fn ask_for_flood(ground: &Ground, session: &Session) -> TcpStream {
    let Endpoint::Tcp(address) = ground.daemon.client.endpoint else { panic!("the client is over TCP") };
    let mut stream = TcpStream::connect(address).expect("connect");
    let body = json!({"argv": ["/probe", "storm", "flood", FLOOD], "run_id": it::session::run_id()}).to_string();
    let head = session.client.head("POST", &session.path("/run"), Some("application/json"), body.len());
    let head =
        String::from_utf8_lossy(&head).replace("Host: sandboxd\r\n", "Host: sandboxd\r\nAccept: text/event-stream\r\n");
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("ask");
    stream
}

fn signals(ground: &Ground, report: &mut Report) {
    for who in crate::ground::WHO {
        let session = ground.session(who);
        let victim = session.path("/run");
        let client = session.client.clone();
        let background = std::thread::spawn(move || {
            let body = json!({"argv": ["/probe", "storm", "descriptors", "30"], "run_id": it::session::run_id(), "timeout_seconds": 20});
            client.post(&victim, body).json()
        });
        std::thread::sleep(Duration::from_millis(500));
        let sent = inside(&session, &["storm", "signals"]);
        let killed = background.join().expect("the victim ends");
        let well = run(&session, &["identity"]).code() == Some(0);
        let works = sent.get("storm").or(sent.get("signals")).is_some() && killed["exit_code"] == json!(137);
        let got = format!("init {}", if well { "well" } else { "gone" });
        row(
            report,
            &format!("every signal at all, and PID 1 ({who})"),
            "the init goes on",
            &got,
            well,
            Control::of(works, "another command was killed by it"),
        );
    }
}

/// A command that leaves its session, its parent and its signals behind is over at its deadline, and when its client goes.
fn outliving(ground: &Ground, report: &mut Report) {
    let session = ground.session("user");
    let argv = ["/probe", "storm", "outlive", "/workspace/alive"];
    let outcome = session.run_with(argv, json!({"timeout_seconds": 2}));
    let timed_out = outcome.body["timed_out"] == json!(true);
    let (ends, first) = is_over(&session, "/workspace/alive");
    let got = format!("timed out: {timed_out} after {:.1} s, {ends}", outcome.took.as_secs_f64());
    let held = timed_out && outcome.took < ENDS_WITHIN && ends == OVER;
    let control = Control::of(first > 10, format!("it lived: {first} bytes"));
    row(report, "outliving the deadline", "all of it ends", &got, held, control);

    let mut connection = Connection::open(&session.client.endpoint).expect("connect");
    let body =
        json!({"argv": ["/probe", "storm", "outlive", "/workspace/left"], "run_id": it::session::run_id()}).to_string();
    let head = session.client.head("POST", &session.path("/run"), Some("application/json"), body.len());
    connection.write(&[head.as_slice(), body.as_bytes()].concat()).expect("ask");
    std::thread::sleep(Duration::from_secs(1));
    drop(connection);
    let (ends, first) = is_over(&session, "/workspace/left");
    let control = Control::of(first > 10, format!("it lived: {first} bytes"));
    row(report, "outliving its client", "all of it ends", ends, ends == OVER, control);
}

const OVER: &str = "over";

/// Whether whoever writes to the file in turns has ended, or does within [`ENDS_WITHIN`]; and how large it was at first.
fn is_over(session: &Session, path: &str) -> (&'static str, u64) {
    let size = || session.file("stat", path).json()["size"].as_u64().unwrap_or(0);
    let first = size();
    let stays = || {
        let before = size();
        std::thread::sleep(QUIET);
        (size() == before).then_some(OVER)
    };
    (it::daemon::wait_for(ENDS_WITHIN, stays).unwrap_or("it goes on"), first)
}

/// Where the state's file system has project quotas they bound what a session writes.
fn quota(ground: &Ground, report: &mut Report, neighbour: &Session, what: &str) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = |line: &&str| {
        line.contains("prjquota") && ground.daemon.state.starts_with(line.split(' ').nth(4).unwrap_or("?"))
    };
    if mounts.lines().find(device).is_none() {
        let control = Control::LeftOut("needs the VM: no project quotas on this file system".to_owned());
        return row(report, what, "ENOSPC or EDQUOT", "not tried", true, control);
    }
    let arguments = if what.starts_with("inodes") {
        ["storm", "inodes", "/workspace", "2000000"]
    } else {
        ["storm", "fill", "/workspace", "20000"]
    };
    storm(ground, report, neighbour, what, &arguments, "E");
}
