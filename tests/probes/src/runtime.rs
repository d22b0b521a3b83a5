//! The runtime that starts sandboxes, and what of the host a command could be left with.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use it::daemon::binary;
use rustix::fs::{FileType, Mode, XattrFlags};

use crate::archive::{Entry, Kind, archive};
use crate::ground::{Answers, Ground, Image, WHO, inside, run};
use crate::registry::{Body, Layer};
use crate::report::{Control, Report, Row};

/// The init, in a sandbox.
const INIT: &str = "/.sandbox-init";
/// Nobody in particular.
const NOBODY: u32 = 65_534;
/// `vfs_cap_data` of version 2, effective, with `CAP_CHOWN` and `CAP_SYS_ADMIN`: more than a host's root may itself lack.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 1, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// What these probes pull: programs that lend privilege, devices, a script that is interpreted by whoever runs it.
#[must_use]
pub fn images(program: &[u8]) -> Vec<Image> {
    let lent = |name: &str, mode| Entry::new(name, Kind::File(program.to_vec())).mode(mode);
    let entries = [
        lent("set-uid", 0o4755),
        lent("set-gid", 0o2755),
        lent("capable", 0o755).attribute("security.capability", &CAPABILITY),
        Entry::new("self", Kind::File(b"#!/proc/self/exe\n".to_vec())).mode(0o755),
        Entry::new("nodes/memory", Kind::Device(true, 1, 1)).mode(0o666),
        Entry::new("nodes/zero", Kind::Device(true, 1, 5)).mode(0o666),
        Entry::new("nodes/disk", Kind::Device(false, 254, 0)).mode(0o666),
        Entry::file("nodes/plain"),
    ];
    let layer = Layer::gzip(&Body::of(archive(&entries)));
    vec![("lent-root".to_owned(), "0", vec![layer.clone()]), ("lent-user".to_owned(), "10001:10001", vec![layer])]
}

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    report.class("runtime: what a command is left with");
    let scratch = ground.scratch("runtime");
    descriptors(ground, report);
    directories(ground, report, &scratch);
    init(ground, report);
    report.class("runtime: its own programs");
    overwriting(ground, report, &scratch);
    lending(ground, report, &scratch);
    devices(ground, report, &scratch);
    left_behind(ground, report, &scratch);
}

/// A row of which both users' answers are the same one.
fn add(report: &mut Report, probe: &str, expected: &str, got: &str, held: bool, control: Control) {
    let (probe, expected, got) = (probe.to_owned(), expected.to_owned(), got.to_owned());
    report.add(&Row { probe, expected, got, held, control });
}

fn said(answers: &Answers, name: &str) -> String {
    answers.get(name).cloned().unwrap_or_else(|| "no answer".to_owned())
}

fn descriptors(ground: &Ground, report: &mut Report) {
    let script = "exec 7</etc/passwd; exec \"$0\" descriptors";
    let leaky = Command::new("sh").args(["-c", script]).arg(&ground.program).output().expect("run sh");
    let leaky = String::from_utf8_lossy(&leaky.stdout).into_owned();
    for who in WHO {
        let got = said(&inside(&ground.session(who), &["descriptors"]), "descriptors");
        let expected = "0 /dev/null, 1 pipe, 2 pipe";
        let control = Control::of(leaky.contains("7 /etc/passwd"), "finds one that is left");
        add(report, &format!("descriptors ({who})"), expected, &got, got == expected, control);
    }
}

fn directories(ground: &Ground, report: &mut Report, scratch: &Path) {
    let marker = ground.outside.join("marker").display().to_string();
    let root = scratch.display().to_string();
    let free = said(&ground.here(&["climb-from", &root, "/", &marker]), "climb");
    for who in WHO {
        let session = ground.session(who);
        let got = said(&inside(&session, &["climb", &marker]), "climb");
        let control = Control::of(free.starts_with("DONE"), "a working directory that is left leads out");
        add(report, &format!("climb out of a directory ({who})"), "not found", &got, got == "not found", control);
        let name = "sandboxd-probe-marker";
        let planted = ground.outside.with_file_name(name);
        fs::write(&planted, "").expect("plant a file");
        let got = said(&inside(&session, &["find", name]), "find");
        let found = Command::new("find").arg(planted.parent().expect("a parent")).args(["-name", name]).output();
        let control = Control::of(found.is_ok_and(|found| !found.stdout.is_empty()), "it is on the host");
        add(report, &format!("a file of the host's ({who})"), "not found", &got, got == "not found", control);
        let _ = fs::remove_file(planted);
    }
}

fn init(ground: &Ground, report: &mut Report) {
    let free = ground.here(&["free", "process", "1"]);
    let answers = WHO.map(|who| inside(&ground.session(who), &["process", "1"]));
    for (name, free) in &free {
        let [root, user] = answers.each_ref().map(|answers| said(answers, name));
        let got = if root == user { root.clone() } else { format!("root {root}, user {user}") };
        let refused = |answer: &str| ["ENOENT", "EACCES", "EPERM"].contains(&answer);
        let control = match free.as_str() {
            "DONE" => Control::Works(free.clone()),
            other => Control::LeftOut(format!("refused on this host as well ({other})")),
        };
        add(report, &format!("init's {name}"), "refused", &got, refused(&root) && refused(&user), control);
    }
}

fn overwriting(ground: &Ground, report: &mut Report, scratch: &Path) {
    let copy = scratch.join("program");
    fs::copy(&ground.program, &copy).expect("copy the program");
    let free = said(&ground.here(&["overwrite", &copy.display().to_string()]), "overwrite");
    let ours = || fs::read(binary("sandbox-init")).map(|bytes| Body::of(bytes).digest()).unwrap_or_default();
    let before = ours();
    for who in WHO {
        let session = ground.session(&format!("lent-{who}"));
        for (what, path) in [("the init's program", INIT), ("the init as it runs", "/proc/1/exe")] {
            let got = said(&inside(&session, &["overwrite", path]), "overwrite");
            let control = Control::of(free == "DONE", format!("a copy on the host: {free}"));
            add(report, &format!("overwrite {what} ({who})"), "refused", &got, got != "DONE", control);
        }
        // The kernel runs whoever executes this in its own place: the init.
        let outcome = session.try_run(["/self"], serde_json::json!({"timeout_seconds": 5}));
        let alive = run(&session, &["identity"]).code() == Some(0);
        let script = scratch.join("self");
        fs::write(&script, "#!/proc/self/exe\n").expect("write a script");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("let it run");
        let by_shell = Command::new("sh").arg("-c").arg(&script).status();
        let got = format!("answered {}, init {}", outcome.status, if alive { "well" } else { "gone" });
        let held = alive && ours() == before;
        let control = Control::of(by_shell.is_ok_and(|status| status.success()), "a shell runs itself so");
        add(report, &format!("#!/proc/self/exe ({who})"), "the init goes on", &got, held, control);
    }
}

/// Run the program at `path` as nobody and have what it says of itself.
fn as_nobody(path: &Path) -> String {
    let output = Command::new(path).arg("identity").uid(NOBODY).gid(NOBODY).output().expect("run a copy");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn copy_with(ground: &Ground, path: PathBuf, mode: u32) -> PathBuf {
    fs::copy(&ground.program, &path).expect("copy the program");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set its mode");
    path
}

fn lending(ground: &Ground, report: &mut Report, scratch: &Path) {
    let free_uid = as_nobody(&copy_with(ground, scratch.join("set-uid"), 0o4755));
    let free_gid = as_nobody(&copy_with(ground, scratch.join("set-gid"), 0o2755));
    let capable = copy_with(ground, scratch.join("capable"), 0o755);
    rustix::fs::setxattr(&capable, "security.capability", &CAPABILITY, XattrFlags::empty()).expect("set a capability");
    let free_capable = as_nobody(&capable);
    let works = [
        ("set-uid", free_uid.contains(&format!("uid {NOBODY},0,0,0"))),
        ("set-gid", free_gid.contains(&format!("gid {NOBODY},0,0,0"))),
        ("capable", !free_capable.contains("capabilities 0000000000000000")),
    ];
    for who in WHO {
        let session = ground.session(&format!("lent-{who}"));
        let own = said(&inside(&session, &["identity"]), "identity");
        for (name, works) in works {
            let outcome = session.run([format!("/{name}").as_str(), "identity"]);
            let got = outcome.stdout().trim().rsplit('\t').next().unwrap_or_default().to_owned();
            let held = got == own && own.ends_with("capabilities 0000000000000000");
            add(
                report,
                &format!("{name} program ({who})"),
                "as its caller",
                &got,
                held,
                Control::of(works, "lends on the host"),
            );
        }
        let planted = said(&inside(&session, &["plant", "/workspace/lent"]), "plant");
        let outcome = session.run(["/workspace/lent", "identity"]);
        let got = outcome.stdout().trim().rsplit('\t').next().unwrap_or_default().to_owned();
        let control = Control::of(planted == "DONE" && works[0].1, "planted");
        add(report, &format!("set-uid, made inside ({who})"), "as its caller", &got, got == own, control);
    }
}

fn devices(ground: &Ground, report: &mut Report, scratch: &Path) {
    let nodes = scratch.join("nodes");
    fs::create_dir_all(&nodes).expect("make a directory");
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        nodes.join("zero"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        rustix::fs::makedev(1, 5),
    );
    let free = ground.here(&["devices", &nodes.display().to_string()]);
    let works = made.is_ok() && free.iter().any(|(name, said)| name.starts_with("device") && said == "DONE");
    for who in WHO {
        let answers = inside(&ground.session(&format!("lent-{who}")), &["devices", "/nodes"]);
        let got = answers.iter().map(|(name, said)| format!("{name} {said}")).collect::<Vec<_>>().join(", ");
        let held = got == "file /nodes/plain DONE";
        let control = Control::of(works, "one of the same kind opens on the host");
        add(report, &format!("devices of an image ({who})"), "file /nodes/plain DONE", &got, held, control);
    }
}

/// Files that belong to the host's root, or that lend anybody's privilege but a sandbox's, below a directory. How
/// many files there are.
fn of_root(directory: &Path, found: &mut Vec<String>) -> usize {
    let mut seen = 0;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        if meta.uid() < 65_536 || meta.gid() < 65_536 {
            found.push(format!("{} of {}:{} {:o}", entry.path().display(), meta.uid(), meta.gid(), meta.mode()));
        }
        seen += 1;
        if meta.is_dir() {
            seen += of_root(&entry.path(), found);
        }
    }
    seen
}

fn left_behind(ground: &Ground, report: &mut Report, scratch: &Path) {
    let mut found = Vec::new();
    let planted = scratch.join("planted");
    fs::create_dir_all(&planted).expect("make a directory");
    fs::write(planted.join("of-root"), "").expect("plant a file");
    let _ = symlink("/etc/shadow", planted.join("link"));
    let _ = of_root(&planted, &mut found);
    let works = found.len() == 2;
    // Sessions that are kept, with what root inside made in them.
    let kept = WHO.map(|who| ground.session(&format!("lent-{who}")));
    for session in &kept {
        for path in ["/workspace/lent", "/lent", "/tmp/lent"] {
            let _ = inside(session, &["plant", path]);
        }
        session.write("/workspace/through/the/api", b"x").expect(204);
    }
    let mut left = Vec::new();
    let mut seen = 0;
    let places = [ground.daemon.state.join("workspaces"), ground.images.join("layers")];
    let written = fs::read_dir(ground.daemon.state.join("sessions")).into_iter().flatten().flatten();
    for place in places.into_iter().chain(written.map(|session| session.path().join("upper"))) {
        seen += of_root(&place, &mut left);
    }
    left.truncate(5);
    let got = if left.is_empty() { "none".to_owned() } else { left.join("; ") };
    add(
        report,
        "files of host root left behind",
        "none",
        &got,
        left.is_empty(),
        Control::of(works && seen > 10, format!("found where planted; {seen} files seen")),
    );
}
