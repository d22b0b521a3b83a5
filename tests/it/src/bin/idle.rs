//! `make idle`: what launcher and service cost while no session is open, over a whole minute, and how soon they serve.
//!
//! `idle [SECONDS]`. Ends with 1 if a bound is broken. Wakings are counted by `strace` on every thread of both: whoever is
//! woken and sleeps again enters a call that waits. At the end each is woken on purpose, and that must be seen.
#![allow(clippy::print_stdout, clippy::expect_used)] // a program for tests: it may stop

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use it::daemon::wait_for;
use it::host::{numbers, proportional_memory};
use it::launcher::connect_silently;
use it::pair::{Pair, SERVICE, Which};
use rustix::process::{Pid, Signal, kill_process, setpriority_process};
use serde_json::json;

/// Most wakings of both together: one in so many seconds.
const SECONDS_FOR_ONE: u64 = 10;
/// Most memory of both together, in KiB.
const MEMORY: u64 = 25 * 1024;
/// Longest start, until requests are answered.
const START: Duration = Duration::from_millis(100);
/// Sessions that are known at that start.
const KNOWN: usize = 100;
/// How often it is tried, and at most as long as none was soon enough.
const STARTS: usize = 10;
const MOST_STARTS: usize = 80;
/// What is behind the last answer, and what attaching itself wakes, has so long to end.
const SETTLING: Duration = Duration::from_secs(5);
/// What wakes on purpose is to be seen within.
const SOON: Duration = Duration::from_secs(20);
/// Calls in which a thread sleeps until something happens.
const WAITS: &str = "epoll_wait,epoll_pwait,epoll_pwait2,poll,ppoll,select,pselect6,futex,nanosleep,clock_nanosleep,\
                     accept,accept4,recvmsg,recvfrom,waitid,wait4,rt_sigtimedwait,flock";

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).map_or(Ok(60), |text| text.parse::<u64>());
    let Ok(seconds) = seconds else {
        eprintln!("usage: idle [SECONDS]");
        return ExitCode::from(2);
    };
    let mut pair = Pair::start(&[
        ("SANDBOXD_MAX_SESSIONS", "2"),
        ("SANDBOXD_MAX_OPEN_SESSIONS", "100"),
        ("SANDBOXD_EVICT_IDLE_AFTER", "0"),
        ("SANDBOXD_IDLE_TIMEOUT", "0"),
    ]);
    // One that was opened and closed leaves nothing behind that ticks or is large.
    pair.client.post("/sessions", json!({"runtime": "base", "session_id": "short"})).expect(200);
    pair.client.delete("/sessions/short?purge=true").expect(204);
    sleep(SETTLING);
    let wakings = watch(&pair, Duration::from_secs(seconds));
    let memory = [Which::Service, Which::Launcher].map(|which| proportional_memory(pair.pid(which)));
    println!("memory (PSS): the service {} KiB, the launcher {} KiB", memory[0], memory[1]);
    let memory = memory[0] + memory[1];
    let start = start(&mut pair);
    println!(
        "idle: {wakings} wakings in {seconds} s, {:.1} MiB, ready in {} ms with {KNOWN} sessions",
        memory as f64 / 1024.0,
        start.as_millis()
    );
    let broken = [
        (wakings > seconds / SECONDS_FOR_ONE, format!("more than {} wakings", seconds / SECONDS_FOR_ONE)),
        (memory >= MEMORY, format!("{} MiB or more", MEMORY / 1024)),
        (start >= START, format!("ready only after {} ms or more", START.as_millis())),
    ];
    let broken: Vec<String> = broken.into_iter().filter_map(|(is, what)| is.then_some(what)).collect();
    if !broken.is_empty() {
        eprintln!("idle: broken: {}", broken.join("; "));
    }
    ExitCode::from(u8::from(!broken.is_empty()))
}

/// `strace` on every thread of both.
struct Trace {
    strace: Child,
    file: PathBuf,
}

impl Trace {
    fn attach(pids: [u32; 2], file: PathBuf) -> Self {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-C", "-ttt", "-o"]).arg(&file);
        strace.args(pids.map(|pid| format!("--attach={pid}")));
        let strace = strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let trace = Self { strace: strace.expect("strace; tests/prepare test installs it"), file };
        let traced = |pid: &u32| numbers(&format!("/proc/{pid}/task")).iter().all(|thread| is_traced(*pid, *thread));
        let attached = wait_for(SOON, || pids.iter().all(traced).then_some(()));
        assert!(attached.is_some(), "strace is not attached: it needs root, and ptrace");
        trace
    }

    /// Lines of calls that wait, each with the time of its entry and the thread.
    fn waits(&self) -> Vec<(f64, String)> {
        let text = fs::read_to_string(&self.file).expect("what strace has written");
        let waits: Vec<&str> = WAITS.split(',').collect();
        let parsed = text.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (_thread, at, call) = (fields.next()?.parse::<u32>().ok()?, fields.next()?, fields.next()?);
            let name = call.split_once('(')?.0;
            waits.contains(&name).then_some((at.parse().ok()?, line.to_owned()))
        });
        parsed.collect()
    }

    fn since(&self, time: f64) -> Vec<(f64, String)> {
        self.waits().into_iter().filter(|(at, _)| *at >= time).collect()
    }

    /// Detach; what strace says in the end, calls by their number.
    fn detach(mut self) -> String {
        let pid = Pid::from_raw(self.strace.id().cast_signed()).expect("a process");
        kill_process(pid, Signal::INT).expect("end strace");
        self.strace.wait().expect("strace ends");
        let text = fs::read_to_string(&self.file).expect("what strace has written");
        text.find("% time").map_or(String::new(), |at| text[at..].to_owned())
    }
}

/// Wakings of both for so long. Only what both were woken by on purpose is seen after it.
fn watch(pair: &Pair, time: Duration) -> u64 {
    let pids = [pair.pid(Which::Service), pair.pid(Which::Launcher)];
    let trace = Trace::attach(pids, pair.state.join("strace"));
    sleep(SETTLING);
    let begin = now();
    sleep(time);
    let seen = trace.since(begin);
    for (_, line) in &seen {
        println!("woken: {line}");
    }
    let end = now();
    pair.client.get("/healthz").expect(200);
    expect_waking(&trace, pids[0], end);
    connect_silently(&pair.state.join("run/launch.sock"), SERVICE);
    expect_waking(&trace, pids[1], end);
    println!("{}", trace.detach());
    seen.len() as u64
}

/// The measurement sees a waking of this process when there is one.
fn expect_waking(trace: &Trace, pid: u32, since: f64) {
    let threads = numbers(&format!("/proc/{pid}/task"));
    let is_of =
        |line: &str| line.split(' ').next().and_then(|id| id.parse().ok()).is_some_and(|id| threads.contains(&id));
    let seen = wait_for(SOON, || trace.since(since).iter().any(|(_, line)| is_of(line)).then_some(()));
    assert!(seen.is_some(), "process {pid} was woken on purpose, and strace did not see it");
}

/// From the start until requests are answered, with sessions that are known: the best of some, at the highest priority, so that
/// it is the program that is measured and not what else the machine does.
fn start(pair: &mut Pair) -> Duration {
    for number in 0..KNOWN {
        pair.client.post("/sessions", json!({"runtime": "base", "session_id": format!("known-{number}")})).expect(200);
    }
    // Where that is not allowed it is measured as it is.
    let launcher = Pid::from_raw(pair.pid(Which::Launcher).cast_signed());
    for process in [None, launcher] {
        let _ = setpriority_process(process, -20);
    }
    let mut starts: Vec<Duration> = Vec::new();
    while starts.len() < STARTS || (starts.len() < MOST_STARTS && starts.iter().all(|took| *took >= START)) {
        pair.kill(Which::Service);
        starts.push(pair.start_service(None));
        assert_eq!(pair.open_sessions().len(), KNOWN, "every session is known");
    }
    starts.sort();
    let (best, median, count) = (starts[0], starts[starts.len() / 2], starts.len());
    println!("starts: best {} ms, median {} ms, of {count}", best.as_millis(), median.as_millis());
    best
}

fn is_traced(pid: u32, thread: u32) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(format!("{pid}/task/{thread}/status"))).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_none_or(|tracer| tracer.trim() != "0")
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs_f64()
}
