//! `GET /metrics`: who may read it, that it is what Prometheus takes, and that it, its document and its dashboard are one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use it::daemon::{Options, repository};
use it::session::fresh_id;
use it::{Client, Response, Session, shared};
use serde_json::{Value, json};

/// A token for scraping.
const SCRAPE: &str = "fedcba9876543210fedcba9876543210";

/// What was answered, read strictly.
struct Scraped {
    /// Types by name.
    types: BTreeMap<String, String>,
    /// Values by name and labels, as they are written.
    samples: BTreeMap<String, f64>,
}

impl Scraped {
    fn of(client: &Client) -> Self {
        Self::read(&client.get("/metrics").expect(200))
    }

    fn read(answer: &Response) -> Self {
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        let mut scraped = Self { types: BTreeMap::new(), samples: BTreeMap::new() };
        let text = answer.text();
        assert!(text.ends_with('\n'));
        let mut helped = String::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').unwrap();
                assert!(words.ends_with('.') && !words.contains('\\'), "{line}");
                helped = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, helped, "a type follows its help");
                let earlier = scraped.types.insert(name.to_owned(), kind.to_owned());
                assert!(earlier.is_none(), "{name} is there twice");
            } else {
                scraped.sample(line, &helped);
            }
        }
        scraped
    }

    fn sample(&mut self, line: &str, family: &str) {
        let (key, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a sample: {line}"));
        let name = key.split('{').next().unwrap();
        let of_histogram = ["_bucket", "_sum", "_count"].iter().any(|part| name.strip_suffix(part) == Some(family));
        let is_histogram = self.types[family] == "histogram";
        assert!(if is_histogram { of_histogram } else { name == family }, "{line} is under {family}");
        if let Some(labels) = key.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            let labels = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix('}')).unwrap();
            for label in labels.split(',') {
                let (label, text) = label.split_once('=').unwrap();
                assert!(label.bytes().all(|b| b.is_ascii_lowercase()), "{line}");
                assert!(text.len() > 2 && text.starts_with('"') && text.ends_with('"'), "{line}");
            }
        }
        let value: f64 = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(self.samples.insert(key.to_owned(), value).is_none(), "{line} is there twice");
    }

    /// 0 where it is not there: nothing of the kind has happened.
    fn value(&self, key: &str) -> f64 {
        self.samples.get(key).copied().unwrap_or(0.0)
    }
}

/// The names in backquotes of the first column of the tables of a page.
fn documented() -> BTreeMap<String, String> {
    let page = fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    let mut found = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        for name in columns[1].split(", ") {
            found.insert(name.trim_matches('`').to_owned(), columns[2].to_owned());
        }
    }
    found
}

#[test]
fn every_name_is_documented_and_every_documented_name_is_there() {
    let _open = shared().session("base");
    let answered = Scraped::of(&shared().client).types;
    assert!(answered.len() > 30, "{answered:?}");
    assert_eq!(answered, documented());
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let file = repository().join("packaging/grafana/sandboxd.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let known = documented();
    let mut asked = BTreeSet::new();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    for target in targets {
        let query = target["expr"].as_str().unwrap();
        let words: Vec<&str> = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        let names: Vec<&&str> =
            words.iter().filter(|word| word.starts_with("sandboxd_") || word.starts_with("process_")).collect();
        assert!(!names.is_empty(), "no name in {query}");
        for name in names {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            let (name, wanted) =
                match family.filter(|family| known.get(*family).is_some_and(|kind| kind == "histogram")) {
                    Some(family) => (family, true),
                    None => (*name, false),
                };
            assert_eq!(known.get(name).map(|kind| kind == "histogram"), Some(wanted), "{name} in {query}");
            asked.insert(name.to_owned());
        }
    }
    // What a dashboard leaves out is nothing to look at over time.
    let left: Vec<&String> = known.keys().filter(|name| !asked.contains(*name)).collect();
    assert_eq!(left, ["process_start_time_seconds", "sandboxd_build_info"]);
}

#[test]
fn what_happens_is_counted() {
    let daemon = Options::new().env("SANDBOXD_MAX_SESSIONS", "2").start();
    let ran = |how: &str| format!("sandboxd_run_duration_seconds_count{{outcome=\"{how}\"}}");
    let opened = |how: &str| format!("sandboxd_open_duration_seconds_count{{outcome=\"{how}\"}}");
    let before = Scraped::of(&daemon.client);
    for how in ["ok", "failed", "timed_out", "refused"] {
        assert_eq!(before.value(&ran(how)), 0.0);
    }
    let id = fresh_id("metrics");
    let one = Session::open(&daemon, json!({"runtime": "base", "session_id": id, "tenant": "acme"}));
    one.sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done").expect("");
    one.sh("exit 3").expect_code(3);
    one.sh("nonesuch").expect_code(127);
    let body = json!({"argv": ["sleep", "60"], "timeout_seconds": 0.2, "run_id": it::session::run_id()});
    assert_eq!(one.client.post(&format!("/sessions/{}/run", one.id), body).expect(200).json()["timed_out"], true);
    let _two = daemon.session("base");
    daemon.client.post("/sessions", json!({"runtime": "base"})).expect(429);
    daemon.client.post("/sessions", json!({"runtime": "base", "session_id": one.id, "attach": true})).expect(200);

    let after = Scraped::of(&daemon.client);
    for (key, count) in [
        (ran("ok"), 1.0),
        (ran("failed"), 2.0),
        (ran("timed_out"), 1.0),
        (opened("opened"), 2.0),
        (opened("refused"), 1.0),
        (opened("attached"), 1.0),
        ("sandboxd_sessions{state=\"running\"}".into(), 2.0),
        ("sandboxd_sessions_limit{of=\"resident\"}".into(), 2.0),
        ("sandboxd_tenant_sessions{tenant=\"acme\"}".into(), 1.0),
        ("sandboxd_tenant_sessions{tenant=\"_none\"}".into(), 1.0),
        ("sandboxd_launch_phase_seconds_count{phase=\"rootfs\"}".into(), 2.0),
        ("sandboxd_launch_phase_seconds_count{phase=\"other\"}".into(), 0.0),
        ("sandboxd_launcher_request_seconds_count{request=\"start\"}".into(), 2.0),
        ("sandboxd_http_answers_total{status=\"429\"}".into(), 1.0),
        ("sandboxd_runs_running".into(), 0.0),
        ("sandboxd_launcher_queue".into(), 0.0),
    ] {
        assert_eq!(after.value(&key), count, "{key}");
    }
    assert!(
        after.value("sandboxd_store_transaction_seconds_count")
            > before.value("sandboxd_store_transaction_seconds_count")
    );
    assert!(after.value("sandboxd_run_duration_seconds_sum{outcome=\"timed_out\"}") >= 0.2);
    let cpu = "sandboxd_tenant_cpu_seconds_total{tenant=\"acme\"}";
    assert!(after.value(cpu) > 0.0);
    drop(one);
    let end = Scraped::of(&daemon.client);
    assert!(end.value(cpu) >= after.value(cpu), "what was used stays used");
    assert_eq!(end.value("sandboxd_sandbox_ends_total{reason=\"closed\"}"), 1.0);
    assert_eq!(end.value("sandboxd_tenant_sessions{tenant=\"acme\"}"), 0.0);
}

#[test]
fn a_scraper_s_token_opens_the_figures_and_nothing_else() {
    let daemon = Options::new().env("SANDBOXD_METRICS_TOKEN", SCRAPE).start();
    let scraper = daemon.client.with_token(SCRAPE);
    Scraped::of(&scraper);
    Scraped::of(&daemon.client);
    for path in ["/sessions", "/policy", "/operations", "/workspaces", "/doctor", "/images"] {
        scraper.get(path).expect(401);
    }
    scraper.post("/sessions", json!({})).expect(401);
    let bearer = |scheme: &str, token: &str| {
        let head = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: {scheme} {token}\r\n\r\n");
        daemon.client.connect().exchange(head.as_bytes(), b"").unwrap().status
    };
    assert_eq!(bearer("Bearer", SCRAPE), 200);
    assert_eq!(bearer("bearer", &String::from_utf8_lossy(&daemon.client.token)), 200);
    for (scheme, token) in [("Basic", SCRAPE), ("Bearer", "wrong"), ("Bearer", ""), ("Bearer", &SCRAPE[..31])] {
        assert_eq!(bearer(scheme, token), 401, "{scheme} {token}");
    }
    let session = daemon.session("base");
    session.client.get("/metrics").expect(401);
    daemon.client.anonymous().get("/metrics").expect(401);
}

#[test]
fn prometheus_takes_it() {
    let answer = shared().client.get("/metrics").expect(200);
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        return println!(
            "skipped: no promtool on this machine (Debian's package prometheus); the parser of these tests read it"
        );
    };
    promtool.stdin.take().unwrap().write_all(&answer.body).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}
