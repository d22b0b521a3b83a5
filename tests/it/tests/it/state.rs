//! What is on disk: restarts, deaths, corruption, a full disk, and that nothing is left at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use it::daemon::{Options, StateDir, wait_for};
use it::host::{Snapshot, children};
use it::{Daemon, Session};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

fn small() -> Options {
    Options::new().env("SANDBOXD_PREWARM", "false").env("SANDBOXD_DEFAULT_RUNTIME", "base")
}

/// Sessions of a service that was ended, and begun again on the same directory.
fn expect_kept(daemon: &Daemon, before: &Session) {
    let s = it::Client::new(daemon.client.endpoint.clone(), before.client.token.clone());
    let info = s.get(&before.path("")).expect(200).json();
    assert_eq!(info["session_id"], before.id);
    let run = json!({"argv": ["cat", "note"], "run_id": it::session::run_id()});
    assert_eq!(s.post(&before.path("/run"), run).expect(200).json()["stdout"], "kept\n");
    daemon.client.delete(&before.path("?purge=true")).expect(204);
}

#[test]
fn a_restart_keeps_sessions_tokens_and_files() {
    let state = StateDir::new();
    let daemon = small().state(&state).start();
    let s = Session::open(&daemon, json!({"session_id": "it-restart"}));
    s.sh("echo kept > note").expect("");
    assert_eq!(daemon.stop(), Some(0), "a clean end");
    let daemon = small().state(&state).start();
    expect_kept(&daemon, &s);
}

#[test]
fn a_service_that_is_killed_loses_nothing() {
    let state = StateDir::new();
    let daemon = small().state(&state).start();
    let s = Session::open(&daemon, json!({"session_id": "it-killed"}));
    s.sh("echo kept > note").expect("");
    let service = children(daemon.pid).into_iter().find(|pid| exe(*pid).ends_with("sandboxd")).unwrap();
    kill_process(Pid::from_raw(i32::try_from(service).unwrap()).unwrap(), Signal::KILL).unwrap();
    let ended = wait_for(Duration::from_secs(30), || {
        (!Path::new(&format!("/proc/{}/exe", daemon.pid)).exists() || exe(daemon.pid) == Path::new("")).then_some(())
    });
    assert!(ended.is_some(), "dev goes on without its service");
    assert_ne!(daemon.stop(), Some(0), "and says so");
    let daemon = small().state(&state).start();
    expect_kept(&daemon, &s);
}

fn exe(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default()
}

#[test]
fn a_second_instance_on_the_same_state_is_refused() {
    let state = StateDir::new();
    let daemon = small().state(&state).start();
    let s = daemon.session("base");
    let begun = Instant::now();
    let failure = small().state(&state).try_start().map(|_| ()).unwrap_err();
    assert_ne!(failure.code, Some(0));
    assert!(failure.said.contains("another sandboxd is using"), "{}", failure.said);
    assert!(failure.said.contains(state.0.to_str().unwrap()), "{}", failure.said);
    assert!(begun.elapsed() < Duration::from_secs(45), "it waits for the other");
    s.run(["echo", "undisturbed"]).expect("undisturbed\n");
}

#[test]
fn a_corrupt_database_stops_the_start_and_is_not_touched() {
    let state = StateDir::new();
    let daemon = small().state(&state).start();
    let s = Session::open(&daemon, json!({"session_id": "it-corrupt"}));
    s.sh("echo kept > note").expect("");
    daemon.stop();
    let database = state.0.join("state.db");
    let beside: Vec<PathBuf> =
        ["-wal", "-shm"].iter().map(|end| PathBuf::from(format!("{}{end}", database.display()))).collect();
    let aside = |path: &Path| state.0.join("aside").join(path.file_name().unwrap());
    fs::create_dir(state.0.join("aside")).unwrap();
    for path in &beside {
        let _ = fs::rename(path, aside(path));
    }
    let sound = fs::read(&database).unwrap();
    let mut torn = sound.clone();
    let end = torn.len();
    torn[..16].copy_from_slice(b"no database here");
    torn[end / 2..].fill(0xAA);
    write_as_owner(&database, &torn);
    let failure = small().state(&state).try_start().map(|_| ()).unwrap_err();
    assert!(failure.said.contains("state.db"), "{}", failure.said);
    assert_eq!(fs::read(&database).unwrap(), torn, "what cannot be read is left as it is");
    write_as_owner(&database, &sound);
    for path in &beside {
        let _ = fs::rename(aside(path), path);
    }
    let daemon = small().state(&state).start();
    expect_kept(&daemon, &s);
}

/// Write into an existing file, so that its owner stays.
fn write_as_owner(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

#[test]
fn a_setting_that_cannot_be_used_is_one_line_that_names_it() {
    for (name, value) in [
        ("SANDBOXD_MAX_SESSIONS", "many"),
        ("SANDBOXD_DEFAULT_RUNTIME", "nobody-defines"),
        ("SANDBOXD_MAX_OPEN_SESSIONS", "1"),
        ("SANDBOXD_PREWARM", "perhaps"),
    ] {
        let failure = Options::new().env(name, value).try_start().map(|_| ()).unwrap_err();
        let lines: Vec<&str> = failure.said.lines().filter(|line| line.contains(name)).collect();
        assert_eq!(lines.len(), 1, "{name}: {}", failure.said);
    }
}

#[test]
fn a_catalogue_that_cannot_be_used_names_the_entry() {
    let directory = StateDir::new();
    let file = directory.0.join("catalog.json");
    for (text, named) in [
        ("{", "catalog.json"),
        (r#"[{"alias": "broken", "image": "debian-bookworm", "base_image": "x"}]"#, "broken"),
        (r#"[{"alias": "odd", "image": "debian-bookworm", "surprise": 1}]"#, "surprise"),
    ] {
        fs::write(&file, text).unwrap();
        let failure = Options::new().catalog(&file).try_start().map(|_| ()).unwrap_err();
        assert!(failure.said.contains(named), "{text}: {}", failure.said);
    }
}

#[test]
fn an_image_that_cannot_be_made_is_a_502_and_leaves_nothing() {
    let directory = StateDir::new();
    let file = directory.0.join("catalog.json");
    let entries = r#"[{"alias": "base", "image": "debian-bookworm", "needs_network": false},
        {"alias": "failing", "base_image": "debian-bookworm", "setup_commands": ["echo the reason is here; exit 7"], "needs_network": false}]"#;
    fs::write(&file, entries).unwrap();
    let daemon = Options::new().catalog(&file).env("SANDBOXD_PREWARM", "false").start();
    for _ in 0..2 {
        let answer =
            daemon.client.post("/sessions", json!({"runtime": "failing", "session_id": "it-failing"})).expect(502);
        let text = answer.detail().as_str().unwrap().to_owned();
        assert!(text.contains("the reason is here") || text.contains('7'), "{text}");
    }
    assert_eq!(daemon.client.get("/healthz").json()["open_sessions"], 0);
    daemon.client.post("/sessions", json!({"session_id": "it-failing", "attach": true})).expect(404);
    daemon.session("base").run(["echo", "hi"]).expect("hi\n");
}

/// A small tmpfs; unmounted when it goes out of scope.
struct SmallDisk(StateDir);

impl SmallDisk {
    fn new(size: &str) -> Self {
        let directory = StateDir::new();
        let options = std::ffi::CString::new(format!("size={size},mode=0755")).unwrap();
        rustix::mount::mount("sandboxd-small-disk", &directory.0, "tmpfs", MountFlags::empty(), options.as_c_str())
            .unwrap();
        Self(directory)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_is_a_clear_answer_and_loses_nothing() {
    let disk = SmallDisk::new("24m");
    // To the last byte: not even the host's reserve is left.
    let small = || small().env("SANDBOXD_DISK_RESERVE", "");
    let daemon = small().state(&disk.0).start();
    let s = Session::open(&daemon, json!({"session_id": "it-full"}));
    s.sh("echo kept > note").expect("");
    s.write("/workspace/file", b"before").expect(204);
    let fill = s.sh("head -c 100000000 /dev/zero > /workspace/fill");
    assert_ne!(fill.code(), Some(0));
    assert!(fill.stderr().contains("No space left"), "{}", fill.stderr());
    let answer = s.write("/workspace/file", &vec![b'x'; 1 << 20]).expect(507);
    assert!(answer.detail().as_str().is_some_and(|text| text.contains("no space left")), "{}", answer.text());
    assert_eq!(s.file("read", "/workspace/file").expect(200).text(), "before");
    let refused = daemon.client.post("/sessions", json!({"session_id": "it-none-left"}));
    assert!(matches!(refused.status, 200 | 502 | 507), "{} {}", refused.status, refused.text());
    if refused.status != 200 {
        assert!(
            refused.text().to_lowercase().contains("space") || refused.text().contains("full"),
            "{}",
            refused.text()
        );
        let _ = daemon.client.get("/sessions/it-none-left").expect(404);
    }
    s.run(["cat", "note"]).expect("kept\n");
    s.file("remove", "/workspace/fill").expect(204);
    s.write("/workspace/file", b"after").expect(204);
    let next = Session::open(&daemon, json!({"session_id": "it-after-full", "reuse": true}));
    next.run(["echo", "room again"]).expect("room again\n");
    drop(next);
    daemon.stop();
    let daemon = small().state(&disk.0).start();
    expect_kept(&daemon, &s);
}

#[test]
fn nothing_is_left_when_it_ends() {
    let state = StateDir::new();
    let daemon = small().state(&state).start();
    let cgroup = format!("sandboxd-dev-{}", daemon.pid);
    let mine = |what: &Snapshot| [what.mentioning(&cgroup), what.mentioning(state.0.to_str().unwrap())].concat();
    let s = daemon.session("base");
    // Processes that hide, and a command under way, at the moment when it ends.
    s.sh("setsid sleep 7777777 & setsid sh -c 'trap \"\" TERM; sleep 7777777' & true").expect_code(0);
    assert!(mine(&Snapshot::take()).len() >= 4, "the test sees what is there: {:?}", mine(&Snapshot::take()));
    let body = json!({"argv": ["sleep", "7777777"], "run_id": it::session::run_id()}).to_string();
    let mut waiting = s.client.connect();
    let head = s.client.head("POST", &s.path("/run"), Some("application/json"), body.len());
    waiting.write(&[head.as_slice(), body.as_bytes()].concat()).unwrap();
    let under_way = || s.sh("grep -lx sleep /proc/[0-9]*/comm | wc -l").stdout().trim() == "3";
    assert!(wait_for(Duration::from_secs(20), || under_way().then_some(())).is_some());
    let begun = Instant::now();
    assert_eq!(daemon.stop(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let directory = format!("file {}", state.0.display());
    let left =
        |found: Snapshot| -> Vec<String> { mine(&found).into_iter().filter(|line| *line != directory).collect() };
    let clean = wait_for(Duration::from_secs(5), || left(Snapshot::take()).is_empty().then_some(()));
    assert!(clean.is_some(), "{:?}", left(Snapshot::take()));
    assert!(!state.0.join("run").exists(), "sockets are left");
}
