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
        let trash = std::fs::read_dir(launcher.state(".trash")).unwrap();
        names.count() == 0 && trash.count() == 0
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
