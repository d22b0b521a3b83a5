//! Images that a hostile registry serves: archives that want out of their layer, that want to be more than they say, and
//! documents that do.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::archive::{BLOCK, Entry, Kind, archive, header, seal, unpack_naively};
use crate::ground::{self, Ground, Image};
use crate::registry::{Body, Layer, Registry};
use crate::report::{Control, Report, Row};

/// Enough to be at the root from anywhere.
const UP: usize = 20;
/// Names of images that are served when their probe's turn comes: large ones.
pub const LAZY: [&str; 9] = [
    "bomb-ratio",
    "bomb-small",
    "bomb-entries",
    "bomb-sparse",
    "wrong-layer",
    "wrong-blob",
    "manifest-large",
    "manifest-endless",
    "manifest-deep",
];

/// Archives that want out, by what they try.
fn hostile(outside: &Path) -> Vec<(&'static str, Vec<Entry>)> {
    let out = outside.display().to_string();
    let marker = format!("{out}/marker");
    let climb = |path: &str| format!("{}{}", "../".repeat(UP), path.trim_start_matches('/'));
    let file = |name: &str| Entry::file(name);
    let link = |name: &str, target: &str| Entry::link(name, target);
    let hard = |name: &str, target: &str| Entry::new(name, Kind::HardLink(target.to_owned()));
    vec![
        ("a name that climbs", vec![file(&climb(&format!("{out}/planted")))]),
        (
            "a name that climbs later",
            vec![Entry::new("a", Kind::Directory), file(&format!("a/{}", climb(&format!("{out}/planted"))))],
        ),
        ("an absolute name", vec![file(&format!("{out}/planted"))]),
        ("a link, then a file in it", vec![link("d", &out), file("d/planted")]),
        ("a climbing link, then a file", vec![link("d", &climb(&out)), file("d/planted")]),
        ("a chain of links", vec![link("d", "e"), link("e", "f"), link("f", &out), file("d/planted")]),
        ("a link, then a directory in it", vec![link("d", &out), Entry::new("d/planted", Kind::Directory)]),
        (
            "a link in place of a directory",
            vec![Entry::new("d", Kind::Directory), link("d/e", &out), file("d/e/planted")],
        ),
        ("a link, then the same name", vec![link("f", &marker), file("f")]),
        ("a hard link out", vec![hard("g", &marker), file("g")]),
        ("a hard link that climbs", vec![hard("g", &climb(&marker)), file("g")]),
        ("a hard link through a link", vec![link("d", &out), hard("g", "d/marker"), file("g")]),
        ("a hard link in a linked place", vec![file("x"), link("d", &out), hard("d/planted", "x")]),
        ("a whiteout through a link", vec![link("d", &out), file("d/.wh.marker")]),
        ("a whiteout that climbs", vec![file(&climb(&format!("{out}/.wh.marker")))]),
        ("an opaque mark through a link", vec![link("d", &out), file("d/.wh..wh..opq"), file("d/planted")]),
    ]
}

/// Archives whose names say nothing good, and that lead nowhere.
fn odd() -> Vec<(&'static str, Vec<Entry>)> {
    let file = |name: &str| Entry::file(name);
    vec![
        ("a whiteout of a whiteout", vec![file("a"), file(".wh..wh.a"), file(".wh..wh..wh.a")]),
        ("a whiteout of nothing", vec![file(".wh.")]),
        ("a whiteout of the directory", vec![file("a/.wh..")]),
        ("a whiteout of what is above", vec![file("a/.wh...")]),
        ("an opaque mark as a directory", vec![Entry::new(".wh..wh..opq", Kind::Directory), file(".wh..wh..opq/x")]),
        ("128 directories and more", vec![file(&format!("{}x", "d/".repeat(500)))]),
        ("a name of 4 KiB", vec![file(&"n".repeat(4096))]),
        ("an owner beyond all", vec![Entry::file("x").owner(0o777_7777)]),
    ]
}

/// Attributes that overlayfs and the kernel believe.
fn attributes(outside: &Path) -> Vec<Entry> {
    let out = outside.display().to_string();
    let names = [
        "trusted.overlay.opaque",
        "trusted.overlay.redirect",
        "user.overlay.redirect",
        "user.overlay.metacopy",
        "security.selinux",
        "user.own",
    ];
    let entry = |(index, name): (usize, &&str)| {
        let kind = if index % 2 == 0 { Kind::Directory } else { Kind::File(b"x".to_vec()) };
        Entry::new(&format!("attributes/{index}"), kind).attribute(name, out.as_bytes())
    };
    names.iter().enumerate().map(entry).collect()
}

fn name(what: &str) -> String {
    format!("hostile-{}", what.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-"))
}

/// What these probes pull.
#[must_use]
pub fn images(outside: &Path) -> Vec<Image> {
    let mut images = Vec::new();
    for (what, entries) in hostile(outside).into_iter().chain(odd()) {
        images.push((name(what), "0", vec![Layer::plain(Body::of(archive(&entries)))]));
    }
    images.push((name("attributes"), "0", vec![Layer::plain(Body::of(archive(&attributes(outside))))]));
    images
}

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    report.class("images: archives that want out");
    let scratch = ground.scratch("images");
    for (what, entries) in hostile(&ground.outside) {
        let (got, held) = pull(ground, &name(what));
        let control = escapes(what, &entries, &ground.outside, &scratch);
        row(report, what, "nothing outside changes", &got, held, control);
    }
    report.class("images: archives that make no sense");
    let (_, sound) = pull(ground, "root");
    for (what, _) in odd() {
        let (got, held) = pull(ground, &name(what));
        row(report, what, "refused, or inside", &got, held, Control::of(sound, "a sound image of this registry opens"));
    }
    kept_attributes(ground, report);
    report.class("images: more than they say");
    bombs(ground, report);
    documents(ground, report);
}

fn row(report: &mut Report, probe: &str, expected: &str, got: &str, held: bool, control: Control) {
    let (probe, expected, got) = (probe.to_owned(), expected.to_owned(), got.to_owned());
    report.add(&Row { probe, expected, got, held, control });
}

/// Open a session of an image, and see what that did.
fn pull(ground: &Ground, image: &str) -> (String, bool) {
    let (answer, session) = ground.try_session(image);
    let opened = session.is_some();
    let sound = session.is_none_or(|session| ground::run(&session, &["identity"]).code() == Some(0));
    let said = if opened {
        "opened".to_owned()
    } else {
        format!("refused with {}: {}", answer.status, reason(&answer.text()))
    };
    // A registry's fault is no fault of the service's.
    let told = opened || (400..=502).contains(&answer.status) && answer.status != 500;
    match ground.damage() {
        None => (said, told && sound),
        Some(damage) => (format!("{said}; OUTSIDE: {damage}"), false),
    }
}

/// The end of an error: what it is about.
fn reason(text: &str) -> String {
    let text = text.trim_end_matches(['}', '"']);
    let start = text.len().saturating_sub(70);
    text.get(start..).unwrap_or(text).to_owned()
}

/// Whether the archive gets out of a program that believes it. Its `outside` is another one, so that this harms nobody.
fn escapes(what: &str, _: &[Entry], outside: &Path, scratch: &Path) -> Control {
    let place = scratch.join(name(what));
    let (target, layer) = (place.join("outside"), place.join("layer"));
    ground::plant(&target);
    let _ = fs::create_dir_all(&layer);
    let entries = hostile(&target).into_iter().find(|(title, _)| *title == what).map(|(_, entries)| entries);
    let unpacked = unpack_naively(&entries.unwrap_or_default(), &layer);
    let harmed = ground::damage(&target);
    debug_assert!(target != outside);
    match harmed {
        Some(_) => Control::Works("gets out of a naive unpacking".to_owned()),
        None => Control::Fails(format!("does not get out of a naive unpacking: {unpacked:?}")),
    }
}

fn kept_attributes(ground: &Ground, report: &mut Report) {
    let (got, held) = pull(ground, &name("attributes"));
    let layers = fs::read_dir(ground.images.join("layers")).into_iter().flatten().flatten();
    let Some(layer) = layers.map(|layer| layer.path()).find(|layer| layer.join("attributes").is_dir()) else {
        return row(report, "attributes", "dropped", &got, held, Control::Fails("the layer is not there".to_owned()));
    };
    let mut kept = Vec::new();
    for entry in fs::read_dir(layer.join("attributes")).into_iter().flatten().flatten() {
        kept.extend(list_attributes(&entry.path()));
    }
    let probe = ground.scratch("images").join("attribute");
    let _ = fs::write(&probe, "x");
    let _ = rustix::fs::setxattr(&probe, "trusted.overlay.opaque", b"y", rustix::fs::XattrFlags::empty());
    let works = list_attributes(&probe) == ["trusted.overlay.opaque"];
    let got = if kept.is_empty() { "dropped".to_owned() } else { kept.join(", ") };
    row(
        report,
        "trusted.*, security.*, user.*",
        "dropped",
        &got,
        held && kept.is_empty(),
        Control::of(works, "found where set"),
    );
}

fn list_attributes(path: &Path) -> Vec<String> {
    let mut names = vec![0; 4096];
    let count = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    names[..count]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// Bytes that the image store takes on the disk.
fn stored(ground: &Ground) -> u64 {
    let output = std::process::Command::new("du").args(["--summarize", "--block-size=1"]).arg(&ground.images).output();
    output.ok().and_then(|o| String::from_utf8_lossy(&o.stdout).split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn bombs(ground: &Ground, report: &mut Report) {
    let registry = &ground.registry;
    let zeroes = |mib: u64| {
        let head = header("zeroes", b'0', mib << 20, 0o644, 0, (0, 0)).to_vec();
        Body::joined(&head, Arc::new(vec![0; 1 << 20]), mib, vec![0; 2 * BLOCK])
    };
    registry.above_base("bomb-small", ground, &[Layer::gzip(&zeroes(32))]);
    let (small, works) = pull(ground, "bomb-small");
    registry.above_base("bomb-ratio", ground, &[Layer::gzip(&zeroes(512))]);
    let before = stored(ground);
    let (got, held) = pull(ground, "bomb-ratio");
    // What has been unpacked of it goes by the trash, which is emptied after the answer.
    let grown = || stored(ground).saturating_sub(before) >> 20;
    let emptied = it::daemon::wait_for(Duration::from_secs(20), || (grown() < 16).then_some(()));
    let (held, grown) = (held && got.starts_with("refused") && emptied.is_some(), grown());
    let control = Control::of(works && small == "opened", "32 MiB of the same are taken");
    row(
        report,
        "512 MiB of zeroes in 0.5 MiB",
        "refused, nothing left",
        &format!("{got}; {grown} MiB left"),
        held,
        control.clone(),
    );

    registry.above_base("bomb-sparse", ground, &[Layer::plain(Body::of(sparse(10 << 30)))]);
    let before = stored(ground);
    let begun = Instant::now();
    let (got, held) = pull(ground, "bomb-sparse");
    let (took, grown) = (begun.elapsed(), stored(ground).saturating_sub(before) >> 20);
    let held = held && grown < 64 && took < Duration::from_secs(60);
    let got = format!("{got}; {grown} MiB taken in {:.1} s", took.as_secs_f64());
    row(report, "10 GiB of holes in 2 KiB", "less than 64 MiB taken", &got, held, control.clone());

    let entry = header("same", b'5', 0, 0o755, 0, (0, 0)).to_vec();
    let entries = Body::joined(&[], Arc::new(entry), 2_000_002, vec![0; 2 * BLOCK]);
    registry.above_base("bomb-entries", ground, &[Layer::plain(entries)]);
    let (got, held) = pull(ground, "bomb-entries");
    row(report, "2,000,002 entries", "refused", &got, held && got.starts_with("refused"), control);
}

/// An archive of one sparse file of old GNU form: a hole, and a byte at the end.
fn sparse(size: u64) -> Vec<u8> {
    let mut head = header("holes", b'S', BLOCK as u64, 0o644, 0, (0, 0));
    head[257..265].copy_from_slice(b"ustar  \0");
    // Offset and length of the only piece, then the size of the whole. Ten gibibytes do not fit into eleven octal digits.
    let mut put = |at: usize, value: u64| {
        head[at] = 0x80;
        head[at + 1..at + 4].fill(0);
        head[at + 4..at + 12].copy_from_slice(&value.to_be_bytes());
    };
    put(386, size - BLOCK as u64);
    put(398, BLOCK as u64);
    put(483, size);
    seal(&mut head);
    [head.as_slice(), &[b'x'; BLOCK], &[0; 2 * BLOCK]].concat()
}

fn documents(ground: &Ground, report: &mut Report) {
    let registry = &ground.registry;
    let small = Body::of(archive(&[Entry::file("x")]));
    let (_, sound) = pull(ground, "user");
    let control = || Control::of(sound, "a sound image of this registry opens");
    registry.above_base("wrong-layer", ground, &[Layer::plain(small.clone()).misnamed()]);
    let (got, held) = pull(ground, "wrong-layer");
    row(report, "a layer of another digest", "refused", &got, held && got.starts_with("refused"), control());

    // Another one: the blob of the first is in the store, and is what it says.
    let small = Body::of(archive(&[Entry::file("z")]));
    registry.above_base("wrong-blob", ground, &[Layer::plain(small.clone())]);
    registry.put(&format!("wrong-blob/blobs/sha256:{}", small.digest()), Body::of(archive(&[Entry::file("y")])));
    let (got, held) = pull(ground, "wrong-blob");
    row(report, "a blob of another digest", "refused", &got, held && got.starts_with("refused"), control());

    let large =
        |mib| Body::joined(b"{\"schemaVersion\": 2, \"x\": \"", Arc::new(vec![b'x'; 1 << 20]), mib, b"\"}".to_vec());
    for (what, image, body) in [
        ("a manifest of 100 MB", "manifest-large", large(100)),
        ("a manifest of 1 GB", "manifest-endless", large(1000)),
        ("a manifest 100,000 levels deep", "manifest-deep", Body::of(vec![b'['; 100_000])),
    ] {
        registry.put(&format!("{image}/manifests/1"), body);
        let before = peak(ground);
        let (got, held) = pull(ground, image);
        let grown = peak(ground).saturating_sub(before);
        let got = format!("{got}; {grown} MiB of memory");
        row(report, what, "refused, < 32 MiB", &got, held && got.starts_with("refused") && grown < 32, control());
    }
}

/// The most memory that the service has ever had, in MiB.
fn peak(ground: &Ground) -> u64 {
    let kib = |pid| it::host::status(pid, "VmHWM").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    it::host::children(ground.daemon.pid).into_iter().filter_map(kib).max().unwrap_or(0) >> 10
}

impl Registry {
    /// Serve an image whose commands run as root, of these layers above the one that holds the program.
    fn above_base(&self, name: &str, ground: &Ground, layers: &[Layer]) {
        self.image(name, "0", &[std::slice::from_ref(&ground.base), layers].concat());
    }
}
