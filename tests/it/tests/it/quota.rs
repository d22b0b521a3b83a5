//! A session's share of the disk: what it gets when that is used up, and what stays as it was.
//!
//! The same questions are asked twice: where the kernel enforces it (project quotas, on a file system of the test's
//! own), and where the service measures.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use it::daemon::{Daemon, Options, StateDir, binary, wait_for};
use it::session::{Session, fresh_id};
use serde_json::{Value, json};

/// What is in force in these tests.
const QUOTA: u64 = 32 << 20;
const INODES: u64 = 600;

fn options() -> Options {
    Options::new().env("SANDBOXD_DISK_QUOTA", "32m").env("SANDBOXD_DISK_INODES", "600")
}

fn detail(response: &it::Response) -> String {
    response.detail().as_str().unwrap_or_default().to_owned()
}

/// The row of a session in `GET /workspaces`.
fn row(daemon: &Daemon, id: &str) -> Option<Value> {
    let page = daemon.client.get("/workspaces?limit=100").expect(200).json();
    page["workspaces"].as_array()?.iter().find(|row| row["session_id"] == id).cloned()
}

fn used(daemon: &Daemon, id: &str) -> (u64, u64) {
    let row = row(daemon, id).unwrap_or_else(|| panic!("no row of {id}"));
    let number = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("no {name}: {row}"));
    (number("disk_bytes"), number("disk_inodes"))
}

fn open(daemon: &Daemon, what: &str) -> Session {
    Session::open(daemon, json!({"session_id": fresh_id(what), "runtime": "base"}))
}

// Measured, on whatever this host is.

#[test]
fn clients_are_refused_exactly_and_old_files_stay() {
    let daemon = options().start();
    if enforcement(&daemon) != "measured" {
        return println!("skipped: this host's file system enforces quotas itself");
    }
    let s = open(&daemon, "quota-api");
    s.write("/workspace/old", b"before").expect(204);
    for number in 0..3 {
        s.write(&format!("/workspace/part{number}"), &vec![1; 8 << 20]).expect(204);
    }
    let refused = s.write("/workspace/old", &vec![2; 8 << 20]).expect(507);
    assert!(detail(&refused).contains("disk quota"), "{}", refused.text());
    assert_eq!(s.file("read", "/workspace/old").expect(200).text(), "before");
    let (bytes, _) = used(&daemon, &s.id);
    assert!((24 << 20..QUOTA).contains(&bytes), "{bytes}");
    // To replace a file is not to have both, once that is known.
    for _ in 0..6 {
        s.write("/workspace/part0", &vec![3; 7 << 20]).expect(204);
    }
    s.file("remove", "/workspace/part1").expect(204);
    s.write("/workspace/old", &vec![2; 8 << 20]).expect(204);
    for number in 0..INODES {
        let made = s.file("mkdir", &format!("/workspace/d/{number}"));
        if made.status == 507 {
            assert!(detail(&made).contains("disk quota") && detail(&made).contains("files"), "{}", made.text());
            assert!(number > INODES - 100, "{number}");
            return;
        }
        made.expect(204);
    }
    panic!("there is no end of directories");
}

#[test]
fn a_command_that_writes_too_much_is_stopped_and_told_why() {
    let daemon = options().start();
    if enforcement(&daemon) != "measured" {
        return println!("skipped: this host's file system enforces quotas itself");
    }
    let s = open(&daemon, "quota-run");
    s.sh("echo kept > note").expect("");
    let stopped = s.try_run(["sh", "-c", "head -c 64M /dev/zero > big; sleep 60"], json!({})).expect(507);
    assert!(detail(&stopped).contains("disk quota exceeded"), "{}", stopped.text());
    let events = s.client.get(&s.path("/events")).expect(200).json();
    let events = events["events"].as_array().cloned().unwrap_or_default();
    let told = |op: &str| events.iter().any(|event| event["op"] == op && event["detail"] == "disk quota");
    assert!(told("run") && told("stop"), "{events:?}");
    s.write("/workspace/more", b"x").expect(507);
    // It may be started again to clean up, and what was there is there.
    s.sh("cat note; sleep 3; rm big").expect("kept\n");
    s.write("/workspace/more", b"x").expect(204);
    // Not to go on.
    let again = s.try_run(["sh", "-c", "head -c 64M /dev/zero > big; sleep 60"], json!({})).expect(507);
    assert!(detail(&again).contains("disk quota exceeded"), "{}", again.text());
    let again = s.try_run(["sh", "-c", "head -c 8M /dev/zero > more; sleep 60"], json!({})).expect(507);
    assert!(detail(&again).contains("disk quota exceeded"), "{}", again.text());
}

#[test]
fn whatever_is_made_counts() {
    let daemon = options().start();
    if enforcement(&daemon) != "measured" {
        return println!("skipped: this host's file system enforces quotas itself");
    }
    let s = open(&daemon, "quota-kinds");
    for (what, line) in [
        ("files", "i=0; while [ $i -lt 700 ]; do : > f$i; i=$((i+1)); done"),
        ("links", "i=0; while [ $i -lt 700 ]; do ln -s x l$i; i=$((i+1)); done"),
        ("a deep tree", "i=0; while [ $i -lt 700 ]; do mkdir d; cd d; i=$((i+1)); done"),
        ("the write layer", "i=0; while [ $i -lt 700 ]; do mkdir -p $HOME/.cache/d$i; i=$((i+1)); done"),
    ] {
        let stopped = s.try_run(["sh", "-c", &format!("{line}; sleep 30")], json!({}));
        assert_eq!(stopped.status, 507, "{what}: {}", stopped.text());
        s.sh("rm -rf /workspace/* $HOME/.cache").expect_code(0);
        // Who is stopped may come back and clean up: it is not stopped again for what it had then, until less was seen.
        let seen = wait_for(Duration::from_secs(10), || (used(&daemon, &s.id).1 < 100).then_some(()));
        assert!(seen.is_some(), "{what}: {:?}", used(&daemon, &s.id));
        std::thread::sleep(Duration::from_millis(2500));
    }
    // A sparse file is charged what it holds, a file with many names once.
    s.sh("truncate -s 1T sparse; head -c 1M /dev/zero > one; ln one two; ln one three; sync").expect("");
    std::thread::sleep(Duration::from_secs(2));
    let (bytes, inodes) = used(&daemon, &s.id);
    assert!(bytes < 8 << 20 && inodes < 100, "{bytes} bytes, {inodes} inodes");
}

#[test]
fn below_the_reserve_nothing_is_opened_or_written_and_who_writes_most_is_stopped() {
    let disk = Disk::new("128M", "").expect("a loop device");
    let daemon = Options::new().state(&disk.state).start();
    let quiet = open(&daemon, "reserve-quiet");
    let busy = open(&daemon, "reserve-busy");
    quiet.sh("echo kept > note").expect("");
    let fill = "i=0; while head -c 2M /dev/zero > f$i; do i=$((i+1)); sleep 0.2; done; sleep 60";
    let stopped = busy.try_run(["sh", "-c", fill], json!({}));
    assert_eq!(stopped.status, 507, "{}", stopped.text());
    assert!(detail(&stopped).contains("disk full"), "{}", stopped.text());
    let refused = quiet.write("/workspace/file", b"x").expect(507);
    assert!(detail(&refused).contains("disk full"), "{}", refused.text());
    let refused = daemon.client.post("/sessions", json!({"session_id": fresh_id("reserve-new")})).expect(507);
    assert!(detail(&refused).contains("disk full"), "{}", refused.text());
    quiet.sh("cat note").expect("kept\n");
    busy.sh("rm f*").expect("");
    quiet.write("/workspace/file", b"x").expect(204);
}

#[test]
fn who_uses_what_is_shown_for_the_asleep_as_well() {
    let daemon = options().start();
    let (big, small) = (open(&daemon, "du-big"), open(&daemon, "du-small"));
    big.sh("head -c 4M /dev/zero > a; head -c 4M /dev/zero > ~/b; sync").expect("");
    big.close();
    let du = |json: bool| {
        let mut command = Command::new(binary("sandboxctl"));
        command.arg("du").args(json.then_some("--json")).arg("--socket").arg(&daemon.socket);
        let output =
            command.env("SANDBOXD_TOKEN", String::from_utf8_lossy(&daemon.client.token).as_ref()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let table = du(false);
    let position = |id: &str| table.find(id).unwrap_or_else(|| panic!("{id} is not in\n{table}"));
    assert!(position(&big.id) < position(&small.id), "{table}");
    let all: Value = serde_json::from_str(&du(true)).unwrap();
    let rows = all["workspaces"].as_array().unwrap();
    let sum: u64 = rows.iter().filter_map(|row| row["disk_bytes"].as_u64()).sum();
    assert_eq!((all["disk_bytes"].as_u64(), all["total"].as_u64()), (Some(sum), Some(2)), "{all}");
    // Its write layer went with its end.
    assert_eq!(rows[0]["session_id"], big.id.as_str());
    assert!((4 << 20..6 << 20).contains(&rows[0]["disk_bytes"].as_u64().unwrap()), "{all}");
    assert_eq!(rows[0]["disk_quota_bytes"].as_u64(), Some(QUOTA));
}

// Enforced by the kernel, on a file system of the test's own.

#[test]
fn the_kernel_enforces_it_on_ext4() {
    enforced(Disk::new("256M", "ext4"));
}

#[test]
fn the_kernel_enforces_it_on_xfs() {
    enforced(Disk::new("512M", "xfs"));
}

fn enforced(disk: Result<Disk, String>) {
    let disk = match disk {
        Ok(disk) => disk,
        Err(why) => return println!("skipped: {why}"),
    };
    let daemon = options().state(&disk.state).start();
    assert_eq!(enforcement(&daemon), "project");
    let (a, b) = (open(&daemon, "project-a"), open(&daemon, "project-b"));
    b.sh("echo neighbour > note").expect("");
    a.sh("echo kept > note").expect("");
    // `df` shows the share.
    let df = a.sh("df -k --output=size /workspace | tail -n 1");
    assert!(df.stdout().trim().parse::<u64>().is_ok_and(|kib| kib <= QUOTA >> 10), "{}", df.stdout());
    for (what, line) in [
        ("workspace", "dd if=/dev/zero of=/workspace/big bs=1M count=64"),
        ("write layer", "dd if=/dev/zero of=$HOME/big bs=1M count=64"),
        ("many files", "i=0; while : > f$i; do i=$((i+1)); [ $i -lt 2000 ] || exit 0; done; exit 1"),
        ("deep tree", "i=0; while mkdir d && cd d; do i=$((i+1)); [ $i -lt 2000 ] || exit 0; done; exit 1"),
        ("links", "i=0; while ln -s x l$i; do i=$((i+1)); [ $i -lt 2000 ] || exit 0; done; exit 1"),
        ("no name", "exec 3> gone; rm gone; dd if=/dev/zero bs=1M count=64 >&3"),
        ("renamed", "dd if=/dev/zero of=x bs=1M count=20; mkdir e; mv x e/y; dd if=/dev/zero of=z bs=1M count=20"),
    ] {
        let full = a.sh(&format!("cd /workspace; {line}"));
        assert_ne!(full.code(), Some(0), "{what}: {}", full.body);
        assert!(full.stderr().contains("Disk quota exceeded"), "{what}: {}", full.body);
        let refused = a.write("/workspace/note", &vec![b'x'; 4 << 20]);
        if matches!(what, "workspace" | "write layer") {
            assert_eq!(refused.status, 507, "{what}: {}", refused.text());
            assert!(detail(&refused).contains("disk quota"), "{}", refused.text());
        } else if refused.status == 204 {
            a.write("/workspace/note", b"kept\n").expect(204);
        }
        a.sh("cat note").expect("kept\n");
        b.sh("cat note; echo more > more").expect("neighbour\n");
        a.sh("rm -rf $HOME/big; find /workspace -mindepth 1 ! -name note -delete").expect("");
    }
    project_ids_cannot_be_changed(&a);
    projects_are_not_shared(&daemon, &[&a, &b]);
    woken_when_full(&daemon, &a);
    let (before, _) = used(&daemon, &b.id);
    b.sh("dd if=/dev/zero of=big bs=1M count=20 conv=fsync").expect_code(0);
    assert!(used(&daemon, &b.id).0 >= before + (20 << 20));
    for session in [&a, &b] {
        daemon.client.delete(&session.path("?purge=true")).expect(204);
    }
    let projects = disk.projects();
    assert!(projects.is_none_or(|projects| projects.iter().all(|bytes| *bytes < 1 << 20)), "not given back");
    drop(daemon);
}

/// Nothing inside makes a file somebody else's.
fn project_ids_cannot_be_changed(s: &Session) {
    let try_each = r#"use strict;
for my $name ("mine", ".", $ENV{HOME}) {
    sysopen(my $fd, $name, 0) or die "$name: $!";
    my $x = "\0" x 28;
    ioctl($fd, 0x801c581f, $x) or die "read of $name: $!";
    my @fields = unpack("L5", $x);
    $fields[3] > 0 or die "$name has no project";
    for my $change ([3, 0], [3, 12345], [0, $fields[0] ^ 0x200]) {
        my @changed = @fields;
        $changed[$change->[0]] = $change->[1];
        my $new = pack("L5", @changed) . "\0" x 8;
        print "changed $name @$change\n" if ioctl($fd, 0x401c5820, $new);
    }
}
print "tried\n";"#;
    s.sh("touch mine").expect("");
    s.run(["perl", "-e", try_each]).expect("tried\n");
    s.sh("rm -f mine").expect("");
}

fn projects_are_not_shared(daemon: &Daemon, sessions: &[&Session]) {
    let project = |path: &Path| -> u64 {
        let output = Command::new("lsattr").args(["-pd"]).arg(path).output().expect("lsattr");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().next().and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let mut all = Vec::new();
    for session in sessions {
        let places = ["workspaces/ID", "workspaces/ID/workspace", "sessions/ID/upper", "sessions/ID/work"];
        let ids: Vec<u64> =
            places.iter().map(|place| project(&daemon.state.join(place.replace("ID", &session.id)))).collect();
        assert!(ids[0] != 0 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        all.push(ids[0]);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), sessions.len());
}

/// A session that is full to the last byte can be started again, to be cleaned up.
fn woken_when_full(daemon: &Daemon, s: &Session) {
    s.sh("dd if=/dev/zero of=big bs=64k count=2000; dd if=/dev/zero of=rest bs=1k count=2000; true").expect_code(0);
    let pids = it::host::running(&format!("{}-no-such", s.id));
    assert!(pids.is_empty());
    s.client.delete(&s.path("")).expect(204);
    let again = Session::open(daemon, json!({"session_id": s.id, "runtime": "base"}));
    again.sh("cat note; rm big rest").expect("kept\n");
    std::mem::forget(again);
}

fn enforcement(daemon: &Daemon) -> String {
    let policy = daemon.client.get("/policy").expect(200).json();
    assert_eq!(policy["disk_inodes"].as_u64().is_some(), policy["disk_quota"].is_string(), "{policy}");
    policy["disk_enforcement"].as_str().unwrap_or_default().to_owned()
}

/// A file system in a file, mounted as a state directory; gone with it.
struct Disk {
    state: StateDir,
    image: PathBuf,
    kind: String,
}

impl Disk {
    /// Of this size; with project quotas in force if `kind` says which file system, plain ext4 if not.
    fn new(size: &str, kind: &str) -> Result<Self, String> {
        let state = StateDir::new();
        let image = state.0.with_extension("disk");
        let disk = Self { state, image, kind: kind.to_owned() };
        run(Command::new("truncate").args(["-s", size]).arg(&disk.image))?;
        let options = match kind {
            "xfs" => {
                run(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(&disk.image))?;
                "loop,prjquota"
            }
            "ext4" => {
                let quota = ["-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota"];
                run(Command::new("mkfs.ext4").args(quota).arg(&disk.image))?;
                "loop,prjquota"
            }
            _ => {
                run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk.image))?;
                "loop"
            }
        };
        let kind = if kind.is_empty() { "ext4" } else { kind };
        run(Command::new("mount").args(["-t", kind, "-o", options]).arg(&disk.image).arg(&disk.state.0))?;
        std::fs::set_permissions(&disk.state.0, std::fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
        Ok(disk)
    }

    /// Bytes of each of our projects, where there is a program that tells; waits until the trash is empty.
    fn projects(&self) -> Option<Vec<u64>> {
        let ask = || {
            let output = Command::new("repquota").args(["-P", "-n", "-O", "csv"]).arg(&self.state.0).output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let bytes = |line: &str| line.split(',').nth(3)?.parse::<u64>().ok().map(|kib| kib << 10);
            Some(
                text.lines()
                    .filter(|line| line.starts_with("#1879") || line.starts_with("#1880"))
                    .filter_map(bytes)
                    .collect::<Vec<_>>(),
            )
        };
        ask()?;
        wait_for(Duration::from_secs(10), || ask().filter(|all| all.iter().all(|bytes| *bytes == 0))).or_else(ask)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The loop device is of the mount, and goes with it.
        let _ = Command::new("umount").arg("-l").arg(&self.state.0).stderr(std::process::Stdio::null()).status();
        let _ = std::fs::remove_file(&self.image);
        let _ = &self.kind;
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")))
}
