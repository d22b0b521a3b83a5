//! `make bench`: how long the service takes, each figure beside what cannot be avoided, from the same run.
//!
//! A figure alone says how busy the machine was. So the floor of each is measured in the same
//! loop, turn by turn: an empty HTTP round trip through the same server (`GET /healthz`), and a bare fork and exec of
//! the same program on the host.
#![allow(clippy::print_stdout, clippy::expect_used)]

mod client;
mod images;
mod measure;

use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use client::{Service, Work};
use it::daemon::Options;
use measure::{HEAD, Row, Times};

/// Turns of the quick measurements, and of those that open a session.
const QUICK: usize = 200;
const OPENS: usize = 30;
/// Turns that are not counted.
const WARM: usize = 5;
/// `/run` of `true` is to take at most so many times fork+exec and an empty round trip together.
const RUN_FACTOR: f64 = 3.0;
/// Open → first output is to take less than this, in milliseconds.
const OPEN_MS: f64 = 60.0;

fn main() -> ExitCode {
    let full = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [flag] if flag == "--full" => true,
        [flag] if flag == "--images" => return images(),
        _ => {
            eprintln!("usage: bench [--full | --images]");
            return ExitCode::from(2);
        }
    };
    let daemon = Options::new().env("SANDBOXD_MAX_SESSIONS", "40").start();
    let mut service = Service::new(&daemon.client);
    println!("{HEAD}");
    let mut rows = opening(&mut service);
    rows.extend(running(&mut service));
    rows.extend(files(&mut service));
    if full {
        rows.extend(more(&mut service));
        rows.push(client::together(&daemon.client));
    }
    rows.iter().for_each(|row| println!("{}", row.line()));
    println!("\nload average {}", load());
    println!("{}", closing(&rows));
    ExitCode::SUCCESS
}

/// What is measured of images alone: it takes a minute.
fn images() -> ExitCode {
    println!("{HEAD}");
    let rows = images::pull();
    rows.iter().for_each(|row| println!("{}", row.line()));
    println!("\nload average {}", load());
    let [copy, unpack, both, ours] = [0, 1, 2, 3].map(|row| rows[row].times.median());
    println!(
        "bench: 200 MB pulled and unpacked in {ours:.0} ms; skopeo copy {copy:.0} ms, umoci unpack {unpack:.0} ms: {:.2} x both",
        ours / both
    );
    ExitCode::SUCCESS
}

/// A fork, an exec of `true` on the host, and the wait for it.
fn fork_exec() {
    let mut command = Command::new("/bin/true");
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("run /bin/true");
}

fn opening(service: &mut Service) -> Vec<Row> {
    let [mut trip, mut fork, mut open, mut first, mut both, mut close] = Times::several();
    for turn in 0..OPENS + WARM {
        if turn == WARM {
            [trip, fork, open, first, both, close] = Times::several();
        }
        trip.take(|| service.health());
        fork.take(fork_exec);
        let begun = Instant::now();
        let work = open.take(|| service.open());
        first.take(|| service.run(&work, &["echo", "ready"], "ready\n"));
        both.push(begun.elapsed());
        close.take(|| service.purge(&work));
    }
    let floor = fork.median() + 2.0 * trip.median();
    vec![
        Row::new("open a session", open),
        Row::new("first `/run` in it (`echo`)", first),
        Row::new("open → first output", both).over(floor, "fork+exec, 2 round trips").below(OPEN_MS),
        Row::new("close with purge", close),
    ]
}

fn running(service: &mut Service) -> Vec<Row> {
    let work = service.open();
    let [mut trip, mut fork, mut run] = Times::several();
    for turn in 0..QUICK + WARM {
        if turn == WARM {
            [trip, fork, run] = Times::several();
        }
        trip.take(|| service.health());
        fork.take(fork_exec);
        run.take(|| service.run(&work, &["true"], ""));
    }
    service.purge(&work);
    let floor = trip.median() + fork.median();
    vec![
        Row::new("empty HTTP round trip (`/healthz`)", trip),
        Row::new("fork+exec of `true` on the host", fork),
        Row::new("`/run` of `true`", run).over(floor, "fork+exec, round trip").at_most_times(RUN_FACTOR),
    ]
}

fn files(service: &mut Service) -> Vec<Row> {
    let work = service.open();
    let [mut trip, mut write, mut read] = Times::several();
    let content = vec![b'x'; 1024];
    for turn in 0..QUICK + WARM {
        if turn == WARM {
            [trip, write, read] = Times::several();
        }
        trip.take(|| service.health());
        write.take(|| service.write(&work, "/workspace/f/1k", &content));
        let seen = read.take(|| service.file(&work, "read", "/workspace/f/1k"));
        assert_eq!(seen, content);
    }
    service.purge(&work);
    let floor = trip.median();
    vec![
        Row::new("write a file of 1 KB", write).over(floor, "round trip"),
        Row::new("read a file of 1 KB", read).over(floor, "round trip"),
    ]
}

/// What else a client does often.
fn more(service: &mut Service) -> Vec<Row> {
    let work = service.open();
    let large = vec![b'x'; 300 * 1024];
    let mut rows = Vec::new();
    let mut time = |name: &str, turns: usize, service: &mut Service, act: &dyn Fn(&mut Service, &Work)| {
        let mut times = Times::default();
        (0..WARM).for_each(|_| act(service, &work));
        (0..turns).for_each(|_| times.take(|| act(service, &work)));
        rows.push(Row::new(name, times));
    };
    time("`/run` of `sh -c 'echo hi'`", QUICK, service, &|s, w| s.run(w, &["sh", "-c", "echo hi"], "hi\n"));
    time("`/run` of `python3 -c 'print(1)'`", 60, service, &|s, w| s.run(w, &["python3", "-c", "print(1)"], "1\n"));
    time("write a file of 300 KB", QUICK, service, &|s, w| s.write(w, "/workspace/f/300k", &large));
    time("read a file of 300 KB", QUICK, service, &|s, w| {
        assert_eq!(s.file(w, "read", "/workspace/f/300k").len(), large.len())
    });
    for i in 0..20 {
        service.write(&work, &format!("/workspace/d/{i}"), b"x");
    }
    time("list a directory of 20", QUICK, service, &|s, w| drop(s.file(w, "list", "/workspace/d")));
    time("stat", QUICK, service, &|s, w| drop(s.file(w, "stat", "/workspace/d/0")));
    time("realpath", QUICK, service, &|s, w| drop(s.file(w, "realpath", "/workspace/d/0")));
    let bulk = ["sh", "-c", "head -c 900000 /dev/zero | base64"];
    time("1.2 MB of output from one command", 40, service, &|s, w| assert!(s.output(w, &bulk).len() > 1_200_000));
    time("a background child holds the stream", 40, service, &|s, w| {
        s.run(w, &["sh", "-c", "sleep 1 & echo hi"], "hi\n")
    });
    service.purge(&work);
    rows
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// The one line at the end.
fn closing(rows: &[Row]) -> String {
    let median = |name: &str| rows.iter().find(|row| row.name == name).map_or(0.0, |row| row.times.median());
    let ratio = rows.iter().find(|row| row.name == "`/run` of `true`").and_then(Row::ratio).unwrap_or_default();
    let goals: Vec<bool> = rows.iter().filter_map(|row| row.goal.as_ref()).map(|goal| goal.met).collect();
    let met = goals.iter().filter(|met| **met).count();
    format!(
        "bench: /run of true {:.2} ms ({ratio:.1} x floor), open to first output {:.1} ms, write {:.2} ms, read {:.2} ms; {met} goals met, {} missed",
        median("`/run` of `true`"),
        median("open → first output"),
        median("write a file of 1 KB"),
        median("read a file of 1 KB"),
        goals.len() - met,
    )
}
