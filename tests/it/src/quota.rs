//! A session's share of the disk where the file system enforces it: what is asked on a host that has project quotas, and in
//! the machine of `make vm`, which has.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::daemon::{Daemon, Options};
use crate::disk::Disk;
use crate::session::{Session, fresh_id};

/// What a session may have in these tests, in bytes.
pub const QUOTA: u64 = 32 << 20;
/// Likewise, in files.
pub const INODES: u64 = 600;
/// Where the file system counts, there is nothing to be waited for, and in the machine each file takes a while.
const FEW_INODES: &str = "150";

/// Each fills a session's share another way.
const FILL: [(&str, &str); 7] = [
    ("workspace", "dd if=/dev/zero of=/workspace/big bs=1M count=64"),
    ("write layer", "dd if=/dev/zero of=$HOME/big bs=1M count=64"),
    ("many files", "i=0; while : > f$i; do i=$((i+1)); [ $i -lt 2000 ] || exit 0; done; exit 1"),
    ("deep tree", "i=0; while mkdir d && cd d; do i=$((i+1)); [ $i -lt 2000 ] || exit 0; done; exit 1"),
    ("links", "i=0; while ln -s x l$i; do i=$((i+1)); [ $i -lt 2000 ] || exit 0; done; exit 1"),
    ("no name", "exec 3> gone; rm gone; dd if=/dev/zero bs=1M count=64 >&3"),
    ("renamed", "dd if=/dev/zero of=x bs=1M count=20; mkdir e; mv x e/y; dd if=/dev/zero of=z bs=1M count=20"),
];

/// An instance in which sessions may have [`QUOTA`] and [`INODES`].
#[must_use]
pub fn options() -> Options {
    Options::new().env("SANDBOXD_DISK_QUOTA", "32m").env("SANDBOXD_DISK_INODES", &INODES.to_string())
}

/// A session of it, whose name begins so.
#[must_use]
pub fn open(daemon: &Daemon, what: &str) -> Session {
    Session::open(daemon, json!({"session_id": fresh_id(what), "runtime": "base"}))
}

/// Who enforces quotas there: `project` or `measured`.
#[must_use]
pub fn enforcement(daemon: &Daemon) -> String {
    let policy = daemon.client.get("/policy").expect(200).json();
    assert_eq!(policy["disk_inodes"].as_u64().is_some(), policy["disk_quota"].is_string(), "{policy}");
    policy["disk_enforcement"].as_str().unwrap_or_default().to_owned()
}

/// Bytes and files of a session, as `GET /workspaces` has them.
#[must_use]
pub fn used(daemon: &Daemon, id: &str) -> (u64, u64) {
    let page = daemon.client.get("/workspaces?limit=100").expect(200).json();
    let rows = page["workspaces"].as_array().into_iter().flatten();
    let row = rows.clone().find(|row| row["session_id"] == id).unwrap_or_else(|| panic!("no row of {id}: {page}"));
    let number = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("no {name}: {row}"));
    (number("disk_bytes"), number("disk_inodes"))
}

/// The reason in an answer.
#[must_use]
pub fn detail(response: &crate::Response) -> String {
    response.detail().as_str().unwrap_or_default().to_owned()
}

/// The file system of `disk` holds sessions to their share, and no session to another's.
pub fn is_enforced_on(disk: &Disk) {
    let few = options().env("SANDBOXD_DISK_INODES", FEW_INODES).env("SANDBOXD_TMPFS_SIZE", "8m");
    let daemon = few.state(&disk.state).start();
    assert_eq!(enforcement(&daemon), "project");
    let (a, b) = (open(&daemon, "project-a"), open(&daemon, "project-b"));
    b.sh("echo neighbour > note").expect("");
    a.sh("echo kept > note").expect("");
    // `df` shows the share.
    let df = a.sh("df -k --output=size /workspace | tail -n 1");
    assert!(df.stdout().trim().parse::<u64>().is_ok_and(|kib| kib <= QUOTA >> 10), "{}", df.stdout());
    for (what, line) in FILL {
        let full = a.sh(&format!("cd /workspace; {line}"));
        assert_ne!(full.code(), Some(0), "{what}: {}", full.body);
        assert!(full.stderr().contains(disk.kind.refusal()), "{what}: {}", full.body);
        clients_are_told(&a, what);
        a.sh("cat note").expect("kept\n");
        b.sh("cat note; echo more > more").expect("neighbour\n");
        a.sh("rm -rf $HOME/big; find /workspace -mindepth 1 ! -name note -delete").expect("");
    }
    a_full_tmp_is_no_quota(&a);
    project_ids_cannot_be_changed(&a);
    projects_are_not_shared(&daemon, &[&a, &b]);
    let a = woken_when_full(&daemon, a);
    let (before, _) = used(&daemon, &b.id);
    b.sh("dd if=/dev/zero of=big bs=1M count=20 conv=fsync").expect_code(0);
    assert!(used(&daemon, &b.id).0 >= before + (20 << 20));
    for session in [&a, &b] {
        daemon.client.delete(&session.path("?purge=true")).expect(204);
    }
    let projects = disk.projects();
    assert!(projects.is_none_or(|projects| projects.iter().all(|bytes| *bytes == 0)), "not given back");
}

/// What the API says of a session that was filled so.
fn clients_are_told(s: &Session, what: &str) {
    let quota = |answer: crate::Response| {
        assert_eq!(answer.status, 507, "{what}: {}", answer.text());
        assert!(detail(&answer).contains("disk quota"), "{what}: {}", answer.text());
    };
    match what {
        "many files" | "deep tree" | "links" => {
            quota(s.file("mkdir", "/workspace/one/more"));
            quota(s.write("/workspace/more", b"x"));
        }
        // It went with the command.
        "no name" => drop(s.write("/workspace/more", b"x").expect(204)),
        _ => {
            quota(s.write("/workspace/note", &vec![b'x'; 4 << 20]));
            // What only the sandbox can write.
            let home = s.sh("printf %s $HOME");
            quota(s.write(&format!("{}/more", home.stdout()), &vec![b'x'; 4 << 20]));
        }
    }
}

/// `/tmp` is memory and counts elsewhere: who is told of the quota would remove the wrong files.
fn a_full_tmp_is_no_quota(s: &Session) {
    let full = s.sh("head -c 16M /dev/zero > /tmp/fill");
    assert!(full.stderr().contains("No space left on device"), "{}", full.body);
    let refused = s.write("/tmp/more", &vec![b'x'; 1 << 20]).expect(507);
    assert!(detail(&refused).contains("no space left"), "{}", refused.text());
    s.sh("rm /tmp/fill").expect("");
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

/// A session that is full to the last byte, or file, can be started again, to be cleaned up; then all is as ever.
fn woken_when_full(daemon: &Daemon, s: Session) -> Session {
    let bytes = "dd if=/dev/zero of=full/big bs=64k count=2000; dd if=/dev/zero of=full/rest bs=1k count=2000";
    let files = "i=0; while : > full/f$i; do i=$((i+1)); done";
    [bytes, files].into_iter().fold(s, |s, fill| {
        s.sh(&format!("mkdir full; ({fill}); true")).expect_code(0);
        s.close();
        let again = Session::open(daemon, json!({"session_id": s.id, "runtime": "base"}));
        again.sh("cat note; rm -r full; echo works > ~/file; cat ~/file").expect("kept\nworks\n");
        // Its end would be that of the one that has its name now.
        std::mem::forget(s);
        again
    })
}
