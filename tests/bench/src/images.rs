//! `bench --images`: a pull of 200 MB, unpacked, beside `skopeo copy` and `umoci unpack` of the same image from the same
//! registry, turn by turn.

use std::fs;
use std::path::Path;

use it::daemon::Options;
use it::registry::{Directory, Registry, tool};
use it::session::escape;
use serde_json::json;

use crate::measure::{Row, Times};

/// Bytes of the image's files, and how many layers they are in.
const BYTES: u64 = 200_000_000;
const LAYERS: u64 = 4;
/// Turns, after one that is not counted.
const TURNS: usize = 5;

/// The figure.
pub fn pull() -> Vec<Row> {
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = image(&directory);
    registry.push(&format!("oci:{layout}:it"), &[], "bench/image:1");
    let name = format!("{}/bench/image:1", registry.address);
    let catalog = directory.join("catalog.json");
    fs::write(&catalog, r#"[{"alias": "none", "image": "debian-bookworm"}]"#).expect("write the catalogue");
    let daemon = Options::new()
        .catalog(&catalog)
        .images(&directory.join("store"))
        .env("SANDBOXD_PREWARM", "false")
        .env("SANDBOXD_INSECURE_REGISTRIES", &registry.address)
        .start();
    let [mut ours, mut copy, mut unpack, mut both] = Times::several();
    for turn in 0..=TURNS {
        if turn == 1 {
            [ours, copy, unpack, both] = Times::several();
        }
        settle();
        let answer = ours.take(|| daemon.client.post("/images/pull", json!({"reference": name})));
        assert!(
            answer.text().trim_end().ends_with('}') && answer.text().contains(r#""type":"done""#),
            "{}",
            answer.text()
        );
        daemon.client.delete(&format!("/images/{}", escape(&name).replace('/', "%2F"))).expect(200);
        settle();
        let (copied, bundle) = (path(&directory, "copied"), path(&directory, "bundle"));
        let source = format!("docker://{name}");
        let begun = std::time::Instant::now();
        copy.take(|| {
            tool(&["skopeo", "copy", "--quiet", "--src-tls-verify=false", &source, &format!("oci:{copied}:x")])
        });
        unpack.take(|| tool(&["umoci", "unpack", "--image", &format!("{copied}:x"), &bundle]));
        both.push(begun.elapsed());
        for made in [copied, bundle] {
            fs::remove_dir_all(made).expect("remove what was unpacked");
        }
    }
    let floor = both.median();
    vec![
        Row::new("`skopeo copy`", copy),
        Row::new("`umoci unpack`", unpack),
        Row::new("both", both),
        Row::new("pull and unpack", ours).over(floor, "skopeo copy, umoci unpack").at_most_times(1.0),
    ]
}

/// Let the disk come to rest.
fn settle() {
    rustix::fs::sync();
}

fn path(directory: &Directory, name: &str) -> String {
    directory.join(name).display().to_string()
}

/// A layout with files of this host's, in layers of the same size.
fn image(directory: &Directory) -> String {
    let layout = path(directory, "layout");
    let image = format!("{layout}:it");
    tool(&["umoci", "init", "--layout", &layout]);
    tool(&["umoci", "new", "--image", &image]);
    let listed = tool(&["find", "/usr/lib", "/usr/share", "-xdev", "-type", "f", "-size", "-20M", "-size", "+0"]);
    let mut files = listed.lines();
    for layer in 0..LAYERS {
        let root = directory.join(&format!("layer-{layer}"));
        let mut bytes = 0;
        while bytes < BYTES / LAYERS {
            let file = files.next().expect("200 MB of files below /usr");
            let to = root.join(file.trim_start_matches('/'));
            fs::create_dir_all(to.parent().unwrap_or(Path::new("/"))).expect("make a directory");
            bytes += fs::copy(file, &to).expect("copy a file");
        }
        tool(&["umoci", "insert", "--image", &image, &root.display().to_string(), "/"]);
    }
    layout
}
