//! Files that only the sandbox can resolve: links, what is outside of the work directory, `/proc`. The answers are those
//! of a command in the same sandbox, and nothing of the host is ever reached.

use std::fs;
use std::time::{Duration, Instant};

use it::daemon::{Options, StateDir};
use it::{Daemon, Outcome, Response, Session, shared};
use serde_json::{Value, json};

/// Rounds of the race.
const ROUNDS: usize = 1_000;
/// Rounds of each measurement.
const TIMES: usize = 60;

fn python(daemon: &Daemon) -> Session {
    daemon.session("python")
}

fn real(s: &Session, path: &str) -> String {
    s.file("realpath", path).expect(200).json()["path"].as_str().unwrap().to_owned()
}

fn names(answer: &Value) -> Vec<&str> {
    answer.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect()
}

/// The last event of a session: operation, success, detail.
fn last_event(s: &Session) -> (String, bool, String) {
    let events = s.client.get(&s.path("/events")).expect(200).json();
    let event = events["events"].as_array().unwrap().last().unwrap().clone();
    let text = |name: &str| event[name].as_str().unwrap().to_owned();
    (text("op"), event["ok"].as_bool().unwrap(), text("detail"))
}

/// A work directory with links of every kind.
fn links(s: &Session) {
    s.sh("mkdir -p dir/sub && printf deep > dir/sub/deep && printf file > dir/file; cd dir; \
          ln -s file link; ln -s link chain; ln -s /workspace/dir/sub abs; ln -s /etc etc; ln -s /etc/os-release out; \
          ln -s ../../etc/passwd up; ln -s nowhere broken; ln -s /tmp tmp; ln -s loop2 loop1; ln -s loop1 loop2; \
          ln -s loop loop; mkfifo fifo; mkdir shut; printf x > shut/f; chmod 0 shut; printf secret > locked; chmod 0 locked")
        .expect("");
}

#[test]
fn what_is_read_is_what_cat_reads() {
    let s = python(shared());
    links(&s);
    s.sh("printf 'only here' > /tmp/inside; printf home > $HOME/mine; ln -s /tmp/inside dir/to-tmp").expect("");
    let home = s.sh("printf %s $HOME").stdout().to_owned();
    let paths = [
        "/workspace/dir/link",
        "/workspace/dir/chain",
        "/workspace/dir/abs/deep",
        "/workspace/dir/out",
        "/workspace/dir/up",
        "/workspace/dir/etc/os-release",
        "/workspace/dir/tmp/inside",
        "/workspace/dir/to-tmp",
        "/workspace/../etc/os-release",
        "/workspace/dir/abs/../file",
        "/etc/os-release",
        "/tmp/inside",
        "/proc/version",
        "/proc/mounts",
        "/proc/sys/kernel/ostype",
        &format!("{home}/mine"),
    ];
    for path in paths {
        let read = s.file("read", path).expect(200);
        assert_eq!(read.text(), s.run(["cat", path]).expect_code(0).stdout(), "{path}");
        assert_eq!(last_event(&s).0, "run");
    }
    s.file("read", "/etc/os-release").expect(200);
    assert_eq!(last_event(&s), ("read".into(), true, "via the sandbox".into()));
}

#[test]
fn what_is_not_there_or_not_a_file_says_so() {
    let s = python(shared());
    links(&s);
    for op in ["read", "stat", "list", "remove"] {
        s.file(op, "/nowhere/at/all").expect_path_error(404, "FileNotFoundError");
        s.file(op, "/etc/os-release/x").expect_path_error(400, "NotADirectoryError");
    }
    for op in ["read", "stat", "list"] {
        for name in ["broken", "loop", "loop1", "loop1/x"] {
            s.file(op, &format!("/workspace/dir/{name}")).expect_path_error(404, "FileNotFoundError");
        }
    }
    assert_eq!(last_event(&s), ("ls".into(), false, "not found".into()));
    s.file("read", "/etc").expect_path_error(400, "IsADirectoryError");
    s.file("read", "/workspace/dir/abs").expect_path_error(400, "IsADirectoryError");
    s.file("list", "/etc/passwd").expect_path_error(400, "NotADirectoryError");
    s.file("list", "/workspace/dir/link").expect_path_error(400, "NotADirectoryError");
    s.file("mkdir", "/etc/passwd").expect_path_error(400, "FileExistsError");
    s.write("/tmp", b"x").expect_path_error(400, "IsADirectoryError");
    s.write("/etc/passwd/x", b"x").expect_path_error(400, "NotADirectoryError");
}

#[test]
fn what_has_no_name_in_the_contract_stays_with_the_client_and_nothing_hangs() {
    let s = python(shared());
    links(&s);
    let begun = Instant::now();
    for path in ["/dev/zero", "/dev/null", "/workspace/dir/fifo", "/proc/self/maps", "/proc/self/environ"] {
        s.file("read", path).expect(409);
    }
    for path in ["/workspace/dir/locked", "/etc/shadow", "/workspace/dir/shut/f"] {
        s.file("read", path).expect(409);
    }
    s.file("list", "/workspace/dir/shut").expect(409);
    s.file("mkdir", "/etc/mine").expect(409);
    s.write("/etc/mine", b"x").expect(409);
    s.write("/workspace/dir/tmp/../etc/mine", b"x").expect(409);
    s.sh("head -c 9000000 /dev/zero > /tmp/large").expect("");
    let large = s.file("read", "/tmp/large").expect(409);
    assert!(large.text().contains("over the limit of 8388608 bytes"), "{}", large.text());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn stat_and_realpath_are_what_the_tools_say() {
    let s = python(shared());
    links(&s);
    for (path, is_dir) in [
        ("/", true),
        ("/etc", true),
        ("/etc/passwd", false),
        ("/workspace/dir/chain", false),
        ("/workspace/dir/abs", true),
        ("/workspace/dir/etc/passwd", false),
    ] {
        let entry = s.file("stat", path).expect(200).json();
        let size =
            s.run(["sh", "-c", &format!("test -d {path} || wc -c < {path}")]).stdout().trim().parse::<u64>().ok();
        assert_eq!((entry["is_dir"].as_bool(), entry["size"].as_u64()), (Some(is_dir), size), "{path}");
        assert_eq!(entry["path"], path);
        assert_eq!(entry["name"], path.rsplit('/').next().unwrap());
    }
    // A size that `stat` does not know, and counting does.
    let status = s.file("stat", "/proc/sys/kernel/ostype").expect(200).json();
    assert_eq!(
        status["size"],
        s.run(["sh", "-c", "wc -c < /proc/sys/kernel/ostype"]).stdout().trim().parse::<u64>().unwrap()
    );
    let tails = [
        "link",
        "chain",
        "abs/deep",
        "out",
        "up",
        "broken/x",
        "abs/../none/deeper",
        "etc/../tmp",
        "tmp/none",
        "shut/f",
    ];
    for path in tails.iter().map(|tail| format!("/workspace/dir/{tail}")).chain(["/".into(), "/etc/../tmp/x".into()]) {
        let python = format!("import os; print(os.path.realpath({path:?}))");
        assert_eq!(real(&s, &path), s.run(["python3", "-c", &python]).stdout().trim_end(), "{path}");
    }
    assert!(real(&s, "/workspace/dir/loop/x").starts_with("/workspace/dir/loop"));
}

#[test]
fn a_directory_is_listed_as_ls_lists_it() {
    let s = python(shared());
    links(&s);
    for path in
        ["/", "/etc", "/tmp", "/workspace/dir", "/workspace/dir/etc", "/workspace/dir/abs", "/usr/lib", "/proc/sys"]
    {
        let listed = s.file("list", path).expect(200).json();
        let ls = s.run(["sh", "-c", &format!("LC_ALL=C ls -A {path}")]);
        assert_eq!(names(&listed), ls.stdout().lines().collect::<Vec<_>>(), "{path}");
        let dirs = format!("cd {path}; for f in $(LC_ALL=C ls -A); do if test -d $f; then echo $f; fi; done");
        let dirs = s.run(["sh", "-c", &dirs]);
        let seen = listed.as_array().unwrap().iter().filter(|entry| entry["is_dir"] == true);
        assert_eq!(
            seen.map(|e| e["name"].as_str().unwrap()).collect::<Vec<_>>(),
            dirs.stdout().lines().collect::<Vec<_>>()
        );
        assert!(listed.as_array().unwrap().iter().all(|e| e["path"].as_str().unwrap().starts_with(path)));
    }
    s.sh("mkdir /tmp/many; cd /tmp/many; seq 5000 | xargs touch").expect("");
    assert_eq!(names(&s.file("list", "/tmp/many").expect(200).json()).len(), 5000);
}

#[test]
fn a_write_is_the_sandbox_users_and_whole() {
    let s = python(shared());
    links(&s);
    let home = s.sh("printf %s $HOME").stdout().to_owned();
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    for path in [format!("{home}/made/by/api"), "/tmp/made/by/api".into(), "/workspace/dir/abs/by/api".into()] {
        s.write(&path, &bytes).expect(204);
        assert_eq!(last_event(&s), ("write".into(), true, "via the sandbox".into()));
        assert!(s.file("read", &path).expect(200).body == bytes, "{path}");
        s.run(["stat", "-c", "%u %a %s", &path]).expect("10001 644 3000000\n");
        s.run(["chmod", "750", &path]).expect("");
        s.write(&path, b"again").expect(204);
        s.run(["sh", "-c", &format!("stat -c %a {path}; cat {path}; ls -A $(dirname {path})")])
            .expect("750\nagainapi\n");
    }
    // A link at the target: neither followed nor replaced behind the client's back.
    s.sh("printf victim > /tmp/victim; ln -s /tmp/victim dir/planted; ln -s victim /tmp/planted").expect("");
    s.write("/workspace/dir/planted", b"new").expect(409);
    s.write("/tmp/planted", b"new").expect(409);
    s.sh("cat /tmp/victim").expect("victim");
    // Over the ceiling nothing is written.
    s.write("/tmp/victim", &vec![0; (8 << 20) + 1]).expect(409);
    s.sh("cat /tmp/victim; ls -A /tmp | grep -c sandboxd; true").expect("victim0\n");
}

#[test]
fn directories_are_made_and_trees_removed() {
    let s = python(shared());
    links(&s);
    s.file("mkdir", "/tmp/a/b/c").expect(204);
    s.file("mkdir", "/workspace/dir/abs/x/y").expect(204);
    s.file("mkdir", "/tmp/a/b/c").expect(204);
    s.sh("test -d /tmp/a/b/c && test -d dir/sub/x/y && ln -s /workspace/dir /tmp/a/back && printf x > /tmp/a/b/f")
        .expect("");
    s.file("remove", "/workspace/dir/abs/x").expect(204);
    s.file("remove", "/tmp/a").expect(204);
    s.sh("test ! -e /tmp/a && test ! -e dir/sub/x && cat dir/file").expect("file");
    // The work directory by every name that it has inside.
    s.sh("ln -s / /tmp/root; ln -s /workspace /tmp/here").expect("");
    for path in ["/tmp/root/workspace", "/tmp/../workspace", "/workspace/dir/..", "/", "/tmp/root/workspace/"] {
        s.file("remove", path).expect_path_error(400, "ValueError");
    }
    s.file("remove", "/tmp/here").expect(204);
    s.file("remove", "/etc/passwd").expect(409);
    s.sh("cat dir/file; test -s /etc/passwd && test ! -e /tmp/here").expect("file");
}

#[test]
fn a_sleeping_session_wakes_for_what_only_it_knows() {
    let s = python(shared());
    s.sh("printf x > f; ln -s f link").expect("");
    // No clock does so by itself.
    s.client.post(&s.path("/hibernate"), json!(null)).expect(200);
    let asleep = || s.client.get(&s.path("")).expect(200).json()["state"] == "hibernated";
    assert_eq!(s.file("read", "/workspace/f").expect(200).text(), "x");
    assert!(asleep(), "a file off the host woke it");
    assert_eq!(s.file("read", "/workspace/link").expect(200).text(), "x");
    assert!(!asleep());
}

#[test]
fn without_native_files_nothing_is_asked() {
    let daemon = Options::new().env("SANDBOXD_NATIVE_FILES", "false").start();
    let s = python(&daemon);
    for path in ["/workspace/f", "/etc/passwd"] {
        s.file("read", path).expect(409);
        s.write(path, b"x").expect(409);
    }
}

/// The sandbox swaps a directory and a link to the host's name for a marker as fast as it can.
#[test]
fn a_swap_of_a_directory_and_a_link_reaches_nothing_of_the_host() {
    let host = StateDir::new();
    fs::set_permissions(&host.0, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let marker = host.0.join("f");
    fs::write(&marker, "of the host").unwrap();
    fs::set_permissions(&marker, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let s = python(shared());
    let swap = format!(
        "import os, ctypes\nlibc = ctypes.CDLL(None)\nos.makedirs('d')\nopen('d/f', 'w').write('inside')\n\
         os.symlink({:?}, 'l')\nprint('up', flush=True)\nwhile not os.path.exists('/tmp/over'):\n  \
         libc.renameat2(-100, b'd', -100, b'l', 2)\n",
        host.0.to_str().unwrap()
    );
    s.write("/workspace/swap.py", swap.as_bytes()).expect(204);
    s.sh("setsid python3 swap.py > /tmp/up 2>&1 & while ! test -s /tmp/up; do sleep 0.01; done; cat /tmp/up")
        .expect("up\n");
    let mut seen = [0_usize; 2];
    let mut note = |answer: &Response, write: bool| {
        let text = answer.text();
        assert!(!text.contains("of the host"), "{text}");
        let fine: &[u16] = if write { &[204, 404, 409, 400] } else { &[200, 404, 409, 400] };
        assert!(fine.contains(&answer.status), "{} {text}", answer.status);
        seen[usize::from(answer.status < 300)] += 1;
    };
    for round in 0..ROUNDS {
        match round % 5 {
            0 => note(&s.write("/workspace/d/f", b"inside"), true),
            1 => note(&s.file("stat", "/workspace/d/f"), false),
            2 => note(&s.file("list", "/workspace/d"), false),
            _ => note(&s.file("read", "/workspace/d/f"), false),
        }
    }
    s.sh("touch /tmp/over").expect("");
    assert!(seen.iter().all(|count| *count > ROUNDS / 20), "{seen:?}: one side never won");
    assert_eq!(fs::read_to_string(&marker).unwrap(), "of the host");
    let left: Vec<_> = fs::read_dir(&host.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["f"]);
}

fn median(mut each: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..TIMES)
        .map(|_| {
            let begun = Instant::now();
            each();
            begun.elapsed()
        })
        .collect();
    times.sort();
    times[TIMES / 2]
}

/// Prints what one costs; the bound is only against a mistake.
#[test]
fn it_costs_less_than_a_command() {
    let s = python(shared());
    s.sh("printf x > f").expect("");
    let read = |path: &'static str| median(|| drop(s.file("read", path).expect(200)));
    let (host, inside) = (read("/workspace/f"), read("/etc/os-release"));
    let cat: Duration = median(|| {
        let done: Outcome = s.run_with(["cat", "/etc/os-release"], json!({}));
        done.expect_code(0);
    });
    let stat = median(|| drop(s.file("stat", "/etc/os-release").expect(200)));
    let ratio = inside.as_secs_f64() / cat.as_secs_f64();
    println!(
        "read: off the host {host:?}, inside {inside:?}, cat by /run {cat:?}: ratio {ratio:.2}; stat inside {stat:?}"
    );
    assert!(ratio < 1.5, "{ratio}");
}
