//! Layouts packed and unpacked: what is whole, what is hostile, what breaks off.

use std::fs;
use std::os::unix::fs::symlink;

use indicatif::ProgressBar;

use super::*;
use crate::body::FileBody;

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A layout with two images of one layer each; their layers' digests.
fn layout(dir: &Path) -> [String; 2] {
    fs::create_dir_all(dir.join(BLOBS)).unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    let put = |bytes: &[u8]| {
        fs::write(dir.join(BLOBS).join(sha(bytes)), bytes).unwrap();
        sha(bytes)
    };
    let mut entries = Vec::new();
    let layers = ["one", "two"].map(|tag| {
        let layer = put(&[tag.as_bytes(), &[7; 1000]].concat());
        let config = put(format!("{{\"config of\": \"{tag}\"}}").as_bytes());
        let manifest = format!(
            r#"{{"config": {{"mediaType": "config", "digest": "sha256:{config}"}}, "layers": [{{"mediaType": "layer", "digest": "sha256:{layer}"}}]}}"#
        );
        let digest = put(manifest.as_bytes());
        entries.push(format!(
            r#"{{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:{digest}", "annotations": {{"org.opencontainers.image.ref.name": "{tag}"}}}}"#
        ));
        layer
    });
    fs::write(dir.join("index.json"), format!(r#"{{"manifests": [{}]}}"#, entries.join(","))).unwrap();
    layers
}

/// All that is sent.
fn packed(dir: &Path, tag: Option<&str>) -> Vec<u8> {
    let body = FileBody::of(pack(dir, tag).unwrap(), ProgressBar::hidden());
    let length = body.left();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let bytes = runtime.block_on(http_body_util::BodyExt::collect(body)).unwrap().to_bytes().to_vec();
    assert_eq!(bytes.len() as u64, length);
    bytes
}

/// Unpack into `path` in pieces of this size.
fn unpack(path: &Path, bytes: &[u8], piece: usize) -> io::Result<()> {
    let mut unpacking = Unpacking::new(path)?;
    bytes.chunks(piece).try_for_each(|piece| unpacking.push(piece))?;
    unpacking.finish()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_packed_is_unpacked_again() {
    let root = tempfile::tempdir().unwrap();
    let from = root.path().join("from");
    layout(&from);
    // What the index does not lead to is no part of it.
    fs::write(from.join(BLOBS).join("f".repeat(64)), "stray").unwrap();
    fs::write(from.join("notes"), "mine").unwrap();
    let bytes = packed(&from, None);
    for piece in [1, 511, 513, 100_000] {
        let to = root.path().join(format!("to-{piece}"));
        unpack(&to, &bytes, piece).unwrap();
        assert_eq!(names(&to), ["blobs", "index.json", "oci-layout"]);
        assert_eq!(names(&to.join(BLOBS)).len(), 6);
        for name in names(&to.join(BLOBS)) {
            assert_eq!(sha(&fs::read(to.join(BLOBS).join(&name)).unwrap()), name);
        }
    }
    assert!(unpack(&root.path().join("to-1"), &bytes, 512).is_err(), "it is there");
}

#[test]
fn of_several_images_the_one_with_the_tag_is_packed() {
    let root = tempfile::tempdir().unwrap();
    let [one, two] = layout(root.path());
    let bytes = packed(root.path(), Some("two"));
    let has = |digest: &str| bytes.windows(64).any(|window| window == digest.as_bytes() && digest.len() == 64);
    let in_header = |digest: &str| {
        let name = format!("{BLOBS}/{digest}");
        bytes.windows(name.len()).any(|window| window == name.as_bytes())
    };
    assert!(in_header(&two) && !in_header(&one) && has(&two));
    let said = pack(root.path(), Some("three")).err().unwrap().to_string();
    assert!(said.contains("only one, two"), "{said}");
}

#[test]
fn no_link_is_followed_out_of_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let secret = root.path().join("secret");
    fs::write(&secret, "not yours").unwrap();
    for (what, spoil) in [("the index", "index.json"), ("a blob", "blob"), ("the blobs", "blobs")] {
        let dir = root.path().join(spoil.replace('.', "-"));
        let [one, _] = layout(&dir);
        let path = match spoil {
            "blob" => dir.join(BLOBS).join(one),
            other => dir.join(other),
        };
        if path.is_dir() {
            fs::rename(&path, root.path().join("moved")).unwrap();
            symlink(root.path().join("moved"), &path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
            symlink(&secret, &path).unwrap();
        }
        let packed = pack(&dir, None);
        assert!(
            packed.is_err_and(|error| error.raw_os_error() == Some(40) || error.to_string().contains("os error 40")),
            "{what}"
        );
    }
    // Nor is anything waited for.
    let dir = root.path().join("pipe");
    layout(&dir);
    fs::remove_file(dir.join("oci-layout")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("oci-layout"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(pack(&dir, None).err().unwrap().to_string().contains("no regular file"));
}

fn entry(name: &[u8], kind: EntryType, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    [header.as_bytes().as_slice(), content, &vec![0; padding(content.len() as u64)]].concat()
}

#[test]
fn of_a_stream_that_is_no_layout_nothing_is_left() {
    let root = tempfile::tempdir().unwrap();
    let (file, end) = (EntryType::Regular, vec![0; 1024]);
    let good = [entry(b"oci-layout", file, "", b"{}"), entry(b"index.json", file, "", b"{}")].concat();
    let blob = |digest: &str| entry(format!("{BLOBS}/{digest}").as_bytes(), file, "", b"content");
    let bad_sum = {
        let mut bytes = entry(b"oci-layout", file, "", b"{}");
        bytes[0] = b'O';
        bytes
    };
    let cases = [
        ("a way out", entry(b"../evil", file, "", b"x")),
        ("a way out through blobs", entry(b"blobs/sha256/../../evil", file, "", b"x")),
        ("an absolute name", entry(b"/tmp/evil", file, "", b"x")),
        ("another name", entry(b"manifest.json", file, "", b"x")),
        ("a link", entry(b"oci-layout", EntryType::Symlink, "/etc/passwd", b"")),
        ("a link in place of the blobs", entry(b"blobs/sha256", EntryType::Symlink, "/tmp", b"")),
        ("a directory", entry(b"blobs", EntryType::Directory, "", b"")),
        ("a blob of another digest", blob(&"a".repeat(64))),
        ("no digest", blob(&"A".repeat(64))),
        ("the same again", good.clone()),
        ("a header that is none", bad_sum),
        ("a huge one", {
            let mut header = Header::new_ustar();
            header.set_path("index.json").unwrap();
            header.set_size(u64::MAX / 2);
            header.set_cksum();
            header.as_bytes().to_vec()
        }),
    ];
    let path = root.path().join("out");
    for (what, bytes) in cases {
        let spoiled = [good.clone(), bytes, end.clone()].concat();
        assert!(unpack(&path, &spoiled, 700).is_err(), "{what}");
        assert!(names(root.path()).is_empty(), "{what}");
    }
    let whole = [good.clone(), blob(&sha(b"content")), end.clone()].concat();
    for short in [0, 1, 511, 700, good.len(), whole.len() - 1025] {
        assert!(unpack(&path, &whole[..short], 512).is_err(), "{short}");
        assert!(names(root.path()).is_empty(), "{short}");
    }
    assert!(unpack(&path, &[entry(b"index.json", file, "", b"{}"), end].concat(), 512).is_err(), "without oci-layout");
    unpack(&path, &whole, 512).unwrap();
}
