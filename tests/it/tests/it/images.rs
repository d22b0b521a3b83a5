//! Images that others made: pulled from registries good and bad, and run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use it::Daemon;
use it::daemon::{Options, wait_for};
use it::pair::{Pair, Which};
use it::registry::{Directory, Mischief, Proxy, Registry, busybox, is_empty, is_missing, tool};
use serde_json::{Value, json};

/// An instance with an image store of its own, and a catalogue of ready-made images: alias and reference of each.
pub fn service(directory: &Directory, images: &[(&str, &str)], insecure: &[&str], more: &[(&str, &Path)]) -> Daemon {
    let entries: Vec<Value> = images.iter().map(|(alias, image)| json!({"alias": alias, "image": image})).collect();
    let catalog = directory.join("catalog.json");
    fs::write(&catalog, Value::from(entries).to_string()).unwrap();
    let mut options = Options::new().catalog(&catalog).images(&store(directory));
    options = options.env("SANDBOXD_PREWARM", "false").env("SANDBOXD_INSECURE_REGISTRIES", &insecure.join(","));
    for (name, value) in more {
        options = options.env(name, &value.display().to_string());
    }
    options.start()
}

pub fn store(directory: &Directory) -> PathBuf {
    directory.join("store")
}

/// The image of [`busybox`] is whole in a session.
#[track_caller]
pub fn expect_busybox(daemon: &Daemon, alias: &str, directory: &Directory) {
    let session = daemon.session(alias);
    session.run(["cat", "/marker"]).expect("second\n");
    session.sh("id -u; id -g; echo $GREETING; ls /gone 2>/dev/null || echo gone").expect("1000\n1000\nhello\ngone\n");
    let sum = tool(&["sha256sum", &directory.join("payload").display().to_string()]);
    let sum = sum.split(' ').next().unwrap().to_owned();
    session.sh("sha256sum /payload").expect(&format!("{sum}  /payload\n"));
}

/// The answer to an opening that fails because of its image.
#[track_caller]
pub fn refusal(daemon: &Daemon, alias: &str) -> String {
    daemon.client.post("/sessions", json!({"runtime": alias})).expect(502).detail().to_string()
}

fn manifest(registry: &Registry, name: &str) -> (String, String, usize) {
    let image = format!("docker://{}/{name}", registry.address);
    let raw = tool(&["skopeo", "inspect", "--tls-verify=false", "--raw", &image]);
    let parsed: Value = serde_json::from_str(&raw).unwrap();
    let digest = tool(&["skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", &image]);
    (
        parsed["mediaType"].as_str().unwrap_or("application/vnd.oci.image.manifest.v1+json").to_owned(),
        digest.trim().to_owned(),
        raw.len(),
    )
}

#[test]
fn what_skopeo_pushed_runs_in_every_format() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 100_000);
    let source = format!("oci:{}:it", layout.display());
    registry.push(&source, &[], "t/box:oci");
    registry.push(&source, &["--format", "v2s2"], "t/box:docker");
    registry.push(&source, &["--dest-compress-format", "zstd"], "t/box:zstd");
    let plain = directory.join("plain");
    tool(&["skopeo", "copy", "--quiet", "--dest-decompress", &source, &format!("dir:{}", plain.display())]);
    registry.push(&format!("dir:{}", plain.display()), &[], "t/box:plain");
    let (kind, digest, size) = manifest(&registry, "t/box:oci");
    let entry = |architecture: &str, digest: &str| json!({"mediaType": kind, "size": size, "digest": digest, "platform": {"os": "linux", "architecture": architecture}});
    let host = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let (_, other, _) = manifest(&registry, "t/box:docker");
    for (tag, media_type) in [
        ("index", "application/vnd.oci.image.index.v1+json"),
        ("list", "application/vnd.docker.distribution.manifest.list.v2+json"),
    ] {
        let list = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": [entry("s390x", &other), entry(host, &digest)]});
        registry.put("t/box", tag, media_type, &list.to_string());
    }
    let reference = |tag: &str| format!("{}/t/box:{tag}", registry.address);
    let tags = ["oci", "docker", "zstd", "plain", "index", "list"];
    let by_digest = format!("{}/t/box@{digest}", registry.address);
    let mut images: Vec<(&str, String)> = tags.iter().map(|tag| (*tag, reference(tag))).collect();
    images.push(("digest", by_digest));
    let images: Vec<(&str, &str)> = images.iter().map(|(alias, image)| (*alias, image.as_str())).collect();
    let daemon = service(&directory, &images, &[&registry.address], &[]);
    for (alias, _) in &images {
        expect_busybox(&daemon, alias, &directory);
    }
    // However it is packed it is the same content, and that is kept once; no blob of a layer is kept beside it.
    let layers = fs::read_dir(store(&directory).join("layers")).unwrap().count();
    assert_eq!(layers, 4);
    let blobs = fs::read_dir(store(&directory).join("blobs/sha256")).unwrap();
    assert!(blobs.flatten().all(|blob| blob.metadata().unwrap().len() < 10_000));
}

#[test]
fn a_registry_with_tls_and_a_password() {
    if is_missing(&["docker-registry", "skopeo", "umoci", "openssl"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::closed());
    let layout = busybox(&directory, 1000);
    registry.push(&format!("oci:{}:it", layout.display()), &[], "t/box:1");
    let image = format!("{}/t/box:1", registry.address);
    let (authority, credentials) = (registry.authority(), registry.credentials());
    let start = |more: &[(&str, &Path)]| service(&directory, &[("box", &image)], &[], more);

    let nobody = directory.join("nobody.json");
    let stranger = start(&[("SANDBOXD_REGISTRY_AUTH", &credentials)]);
    let said = refusal(&stranger, "box");
    assert!(said.contains("certificate"), "{said}");
    drop(stranger);
    let anonymous = start(&[("SANDBOXD_EXTRA_CA_CERTS", &authority), ("SANDBOXD_REGISTRY_AUTH", &nobody)]);
    let said = refusal(&anonymous, "box");
    assert!(said.contains("wants a name and a password"), "{said}");
    // Credentials are read at each pull: who adds them need not start anything again.
    fs::copy(&credentials, &nobody).unwrap();
    expect_busybox(&anonymous, "box", &directory);
}

#[test]
fn what_breaks_off_is_resumed_and_what_lies_is_refused() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 5 << 20);
    registry.push(&format!("oci:{}:it", layout.display()), &[], "t/box:1");
    let proxy = Proxy::before(&registry, Mischief::Lie);
    let image = format!("{}/t/box:1", proxy.address);
    let daemon = service(&directory, &[("box", &image)], &[&proxy.address], &[]);

    let said = refusal(&daemon, "box");
    assert!(said.contains("has the digest sha256:"), "{said}");
    let names = |name: &str| fs::read_dir(store(&directory).join(name)).unwrap().count();
    assert_eq!((names("refs"), names("blobs/sha256")), (0, 0));

    // What another layer had got of itself when the lie was found stays to be gone on from, the lie in it as well.
    proxy.set(Mischief::None);
    expect_busybox(&daemon, "box", &directory);

    // In a store where nothing has come yet: how often it breaks off is then known.
    let elsewhere = Directory::new();
    let daemon = service(&elsewhere, &[("box", &image)], &[&proxy.address], &[]);
    let (resumed, before) = (proxy.resumed(), proxy.bytes());
    proxy.set(Mischief::BreakOff(1 << 20));
    expect_busybox(&daemon, "box", &directory);
    let resumed = proxy.resumed() - resumed;
    // The payload does not shrink, so it broke off five times; busybox itself may have.
    assert!((5..=8).contains(&resumed), "resumed {resumed} times");
    assert!(proxy.bytes() - before < 8 << 20, "what had come was not fetched again: {} bytes", proxy.bytes() - before);
}

/// The lines of a pull.
#[track_caller]
pub fn pull(daemon: &Daemon, reference: &str) -> Vec<Value> {
    let answer = daemon.client.post("/images/pull", json!({"reference": reference})).expect(200);
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn listed(daemon: &Daemon, reference: &str) -> Value {
    let images = daemon.client.get("/images").expect(200).json();
    images.as_array().unwrap().iter().find(|image| image["reference"] == reference).cloned().unwrap_or_default()
}

fn path_of(reference: &str) -> String {
    format!("/images/{}", it::session::escape(reference).replace('/', "%2F"))
}

#[test]
fn an_image_that_somebody_needs_stays_and_what_nobody_needs_goes() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 1000);
    let source = format!("oci:{}:it", layout.display());
    registry.push(&source, &[], "t/box:1");
    registry.push(&source, &["--format", "v2s2"], "t/box:2");
    let (one, two) = (format!("{}/t/box:1", registry.address), format!("{}/t/box:2", registry.address));
    let daemon = service(
        &directory,
        &[("box", &one)],
        &[&registry.address],
        &[("SANDBOXD_PERSIST_CONTAINERS", Path::new("true"))],
    );

    let events = pull(&daemon, &two);
    let done = events.last().unwrap();
    assert_eq!((&done["type"], &done["progress"]["layers_ready"]), (&json!("done"), &json!(4)), "{events:?}");
    assert_eq!((&done["image"]["reference"], &done["image"]["origin"]), (&json!(two), &json!("pulled")));
    let session = daemon.session("box");
    let (first, second) = (listed(&daemon, &one), listed(&daemon, &two));
    assert!(first["size"].as_u64() > Some(1_000_000) && first["size"] == second["size"], "{first} {second}");
    assert_eq!((&first["own_size"], &second["own_size"]), (&json!(0), &json!(0)), "all of it is shared");

    // One is a runtime's and a session's; the other nobody's, and all of its layers are the first's as well.
    let said = daemon.client.delete(&path_of(&one)).expect(409).detail().to_string();
    assert!(said.contains("runtime box") && said.contains(&session.id), "{said}");
    let removed = daemon.client.delete(&path_of(&two)).expect(200).json();
    assert_eq!((&removed["images"], &removed["layers"], &removed["bytes"]), (&json!([two]), &json!([]), &json!(0)));
    assert_eq!(listed(&daemon, &one)["own_size"], first["size"], "now all of it is its own");
    daemon.client.delete(&path_of(&two)).expect(404);
    daemon.client.delete(&path_of("no image")).expect(422);
    session.run(["cat", "/marker"]).expect("second\n");

    // The tag means another image now: the session keeps the one that it stands on.
    fs::write(directory.join("marker"), "third\n").unwrap();
    let image = format!("{}:it", layout.display());
    tool(&["umoci", "insert", "--image", &image, &directory.join("marker").display().to_string(), "/marker"]);
    registry.push(&source, &[], "t/box:1");
    assert_eq!(pull(&daemon, &one).last().unwrap()["type"], "done");
    daemon.session("box").run(["cat", "/marker"]).expect("third\n");
    let layers = || {
        fs::read_dir(store(&directory).join("layers")).unwrap().flatten().filter(|e| e.file_name().len() == 64).count()
    };
    let collect = |body: Value| daemon.client.post("/images/gc", body).expect(200).json();
    assert_eq!(collect(json!({}))["images"], json!([]), "the session needs it");
    session.run(["cat", "/marker"]).expect("second\n");
    assert_eq!(layers(), 5);
    drop(session);

    let old = first["digest"].as_str().unwrap();
    let would = collect(json!({"dry_run": true}));
    assert_eq!((&would["images"], layers()), (&json!([old]), 5), "{would}");
    // A layer of none, as a crash may leave it.
    let stray = store(&directory).join("layers").join("f".repeat(64));
    fs::create_dir(&stray).unwrap();
    fs::write(stray.join("file"), [0; 5000]).unwrap();
    let removed = collect(json!({}));
    assert_eq!((&removed["images"], &removed["layers"]), (&json!([old]), &json!(["f".repeat(64)])), "{removed}");
    assert_eq!((&removed["bytes"], layers()), (&json!(5000), 5));
    daemon.session("box").run(["cat", "/marker"]).expect("third\n");
    assert_eq!(collect(json!({"unused": true}))["images"], json!([]), "it is a runtime's");
}

#[test]
fn whoever_may_pull_may_not_lead_the_service_to_where_only_the_operator_may() {
    if is_missing(&["docker-registry"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let daemon = service(&directory, &[("none", "debian-bookworm")], &[], &[]);
    for host in [registry.address.as_str(), "169.254.169.254", "localhost:1", "[::1]:1"] {
        let answer = daemon.client.post("/images/pull", json!({"reference": format!("{host}/a/b:1")}));
        if answer.status != 422 {
            let last = answer.expect(200).text().lines().last().unwrap().to_owned();
            assert!(last.contains("failed") && last.contains("no setting names it"), "{last}");
        }
    }
    assert!(is_empty(&store(&directory)));
    for anonymous in ["/images/pull", "/images/gc"] {
        daemon.client.anonymous().post(anonymous, json!({})).expect(401);
    }
    daemon.client.anonymous().delete("/images/x").expect(401);
}

#[test]
fn what_is_exported_others_read_and_what_others_wrote_is_imported() {
    if is_missing(&["docker-registry", "skopeo", "umoci", "podman"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 300_000);
    let source = format!("oci:{}:it", layout.display());
    let mut archives: Vec<(&str, PathBuf)> = Vec::new();
    let path = |name: &str| directory.join(name);
    for (alias, kind) in [("docker", "docker-archive"), ("oci", "oci-archive")] {
        let target = format!("{kind}:{}:t/box:{alias}", path(alias).display());
        tool(&["skopeo", "copy", "--quiet", &source, &target]);
        archives.push((alias, path(alias)));
    }
    tool(&["tar", "-C", &layout.display().to_string(), "-cf", &path("layout.tar").display().to_string(), "."]);
    archives.push(("layout", path("layout.tar")));
    let names: Vec<(&str, String)> =
        archives.iter().map(|(alias, _)| (*alias, format!("{}/i/{alias}:1", registry.address))).collect();
    let mut catalogue: Vec<(&str, &str)> = names.iter().map(|(alias, name)| (*alias, name.as_str())).collect();
    catalogue.push(("python", "debian-bookworm"));
    let again = format!("{}/again:1", registry.address);
    catalogue.push(("again", &again));
    let daemon = service(&directory, &catalogue, &[], &[]);
    let import = |name: &str, archive: &Path| {
        daemon
            .client
            .post_bytes(&format!("/images/import?name={}", it::session::escape(name)), &fs::read(archive).unwrap())
    };
    for ((alias, archive), (_, name)) in archives.iter().zip(&names) {
        let image = import(name, archive).expect(200).json();
        assert_eq!(
            (&image["reference"], &image["origin"], &image["runtimes"]),
            (&json!(name), &json!("imported"), &json!([alias]))
        );
        expect_busybox(&daemon, alias, &directory);
    }
    // The archive of docker says what its image is called.
    let named = daemon.client.post_bytes("/images/import", &fs::read(&archives[0].1).unwrap()).expect(200).json();
    assert_eq!(named["reference"], "docker.io/t/box:docker");
    assert_eq!(fs::read_dir(store(&directory).join("layers")).unwrap().count(), 4, "content is kept once");

    let export = |name: &str, to: &Path| {
        fs::write(to, daemon.client.get(&format!("{}/archive", path_of(name))).expect(200).body).unwrap()
    };
    let exported = path("exported.tar");
    export(&names[0].1, &exported);
    for kind in ["oci-archive", "docker-archive"] {
        let image = format!("{kind}:{}", exported.display());
        let config: Value = serde_json::from_str(&tool(&["skopeo", "inspect", "--config", &image])).unwrap();
        assert_eq!(
            (&config["config"]["User"], &config["config"]["Env"][0]),
            (&json!("1000"), &json!("GREETING=hello")),
            "{config}"
        );
        // Every digest is right, or it would not be copied.
        registry.push(&image, &[], &format!("t/{kind}:1"));
    }
    let unpacked = path("unpacked");
    tool(&[
        "skopeo",
        "copy",
        "--quiet",
        &format!("oci-archive:{}", exported.display()),
        &format!("oci:{}:x", path("copied").display()),
    ]);
    tool(&["umoci", "unpack", "--image", &format!("{}:x", path("copied").display()), &unpacked.display().to_string()]);
    assert_eq!(fs::read_to_string(unpacked.join("rootfs/marker")).unwrap(), "second\n");
    assert!(!unpacked.join("rootfs/gone").exists() && unpacked.join("rootfs/bin/busybox").exists());
    assert_eq!(fs::read(unpacked.join("rootfs/payload")).unwrap(), fs::read(path("payload")).unwrap());
    // And back again.
    import(&again, &exported).expect(200);
    expect_busybox(&daemon, "again", &directory);

    let (root, run) = (path("podman").display().to_string(), path("podman-run").display().to_string());
    let podman = |more: &[&str]| {
        let common = [
            "podman",
            "--root",
            &root,
            "--runroot",
            &run,
            "--storage-driver",
            "vfs",
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "none",
        ];
        tool(&[&common[..], more].concat())
    };
    podman(&["load", "--quiet", "--input", &exported.display().to_string()]);
    let listed = podman(&["images", "--format", "{{.Repository}}:{{.Tag}}"]);
    assert_eq!(listed.trim(), names[0].1);
    let mounted = podman(&["image", "mount", &names[0].1]);
    assert_eq!(fs::read_to_string(Path::new(mounted.trim()).join("marker")).unwrap(), "second\n");
    podman(&["image", "unmount", "--all"]);
}

#[test]
fn what_is_no_image_is_not_imported_and_leaves_nothing() {
    if is_missing(&["umoci"]) {
        return;
    }
    let directory = Directory::new();
    let daemon = service(&directory, &[("none", "debian-bookworm")], &[], &[]);
    let import = |bytes: &[u8], query: &str| daemon.client.post_bytes(&format!("/images/import{query}"), bytes);
    let layout = busybox(&directory, 1000);
    let tar = |from: &Path, name: &str| {
        let to = directory.join(name);
        tool(&["tar", "-C", &from.display().to_string(), "-cf", &to.display().to_string(), "."]);
        fs::read(to).unwrap()
    };
    let good = tar(&layout, "good.tar");
    assert!(import(&good, "").expect(422).detail().to_string().contains("give it a name"));
    assert!(import(b"", "?name=a").expect(422).detail().to_string().contains("manifest.json"));
    import(&vec![7; 100_000], "?name=a").expect(422);
    import(&good[..good.len() / 2], "?name=a").expect(422);
    import(&good, "?name=NO").expect(422);
    import(&good, "?name=").expect_invalid("name");
    // One byte of the layer with the payload is another.
    let mut blobs: Vec<PathBuf> =
        fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|e| e.unwrap().path()).collect();
    blobs.sort_by_key(|path| fs::metadata(path).unwrap().len());
    let mut bytes = fs::read(blobs.last().unwrap()).unwrap();
    bytes[1000] ^= 1;
    fs::write(blobs.last().unwrap(), bytes).unwrap();
    let said = import(&tar(&layout, "bad.tar"), "?name=a").expect(422).detail().to_string();
    assert!(said.contains("has the digest sha256:"), "{said}");
    daemon.client.anonymous().post_bytes("/images/import?name=a", &good).expect(401);
    daemon.client.get("/images/none/archive").expect(404);
    // Layers that were whole may be there, also of what was still being unpacked; the next collection takes them.
    let empty = || {
        daemon.client.post("/images/gc", json!({})).expect(200);
        is_empty(&store(&directory)).then_some(())
    };
    assert!(wait_for(Duration::from_secs(20), empty).is_some());
}

/// Killed after any step, the service has whole images or none, and the next one goes on.
#[test]
fn a_service_that_dies_over_an_image_leaves_nothing_half() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 200_000);
    registry.push(&format!("oci:{}:it", layout.display()), &[], "t/box:1");
    let archive = directory.join("box.tar");
    tool(&[
        "skopeo",
        "copy",
        "--quiet",
        &format!("oci:{}:it", layout.display()),
        &format!("docker-archive:{}:t/box:1", archive.display()),
    ]);
    let archive = fs::read(archive).unwrap();
    let image = format!("{}/t/box:1", registry.address);
    let catalog = directory.join("catalog.json");
    fs::write(&catalog, json!([{"alias": "box", "image": image}]).to_string()).unwrap();
    let store = store(&directory);
    let insecure = [("SANDBOXD_INSECURE_REGISTRIES", registry.address.as_str()), ("SANDBOXD_DEFAULT_RUNTIME", "box")];
    let mut pair = Pair::prepare(&insecure, Some(&catalog), Some(&store));
    pair.start_launcher(None);
    pair.start_service(None);
    let client = pair.client.clone();
    let import = format!("/images/import?name={}", it::session::escape(&image));
    let (pull_body, all) = (json!({"reference": image}), json!({"unused": true}));
    let count = |name: &str| {
        fs::read_dir(store.join(name))
            .map_or(0, |entries| entries.flatten().filter(|e| e.file_name().len() >= 64).count())
    };
    for point in ["pull.fetched", "pull.unpacked=2", "pull.recorded", "import.unpacked=2", "import.recorded"] {
        arm(&mut pair, point);
        let _ = if point.starts_with("pull") {
            it::pair::attempt(&client, "POST", "/images/pull", &pull_body)
        } else {
            it::pair::send(&client, "POST", &import, None, &archive)
        };
        pair.expect_death(Which::Service);
        pair.revive();
        // Whole or not there: what is listed runs, and what is not comes when it is asked for.
        let recorded = point.ends_with("recorded");
        assert_eq!(count("refs"), usize::from(recorded), "{point}");
        let body = json!({"session_id": "crashed", "runtime": "box"});
        let token = client.post("/sessions", body).expect(200).json()["token"].as_str().unwrap().to_owned();
        let run = json!({"argv": ["cat", "/marker"], "run_id": it::session::run_id()});
        let said = client.with_token(token).post("/sessions/crashed/run", run).expect(200).json();
        assert_eq!(said["stdout"], "second\n", "{point}");
        client.delete("/sessions/crashed?purge=true").expect(204);
        assert_eq!((count("refs"), count("layers")), (1, 4), "{point}");
        // The runtime's image goes only by hand.
        clear(&mut pair, &store);
    }
    let other = "other.example/box:1";
    for point in ["image.forgotten", "image.layer_removed=2"] {
        let named = format!("/images/import?name={}", it::session::escape(other));
        client.send("POST", &named, None, &archive).expect(200);
        arm(&mut pair, point);
        assert!(it::pair::attempt(&client, "DELETE", &path_of(other), &Value::Null).is_err(), "{point}");
        pair.expect_death(Which::Service);
        pair.revive();
        client.get(&format!("{}/archive", path_of(other))).expect(404);
        client.post("/images/gc", all.clone()).expect(200);
        assert!(is_empty(&store), "{point}");
    }
    let leaks = pair.leaks(&std::collections::BTreeSet::new());
    assert!(leaks.is_empty(), "{leaks:?}");
}

/// Start the service again, to die at `point`.
fn arm(pair: &mut Pair, point: &str) {
    pair.kill(Which::Service);
    pair.start_service(Some(point));
}

/// Empty the image store of a service that is not there, and start it again.
fn clear(pair: &mut Pair, store: &Path) {
    pair.kill(Which::Service);
    for name in ["refs", "layers", "blobs/sha256"] {
        for entry in fs::read_dir(store.join(name)).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
    }
    pair.start_service(None);
}

#[test]
fn images_by_the_command_line() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 1000);
    registry.push(&format!("oci:{}:it", layout.display()), &[], "t/box:1");
    let image = format!("{}/t/box:1", registry.address);
    let daemon = service(&directory, &[("none", "debian-bookworm")], &[&registry.address], &[]);
    let token = String::from_utf8(daemon.client.token.clone()).unwrap();
    let ctl = |line: &str| {
        let mut command = std::process::Command::new(it::daemon::binary("sandboxctl"));
        command.env_clear().env("SANDBOXD_SOCKET", &daemon.socket).env("SANDBOXD_TOKEN", &token);
        let output = command.arg("images").args(line.split_whitespace()).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, said, failed) = ctl(&format!("pull {image}"));
    assert!(code == 0 && said.starts_with(&image) && said.contains("4 layers"), "{said} {failed}");
    let (code, _, failed) = ctl(&format!("pull {}/t/none:1", registry.address));
    assert!(code == 65 && failed.contains("404"), "{code} {failed}");
    let exported = directory.join("out.tar").display().to_string();
    assert_eq!(ctl(&format!("export {image} {exported}")).0, 0);
    assert_eq!(ctl(&format!("export {image} {exported}")).0, 74, "what is there is not replaced");
    assert_eq!(
        ctl(&format!("import {exported} --name copy.example/box:2")).1.split(':').next(),
        Some("copy.example/box")
    );
    let (_, listed, _) = ctl("ls");
    assert!(listed.lines().next().unwrap().contains("OWN") && listed.contains("copy.example/box:2"), "{listed}");
    let (code, said, _) = ctl("gc --unused --dry-run");
    assert!(code == 0 && said.contains("2 images") && said.contains("would be removed"), "{said}");
    let (code, said, _) = ctl(&format!("rm {image} copy.example/box:2"));
    assert!(code == 0 && said.contains("2 images"), "{said}");
    assert_eq!(ctl(&format!("rm {image}")).0, 66);
    assert_eq!(ctl("gc --json").0, 0);
    assert!(is_empty(&store(&directory)));
}

/// In the store of all tests: each is made once, and is there the next time.
#[test]
fn both_recipes_make_the_debian_that_they_say() {
    let catalog = Directory::new();
    let entries =
        json!([{"alias": "twelve", "image": "debian-bookworm"}, {"alias": "thirteen", "image": "debian-trixie"}]);
    fs::write(catalog.join("catalog.json"), entries.to_string()).unwrap();
    let daemon = Options::new().catalog(&catalog.join("catalog.json")).env("SANDBOXD_PREWARM", "false").start();
    for (alias, version) in [("twelve", "12 (bookworm)"), ("thirteen", "13 (trixie)")] {
        let session = daemon.session(alias);
        session
            .sh(". /etc/os-release; echo $VERSION; apt-get --version | grep -c ^apt")
            .expect(&format!("{version}\n1\n"));
    }
}
