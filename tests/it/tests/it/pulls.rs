//! Pulls that end in the middle, tokens, and stores that are full or somebody else's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use it::daemon::{Options, wait_for};
use it::http::Connection;
use it::pair::{Pair, Which};
use it::registry::{Directory, Mischief, Proxy, Registry, busybox, is_empty, is_missing};
use it::token_service::{IDENTITY, TokenService};
use serde_json::{Value, json};

use super::images::{expect_busybox, pull, refusal, service, store};

/// Of the layer that breaks off, and where.
const PAYLOAD: usize = 12 << 20;
const DRY: usize = 8 << 20;
/// More than the other layers, the documents and what one connection may have under way.
const SLACK: usize = 3 << 20;

/// What is here of layers that have not come whole, in bytes.
fn parts(store: &Path) -> u64 {
    let all = fs::read_dir(store.join("partial")).into_iter().flatten().flatten();
    all.map(|entry| entry.metadata().map_or(0, |metadata| metadata.len())).sum()
}

/// An image in a registry, behind a proxy.
struct Served {
    directory: Directory,
    proxy: Proxy,
    image: String,
    _registry: Registry,
}

/// `None`, which is said: a program is missing.
fn served(mischief: Mischief) -> Option<Served> {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return None;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, PAYLOAD);
    registry.push(&format!("oci:{}:it", layout.display()), &[], "t/box:1");
    let proxy = Proxy::before(&registry, mischief);
    let image = format!("{}/t/box:1", proxy.address);
    Some(Served { directory, proxy, image, _registry: registry })
}

#[test]
fn the_next_pull_fetches_what_the_last_one_did_not() {
    let Some(Served { directory, proxy, image, _registry }) = served(Mischief::RunDry(DRY)) else { return };
    let daemon = service(&directory, &[("box", &image)], &[&proxy.address], &[]);
    let events = pull(&daemon, &image);
    let said = events.last().unwrap().to_string();
    assert!(said.contains("failed") && said.contains("broke off after"), "{said}");
    let kept = parts(&store(&directory));
    assert!(kept > DRY as u64 / 2, "{kept} bytes are kept");

    proxy.set(Mischief::None);
    let before = proxy.bytes();
    expect_busybox(&daemon, "box", &directory);
    let (second, all) = (proxy.bytes() - before, proxy.bytes());
    assert!(second < PAYLOAD - usize::try_from(kept).unwrap() + SLACK, "{second} of {PAYLOAD} bytes, {kept} were here");
    assert!(all < PAYLOAD + SLACK, "{all} bytes in all");
    assert!(proxy.resumed() > 0 && parts(&store(&directory)) == 0);
}

#[test]
fn what_nobody_comes_back_for_goes_with_the_next_collection() {
    let Some(Served { directory, proxy, image, _registry }) = served(Mischief::RunDry(DRY)) else { return };
    let daemon = service(&directory, &[("none", "debian-bookworm")], &[&proxy.address], &[]);
    assert_eq!(pull(&daemon, &image).last().unwrap()["type"], "failed");
    let kept = parts(&store(&directory));
    assert!(kept > DRY as u64 / 2, "{kept}");
    let collect = |dry: bool| {
        let body = json!({"dry_run": dry});
        let answer = wait_for(Duration::from_secs(20), || {
            let answer = daemon.client.post("/images/gc", body.clone());
            (answer.status == 200).then_some(answer)
        });
        answer.expect("nothing is made any more").json()
    };
    for dry in [true, false] {
        let removed = collect(dry);
        assert!(removed["bytes"].as_u64() >= Some(kept) && removed["files"].as_u64() >= Some(1), "{removed}");
        assert_eq!(parts(&store(&directory)) == 0, !dry);
    }
    assert!(is_empty(&store(&directory)));
}

#[test]
fn a_service_that_is_killed_in_the_middle_of_a_layer_goes_on_from_there() {
    let Some(Served { directory, proxy, image, _registry }) = served(Mischief::Stall(DRY)) else { return };
    let catalog = directory.join("catalog.json");
    fs::write(&catalog, json!([{"alias": "box", "image": image}]).to_string()).unwrap();
    let store = store(&directory);
    let insecure = [("SANDBOXD_INSECURE_REGISTRIES", proxy.address.as_str()), ("SANDBOXD_DEFAULT_RUNTIME", "box")];
    let mut pair = Pair::prepare(&insecure, Some(&catalog), Some(&store));
    pair.start_launcher(None);
    pair.start_service(None);
    let client = pair.client.clone();
    let body = json!({"reference": image});
    let kept = std::thread::scope(|scope| {
        let asked = scope.spawn(|| it::pair::attempt(&client, "POST", "/images/pull", &body));
        // Then nothing more comes.
        let enough = || (parts(&store) > (DRY - SLACK) as u64).then_some(());
        assert!(wait_for(Duration::from_secs(60), enough).is_some(), "{} bytes", parts(&store));
        pair.kill(Which::Service);
        drop(asked.join().unwrap());
        parts(&store)
    });
    proxy.set(Mischief::None);
    let before = proxy.bytes();
    pair.revive();
    assert_eq!(parts(&store), kept, "the start leaves it alone");
    let answer = it::pair::attempt(&client, "POST", "/images/pull", &body).unwrap().expect(200);
    let last: Value = serde_json::from_str(answer.text().lines().last().unwrap()).unwrap();
    assert!(last["type"] == "done" && last["progress"]["resumed"].as_u64() >= Some(1), "{last}");
    let rest = proxy.bytes() - before;
    assert!(rest < PAYLOAD - usize::try_from(kept).unwrap() + SLACK, "{rest} bytes, {kept} were here");
    assert_eq!(parts(&store), 0);
    let session = json!({"session_id": "resumed", "runtime": "box"});
    let token = client.post("/sessions", session).expect(200).json()["token"].as_str().unwrap().to_owned();
    let run = json!({"argv": ["sha256sum", "/payload"], "run_id": it::session::run_id()});
    let said = client.with_token(token).post("/sessions/resumed/run", run).expect(200).json();
    let sum = it::registry::tool(&["sha256sum", &directory.join("payload").display().to_string()]);
    assert_eq!(said["stdout"].as_str().unwrap().split(' ').next(), sum.split(' ').next());
    client.delete("/sessions/resumed?purge=true").expect(204);
}

#[test]
fn an_identity_token_opens_a_registry_that_wants_tokens() {
    if is_missing(&["docker-registry", "skopeo", "umoci", "openssl"]) {
        return;
    }
    let (directory, tokens) = (Directory::new(), TokenService::start());
    let registry = Registry::with_tokens(&tokens);
    let layout = busybox(&directory, 1000);
    registry.push(&format!("oci:{}:it", layout.display()), &[], "t/box:1");
    let image = format!("{}/t/box:1", registry.address);
    let auth = directory.join("auth.json");
    let entry = |text: Value| fs::write(&auth, json!({"auths": {&registry.address: text}}).to_string()).unwrap();
    let insecure = [registry.address.as_str(), tokens.address.as_str()];
    let daemon = service(&directory, &[("box", &image)], &insecure, &[("SANDBOXD_REGISTRY_AUTH", &auth)]);
    let given = tokens.given().len();
    entry(json!({"auth": "PHRva2VuPjo=", "identitytoken": "another"}));
    let said = refusal(&daemon, "box");
    assert!(said.contains("401") && !said.contains("another"), "{said}");
    fs::write(&auth, json!({"credHelpers": {&registry.address: "pass"}}).to_string()).unwrap();
    let said = refusal(&daemon, "box");
    assert!(said.contains("docker-credential-pass") && said.contains("skopeo login --authfile"), "{said}");
    // As `docker login` writes it where the registry gave it one.
    entry(json!({"auth": "PHRva2VuPjo=", "identitytoken": IDENTITY}));
    expect_busybox(&daemon, "box", &directory);
    let ways = tokens.given().split_off(given);
    assert!(!ways.is_empty() && ways.iter().all(|way| way == "identity"), "{ways:?}");
}

/// A small file system in memory; gone with this.
struct Small(PathBuf);

impl Small {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=200m,mode=755", "tmpfs"]).arg(&path).status();
        assert!(status.unwrap().success(), "mount a tmpfs");
        Self(path)
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn an_archive_that_would_fill_the_disk_is_refused_before_it_has() {
    let directory = Directory::new();
    let small = Small::mount(store(&directory));
    let daemon = service(&directory, &[("none", "debian-bookworm")], &[], &[]);
    let archive = vec![0; 190 << 20];
    // Announced: not a byte of it is kept.
    let answer = daemon.client.post_bytes("/images/import?name=a", &archive);
    let said = answer.expect(507).detail().to_string();
    let amounts = said.contains("20.0 MiB are the host's reserve") && said.contains("190.0 MiB were to be written");
    assert!(amounts && said.contains("disk_reserve"), "{said}");
    // In pieces that do not say how many there are: as much as there is room for.
    let done = AtomicBool::new(false);
    let (least, sending) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut least = u64::MAX;
            while !done.load(Ordering::SeqCst) {
                least = least.min(small.free());
                std::thread::sleep(Duration::from_millis(2));
            }
            least
        });
        let sent = send_in_pieces(&daemon, &archive);
        done.store(true, Ordering::SeqCst);
        (watch.join().unwrap(), sent)
    });
    let said = sending.expect(507).detail().to_string();
    assert!(said.contains("disk full") && said.contains("20.0 MiB are the host's reserve"), "{said}");
    assert!(least >= 20 << 20, "{least} bytes were free");
    assert!(
        wait_for(Duration::from_secs(20), || (small.free() > 190 << 20).then_some(())).is_some(),
        "nothing is left"
    );
    // What fits is looked at.
    daemon.client.post_bytes("/images/import?name=a", &archive[..1 << 20]).expect(422);
    drop(daemon);
}

#[test]
fn an_image_that_would_fill_the_disk_is_not_fetched() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, PAYLOAD);
    registry.push(&format!("oci:{}:it", layout.display()), &[], "t/box:1");
    let image = format!("{}/t/box:1", registry.address);
    let small = Small::mount(store(&directory));
    let daemon = service(&directory, &[("box", &image)], &[&registry.address], &[]);
    let filler = small.0.join("filler");
    fs::write(&filler, vec![1; usize::try_from(small.free()).unwrap() - (28 << 20)]).unwrap();
    let said = daemon.client.post("/sessions", json!({"runtime": "box"})).expect(507).detail().to_string();
    assert!(said.contains("20.0 MiB are the host's reserve (disk_reserve)"), "{said}");
    assert_eq!(parts(&small.0), 0);
    fs::remove_file(filler).unwrap();
    expect_busybox(&daemon, "box", &directory);
    drop(daemon);
}

/// Many times what is fetched, and more than there is room for.
#[test]
fn a_layer_that_would_fill_the_disk_when_it_is_unpacked_is_not_kept() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let (directory, registry) = (Directory::new(), Registry::open());
    let layout = busybox(&directory, 1 << 20);
    let random = fs::read(directory.join("payload")).unwrap();
    let large: Vec<u8> = random.chunks(4096).flat_map(|block| block.repeat(96)).collect();
    fs::write(directory.join("large"), large).unwrap();
    let (image, large) = (format!("{}:it", layout.display()), directory.join("large").display().to_string());
    it::registry::tool(&["umoci", "insert", "--image", &image, &large, "/large"]);
    fs::remove_file(large).unwrap();
    registry.push(&format!("oci:{image}"), &[], "t/large:1");
    let image = format!("{}/t/large:1", registry.address);
    let small = Small::mount(store(&directory));
    let daemon = service(&directory, &[("large", &image)], &[&registry.address], &[]);
    let filler = small.0.join("filler");
    fs::write(&filler, vec![1; usize::try_from(small.free()).unwrap() - (70 << 20)]).unwrap();
    let free = small.free();
    let said = daemon.client.post("/sessions", json!({"runtime": "large"})).expect(507).detail().to_string();
    // Whichever is first: what is looked at now and then, or the end of so small a disk.
    assert!(
        said.contains("20.0 MiB are the host's reserve (disk_reserve)") || said.contains("No space left"),
        "{said}"
    );
    let staged = || {
        let layers = fs::read_dir(small.0.join("layers")).unwrap().flatten();
        layers.filter(|layer| layer.file_name().to_string_lossy().starts_with('.')).count()
    };
    // What was written is deleted behind the answer; the layers that had room are there.
    let back = wait_for(Duration::from_secs(20), || (staged() == 0 && small.free() > free - (20 << 20)).then_some(()));
    assert!(back.is_some(), "{} staged, {} of {free} bytes are free", staged(), small.free());
    fs::remove_file(filler).unwrap();
    daemon.session("large").sh("stat -c %s /large").expect("100663296\n");
    // A layer of none is removed there as well, although the state is on another file system.
    let stray = small.0.join("layers").join("f".repeat(64));
    fs::create_dir(&stray).unwrap();
    let removed = daemon.client.post("/images/gc", json!({})).expect(200).json();
    assert!(removed["layers"] == json!(["f".repeat(64)]) && !stray.exists(), "{removed}");
    drop(daemon);
}

/// An import with the body in chunks, and its answer.
fn send_in_pieces(daemon: &it::Daemon, archive: &[u8]) -> it::Response {
    let token = String::from_utf8(daemon.client.token.clone()).unwrap();
    let mut connection = Connection::open(&daemon.client.endpoint).unwrap();
    let head = format!(
        "POST /images/import?name=a HTTP/1.1\r\nhost: x\r\nx-sandbox-token: {token}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    connection.write(head.as_bytes()).unwrap();
    for piece in archive.chunks(1 << 20) {
        let framed = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        // Whoever has said no does not read on.
        if connection.write(&framed).is_err() {
            break;
        }
    }
    let _ = connection.write(b"0\r\n\r\n");
    connection.answer().unwrap()
}

#[test]
fn a_store_has_one_service_or_several_that_know_of_each_other() {
    let directory = Directory::new();
    let mut pair = Pair::prepare(&[], None, Some(&store(&directory)));
    pair.start_launcher(None);
    pair.start_service(None);
    let catalog = directory.join("catalog.json");
    fs::write(&catalog, json!([{"alias": "none", "image": "debian-bookworm"}]).to_string()).unwrap();
    let shared = || Options::new().catalog(&catalog).images(&store(&directory)).env("SANDBOXD_PREWARM", "false");
    let refused = shared().try_start().expect_err("the store is another's");
    let who = format!("the service of {} (process {})", pair.state.display(), pair.pid(Which::Service));
    assert!(refused.said.contains(&who) && refused.said.contains("images_dir"), "{}", refused.said);
    // Alone, it removes.
    pair.client.post("/images/gc", json!({})).expect(200);
    pair.kill(Which::Both);

    let (one, two) = (shared().start(), shared().start());
    for daemon in [&one, &two] {
        let said = daemon.client.post("/images/gc", json!({})).expect(409).detail().to_string();
        assert!(said.contains("is shared with the service of "), "{said}");
        daemon.client.post("/images/gc", json!({"dry_run": true})).expect(200);
        daemon.client.delete("/images/none").expect(409);
    }
    two.stop();
    one.client.post("/images/gc", json!({})).expect(200);
    one.client.delete("/images/none").expect(404);
}
