//! Chaos: clients at work that know what was acknowledged to them, and a hand that kills the programs under them.
//!
//! What was answered has to be there afterwards: sessions with their tokens, files with their bytes, operations in the
//! log. What was asked and not answered may have happened or not, so nothing is expected of it, except that nothing of it
//! is left that nobody has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{Client, Response};
use crate::pair::{Pair, Which, attempt, send};
use crate::session::run_id;

/// Clients at work at once.
const CLIENTS: u64 = 8;
/// How long a request is tried again before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a run of kills ended.
#[derive(Debug, Default)]
pub struct Report {
    /// Processes that were killed.
    pub kills: usize,
    /// What was acknowledged and is not there.
    pub lost: Vec<String>,
    /// What is there and is nobody's.
    pub leaked: Vec<String>,
    /// Requests that were acknowledged.
    pub acknowledged: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chaos: {} kills, {} lost, {} leaked", self.kills, self.lost.len(), self.leaked.len())
    }
}

/// Numbers that are random enough, and the same for the same seed (xorshift64*).
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    /// One of `all`.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let index = usize::try_from(self.below(all.len() as u64)).unwrap_or(0);
        &all[index]
    }
}

/// A session that was acknowledged, and what is in it.
#[derive(Debug)]
struct Held {
    id: String,
    token: String,
    files: BTreeMap<String, String>,
    /// Closed with its files kept.
    closed: bool,
}

/// Ends the clients when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One client, and all that it knows.
struct Worker<'a> {
    service: Client,
    number: u64,
    turn: u64,
    dice: Dice,
    stop: &'a AtomicBool,
    held: Option<Held>,
    /// Sessions that were asked for and perhaps opened: nobody wants them.
    abandoned: Vec<String>,
    operations: Vec<String>,
    lost: Vec<String>,
    acknowledged: usize,
}

/// Kill `kills` processes of `pair` under load, and compare afterwards.
#[must_use]
pub fn run(pair: &mut Pair, kills: usize, seed: u64, points: &[Vec<String>; 2]) -> Report {
    let stop = AtomicBool::new(false);
    let workers = std::thread::scope(|scope| {
        let begin = |number| {
            let mut worker = Worker::new(pair.client.clone(), number, seed, &stop);
            scope.spawn(move || {
                while !worker.stop.load(Ordering::Relaxed) {
                    worker.act();
                }
                worker
            })
        };
        let threads: Vec<_> = (0..CLIENTS).map(begin).collect();
        // Also when this thread panics: the scope waits for the clients.
        let end = End(&stop);
        let mut dice = Dice::new(seed);
        for _ in 0..kills {
            kill(pair, &mut dice, points);
        }
        drop(end);
        // What was started last may be armed, and die under what the clients have yet to finish.
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            pair.revive();
            std::thread::sleep(Duration::from_millis(20));
        }
        threads.into_iter().map(|thread| thread.join().expect("a client")).collect::<Vec<_>>()
    });
    // Once more, without anything under way.
    pair.kill(Which::Both);
    pair.revive();
    settle(pair, workers, kills)
}

/// Kill one or both at a random moment or step, and start them again.
fn kill(pair: &mut Pair, dice: &mut Dice, points: &[Vec<String>; 2]) {
    let which = *dice.pick(&[Which::Service, Which::Service, Which::Launcher, Which::Both]);
    std::thread::sleep(Duration::from_millis(50 + dice.below(300)));
    // Half of those that are started again die by themselves at a step.
    let wait = Instant::now() + Duration::from_millis(700);
    let armed = pair.armed;
    while armed && pair.lives(Which::Both) && Instant::now() < wait {
        std::thread::sleep(Duration::from_millis(10));
    }
    if pair.lives(Which::Both) {
        pair.kill(which);
    }
    pair.armed = dice.below(2) == 0;
    let launcher = pair.armed && dice.below(3) == 0;
    if !pair.lives(Which::Launcher) {
        pair.kill(Which::Launcher);
        pair.start_launcher(Some(dice.pick(&points[1])).filter(|_| launcher).map(String::as_str));
    }
    if !pair.lives(Which::Service) {
        pair.kill(Which::Service);
        let point = format!("{}={}", dice.pick(&points[0]), 1 + dice.below(3));
        pair.begin_service(Some(point.as_str()).filter(|_| pair.armed && !launcher));
        // It may die before it answers: that is a kill as well.
        let _ = pair.ready_with_launcher();
    }
}

fn settle(pair: &mut Pair, workers: Vec<Worker<'_>>, kills: usize) -> Report {
    let mut report = Report { kills, ..Report::default() };
    let mut kept = BTreeSet::new();
    let (mut promised, mut abandoned) = (BTreeSet::new(), Vec::new());
    let mut operations = Vec::new();
    for mut worker in workers {
        if let Some(held) = worker.held.take() {
            kept.insert(held.id.clone());
            if !held.closed {
                promised.insert(held.id.clone());
            }
            worker.compare(&held);
        }
        report.acknowledged += worker.acknowledged;
        report.lost.append(&mut worker.lost);
        operations.append(&mut worker.operations);
        abandoned.append(&mut worker.abandoned);
    }
    for id in abandoned {
        // Opened or not: either is right, and it can be removed.
        let answer = pair.client.delete(&format!("/sessions/{id}?purge=true"));
        if !matches!(answer.status, 204 | 404) {
            report.lost.push(format!("DELETE of {id}: {} {}", answer.status, answer.text()));
        }
    }
    let recorded = recorded(&pair.client);
    let missing = operations.into_iter().filter(|target| !recorded.contains(target));
    report.lost.extend(missing.map(|target| format!("operation on {target}")));
    let open = pair.open_sessions();
    report.leaked.extend(open.difference(&kept).map(|id| format!("session {id}")));
    report.lost.extend(promised.difference(&open).map(|id| format!("session {id}")));
    report.leaked.extend(pair.leaks(&kept));
    report
}

/// The targets of every operation in the log.
fn recorded(service: &Client) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    loop {
        let page = service.get(&format!("/operations?limit=500&skip={}", found.len())).expect(200).json();
        let rows = page["operations"].as_array().cloned().unwrap_or_default();
        if rows.is_empty() {
            return found;
        }
        // Targets may repeat; rows do not.
        let before = found.len();
        for (index, row) in rows.iter().enumerate() {
            let target = row["target"].as_str().unwrap_or_default();
            if !found.insert(target.to_owned()) {
                found.insert(format!("{target} again {}", before + index));
            }
        }
    }
}

impl<'a> Worker<'a> {
    fn new(service: Client, number: u64, seed: u64, stop: &'a AtomicBool) -> Self {
        Self {
            service,
            number,
            turn: 0,
            dice: Dice::new(seed ^ (number + 1)),
            stop,
            held: None,
            abandoned: Vec::new(),
            operations: Vec::new(),
            lost: Vec::new(),
            acknowledged: 0,
        }
    }

    fn act(&mut self) {
        self.turn += 1;
        if self.abandoned.len() > 4 {
            self.give_back();
        }
        let Some(held) = self.held.take() else { return self.open() };
        if held.closed {
            return self.reopen(held);
        }
        match self.dice.below(20) {
            0 => self.purge(held),
            1 => self.close(held),
            2..8 => self.write(held),
            8..14 => self.command(held),
            _ => self.read(held),
        }
    }

    /// Ask once; `None` if there was no answer, or one that says "not now".
    fn once(&mut self, client: &Client, method: &str, path: &str, body: &Value) -> Option<Response> {
        let answer = heard(attempt(client, method, path, body));
        self.acknowledged += usize::from(answer.is_some());
        answer
    }

    /// Ask until there is an answer.
    fn until_answered(&mut self, client: &Client, method: &str, path: &str, body: &Value) -> Option<Response> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(answer) = self.once(client, method, path, body) {
                return Some(answer);
            }
        }
        self.lost.push(format!("{method} {path}: no answer within {} s", PATIENCE.as_secs()));
        None
    }

    fn open(&mut self) {
        let id = format!("chaos-{}-{}", self.number, self.turn);
        let body = json!({"session_id": id, "runtime": "base"});
        let service = self.service.clone();
        match self.once(&service, "POST", "/sessions", &body) {
            Some(answer) if answer.status == 200 => {
                let token = answer.json()["token"].as_str().unwrap().to_owned();
                self.held = Some(Held { id, token, files: BTreeMap::new(), closed: false });
            }
            Some(answer) => self.lost.push(format!("open of {id}: {} {}", answer.status, answer.text())),
            None => self.abandoned.push(id),
        }
    }

    /// Remove what was perhaps opened, so that it does not fill the ceilings.
    fn give_back(&mut self) {
        let service = self.service.clone();
        for id in std::mem::take(&mut self.abandoned) {
            let answer = self.until_answered(&service, "DELETE", &format!("/sessions/{id}?purge=true"), &Value::Null);
            if !answer.as_ref().is_some_and(|answer| matches!(answer.status, 204 | 404)) {
                self.lost.push(format!("end of {id}, which was perhaps opened: {answer:?}"));
            }
        }
    }

    fn reopen(&mut self, mut held: Held) {
        let body = json!({"session_id": held.id, "reuse": true, "attach": true});
        let service = self.service.clone();
        let Some(answer) = self.until_answered(&service, "POST", "/sessions", &body) else { return };
        if answer.status == 200 {
            answer.json()["token"].as_str().unwrap().clone_into(&mut held.token);
            held.closed = false;
            self.held = Some(held);
        } else {
            self.lost.push(format!("attach to {}: {} {}", held.id, answer.status, answer.text()));
        }
    }

    /// Its own client.
    fn client(&self, held: &Held) -> Client {
        self.service.with_token(held.token.clone())
    }

    fn write(&mut self, mut held: Held) {
        let (name, content) =
            (format!("w{}-{}", self.number, self.turn), format!("{} {}", held.id, self.dice.below(u64::MAX)));
        let path = format!("/sessions/{}/files/write?path=/workspace/{name}", held.id);
        let content = content.repeat(1 + usize::try_from(self.dice.below(200)).unwrap_or(0));
        match heard(send(&self.client(&held), "POST", &path, Some("application/octet-stream"), content.as_bytes())) {
            Some(answer) if answer.status == 204 => {
                self.acknowledged += 1;
                held.files.insert(name.clone(), content);
                self.operations.push(format!("/workspace/{name}"));
            }
            Some(answer) => self.lost.push(format!("write in {}: {} {}", held.id, answer.status, answer.text())),
            None => {}
        }
        self.held = Some(held);
    }

    fn command(&mut self, mut held: Held) {
        let (name, content) =
            (format!("r{}-{}", self.number, self.turn), format!("{}-{}", held.id, self.dice.below(u64::MAX)));
        let line = format!("printf %s {content} > {name}");
        let body = json!({"argv": ["sh", "-c", line], "run_id": run_id()});
        let client = self.client(&held);
        match self.once(&client, "POST", &format!("/sessions/{}/run", held.id), &body) {
            Some(answer) if answer.status == 200 && answer.json()["exit_code"] == 0 => {
                held.files.insert(name, content);
                self.operations.push(format!("sh -c '{line}'"));
            }
            Some(answer) => self.lost.push(format!("run in {}: {} {}", held.id, answer.status, answer.text())),
            None => {}
        }
        self.held = Some(held);
    }

    fn read(&mut self, held: Held) {
        let names: Vec<String> = held.files.keys().cloned().collect();
        if !names.is_empty() {
            let name = self.dice.pick(&names).clone();
            self.compare_file(&held, &name);
        }
        self.held = Some(held);
    }

    fn close(&mut self, mut held: Held) {
        let path = format!("/sessions/{}", held.id);
        if self.end(&held, &path) {
            held.closed = true;
            self.held = Some(held);
        }
    }

    fn purge(&mut self, held: Held) {
        let path = format!("/sessions/{}?purge=true", held.id);
        self.end(&held, &path);
    }

    fn end(&mut self, held: &Held, path: &str) -> bool {
        let service = self.service.clone();
        // One that was done and not answered is gone the next time.
        let answer = self.until_answered(&service, "DELETE", path, &Value::Null);
        let done = answer.as_ref().is_some_and(|answer| matches!(answer.status, 204 | 404));
        if !done {
            self.lost.push(format!("end of {}: {answer:?}", held.id));
        }
        done
    }

    fn compare_file(&mut self, held: &Held, name: &str) {
        let body = json!({"path": format!("/workspace/{name}")});
        let client = self.client(held);
        let answer = self.until_answered(&client, "POST", &format!("/sessions/{}/files/read", held.id), &body);
        let Some(answer) = answer else { return };
        if answer.status != 200 || held.files.get(name).map(String::as_bytes) != Some(answer.body.as_slice()) {
            self.lost.push(format!("file {}/{name}: {} {}", held.id, answer.status, answer.text()));
        }
    }

    /// At the end: everything that was acknowledged.
    fn compare(&mut self, held: &Held) {
        let names: Vec<String> = held.files.keys().cloned().collect();
        if held.closed {
            for name in names {
                let body = json!({"path": name});
                let answer = self.service.post(&format!("/workspaces/{}/read_bytes", held.id), body);
                if answer.status != 200 {
                    self.lost.push(format!("stored file {}/{name}: {} {}", held.id, answer.status, answer.text()));
                }
            }
            return;
        }
        let info = self.client(held).get(&format!("/sessions/{}", held.id));
        if info.status != 200 {
            self.lost.push(format!("session {}: {} {}", held.id, info.status, info.text()));
        }
        for name in names {
            self.compare_file(held, &name);
        }
    }
}

/// What was answered, unless it says that something is being started again: it is asked again then.
fn heard(answer: io::Result<Response>) -> Option<Response> {
    let Ok(answer) = answer else {
        std::thread::sleep(Duration::from_millis(20));
        return None;
    };
    let again = matches!(answer.status, 502 | 503 | 429) || answer.status == 409;
    if again {
        std::thread::sleep(Duration::from_millis(20));
    }
    (!again).then_some(answer)
}

/// The fail points of the service and of the launcher, as they print them.
#[must_use]
pub fn points() -> [Vec<String>; 2] {
    [("sandboxd", "SANDBOXD_FAIL"), ("sandboxd-launch", "SANDBOXD_LAUNCH_FAIL")].map(|(program, variable)| {
        let output = std::process::Command::new(crate::daemon::binary(program)).env(variable, "list").output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    })
}
