//! What whoever waits for a pull is shown: bytes of bytes, as a bar on a terminal and in lines elsewhere.
//!
//! Between registry and service stands a proxy that holds back the rest of each layer until the test has seen how far the
//! pull is: nothing here depends on how fast anything is.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::{Child, Command};
use std::time::Duration;

use it::daemon::{binary, wait_for};
use it::http::Endpoint;
use it::pair::Pair;
use it::registry::{Directory, Mischief, Proxy, Registry, busybox, is_missing};
use serde_json::{Value, json};

use crate::cli::{bare, by_shell, on_terminal};

/// What is shown may take so long to come.
const SOON: Duration = Duration::from_secs(50);
/// Bytes of the largest layer, and of them what comes at first.
const PAYLOAD: usize = 3 << 20;
const HELD: usize = 1 << 20;

/// A service whose runtimes' images are at a registry that holds back.
struct Bench {
    proxy: Proxy,
    pair: Pair,
    _registry: Registry,
}

impl Bench {
    /// With these runtimes, each of an image of the same name that shares no payload with the others.
    fn new(aliases: &[&str]) -> Self {
        let registry = Registry::open();
        for alias in aliases {
            let directory = Directory::new();
            let layout = busybox(&directory, PAYLOAD);
            registry.push(&format!("oci:{}:it", layout.display()), &[], &format!("t/{alias}:1"));
        }
        let proxy = Proxy::before(&registry, Mischief::Hold(HELD));
        let settings = [
            ("SANDBOXD_PREWARM", "false"),
            ("SANDBOXD_DEFAULT_RUNTIME", ""),
            ("SANDBOXD_INSECURE_REGISTRIES", &proxy.address),
        ];
        let mut pair = Pair::prepare(&settings, None, None);
        pair.own_images(&[]);
        let image = |alias: &&str| json!({"alias": alias, "image": format!("{}/t/{alias}:1", proxy.address)});
        let catalog = pair.state.join("catalog.json");
        fs::write(&catalog, Value::from_iter(aliases.iter().map(image)).to_string()).unwrap();
        pair.set("SANDBOXD_CATALOG", catalog.to_str().unwrap());
        pair.start_launcher(None);
        Self { proxy, pair, _registry: registry }
    }

    /// A line for `sandboxctl`, as one of a shell.
    fn line(&self, arguments: &str) -> (Command, String) {
        let Endpoint::Unix(socket) = &self.pair.client.endpoint else { panic!("no socket") };
        let mut like = bare();
        like.env("SANDBOXD_SOCKET", socket);
        like.env("SANDBOXD_TOKEN", String::from_utf8_lossy(&self.pair.client.token).as_ref());
        (like, format!("{} {arguments}", binary("sandboxctl").display()))
    }
}

/// Everything that something writes, as far as it has come.
struct Shown {
    text: std::sync::Arc<std::sync::Mutex<String>>,
    reader: std::thread::JoinHandle<()>,
}

impl Shown {
    fn of(mut from: impl Read + Send + 'static) -> Self {
        let text = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let shared = std::sync::Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                shared.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { text, reader }
    }

    fn now(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    #[track_caller]
    fn wait_for(&self, needle: &str) {
        let seen = wait_for(SOON, || self.now().contains(needle).then_some(()));
        assert!(seen.is_some(), "{needle:?} is not in {:?}", self.now());
    }

    fn whole(self) -> String {
        self.reader.join().unwrap();
        let text = self.text.lock().unwrap();
        text.clone()
    }
}

/// How much of how much is there after these words, in MiB, as it is said for the last time.
fn parts(text: &str, words: &str) -> Option<(f64, f64)> {
    let said = text.rsplit_once(words)?.1.split('\n').next()?;
    let mut numbers = said.split([' ', ',']).filter_map(|word| word.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// What is said to be there once it is more than `least`, and less than all.
#[track_caller]
fn part(shown: &Shown, words: &str, least: f64) -> f64 {
    let seen = wait_for(SOON, || parts(&shown.now(), words).filter(|(there, all)| least < *there && there < all));
    seen.unwrap_or_else(|| panic!("{words:?} with more than {least} is not in {:?}", shown.now())).0
}

#[track_caller]
fn succeeds(child: &mut Child, shown: &Shown) {
    assert!(child.wait().unwrap().success(), "{}", shown.now());
}

#[test]
fn whoever_waits_for_a_pull_is_shown_its_bytes() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let mut bench = Bench::new(&["lines", "bar", "json", "made", "byhand"]);
    bench.pair.start_service(None);
    let image = |alias: &str| format!("{}/t/{alias}:1", bench.proxy.address);
    let by_hand = format!("images pull {}", image("byhand"));
    for (alias, arguments, out) in [
        ("lines", "open --runtime lines --id lines", "lines\n"),
        ("made", "prepare made", "made is ready ("),
        ("byhand", by_hand.as_str(), " fetched, 4 layers of it "),
    ] {
        bench.proxy.set(Mischief::Hold(HELD));
        let (like, line) = bench.line(arguments);
        let mut child = by_shell(&like, &line).spawn().unwrap();
        let (stdout, stderr) = (Shown::of(child.stdout.take().unwrap()), Shown::of(child.stderr.take().unwrap()));
        let words = format!("sandboxctl: pulling {}: ", image(alias));
        let first = part(&stderr, &words, 0.0);
        if alias != "byhand" {
            let runtime = bench.pair.client.get(&format!("/runtimes/{alias}")).expect(200).json();
            let pull = |name: &str| runtime["pull"][name].as_u64().unwrap_or_default();
            assert_eq!((&runtime["state"], pull("layers")), (&json!("building"), 4), "{runtime}");
            assert!(
                pull("bytes") > PAYLOAD as u64 && (1..pull("bytes")).contains(&pull("bytes_received")),
                "{runtime}"
            );
        }
        bench.proxy.set(Mischief::Hold(2 * HELD));
        part(&stderr, &words, first);
        bench.proxy.set(Mischief::None);
        succeeds(&mut child, &stderr);
        let (stdout, stderr) = (stdout.whole(), stderr.whole());
        assert!(stdout.contains(out) && !stdout.contains("pulling"), "{stdout:?}");
        assert!(
            stderr.lines().any(|line| line.contains(" MiB of ") && line.ends_with(" of 4 layers ready")),
            "{stderr}"
        );
    }
    let ready = bench.pair.client.get("/runtimes/lines").expect(200).json();
    assert_eq!((&ready["state"], &ready["pull"]), (&json!("ready"), &Value::Null));

    // On a terminal a bar; beside JSON nothing.
    bench.proxy.set(Mischief::Hold(HELD));
    let (like, line) = bench.line("open --runtime bar --id bar");
    let mut child = on_terminal(&like, &line).spawn().unwrap();
    let shown = Shown::of(child.stdout.take().unwrap());
    shown.wait_for(" MiB of ");
    shown.wait_for("B/s, ");
    shown.wait_for(" left: pulling 127.");
    let (like, line) = bench.line("open --runtime json --id json --json");
    let mut silent = by_shell(&like, &line).spawn().unwrap();
    let (stdout, stderr) = (Shown::of(silent.stdout.take().unwrap()), Shown::of(silent.stderr.take().unwrap()));
    let pulled = || bench.pair.client.get("/runtimes/json").expect(200).json()["pull"]["bytes"].as_u64();
    assert!(wait_for(SOON, || pulled().filter(|bytes| *bytes > 0)).is_some());
    bench.proxy.set(Mischief::None);
    succeeds(&mut child, &shown);
    assert!(shown.whole().ends_with("bar\r\n"));
    succeeds(&mut silent, &stderr);
    let created: Value = serde_json::from_str(&stdout.whole()).unwrap();
    assert_eq!((&created["session"]["session_id"], stderr.whole()), (&json!("json"), String::new()));
}

#[test]
fn a_prepare_before_a_deployment_says_how_far_a_pull_is() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let bench = Bench::new(&["box"]);
    let mut command = bench.pair.sandboxd();
    command.arg("prepare").stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (Shown::of(child.stdout.take().unwrap()), Shown::of(child.stderr.take().unwrap()));
    part(&stdout, "box: pulled ", 0.0);
    bench.proxy.set(Mischief::None);
    succeeds(&mut child, &stdout);
    let said = stdout.whole();
    assert_eq!((said.lines().last(), stderr.whole()), (Some("prepare: 1 of 1 ready"), String::new()), "{said}");
}

#[test]
fn an_open_whose_client_goes_away_meanwhile_leaves_nothing_but_the_image() {
    if is_missing(&["docker-registry", "skopeo", "umoci"]) {
        return;
    }
    let mut bench = Bench::new(&["box"]);
    bench.pair.start_service(None);
    let client = bench.pair.client.clone();
    let state = || client.get("/runtimes/box").expect(200).json()["state"].clone();
    let counts = || {
        let health = client.get("/healthz").expect(200).json();
        (health["sessions"].clone(), health["open_sessions"].clone())
    };
    let body = json!({"session_id": "gone", "runtime": "box"}).to_string();
    let head = client.head("POST", "/sessions", Some("application/json"), body.len());
    let mut connection = client.connect();
    connection.write(&[head.as_slice(), body.as_bytes()].concat()).unwrap();
    assert!(wait_for(SOON, || (state() == "building").then_some(())).is_some(), "{}", state());
    assert_eq!(counts().0, 1, "an open under way counts");
    drop(connection);
    assert!(wait_for(SOON, || (counts() == (json!(0), json!(0))).then_some(())).is_some(), "{:?}", counts());
    assert_eq!(state(), "building", "the image is made all the same");
    assert!(!bench.pair.state.join("workspaces/gone").exists());
    bench.proxy.set(Mischief::None);
    assert!(wait_for(SOON, || (state() == "ready").then_some(())).is_some(), "{}", state());
    assert_eq!(bench.pair.leaks(&BTreeSet::new()), Vec::<String>::new());
    // The name is nobody's.
    client.post("/sessions", json!({"session_id": "gone", "runtime": "box"})).expect(200);
}
