//! Builds: what fails is named and stops nothing else, what is unchanged is not made again, nothing is fetched twice,
//! nothing is left.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use it::daemon::wait_for;
use it::pair::{Pair, Which};
use it::registry::Directory;
use it::shared;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// How long a build of nothing but small commands may take.
const SOON: Duration = Duration::from_secs(60);

/// A pair with a catalogue of its own and an image store in its state directory, in which the base is.
pub struct Bench {
    pub pair: Pair,
    catalog: PathBuf,
}

/// What a program has done.
pub struct Done {
    pub code: Option<i32>,
    pub said: String,
}

impl Bench {
    fn new(settings: &[(&str, &str)], entries: &Value) -> Self {
        Self::of(&[], settings, entries)
    }

    /// One in whose store the layers of these runtimes of the tests are as well.
    pub fn of(runtimes: &[&str], settings: &[(&str, &str)], entries: &Value) -> Self {
        // The base is in the tests' store from here on.
        let base = shared().client.post("/sessions", json!({"runtime": "base"})).expect(200).json();
        shared()
            .client
            .delete(&format!("/sessions/{}?purge=true", base["session"]["session_id"].as_str().unwrap()))
            .expect(204);
        let mut pair = Pair::prepare(settings, None, None);
        pair.own_images_of(&["recipe/debian-bookworm"], runtimes);
        let catalog = pair.state.join("catalog.json");
        pair.set("SANDBOXD_CATALOG", &catalog.display().to_string());
        pair.set("SANDBOXD_DEFAULT_RUNTIME", "");
        let bench = Self { pair, catalog };
        bench.write(entries);
        bench
    }

    pub fn write(&self, entries: &Value) {
        fs::write(&self.catalog, entries.to_string()).unwrap();
    }

    fn begin_prepare(&self) -> Child {
        let mut command = self.pair.sandboxd();
        command.arg("prepare").stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.spawn().unwrap()
    }

    pub fn prepare(&self) -> Done {
        done(self.begin_prepare())
    }

    pub fn start(&mut self) {
        self.pair.start_launcher(None);
    }

    /// Names of build sandboxes that are there.
    fn builds(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.pair.cgroup).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("build-")).collect()
    }

    fn wait_for_build(&self) {
        assert!(wait_for(SOON, || (!self.builds().is_empty()).then_some(())).is_some(), "{}", self.pair.said());
    }
}

fn done(child: Child) -> Done {
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Done { code: output.status.code(), said: String::from_utf8_lossy(&text).into_owned() }
}

fn entry(alias: &str, commands: &[&str]) -> Value {
    json!({"alias": alias, "base_image": "debian-bookworm", "setup_commands": commands, "needs_network": false})
}

#[test]
fn one_that_fails_is_named_and_the_others_are_ready() {
    let three = json!([
        entry("first", &["echo one > /one"]),
        entry("second", &["echo before", "echo this went wrong; echo 'and \"why\"' >&2; exit 3"]),
        entry("third", &["echo three > /three"]),
    ]);
    let mut bench = Bench::new(&[], &three);
    bench.start();
    let prepared = bench.prepare();
    assert_eq!(prepared.code, Some(1), "{}", prepared.said);
    assert_eq!(prepared.said.lines().last(), Some("prepare: 2 of 3 ready; missing: second"), "{}", prepared.said);
    assert!(
        prepared.said.contains("first: 1 of 2: setup command 1 of 1 (echo one > /one): done in "),
        "{}",
        prepared.said
    );
    assert_eq!(
        prepared.said.matches("second: 2 of 3: setup command 2 of 2").count(),
        4,
        "tried twice: {}",
        prepared.said
    );
    assert!(
        prepared.said.contains("second: NOT READY: ") && prepared.said.contains("and \"why\""),
        "{}",
        prepared.said
    );

    bench.pair.start_service(None);
    let client = &bench.pair.client;
    // Root has made it, not this service; its log is there all the same.
    let log = client.get("/runtimes/first/log").expect(200).text();
    assert!(log.contains("== setup command 1 of 1 (echo one > /one)\n"), "{log}");
    let failed = client.post("/sessions", json!({"runtime": "second"})).expect(502).detail().to_string();
    for part in ["setup command 2 of 2", "exited with status 3", "this went wrong"] {
        assert!(failed.contains(part), "{failed}");
    }
    let log = client.get("/runtimes/second/log").expect(200).text();
    assert!(
        log.contains("== setup command 1 of 2 (echo before)\n")
            || log.contains("== setup command 1 of 2 (echo before): unchanged\n"),
        "{log}"
    );
    assert!(
        log.contains("this went wrong\n") && log.contains("and \"why\"\n") && log.contains("== exited with status 3"),
        "{log}"
    );
    let info = client.get("/runtimes/second").expect(200).json();
    assert_eq!((info["state"].as_str(), info["builds"].as_bool()), (Some("failed"), Some(true)));
    assert!(info["error"].as_str().unwrap().contains("setup command 2 of 2"), "{info}");
    let states = client.get("/runtimes").expect(200).json();
    let states: Vec<_> =
        states["runtimes"].as_array().unwrap().iter().map(|r| r["state"].as_str().unwrap().to_owned()).collect();
    assert_eq!(states, ["ready", "failed", "ready"]);
    client.post("/sessions", json!({"runtime": "third", "session_id": "it-third"})).expect(200);
    let command = json!({"argv": ["sh", "-c", "cat /three; id -un; echo ~; ls /var/cache/sandboxd-build"], "run_id": it::session::run_id()});
    let run = client.post("/sessions/it-third/run", command).expect(200).json();
    assert_eq!(run["stdout"], "three\nagent\n/home/agent\n", "no cache of builds is in it: {run}");
    client.delete("/sessions/it-third?purge=true").expect(204);
    assert_eq!(bench.pair.leaks(&BTreeSet::new()), Vec::<String>::new());
}

#[test]
fn what_is_unchanged_is_not_made_again_and_nothing_is_fetched_twice() {
    let packages = |packages: &[&str]| {
        json!([{"alias": "tools", "base_image": "debian-bookworm", "package_manager": "apt", "packages": packages,
            "setup_commands": ["date +%s%N > /made"]}])
    };
    let mut bench = Bench::new(&[], &packages(&["jq"]));
    bench.start();
    let first = bench.prepare();
    assert_eq!(first.code, Some(0), "{}", first.said);
    let begun = Instant::now();
    let again = bench.prepare();
    assert_eq!(again.code, Some(0), "{}", again.said);
    let took = again
        .said
        .lines()
        .find_map(|line| line.strip_prefix("tools: ready in ")?.split(' ').next()?.parse::<f64>().ok());
    assert!(took.unwrap() < 1.0, "{} ({:?} with the program's start)", again.said, begun.elapsed());

    bench.write(&packages(&["jq", "tree"]));
    let more = bench.prepare();
    assert_eq!(more.code, Some(0), "{}", more.said);
    assert!(more.said.contains("setup command 1 of 1 (date +%s%N > /made): unchanged"), "{}", more.said);
    assert_eq!(more.said.matches(": done in ").count(), 2, "packages and the user behind them: {}", more.said);
    bench.pair.start_service(None);
    let log = bench.pair.client.get("/runtimes/tools/log").expect(200).text();
    let fetched: Vec<&str> = log.lines().filter(|line| line.starts_with("Get:")).collect();
    let indexes = fetched.iter().filter(|line| line.contains("Packages")).count();
    assert_eq!((fetched.iter().filter(|line| line.contains(" tree ")).count(), indexes), (1, 0), "{fetched:#?}");
    assert!(fetched.iter().all(|line| line.contains(" tree ") || line.contains("InRelease")), "{fetched:#?}");
}

#[test]
fn a_name_that_is_no_package_is_no_pattern_for_others() {
    // apt-get would take the dot for any letter, and install what fits.
    let entries =
        json!([{"alias": "tools", "base_image": "debian-bookworm", "package_manager": "apt", "packages": ["j."]}]);
    let mut bench = Bench::new(&[], &entries);
    bench.start();
    let prepared = bench.prepare();
    assert_eq!(prepared.code, Some(1), "{}", prepared.said);
    assert!(prepared.said.contains("Unable to locate package j."), "{}", prepared.said);
    bench.write(
        &json!([{"alias": "tools", "base_image": "debian-bookworm", "package_manager": "apt", "packages": ["bash-"]}]),
    );
    let refused = bench.prepare();
    assert_eq!(refused.code, Some(2), "{}", refused.said);
    assert!(refused.said.contains("\"bash-\" is not a apt package"), "{}", refused.said);
}

#[test]
fn a_changed_definition_is_made_beside_the_service_and_takes_its_place() {
    let mut bench = Bench::new(&[("SANDBOXD_CLEANUP_INTERVAL", "1")], &json!([entry("tools", &["echo one > /which"])]));
    bench.start();
    assert_eq!(bench.prepare().code, Some(0));
    bench.pair.start_service(None);
    let open = |bench: &Bench, id: &str| {
        bench.pair.client.post("/sessions", json!({"session_id": id, "runtime": "tools"})).expect(200).json()
    };
    let which = |bench: &Bench, id: &str| {
        let command = json!({"argv": ["cat", "/which"], "run_id": it::session::run_id()});
        bench.pair.client.post(&format!("/sessions/{id}/run"), command).expect(200).json()["stdout"].clone()
    };
    let tags = |bench: &Bench| {
        let images = bench.pair.client.get("/images").expect(200).json();
        images.as_array().unwrap().iter().filter(|image| image["state"] == "ready").count()
    };
    open(&bench, "it-old");
    bench.write(&json!([entry("tools", &["sleep 3; echo two > /which"])]));
    let preparing = bench.begin_prepare();
    bench.wait_for_build();
    // The service dies and comes back meanwhile: what is built is another's, and goes on.
    bench.pair.kill(Which::Service);
    fs::write(bench.catalog.with_extension("old"), json!([entry("tools", &["echo one > /which"])]).to_string())
        .unwrap();
    let (new, old) = (bench.catalog.display().to_string(), bench.catalog.with_extension("old").display().to_string());
    bench.pair.set("SANDBOXD_CATALOG", &old);
    bench.pair.start_service(None);
    let prepared = done(preparing);
    assert_eq!(prepared.code, Some(0), "{}\n{}", prepared.said, bench.pair.said());
    assert_eq!(which(&bench, "it-old"), "one\n");

    bench.pair.kill(Which::Service);
    bench.pair.set("SANDBOXD_CATALOG", &new);
    bench.pair.start_service(None);
    let images = bench.pair.client.get("/images").expect(200).json();
    let new = images.as_array().unwrap().iter().find(|image| image["runtimes"] == json!(["tools"])).cloned();
    assert_eq!(new.unwrap()["state"], "ready", "it is there before anybody opens a session on it: {images}");
    open(&bench, "it-new");
    assert_eq!((which(&bench, "it-new"), which(&bench, "it-old")), (json!("two\n"), json!("one\n")));
    // A sandbox runs on the old one; when it is closed, the old one goes.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!((tags(&bench), which(&bench, "it-old")), (3, json!("one\n")));
    bench.pair.client.delete("/sessions/it-old?purge=true").expect(204);
    assert!(wait_for(SOON, || (tags(&bench) == 2).then_some(())).is_some(), "{}", bench.pair.said());
    assert_eq!(which(&bench, "it-new"), "two\n");
    bench.pair.client.delete("/sessions/it-new?purge=true").expect(204);
    assert_eq!(bench.pair.leaks(&BTreeSet::new()), Vec::<String>::new());
}

#[test]
fn a_start_makes_all_ready_in_the_background_and_tells_how_far_it_is() {
    // Until the test has seen that it is under way.
    let gate = "until [ -e /var/cache/sandboxd-build/npm/go ]; do sleep 0.1; done";
    let three =
        json!([entry("first", &[gate]), entry("second", &["exit 4"]), entry("third", &["echo three > /three"]),]);
    let mut bench = Bench::new(&[("SANDBOXD_PREWARM", "true")], &three);
    bench.start();
    bench.pair.start_service(None);
    let runtime = |alias: &str| bench.pair.client.get(&format!("/runtimes/{alias}")).expect(200).json();
    let step = wait_for(SOON, || {
        let first = runtime("first");
        (first["progress"]["number"] == 1).then_some(first)
    });
    let step = step.expect("it is told while it goes on");
    assert_eq!((step["state"].as_str(), step["progress"]["steps"].as_u64()), (Some("building"), Some(2)), "{step}");
    assert_eq!(step["progress"]["step"], format!("setup command 1 of 1 ({gate})"));
    fs::write(bench.pair.state.join("cache/build/npm/go"), "").unwrap();
    let states =
        || ["first", "second", "third"].map(|alias| runtime(alias)["state"].as_str().unwrap_or_default().to_owned());
    assert!(wait_for(SOON, || (states() == ["ready", "failed", "ready"]).then_some(())).is_some(), "{:?}", states());
    let tries = bench.pair.said().matches("building runtime=second").count();
    assert_eq!(tries, 2, "{}", bench.pair.said());
    assert_eq!(bench.pair.leaks(&BTreeSet::new()), Vec::<String>::new());
}

#[test]
fn two_who_want_the_same_make_it_once() {
    let mut bench = Bench::new(&[], &json!([entry("tools", &["sleep 2; echo made"])]));
    bench.start();
    let mut by_root = bench.pair.sandboxd();
    by_root.arg("prepare").uid(0).gid(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let both = [bench.begin_prepare(), by_root.spawn().unwrap()].map(done);
    let said = both.iter().map(|done| done.said.as_str()).collect::<String>();
    assert_eq!(both.map(|done| done.code), [Some(0), Some(0)], "{said}");
    assert_eq!(said.matches("(sleep 2; echo made): done in ").count(), 1, "{said}");
    let owners = fs::read_dir(bench.pair.state.join("store/refs")).unwrap().flatten();
    let owners: BTreeSet<u32> =
        owners.map(|file| std::os::unix::fs::MetadataExt::uid(&file.metadata().unwrap())).collect();
    // The base was put there by this test, which is root.
    assert_eq!(owners.len(), 2, "what root prepares is the service's: {owners:?}");
}

#[test]
fn who_breaks_off_leaves_nothing() {
    let mut bench = Bench::new(&[("SANDBOXD_CLEANUP_INTERVAL", "1")], &json!([entry("slow", &["sleep 600"])]));
    bench.start();
    let mut preparing = bench.begin_prepare();
    bench.wait_for_build();
    preparing.kill().unwrap();
    preparing.wait().unwrap();
    bench.write(&json!([entry("quick", &["true"])]));
    bench.pair.start_service(None);
    assert!(wait_for(SOON, || bench.builds().is_empty().then_some(())).is_some(), "{:?}", bench.builds());
    assert_eq!(bench.pair.leaks(&BTreeSet::new()), Vec::<String>::new());
    // Beside a service: ended by a signal it takes its sandbox along, killed it leaves that to the service.
    bench.write(&json!([entry("slow", &["sleep 600"])]));
    for (signal, within) in [(Signal::TERM, Duration::from_secs(10)), (Signal::KILL, SOON)] {
        let preparing = bench.begin_prepare();
        bench.wait_for_build();
        kill_process(Pid::from_raw(preparing.id().cast_signed()).unwrap(), signal).unwrap();
        let ended = done(preparing);
        let gone = wait_for(within, || bench.builds().is_empty().then_some(()));
        assert!(gone.is_some(), "{signal:?}: {:?}\n{}\n{}", bench.builds(), ended.said, bench.pair.said());
    }
    bench.write(&json!([entry("quick", &["true"])]));
    assert_eq!(bench.pair.leaks(&BTreeSet::new()), Vec::<String>::new());
    let left: Vec<_> =
        fs::read_dir(bench.pair.state.join("sessions")).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(bench.prepare().code, Some(0), "and nobody has the turn");
}

#[test]
fn a_step_has_bounds() {
    let settings = [("SANDBOXD_BUILD_DISK", "50m"), ("SANDBOXD_BUILD_ENV", r#"{"WHERE": "it's $HOME"}"#)];
    let slow = json!([entry("slow", &["sleep 600"])]);
    // Of time a machine with others to serve may need any amount: only what never ends is given little of it.
    let mut bench = Bench::new(&settings, &slow);
    bench.pair.set("SANDBOXD_BUILD_TIMEOUT", "4");
    bench.start();
    let prepared = bench.prepare();
    assert_eq!(prepared.said.lines().last(), Some("prepare: 0 of 1 ready; missing: slow"), "{}", prepared.said);
    assert!(
        prepared.said.contains("slow: 1 of 2: setup command 1 of 1 (sleep 600): was ended after "),
        "{}",
        prepared.said
    );
    assert!(prepared.said.contains("(build_timeout)"), "{}", prepared.said);
    bench.pair.set("SANDBOXD_BUILD_TIMEOUT", "300");
    bench.write(&json!([
        entry("large", &["dd if=/dev/zero of=/large bs=1M count=200 && sleep 600"]),
        entry("told", &["printf %s \"$WHERE\" > /where; touch /tmp/left /tmp/.left"]),
    ]));
    let prepared = bench.prepare();
    assert_eq!(prepared.said.lines().last(), Some("prepare: 1 of 2 ready; missing: large"), "{}", prepared.said);
    assert!(prepared.said.contains("(build_disk)"), "{}", prepared.said);
    bench.pair.start_service(None);
    bench.pair.client.post("/sessions", json!({"session_id": "it-told", "runtime": "told"})).expect(200);
    let command = json!({"argv": ["sh", "-c", "cat /where; echo; echo .${WHERE-}."], "run_id": it::session::run_id()});
    let run = bench.pair.client.post("/sessions/it-told/run", command).expect(200).json();
    assert_eq!(run["stdout"], "it's $HOME\n..\n");
    bench.pair.client.delete("/sessions/it-told?purge=true").expect(204);
    let layers = fs::read_dir(bench.pair.state.join("store/layers")).unwrap().flatten();
    let left: Vec<_> = layers.map(|layer| layer.path().join("tmp/left")).filter(|path| path.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_cannot_be_read_is_told_in_one_line() {
    let bench = Bench::new(&[], &json!([{"alias": "a", "image": "x", "packages": ["y"]}]));
    let refused = bench.prepare();
    assert_eq!(refused.code, Some(2), "{}", refused.said);
    assert!(
        refused.said.contains("catalog.json: entry \"a\": has an image, which is used as it is"),
        "{}",
        refused.said
    );
    assert_eq!(refused.said.lines().count(), 1, "{}", refused.said);
    let mut settings = bench.pair.sandboxd();
    settings.arg("prepare").env("SANDBOXD_BUILD_TIMEOUT", "soon").stdout(Stdio::piped()).stderr(Stdio::piped());
    let refused = done(Command::spawn(&mut settings).unwrap());
    assert_eq!((refused.code, refused.said.contains("SANDBOXD_BUILD_TIMEOUT")), (Some(2), true), "{}", refused.said);
}

/// A recipe runs as root, with a network, and may take half an hour: who breaks off ends it as well.
#[test]
fn a_recipe_ends_with_whoever_waits_for_it() {
    let recipes = Directory::new();
    // Found by this among all processes.
    let mark = format!("6{}.{}", std::process::id(), line!());
    let write = |text: &str| {
        fs::write(recipes.join("slow"), text).unwrap();
        fs::set_permissions(recipes.join("slow"), fs::Permissions::from_mode(0o755)).unwrap();
    };
    write(&format!("#!/bin/sh\ntouch /tmp/something\nsleep {mark}\n"));
    let mut bench = Bench::new(&[], &json!([{"alias": "slow", "image": "slow"}]));
    bench.pair.own_recipes(&recipes.0);
    bench.start();
    let runs = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|process| fs::read(process.path().join("cmdline")).ok())
            .any(|line| line.split(|byte| *byte == 0).any(|argument| argument == mark.as_bytes()))
    };
    let left = || fs::read_dir(bench.pair.state.join("bootstrap")).unwrap().count();
    for signal in [Signal::TERM, Signal::KILL] {
        let preparing = bench.begin_prepare();
        assert!(wait_for(SOON, || runs().then_some(())).is_some(), "{}", bench.pair.said());
        kill_process(Pid::from_raw(preparing.id().cast_signed()).unwrap(), signal).unwrap();
        done(preparing);
        let gone = wait_for(SOON, || (!runs() && left() == 0).then_some(()));
        assert!(gone.is_some(), "{signal:?}: runs: {}, left: {}\n{}", runs(), left(), bench.pair.said());
    }
    // Nobody has its key any more: the next one runs at once.
    write("#!/bin/sh\ncd /tmp && mkdir -p tree/etc && echo recipe > tree/etc/hostname && tar -C tree -cf - .\n");
    let prepared = bench.prepare();
    assert_eq!(prepared.code, Some(0), "{}\n{}", prepared.said, bench.pair.said());
}
