//! OCI layouts as directories, and archives of each kind: from skopeo and umoci, and for skopeo, umoci and podman.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use it::Daemon;
use it::http::Endpoint;
use it::registry::{Directory, Registry, busybox, is_empty, is_missing, tool};
use serde_json::{Value, json};

use super::images::{expect_busybox, pull, service, store};

/// How long what happens after an answer may take.
const SOON: Duration = Duration::from_secs(60);

/// `sandboxctl images …`: its status and what it says.
fn images(daemon: &Daemon, arguments: &[&str], input: Option<&Path>) -> (i32, String) {
    let token = String::from_utf8(daemon.client.token.clone()).unwrap();
    let mut command = Command::new(it::daemon::binary("sandboxctl"));
    command.env_clear().env("SANDBOXD_SOCKET", &daemon.socket).env("SANDBOXD_TOKEN", token);
    let input = input.map_or_else(Stdio::null, |path| Stdio::from(fs::File::open(path).unwrap()));
    let output = command.arg("images").args(arguments).stdin(input).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

#[track_caller]
fn done(daemon: &Daemon, arguments: &[&str]) -> String {
    let (status, said) = images(daemon, arguments, None);
    assert_eq!(status, 0, "{arguments:?}: {said}");
    said
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_directory_of_skopeo_or_umoci_is_imported() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 100_000);
    let source = format!("oci:{}:it", layout.display());
    let path = |name: &str| text(&directory.join(name));
    let names: Vec<(&str, String)> =
        ["umoci", "skopeo", "zstd", "index", "stdin"].map(|alias| (alias, format!("l.example/{alias}:1"))).into();
    let catalogue: Vec<(&str, &str)> = names.iter().map(|(alias, name)| (*alias, name.as_str())).collect();
    let daemon = service(&directory, &catalogue, &[], &[]);
    let named = |alias: &str| format!("l.example/{alias}:1");

    // One of several, so it has to be said which.
    tool(&["umoci", "tag", "--image", &format!("{}:it", text(&layout)), "old"]);
    tool(&["umoci", "config", "--image", &format!("{}:it", text(&layout)), "--config.env", "EXTRA=1"]);
    let (status, said) = images(&daemon, &["import", &text(&layout), "--name", &named("umoci")], None);
    assert!(status == 65 && said.contains("holds 2 images") && said.contains("it, old"), "{said}");
    let (status, said) = images(&daemon, &["import", &text(&layout), "--name", "a", "--tag", "none"], None);
    assert!(status != 0 && said.contains("no image with the tag \"none\", only"), "{said}");
    let said = done(&daemon, &["import", &text(&layout), "--name", &named("umoci"), "--tag", "it"]);
    assert!(said.starts_with(&named("umoci")) && said.contains("4 layers"), "{said}");
    expect_busybox(&daemon, "umoci", &directory);
    daemon.session("umoci").sh("echo $EXTRA").expect("1\n");

    tool(&["skopeo", "copy", "--quiet", &source, &format!("oci:{}:one", path("skopeo"))]);
    tool(&["skopeo", "copy", "--quiet", "--dest-compress-format", "zstd", &source, &format!("oci:{}", path("zstd"))]);
    // Of an index with more platforms than are here, what is here.
    registry.push(&source, &[], "t/box:oci");
    let raw = tool(&[
        "skopeo",
        "inspect",
        "--raw",
        "--tls-verify=false",
        &format!("docker://{}/t/box:oci", registry.address),
    ]);
    let digest = tool(&["sh", "-c", &format!("printf %s '{raw}' | sha256sum | cut -d' ' -f1")]);
    let entry = |architecture: &str, digest: &str, size: usize| {
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": size, "digest": format!("sha256:{}", digest.trim()),
            "platform": {"os": "linux", "architecture": architecture}})
    };
    let host = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry("s390x", &"0".repeat(64), 500), entry(host, &digest, raw.len())]})
    .to_string();
    tool(&["cp", "-a", &path("skopeo"), &path("index")]);
    let hex = tool(&["sh", "-c", &format!("printf %s '{index}' | sha256sum | cut -d' ' -f1")]).trim().to_owned();
    fs::write(directory.join("index").join("blobs/sha256").join(&hex), &index).unwrap();
    fs::write(directory.join("index").join("blobs/sha256").join(digest.trim()), &raw).unwrap();
    let outer = json!({"schemaVersion": 2, "manifests": [{"mediaType": "application/vnd.oci.image.index.v1+json",
        "size": index.len(), "digest": format!("sha256:{hex}")}]});
    fs::write(directory.join("index").join("index.json"), outer.to_string()).unwrap();
    for alias in ["skopeo", "zstd", "index"] {
        done(&daemon, &["import", &path(alias), "--name", &named(alias)]);
        expect_busybox(&daemon, alias, &directory);
    }

    let archive = directory.join("stdin.tar");
    tool(&["skopeo", "copy", "--quiet", &source, &format!("oci-archive:{}", text(&archive))]);
    let (status, said) = images(&daemon, &["import", "-", "--name", &named("stdin")], Some(&archive));
    assert_eq!(status, 0, "{said}");
    expect_busybox(&daemon, "stdin", &directory);
    // The same content however it came, whichever images have it.
    assert_eq!(fs::read_dir(store(&directory).join("layers")).unwrap().count(), 4);
}

#[test]
fn of_a_docker_archive_with_several_images_one_is_imported() {
    if is_missing(&["skopeo", "umoci"]) {
        return;
    }
    let directory = Directory::new();
    let layout = busybox(&directory, 1000);
    let archive = text(&directory.join("several.tar"));
    // As docker save A B writes it.
    for tag in ["one", "two"] {
        let to = text(&directory.join(tag));
        tool(&[
            "skopeo",
            "copy",
            "--quiet",
            &format!("oci:{}:it", layout.display()),
            &format!("docker-archive:{to}:t/box:{tag}"),
        ]);
        tool(&["mkdir", "-p", &text(&directory.join("several"))]);
        tool(&["tar", "-C", &text(&directory.join("several")), "-xf", &to]);
        let manifest = fs::read(directory.join("several/manifest.json")).unwrap();
        fs::write(directory.join(&format!("{tag}.json")), manifest).unwrap();
    }
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(directory.join(name)).unwrap()).unwrap() };
    let both = json!([read("one.json")[0], read("two.json")[0]]);
    fs::remove_file(directory.join("several/manifest.json")).unwrap();
    fs::write(directory.join("several/manifest.json"), both.to_string()).unwrap();
    tool(&["tar", "-C", &text(&directory.join("several")), "-cf", &archive, "."]);
    let daemon = service(&directory, &[("box", "docker.io/t/box:two")], &[], &[]);
    let (status, said) = images(&daemon, &["import", &archive], None);
    assert!(status == 65 && said.contains("t/box:one, docker.io/t/box:two"), "{said}");
    assert!(done(&daemon, &["import", &archive, "--tag", "two"]).starts_with("docker.io/t/box:two"));
    expect_busybox(&daemon, "box", &directory);
}

#[test]
fn skopeo_umoci_and_podman_read_every_export() {
    if is_missing(&["docker-registry", "skopeo", "umoci", "podman"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 300_000);
    registry.push(&format!("oci:{}:it", layout.display()), &[], "t/box:1");
    let image = format!("{}/t/box:1", registry.address);
    let daemon = service(&directory, &[("box", &image), ("back", "l.example/back:1")], &[&registry.address], &[]);
    pull(&daemon, &image);
    let path = |name: &str| text(&directory.join(name));
    for format in ["both", "oci", "docker", "oci-dir"] {
        done(&daemon, &["export", &image, "--format", format, "-o", &path(format)]);
        let (status, _) = images(&daemon, &["export", &image, "--format", format, "-o", &path(format)], None);
        assert_eq!(status, 74, "{format}: what is there is not replaced");
    }
    for transport in [
        format!("oci-archive:{}", path("both")),
        format!("docker-archive:{}", path("both")),
        format!("oci-archive:{}", path("oci")),
        format!("docker-archive:{}", path("docker")),
        format!("oci:{}:1", path("oci-dir")),
    ] {
        let config: Value = serde_json::from_str(&tool(&["skopeo", "inspect", "--config", &transport])).unwrap();
        assert_eq!(config["config"]["User"], "1000", "{transport}: {config}");
        // Every digest is right, or it would not be copied.
        registry.push(&transport, &[], "t/copied:1");
    }
    let listed = |archive: &str| tool(&["tar", "-tf", &path(archive)]);
    assert!(!listed("oci").contains("manifest.json") && listed("oci").contains("index.json"));
    assert!(listed("docker").contains("manifest.json") && !listed("docker").contains("index.json"));

    let unpacked = directory.join("unpacked");
    tool(&["umoci", "unpack", "--image", &format!("{}:1", path("oci-dir")), &text(&unpacked)]);
    assert_eq!(fs::read_to_string(unpacked.join("rootfs/marker")).unwrap(), "second\n");
    assert!(!unpacked.join("rootfs/gone").exists());
    assert_eq!(fs::read(unpacked.join("rootfs/payload")).unwrap(), fs::read(directory.join("payload")).unwrap());
    // umoci goes on from there, and what it makes of it comes back.
    let changed = format!("{}:1", path("oci-dir"));
    fs::write(directory.join("marker"), "third\n").unwrap();
    tool(&["umoci", "insert", "--image", &changed, &path("marker"), "/marker"]);
    done(&daemon, &["import", &path("oci-dir"), "--name", "l.example/back:1"]);
    daemon.session("back").run(["cat", "/marker"]).expect("third\n");

    let podman = |more: &[&str]| podman(&directory, more);
    done(&daemon, &["export", &image, "--format", "oci-dir", &path("again")]);
    let pulled = podman(&["pull", "--quiet", &format!("oci:{}:1", path("again"))]);
    podman(&["tag", pulled.trim(), "localhost/from-directory"]);
    podman(&["load", "--quiet", "--input", &path("docker")]);
    for name in ["localhost/from-directory", image.as_str()] {
        let mounted = PathBuf::from(podman(&["image", "mount", name]).trim());
        assert_eq!(fs::read_to_string(mounted.join("marker")).unwrap(), "second\n", "{name}");
        podman(&["image", "unmount", "--all"]);
    }
    assert_eq!(images(&daemon, &["export", &image, "--format", "oci-dir", "-"], None).0, 2);
}

/// `podman` with a storage of the test's own.
fn podman(directory: &Directory, more: &[&str]) -> String {
    let (root, run) = (text(&directory.join("podman")), text(&directory.join("podman-run")));
    let places = ["podman", "--root", &root, "--runroot", &run, "--storage-driver", "vfs"];
    let apart = ["--cgroup-manager", "cgroupfs", "--events-backend", "none"];
    tool(&[&places[..], &apart, more].concat())
}

/// What an image of an OCI layout is: its configuration's digest and text, and the digests of its layers.
fn described(layout: &Path) -> (String, Value, Vec<String>) {
    let read = |path: &str| -> Value { serde_json::from_slice(&fs::read(layout.join(path)).unwrap()).unwrap() };
    let digest = |value: &Value| value["digest"].as_str().unwrap().to_owned();
    let blob = |digest: &str| format!("blobs/{}", digest.replace(':', "/"));
    let manifest = read(&blob(&digest(&read("index.json")["manifests"][0])));
    let config = digest(&manifest["config"]);
    let layers = manifest["layers"].as_array().unwrap().iter().map(digest).collect();
    (config.clone(), read(&blob(&config)), layers)
}

#[test]
fn an_export_is_the_image_that_came() {
    if is_missing(&["docker-registry", "skopeo", "umoci", "podman"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 300_000);
    let local = format!("{}:it", layout.display());
    tool(&["umoci", "config", "--image", &local, "--config.label", "org.example.kept=yes", "--author", "a tester"]);
    registry.push(&format!("oci:{local}"), &[], "t/box:1");
    let image = format!("{}/t/box:1", registry.address);
    let daemon = service(&directory, &[("box", &image)], &[&registry.address], &[]);
    pull(&daemon, &image);
    let path = |name: &str| text(&directory.join(name));
    let export = |name: &str| {
        done(&daemon, &["export", &image, "--format", "oci-dir", &path(name)]);
        described(&directory.join(name))
    };
    let pushed = tool(&["skopeo", "inspect", "--raw", "--tls-verify=false", &format!("docker://{image}")]);
    let pushed: Value = serde_json::from_str(&pushed).unwrap();
    let (id, config, layers) = export("one");
    // What docker and podman call the image is what it was, and so are its layers' contents; they are not compressed here.
    assert_eq!(pushed["config"]["digest"], id);
    assert_eq!(config["rootfs"]["diff_ids"], json!(layers));
    assert_eq!(
        (&config["config"]["Labels"]["org.example.kept"], &config["author"]),
        (&json!("yes"), &json!("a tester"))
    );
    assert!(config["history"].as_array().unwrap().len() > 4, "{config}");
    let pulled = podman(&directory, &["pull", "--quiet", "--tls-verify=false", &format!("docker://{image}")]);
    let loaded = podman(&directory, &["pull", "--quiet", &format!("oci:{}:1", path("one"))]);
    assert_eq!(pulled, loaded);

    // Twice the same bytes.
    export("two");
    tool(&["diff", "-r", &path("one"), &path("two")]);
    for archive in ["one.tar", "two.tar"] {
        done(&daemon, &["export", &image, &path(archive)]);
    }
    tool(&["cmp", &path("one.tar"), &path("two.tar")]);
    // And from what comes of it the same image again.
    done(&daemon, &["import", &path("one"), "--name", "l.example/again:1"]);
    done(&daemon, &["export", "l.example/again:1", "--format", "oci-dir", &path("again")]);
    assert_eq!(described(&directory.join("again")), (id.clone(), config.clone(), layers.clone()));

    // Without what its archives were, it is the same files in other ones, and says so.
    for frame in fs::read_dir(store(&directory).join("frames")).unwrap() {
        fs::remove_file(frame.unwrap().path()).unwrap();
    }
    let (other_id, other, other_layers) = export("other");
    assert!(other_id != id && other_layers.len() == layers.len() && other["rootfs"]["diff_ids"] == json!(other_layers));
    for kept in ["config", "history", "author", "created"] {
        assert_eq!(other[kept], config[kept], "{kept}");
    }
    assert_eq!(export("other-again").0, other_id);
    let unpacked = directory.join("unpacked");
    tool(&["umoci", "unpack", "--image", &format!("{}:1", path("other")), &text(&unpacked)]);
    assert_eq!(fs::read_to_string(unpacked.join("rootfs/marker")).unwrap(), "second\n");
}

#[test]
fn an_export_whose_client_goes_away_is_over() {
    if is_missing(&["umoci"]) {
        return;
    }
    let directory = Directory::new();
    // More than all buffers between here and there hold.
    let layout = busybox(&directory, 64 << 20);
    let daemon = service(&directory, &[("box", "l.example/box:1")], &[], &[]);
    done(&daemon, &["import", &text(&layout), "--name", "l.example/large:1"]);
    let Endpoint::Tcp(address) = daemon.client.endpoint else { panic!("the client is over TCP") };
    let mut stream = TcpStream::connect(address).unwrap();
    let path = "/images/l.example%2Flarge%3A1";
    stream.write_all(&daemon.client.head("GET", &format!("{path}/archive"), None, 0)).unwrap();
    let mut first = [0; 15];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    let refused = daemon.client.delete(path).expect(409);
    assert!(refused.text().contains("in use"), "{}", refused.text());
    drop(stream);
    let removed = it::daemon::wait_for(SOON, || (daemon.client.delete(path).status == 200).then_some(()));
    assert!(removed.is_some(), "{}", daemon.client.delete(path).text());
    done(&daemon, &["gc"]);
    let emptied = it::daemon::wait_for(SOON, || is_empty(&store(&directory)).then_some(()));
    assert!(emptied.is_some(), "{}", tool(&["find", &text(&store(&directory)), "-maxdepth", "2"]));
}
