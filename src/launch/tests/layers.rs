//! Layer archives, mostly hostile ones.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking, as tests do.
mod common;

use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use common::{DISK, Launcher, SLEEP, Tar, plan};
use tar::EntryType;
use wire::id::LayerId;
use wire::launch::{Answer, Compression, Request};

fn failure(answer: &Answer) -> &str {
    match answer {
        Answer::Failed { message, .. } => message,
        other => panic!("it was unpacked: {other:?}"),
    }
}

/// Nothing of a failed layer is left in the store.
fn assert_clean(launcher: &Launcher) {
    common::wait_for("the store is clean", || {
        let names = std::fs::read_dir(launcher.state("images/layers")).unwrap();
        let frames = std::fs::read_dir(launcher.state("images/frames")).unwrap();
        let trash = std::fs::read_dir(launcher.state(".trash")).unwrap();
        names.count() == 0 && frames.count() == 0 && trash.count() == 0
    });
}

#[test]
fn a_proper_layer_is_what_its_archive_says() {
    let launcher = Launcher::start(SLEEP, "");
    let tar = Tar::new()
        .dir("./")
        .dir("./usr/")
        .file("usr/a", b"abc")
        .entry("usr/suid", EntryType::Regular, 0o4755, "", b"x")
        .entry("usr/closed", EntryType::Directory, 0o1700, "", b"")
        .file("usr/closed/in", b"in")
        .hard_link("usr/b", "usr/a")
        .symlink("lib", "usr")
        .file("lib/through", b"link")
        .file("made/on/the/way", b"")
        .entry("usr/pipe", EntryType::Fifo, 0o600, "", b"")
        .done();
    let (layer, answer) = launcher.unpack_tar(tar);
    assert_eq!(answer, Answer::Unpacked { bytes: 3 + 1 + 2 + 4, entries: 11 });
    let at = |name: &str| launcher.state("images/layers").join(layer.as_str()).join(name);
    let mode = |name: &str| std::fs::symlink_metadata(at(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("usr/suid"), mode("usr/closed"), mode("made/on")), (0o4755, 0o1700, 0o755));
    let metadata = std::fs::symlink_metadata(at("usr/a")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mtime(), metadata.nlink()), (DISK, DISK, 1_000_000_000, 2));
    assert_eq!(std::fs::metadata(at("usr")).unwrap().mtime(), 1_000_000_000);
    assert_eq!(std::fs::read_to_string(at("usr/through")).unwrap(), "link");
    assert!(std::fs::symlink_metadata(at("usr/pipe")).unwrap().file_type().is_fifo());
    // Once more: it is there.
    assert_eq!(
        launcher.unpack(&layer, Compression::None, b"not even a tar"),
        Answer::Unpacked { bytes: 0, entries: 0 }
    );
}

#[test]
fn paths_stay_within_the_layer() {
    let launcher = Launcher::start(SLEEP, "");
    for (tar, words) in [
        (Tar::new().file("../escaped", b"x").done(), "leaves the layer"),
        (Tar::new().file("a/../../escaped", b"x").done(), "leaves the layer"),
        (Tar::new().hard_link("passwd", "/etc/passwd").done(), "No such file"),
        (Tar::new().hard_link("passwd", "../../../../../../etc/passwd").done(), "leaves the layer"),
        (Tar::new().symlink("up", "../../../../../..").hard_link("passwd", "up/etc/passwd").done(), "No such file"),
        (Tar::new().file("a/.wh...", b"").done(), "names no entry"),
        (Tar::new().file("a/.wh..", b"").done(), "names no entry"),
        (Tar::new().file("a/.wh.", b"").done(), "names no entry"),
        (Tar::new().symlink("loop", "loop").file("loop/x", b"x").done(), "Too many levels"),
        (Tar::new().file("file", b"").file("file/x", b"x").done(), "Not a directory"),
    ] {
        let (_, answer) = launcher.unpack_tar(tar);
        assert!(failure(&answer).contains(words), "{answer:?}, not {words}");
    }
    assert_clean(&launcher);
    assert!(!launcher.state("images/escaped").exists() && !launcher.state("escaped").exists());
}

#[test]
fn what_points_outside_lands_inside() {
    let launcher = Launcher::start(SLEEP, "");
    let tar = Tar::new()
        .file("/absolute", b"x")
        .symlink("etc", "/somewhere")
        .dir("somewhere")
        .file("etc/passwd", b"ours")
        .symlink("up", "../../../../..")
        .file("up/top", b"top")
        .done();
    let (layer, answer) = launcher.unpack_tar(tar);
    assert!(matches!(answer, Answer::Unpacked { .. }), "{answer:?}");
    let at =
        |name: &str| std::fs::read_to_string(launcher.state("images/layers").join(layer.as_str()).join(name)).unwrap();
    assert_eq!((at("absolute"), at("somewhere/passwd"), at("top")), ("x".into(), "ours".into(), "top".into()));
}

#[test]
fn whiteouts_hide_what_is_below_and_devices_are_left_out() {
    let launcher = Launcher::start(SLEEP, "");
    let lower = Tar::new().dir("d").file("d/gone", b"").file("d/stays", b"").dir("o").file("o/old", b"").done();
    let upper = Tar::new()
        .file("d/.wh.gone", b"")
        .dir("o")
        .file("o/.wh..wh..opq", b"")
        .file("o/new", b"")
        .entry("dev", EntryType::Block, 0o666, "", b"")
        .entry("char", EntryType::Char, 0o666, "", b"")
        .done();
    let (lower, _) = launcher.unpack_tar(lower);
    let (upper, answer) = launcher.unpack_tar(upper);
    assert!(matches!(answer, Answer::Unpacked { entries: 6, .. }), "{answer:?}");
    let at = |name: &str| launcher.state("images/layers").join(upper.as_str()).join(name);
    assert!(!at("dev").exists() && !at("char").exists());
    assert_eq!(std::fs::symlink_metadata(at("d/gone")).unwrap().rdev(), 0);
    let script = "cd /; busybox find d o > /workspace/seen; echo > /workspace/done; exec busybox sleep 100";
    std::fs::write(launcher.path("init"), format!("#!/bin/busybox sh\n{script}\n")).unwrap();
    let base = launcher.base();
    let answer = launcher.start_sandbox(&plan("see", 1, &[upper, lower, base.clone(), base]));
    assert!(matches!(answer, Answer::Started { .. }), "{answer:?}");
    let mut seen: Vec<_> = launcher.report("see", "seen").lines().map(str::to_owned).collect();
    seen.sort();
    assert_eq!(seen, ["d", "d/stays", "o", "o/new"]);
}

#[test]
fn later_entries_replace_earlier_ones() {
    let launcher = Launcher::start(SLEEP, "");
    let tar = Tar::new()
        .dir("a")
        .file("a/inner", b"")
        .file("a", b"now a file")
        .file("b", b"file")
        .dir("b")
        .file("b/inner", b"in b")
        .symlink("c", "/b")
        .file("c", b"not through the link")
        .dir("d")
        .symlink("d", "b")
        .file("d/late", b"in b")
        .done();
    let (layer, answer) = launcher.unpack_tar(tar);
    assert!(matches!(answer, Answer::Unpacked { .. }), "{answer:?}");
    let at =
        |name: &str| std::fs::read_to_string(launcher.state("images/layers").join(layer.as_str()).join(name)).unwrap();
    assert_eq!(at("a"), "now a file");
    assert_eq!(at("b/inner"), "in b");
    assert_eq!(at("c"), "not through the link");
    assert_eq!(at("b/late"), "in b");
}

#[test]
fn a_blob_that_is_not_what_it_says_leaves_nothing() {
    let launcher = Launcher::start(SLEEP, "");
    let tar = Tar::new().file("a", &[7; 100_000]).done();
    let wrong = LayerId::parse(&"0".repeat(64)).unwrap();
    assert!(failure(&launcher.unpack(&wrong, Compression::None, &tar)).contains("digest"));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(tar.as_slice(), 1).unwrap();
    for (compression, blob) in [(Compression::Gzip, &gzip), (Compression::Zstd, &zstd)] {
        failure(&launcher.unpack(&wrong, compression, &blob[..blob.len() / 2]));
        failure(&launcher.unpack(&wrong, compression, &tar));
    }
    failure(&launcher.unpack(&wrong, Compression::None, &tar[..tar.len() / 2]));
    failure(&launcher.unpack(&wrong, Compression::None, b""));
    assert_clean(&launcher);
}

#[test]
fn caps_on_bytes_entries_ids_and_compression() {
    let launcher = Launcher::start(SLEEP, "max_layer_bytes = 200000\nmax_layer_entries = 10");
    let (_, answer) = launcher.unpack_tar(Tar::new().file("a", &[0; 300_000]).done());
    assert!(failure(&answer).contains("200000 bytes"), "{answer:?}");
    let many = (0..11).fold(Tar::new(), |tar, n| tar.file(&format!("f{n}"), b""));
    let (_, answer) = launcher.unpack_tar(many.done());
    assert!(failure(&answer).contains("more than 10 entries"), "{answer:?}");
    let bomb = zstd::encode_all(std::io::Read::take(std::io::repeat(0), 1 << 30), 1).unwrap();
    failure(&launcher.unpack(&LayerId::parse(&"0".repeat(64)).unwrap(), Compression::Zstd, &bomb));
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_uid(65_536);
    header.set_gid(0);
    header.set_mode(0o644);
    header.set_path("foreign").unwrap();
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, std::io::empty()).unwrap();
    let (_, answer) = launcher.unpack_tar(builder.into_inner().unwrap());
    assert!(failure(&answer).contains("above 65535"), "{answer:?}");
    assert_clean(&launcher);
}

#[test]
fn long_names_and_compressed_layers_work() {
    let launcher = Launcher::start(SLEEP, "");
    let name = format!("{}/{}", "d".repeat(120), "f".repeat(120));
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o644);
    header.set_uid(5);
    header.set_gid(6);
    builder.append_data(&mut header, &name, b"x".as_slice()).unwrap();
    let tar = builder.into_inner().unwrap();
    let digest: String = sha2::Digest::finalize(<sha2::Sha256 as sha2::Digest>::new_with_prefix(&tar))
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let layer = LayerId::parse(&digest).unwrap();
    let blob = zstd::encode_all(tar.as_slice(), 1).unwrap();
    let answer = launcher.unpack(&layer, Compression::Zstd, &blob);
    assert!(matches!(answer, Answer::Unpacked { bytes: 1, .. }), "{answer:?}");
    let path = launcher.state("images/layers").join(layer.as_str()).join(&name);
    assert_eq!(std::fs::metadata(path).unwrap().uid(), DISK + 5);
    assert_eq!(launcher.ask(&Request::RemoveLayer { layer: layer.clone() }, &[]), Answer::Done);
    assert_eq!(launcher.ask(&Request::RemoveLayer { layer }, &[]), Answer::Done);
    assert_clean(&launcher);
}

/// As umoci 0.4 writes them: nothing after the last byte of the last file.
#[test]
fn an_archive_may_end_with_its_last_byte() {
    let launcher = Launcher::start(SLEEP, "");
    let tar = Tar::new().file("a", b"first").file("b", &[7; 1000]).done();
    let end = 512 + 512 + 512 + 1000;
    let (layer, answer) = launcher.unpack_tar(tar[..end].to_vec());
    assert!(matches!(answer, Answer::Unpacked { bytes: 1005, entries: 2 }), "{answer:?}");
    let path = launcher.state("images/layers").join(layer.as_str()).join("b");
    assert_eq!(std::fs::read(path).unwrap(), [7; 1000]);
    let (_, answer) = launcher.unpack_tar(tar[..end - 1].to_vec());
    assert!(failure(&answer).contains("ends within its last entry"), "{answer:?}");
}

#[test]
fn zeroes_take_no_room_and_are_zeroes() {
    let launcher = Launcher::start(SLEEP, "");
    let mut content = vec![0; 4 << 20];
    content[2 << 20] = b'x';
    let ends_in_data = [vec![0; 1 << 20], b"end".to_vec()].concat();
    let tar = Tar::new().file("holes", &content).file("end", &ends_in_data).file("small", &[0; 10]).done();
    let (layer, answer) = launcher.unpack_tar(tar);
    assert!(matches!(answer, Answer::Unpacked { entries: 3, .. }), "{answer:?}");
    let at = |name: &str| launcher.state("images/layers").join(layer.as_str()).join(name);
    for (name, expected) in [("holes", content), ("end", ends_in_data), ("small", vec![0; 10])] {
        assert_eq!(std::fs::read(at(name)).unwrap(), expected, "{name}");
        assert!(std::fs::metadata(at(name)).unwrap().blocks() * 512 <= 128 << 10, "{name}");
    }
}

#[test]
fn a_packed_layer_is_the_layer_again() {
    let launcher = Launcher::start(SLEEP, "");
    let long = "n".repeat(90);
    let tar = Tar::new()
        .dir("d")
        .entry("d/tool", EntryType::Regular, 0o4755, "", &[9; 70_000])
        .file("d/empty", b"")
        .hard_link("d/same", "d/tool")
        .symlink("link", "/d/../elsewhere")
        .entry("pipe", EntryType::Fifo, 0o600, "", b"")
        .dir("o")
        .file("o/.wh..wh..opq", b"")
        .file("o/.wh.gone", b"")
        .dir(&format!("d/{long}"))
        .dir(&format!("d/{long}/x"));
    let tar = tar.done();
    let (layer, answer) = launcher.unpack_tar(tar.clone());
    assert!(matches!(answer, Answer::Unpacked { .. }), "{answer:?}");
    let deep = launcher.state("images/layers").join(layer.as_str()).join(format!("d/{long}/x"));
    std::fs::write(deep.join("y".repeat(90)), "deep").unwrap();
    let pack = |layer: &LayerId| {
        let mut file = tempfile::tempfile().unwrap();
        let answer = launcher.ask(&Request::Pack { layer: layer.clone() }, &[file.try_clone().unwrap().into()]);
        assert_eq!(answer, Answer::Done);
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        bytes
    };
    // The archive that it came as, to the last byte; and without its frame one of its files.
    let frames = launcher.state("images/frames");
    assert!(pack(&layer) == tar, "another archive than came");
    std::fs::write(frames.join(layer.as_str()), "no frame").unwrap();
    let first = pack(&layer);
    assert!(first != tar && first == pack(&layer));
    std::fs::remove_file(frames.join(layer.as_str())).unwrap();
    assert!(first == pack(&layer), "a frame that is none is as good as none");
    let (again, answer) = launcher.unpack_tar(first.clone());
    assert!(matches!(answer, Answer::Unpacked { bytes: 70_004, .. }), "{answer:?}");
    let path = launcher.state("images/layers").join(again.as_str());
    let tool = std::fs::metadata(path.join("d/tool")).unwrap();
    assert_eq!((tool.mode() & 0o7777, tool.uid(), tool.nlink(), tool.mtime()), (0o4755, DISK, 2, 1_000_000_000));
    assert_eq!(std::fs::read_link(path.join("link")).unwrap(), std::path::Path::new("/d/../elsewhere"));
    assert_eq!(std::fs::read(path.join(format!("d/{long}/x/{}", "y".repeat(90)))).unwrap(), b"deep");
    // The whiteout, the opaque directory, and everything else: packed again it is the same archive, whenever that is.
    assert!(
        std::fs::metadata(path.join("o/gone")).unwrap().mtime() == 1_000_000_000,
        "a whiteout has its entry's time"
    );
    for _ in 0..2 {
        assert!(pack(&again) == first, "another archive");
        let _ = std::fs::remove_file(frames.join(again.as_str()));
    }
    // A stranger's reader finds the same in it.
    let mut list = std::process::Command::new("tar");
    list.args(["tf", "-"]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut list = list.spawn().unwrap();
    list.stdin.take().unwrap().write_all(&first).unwrap();
    let listed = String::from_utf8(list.wait_with_output().unwrap().stdout).unwrap();
    for name in ["./\n", "o/.wh.gone\n", "o/.wh..wh..opq\n", &format!("d/{long}/x/{}\n", "y".repeat(90))] {
        assert!(listed.contains(name), "{name:?} in {listed}");
    }
    let none = LayerId::parse(&"0".repeat(64)).unwrap();
    let file = tempfile::tempfile().unwrap();
    assert!(failure(&launcher.ask(&Request::Pack { layer: none }, &[file.into()])).contains("open it"));
    for layer in [layer, again] {
        assert_eq!(launcher.ask(&Request::RemoveLayer { layer }, &[]), Answer::Done);
    }
    assert_eq!(std::fs::read_dir(frames).unwrap().count(), 0);
    assert_clean(&launcher);
}
