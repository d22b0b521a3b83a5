//! Layers unpacked and packed again: the same archive, or word that it is not.

use super::*;
use crate::layer::{Caps, extract_into};
use std::io::Seek;
use std::path::Path;
use tar::{EntryType, Header};
use wire::launch::Compression;

const CAPS: Caps = Caps { bytes: 64 << 20, entries: 1000 };

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

/// One entry, with what fills it up.
fn entry(path: &str, kind: EntryType, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    // Not as we would write it: to be kept all the same.
    header.set_mode(0o100_644);
    header.set_uid(rustix::process::geteuid().as_raw().into());
    header.set_gid(rustix::process::getegid().as_raw().into());
    header.set_mtime(1_600_000_000);
    header.set_username("somebody").unwrap();
    header.set_size(content.len() as u64);
    let old = header.as_old_mut();
    old.name[..path.len()].copy_from_slice(path.as_bytes());
    old.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    let mut bytes = [header.as_bytes().as_slice(), content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// Unpack the archive beneath `root`; its layer and its frame.
fn unpack(root: &Path, bytes: &[u8]) -> (OwnedFd, LayerId, File) {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let (layer, frame) = (LayerId::parse(&digest).unwrap(), tempfile::tempfile().unwrap());
    let dir: OwnedFd = File::open(root).unwrap().into();
    let recorder = Recorder::new(frame.try_clone().unwrap().into()).unwrap();
    let blob = file(bytes).into();
    extract_into(dir.try_clone().unwrap(), &layer, Compression::None, blob, CAPS, Some(recorder)).unwrap();
    (dir, layer, frame)
}

fn again(dir: &OwnedFd, layer: &LayerId, frame: &File, most: u64) -> io::Result<Vec<u8>> {
    (&*frame).rewind()?;
    let mut output = tempfile::tempfile()?;
    rebuild(dir, frame.try_clone()?.into(), &mut output, layer, most)?;
    output.rewind()?;
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn what_comes_of_a_frame_is_the_archive() {
    let (file, root) = (EntryType::Regular, tempfile::tempdir().unwrap());
    let long = entry("././@LongLink", EntryType::GNULongName, "", &[b"d/".as_slice(), &[b'n'; 150], b"\0"].concat());
    let parts = [
        entry("./d/", EntryType::Directory, "", b""),
        entry("./d/a", file, "", &vec![7; 100_000]),
        entry("l", EntryType::Symlink, "d", b""),
        entry("l/through-a-link", file, "", b"inside"),
        entry("h", EntryType::Link, "d/a", b""),
        entry("d/.wh.gone", file, "", b"whiteouts have no content, this one does"),
        entry("empty", file, "", b""),
        entry("sparse", file, "", &vec![0; 300_000]),
        [long, entry("short", file, "", b"the name is before it")].concat(),
        entry("pax", EntryType::XHeader, "", b"30 mtime=1600000000.123456789\n"),
        entry("timed", file, "", b"x"),
        vec![0; 1024],
        // What follows the end is part of the digest.
        b"and more".to_vec(),
    ];
    let bytes = parts.concat();
    let (dir, layer, frame) = unpack(root.path(), &bytes);
    assert_eq!(again(&dir, &layer, &frame, 1 << 20).unwrap(), bytes);
    let size = frame.metadata().unwrap().len();
    assert!(size < 1500, "the content is not in it: {size} bytes");
    assert!(again(&dir, &layer, &frame, 1000).is_err(), "so much and no more");
}

#[test]
fn an_archive_without_an_end_that_is_filled_up_comes_back_without_it() {
    let root = tempfile::tempdir().unwrap();
    let mut bytes = entry("a", EntryType::Regular, "", b"abc");
    bytes.truncate(515);
    let (dir, layer, frame) = unpack(root.path(), &bytes);
    assert_eq!(again(&dir, &layer, &frame, 1 << 20).unwrap(), bytes);
}

#[test]
fn another_archive_is_none() {
    let root = tempfile::tempdir().unwrap();
    let file = EntryType::Regular;
    let twice = [entry("a", file, "", b"first"), entry("a", file, "", b"again"), vec![0; 1024]].concat();
    let (dir, layer, frame) = unpack(root.path(), &twice);
    assert!(again(&dir, &layer, &frame, 1 << 20).is_err(), "the first content is not there any more");

    let root = tempfile::tempdir().unwrap();
    let (dir, layer, frame) = unpack(root.path(), &[entry("a", file, "", b"mine"), vec![0; 1024]].concat());
    for (what, spoil) in [("changed", "ours"), ("shorter", "x"), ("gone", ""), ("a link", "/etc/hostname")] {
        let path = root.path().join("a");
        std::fs::remove_file(&path).unwrap();
        match spoil {
            "" => {}
            target if target.starts_with('/') => std::os::unix::fs::symlink(target, &path).unwrap(),
            content => std::fs::write(&path, content).unwrap(),
        }
        assert!(again(&dir, &layer, &frame, 1 << 20).is_err(), "{what}");
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, "mine").unwrap();
    }
    again(&dir, &layer, &frame, 1 << 20).unwrap();
    // Half a frame, none, and noise.
    let whole = frame.metadata().unwrap().len();
    for length in [0, 1, whole / 2, whole - 1] {
        frame.set_len(length).unwrap();
        assert!(again(&dir, &layer, &frame, 1 << 20).is_err(), "{length}");
    }
}

#[test]
fn a_frame_names_nothing_outside() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("outside"), "secret").unwrap();
    std::fs::create_dir(root.path().join("layer")).unwrap();
    let dir: OwnedFd = File::open(root.path().join("layer")).unwrap().into();
    rustix::fs::mkfifoat(&dir, "pipe", Mode::RUSR).unwrap();
    for path in ["../outside", "/outside", "a/../../outside", "pipe", "", ".", ".."] {
        let mut frame = Vec::from([CONTENT]);
        frame.extend_from_slice(&6_u64.to_le_bytes());
        frame.extend_from_slice(&u16::try_from(path.len()).unwrap().to_le_bytes());
        frame.extend_from_slice(path.as_bytes());
        frame.push(END);
        let digest: String = Sha256::digest("secret").iter().map(|byte| format!("{byte:02x}")).collect();
        let frame = file(&zstd::encode_all(frame.as_slice(), 1).unwrap());
        assert!(again(&dir, &LayerId::parse(&digest).unwrap(), &frame, 1 << 20).is_err(), "{path}");
    }
}
