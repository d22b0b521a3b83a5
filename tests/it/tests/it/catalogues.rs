//! What becomes of sessions when at the next start their runtime is another one, or none.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use it::daemon::{StateDir, wait_for};
use it::host::running;
use it::pair::{Pair, Which};
use it::session::run_id;
use serde_json::{Value, json};

/// A service whose catalogue can be written anew.
struct Changing {
    pair: Pair,
    catalog: PathBuf,
    _directory: StateDir,
}

impl Changing {
    fn start(catalogue: &Value) -> Self {
        let directory = StateDir::new();
        let catalog = directory.0.join("catalog.json");
        fs::write(&catalog, catalogue.to_string()).unwrap();
        let mut pair = Pair::prepare(&[("SANDBOXD_INSECURE_REGISTRIES", "127.0.0.1:1")], Some(&catalog), None);
        pair.start_launcher(None);
        pair.start_service(None);
        Self { pair, catalog, _directory: directory }
    }

    /// The service again, killed and started with another catalogue.
    fn change(&mut self, catalogue: &Value) {
        self.pair.kill(Which::Service);
        fs::write(&self.catalog, catalogue.to_string()).unwrap();
        self.pair.start_service(None);
    }

    fn run(&self, id: &str, line: &str, more: &Value) -> Value {
        let mut body = json!({"argv": ["sh", "-c", line], "run_id": run_id()});
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        self.pair.client.post(&format!("/sessions/{id}/run"), body).expect(200).json()
    }
}

fn runtime(alias: &str, image: &str) -> Value {
    json!({"alias": alias, "description": "for tests", "image": image, "needs_network": false})
}

fn base() -> Value {
    runtime("base", "debian-bookworm")
}

#[test]
fn a_sandbox_goes_on_though_its_runtime_has_another_image_that_is_not_here() {
    let mut service = Changing::start(&json!([base()]));
    service.pair.client.post("/sessions", json!({"session_id": "goes-on"})).expect(200);
    service.run("goes-on", "setsid sleep 7100031 </dev/null >/dev/null 2>&1 & id -u > who", &json!({}));
    assert!(wait_for(Duration::from_secs(10), || (running("sleep 7100031").len() == 1).then_some(())).is_some());
    // Nobody could pull that; a start that tried would say so, or wait.
    service.change(&json!([runtime("base", "127.0.0.1:1/image:1")]));
    assert_eq!(running("sleep 7100031").len(), 1, "{}", service.pair.said());
    let answer = service.run("goes-on", "test $(id -u) = $(cat who) && echo the same", &json!({}));
    assert_eq!(answer["stdout"], "the same\n", "{answer}");
    // Another sandbox takes the other image.
    service.pair.client.post("/sessions", json!({"session_id": "new"})).expect(502);
}

#[test]
fn a_session_whose_runtime_is_not_allowed_any_more_comes_back_with_it_or_on_another() {
    let mut service = Changing::start(&json!([base(), runtime("other", "debian-bookworm")]));
    for id in ["waits", "moves"] {
        service.pair.client.post("/sessions", json!({"session_id": id, "runtime": "other"})).expect(200);
        service.run(id, "echo kept > note", &json!({}));
    }
    service.change(&json!([base()]));
    assert!(service.pair.open_sessions().is_empty());
    // Whoever asks for it by its name has its files, on a runtime that is allowed.
    let moved = service.pair.client.post("/sessions", json!({"session_id": "moves", "reuse": true})).expect(200).json();
    assert_eq!(moved["session"]["runtime"], "base");
    assert_eq!(service.run("moves", "cat note", &json!({}))["stdout"], "kept\n");
    service.change(&json!([base(), runtime("other", "debian-bookworm")]));
    let open: Vec<String> = service.pair.open_sessions().into_iter().collect();
    assert_eq!(open, ["moves", "waits"]);
    for (id, runtime) in [("moves", "base"), ("waits", "other")] {
        assert_eq!(service.pair.client.get(&format!("/sessions/{id}")).json()["runtime"], runtime);
        assert_eq!(service.run(id, "cat note", &json!({}))["stdout"], "kept\n");
    }
}

#[test]
fn a_deadline_holds_while_a_session_wakes() {
    let hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let registry = hole.local_addr().unwrap().to_string();
    let mut service = Changing::start(&json!([base()]));
    service.pair.set("SANDBOXD_INSECURE_REGISTRIES", &registry);
    service.pair.client.post("/sessions", json!({"session_id": "wakes"})).expect(200);
    service.pair.client.post("/sessions/wakes/hibernate", json!(null)).expect(200);
    // To wake it takes an image that comes from there: never.
    service.change(&json!([runtime("base", &format!("{registry}/image:1"))]));
    let begun = Instant::now();
    let answer = service.run("wakes", "echo woken", &json!({"timeout_seconds": 2}));
    assert_eq!(
        (&answer["timed_out"], &answer["exit_code"], &answer["stdout"]),
        (&json!(true), &json!(null), &json!(""))
    );
    assert!(begun.elapsed() >= Duration::from_secs(2));
    let events = service.pair.client.get("/sessions/wakes/events").expect(200).json();
    assert_eq!(events["events"][0]["detail"], "timed out", "{events}");
}
