//! A session's share of the disk: what it gets when that is used up, and what stays as it was.
//!
//! The same questions are asked twice: where the kernel enforces it (project quotas, on a file system of the test's
//! own: [`it::quota`], which `make vm` asks too), and where the service measures.

use std::process::Command;
use std::time::Duration;

use it::daemon::{Options, binary, wait_for};
use it::disk::{Disk, Kind};
use it::quota::{INODES, QUOTA, detail, enforcement, open, options, used};
use it::session::fresh_id;
use serde_json::{Value, json};

// Measured, on whatever this host is.

#[test]
fn clients_are_refused_exactly_and_old_files_stay() {
    let daemon = options().start();
    if enforcement(&daemon) != "measured" {
        return it::skipped("this host's file system enforces quotas itself");
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
        return it::skipped("this host's file system enforces quotas itself");
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
        return it::skipped("this host's file system enforces quotas itself");
    }
    let s = open(&daemon, "quota-kinds");
    for (what, line) in [
        ("files", "i=0; while [ $i -lt 700 ]; do : > f$i; i=$((i+1)); done"),
        ("links", "i=0; while [ $i -lt 700 ]; do ln -s x l$i; i=$((i+1)); done"),
        ("a deep tree", "i=0; while [ $i -lt 700 ]; do mkdir d; cd d; i=$((i+1)); done"),
        ("the write layer", "i=0; while [ $i -lt 700 ]; do mkdir -p $HOME/.cache/d$i; i=$((i+1)); done"),
    ] {
        let stopped = s.try_run(["sh", "-c", &format!("{line}; sleep 250")], json!({}));
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
    let disk = Disk::new("128M", Kind::Plain).expect("a loop device");
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
        command.arg("du").args(json.then_some("--json")).env("SANDBOXD_SOCKET", &daemon.socket);
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
    enforced("256M", Kind::Ext4);
}

#[test]
fn the_kernel_enforces_it_on_xfs() {
    enforced("512M", Kind::Xfs);
}

fn enforced(size: &str, kind: Kind) {
    match Disk::new(size, kind) {
        Ok(disk) => it::quota::is_enforced_on(&disk),
        Err(why) => it::skipped(&format!("{why} (`make vm` runs it)")),
    }
}
