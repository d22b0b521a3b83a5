//! Links where something is going to be mounted: as the image has them, and swapped while sandboxes start.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags};

use crate::archive::{Entry, Kind, archive};
use crate::ground::{Ground, Image, inside};
use crate::registry::{Body, Layer};
use crate::report::{Control, Report, Row};

/// Where the runtime mounts something, or makes something.
const PLACES: [&str; 11] = [
    "proc",
    "sys",
    "dev",
    "tmp",
    "workspace",
    ".sandbox-init",
    "etc/sandboxd",
    "etc/resolv.conf",
    "dev/null",
    "dev/shm",
    "sys/fs/cgroup",
];
/// What has to be where in a sandbox that starts.
const MOUNTED: [&str; 4] = ["/proc=proc", "/dev=tmpfs", "/tmp=tmpfs", "/workspace=ext4"];
/// Starts while links are swapped, and for how long at most.
const STARTS: usize = 500;
const AT_MOST: Duration = Duration::from_secs(25);
/// Places that are swapped.
const SWAPPED: [&str; 5] = ["proc", "sys", "dev", "tmp", "workspace"];

/// An image for each place and each kind of link, and one whose directories are going to be swapped.
#[must_use]
pub fn images(outside: &Path) -> Vec<Image> {
    let mut images = Vec::new();
    for place in PLACES {
        for (kind, target) in targets(outside) {
            let layer = Layer::plain(Body::of(archive(&[Entry::link(place, &target)])));
            images.push((name(place, kind), "0", vec![layer]));
        }
    }
    let directories = SWAPPED.map(|place| Entry::new(place, Kind::Directory));
    let links = SWAPPED.map(|place| Entry::link(&format!("{place}.link"), &outside.display().to_string()));
    let layer = Layer::plain(Body::of(archive(&[directories, links].concat())));
    images.push(("swapped".to_owned(), "0", vec![layer]));
    images
}

fn targets(outside: &Path) -> [(&'static str, String); 2] {
    let absolute = outside.display().to_string();
    [("absolute", absolute.clone()), ("climbing", format!("{}{absolute}", "../".repeat(20)))]
}

fn name(place: &str, kind: &str) -> String {
    format!("link-{}-{kind}", place.trim_start_matches('.').replace(['/', '.'], "-"))
}

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    report.class("runtime: links where something is mounted");
    let follows = a_mount_follows(ground);
    for place in PLACES {
        let mut got = Vec::new();
        let mut held = true;
        for (kind, _) in targets(&ground.outside) {
            let (said, well) = open(ground, &name(place, kind));
            held &= well;
            got.push(format!("{kind}: {said}"));
        }
        let (probe, expected) = (format!("an image's link at /{place}"), "refused, or nothing reached".to_owned());
        report.add(&Row {
            probe,
            expected,
            got: got.join("; "),
            held,
            control: Control::of(follows, "a mount by path follows it"),
        });
    }
    swapped(ground, report);
}

/// Open a session and use every place; what came of it, and whether that is well.
fn open(ground: &Ground, image: &str) -> (String, bool) {
    let (answer, session) = ground.try_session(image);
    let mut well = true;
    let said = match session {
        None => format!("refused with {}", answer.status),
        Some(session) => {
            let mounts = inside(&session, &["mounts"]).remove("mounts").unwrap_or_default();
            well &= MOUNTED.iter().all(|place| mounts.contains(place));
            let written = session.write("/workspace/through-the-api", b"x").status;
            for path in ["/tmp/lent", "/workspace/lent", "/dev/shm/lent"] {
                let _ = inside(&session, &["plant", path]);
            }
            well &= written == 204;
            if well { "open, all in place".to_owned() } else { format!("open, {mounts}, write {written}") }
        }
    };
    match ground.damage().or_else(|| mounted_on(&ground.outside)) {
        None => (said, well),
        Some(damage) => (format!("{said}; REACHED: {damage}"), false),
    }
}

/// Mounts of the host's on the directory that is not to be reached.
fn mounted_on(outside: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().find(|line| line.contains(&outside.display().to_string())).map(str::to_owned)
}

/// Whether a mount by path goes where a link leads: it does, which is why no path is used.
fn a_mount_follows(ground: &Ground) -> bool {
    let scratch = ground.scratch("links");
    let target = scratch.join("target");
    let link = scratch.join("proc");
    let _ = fs::create_dir(&target);
    let _ = std::os::unix::fs::symlink(&target, &link);
    let script = "mount -t tmpfs none \"$0\" && grep -qF \" $1 \" /proc/self/mountinfo";
    let status = Command::new("unshare").args(["--mount", "sh", "-c", script]).arg(&link).arg(&target).status();
    status.is_ok_and(|status| status.success())
}

/// The layer of the image whose directories are swapped.
fn swapped_layer(ground: &Ground) -> Option<PathBuf> {
    let layers = fs::read_dir(ground.images.join("layers")).ok()?.flatten();
    layers.map(|layer| layer.path()).find(|layer| layer.join("proc.link").is_symlink())
}

/// Somebody exchanges directories and links of a layer, as fast as can be, while sandboxes are started from it. Nobody in
/// a sandbox could; who holds against this holds against less.
fn swapped(ground: &Ground, report: &mut Report) {
    drop(ground.session("swapped"));
    let layer = swapped_layer(ground).expect("the layer of the image is unpacked");
    let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let swapper = {
        let (stop, swaps) = (stop.clone(), swaps.clone());
        std::thread::spawn(move || swap(&layer, &stop, &swaps))
    };
    let (started, refused, wrong) = start_many(ground);
    stop.store(true, Ordering::Relaxed);
    let _ = swapper.join();
    let swaps = swaps.load(Ordering::Relaxed);
    let got = match &wrong {
        None => format!("{started} started, {refused} refused"),
        Some(wrong) => wrong.clone(),
    };
    let control =
        Control::of(started > 0 && refused > 0 && swaps > 1000, format!("{swaps} swaps, and some starts saw a link"));
    let expected = "refused, or all in place".to_owned();
    report.add(&Row { probe: "links swapped during starts".to_owned(), expected, got, held: wrong.is_none(), control });
}

fn swap(layer: &Path, stop: &AtomicBool, swaps: &AtomicU64) {
    let pairs = SWAPPED.map(|place| (layer.join(place), layer.join(format!("{place}.link"))));
    while !stop.load(Ordering::Relaxed) {
        // One place at a time, so that the others let a start come that far.
        for (place, link) in &pairs {
            for _ in 0..2 {
                if rustix::fs::renameat_with(CWD, place, CWD, link, RenameFlags::EXCHANGE).is_ok() {
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

/// Sessions that started, that were refused, and the first that was not as it should.
fn start_many(ground: &Ground) -> (usize, usize, Option<String>) {
    let begun = Instant::now();
    let (mut started, mut refused) = (0, 0);
    while started + refused < STARTS && begun.elapsed() < AT_MOST {
        let (answer, session) = ground.try_session("swapped");
        match session {
            None if answer.status < 500 || answer.status == 502 => refused += 1,
            None => return (started, refused, Some(format!("answered {} {}", answer.status, answer.text()))),
            Some(session) => {
                started += 1;
                let mounts = inside(&session, &["mounts"]).remove("mounts").unwrap_or_default();
                if !MOUNTED.iter().all(|place| mounts.contains(place)) {
                    return (started, refused, Some(format!("started with {mounts}")));
                }
            }
        }
        if let Some(damage) = ground.damage().or_else(|| mounted_on(&ground.outside)) {
            return (started, refused, Some(format!("REACHED: {damage}")));
        }
    }
    (started, refused, None)
}
