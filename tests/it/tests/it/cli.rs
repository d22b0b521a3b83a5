//! `sandboxctl` against the real service: every command, its output for people and for programs, its exit status.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use it::daemon::{Options, binary};
use it::http::Endpoint;
use it::pair::Pair;
use it::session::fresh_id;
use it::{Daemon, shared};
use serde_json::{Value, json};

/// What a command did.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Done {
    /// Standard output, if this is how it ended.
    #[track_caller]
    pub fn expect(&self, code: i32) -> String {
        let stdout = String::from_utf8_lossy(&self.stdout).into_owned();
        assert_eq!(self.code, code, "stdout: {stdout}\nstderr: {}", self.stderr);
        stdout
    }

    /// Its one JSON document, if it did what it should.
    #[track_caller]
    pub fn json(&self) -> Value {
        let text = self.expect(0);
        assert_eq!(text.matches('\n').count(), 1, "one line: {text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// The program, with nothing of ours in its environment and no home.
pub fn bare() -> Command {
    let mut command = Command::new(binary("sandboxctl"));
    let kept = ["PATH", "LANG", "RUST_BACKTRACE"].map(|name| (name, std::env::var_os(name)));
    command.env_clear().envs(kept.into_iter().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program, set up for an instance with its service token.
pub fn ctl(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = bare();
    let Endpoint::Tcp(address) = &daemon.client.endpoint else { panic!("no address: {:?}", daemon.client.endpoint) };
    command.env("SANDBOXD_URL", format!("http://{address}"));
    command.env("SANDBOXD_TOKEN", String::from_utf8_lossy(&daemon.client.token).as_ref()).args(arguments);
    command
}

/// Run it to its end.
pub fn finish(mut command: Command) -> Done {
    let output = command.output().unwrap();
    let code = output.status.code().unwrap_or_else(|| panic!("no exit status: {output:?}"));
    Done { code, stdout: output.stdout, stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
}

/// Run it to its end with something to read.
pub fn feed(mut command: Command, input: &[u8]) -> Done {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let code = output.status.code().unwrap_or_else(|| panic!("no exit status: {output:?}"));
    Done { code, stdout: output.stdout, stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
}

/// Run a line of arguments against the shared instance.
pub fn go(line: &str) -> Done {
    finish(ctl(shared(), &line.split_whitespace().collect::<Vec<_>>()))
}

#[test]
fn every_route_of_the_api_has_a_command() {
    let description = shared().client.get("/openapi.json").expect(200).json();
    let mut routes = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let methods =
            methods.as_object().unwrap().keys().filter(|key| !matches!(key.as_str(), "parameters" | "summary"));
        routes.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
    }
    let table = go("routes --json").json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let reached: BTreeSet<_> = table.as_array().unwrap().iter().map(|row| (text(&row[0]), text(&row[1]))).collect();
    let missing: Vec<_> = routes.difference(&reached).collect();
    let invented: Vec<_> = reached.difference(&routes).collect();
    assert!(missing.is_empty() && invented.is_empty(), "src/cli/src/routes.rs: add {missing:?}, remove {invented:?}");
    assert!(routes.len() > 20, "{routes:?}");
}

#[test]
fn a_session_is_opened_looked_at_and_closed() {
    let id = fresh_id("ctl");
    assert_eq!(go(&format!("open --id {id} --runtime base")).expect(0), format!("{id}\n"));
    assert!(go(&format!("open --id {id} --runtime base")).expect(65).is_empty(), "a second one of that name");
    assert_eq!(go(&format!("open --id {id} --runtime base --reuse")).expect(0), format!("{id}\n"));
    assert_eq!(go(&format!("open --id {id} --attach --json")).json()["session"]["session_id"], id.as_str());
    assert!(go(&format!("get {id}")).expect(0).contains("running"));
    assert!(go(&format!("get {id} --usage --json")).json()["usage"].is_object());
    assert!(go(&format!("hibernate {id}")).expect(0).contains("asleep"));
    assert_eq!(go(&format!("hibernate {id} --json")).json()["state"], "hibernated");
    assert!(go(&format!("wake {id}")).expect(0).contains("running"));
    for command in ["sessions", "ps", "top --once"] {
        assert!(go(command).expect(0).contains(&id), "{command}");
    }
    for command in ["sessions --json", "ps --json", "top --once --json"] {
        let list = go(command).json();
        assert!(
            list["sessions"].as_array().unwrap().iter().any(|session| session["session_id"] == id.as_str()),
            "{command}"
        );
    }
    assert!(go(&format!("close {id} --purge")).expect(0).contains("deleted"));
    assert!(go(&format!("get {id}")).expect(66).is_empty());
    assert!(go(&format!("open --id {id} --attach")).expect(66).is_empty());
}

#[test]
fn a_key_means_the_same_session_here_and_there() {
    let key = "--scope conversation --organization acme --agent clerk --conversation ctl-7";
    let derived = go(&format!("key {key}")).expect(0);
    assert_eq!(go(&format!("open {key} --runtime base")).expect(0), derived);
    assert_eq!(go(&format!("open {key} --runtime base --reuse")).expect(0), derived);
    go(&format!("close {} --purge", derived.trim())).expect(0);
}

#[test]
fn files_go_in_and_out_inside_the_workspace_and_outside() {
    let s = shared().session("base");
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    for directory in ["notes/of day", "/tmp/ctl"] {
        let file = format!("{directory}/a'b");
        let run = |arguments: &[&str]| finish(ctl(shared(), arguments));
        run(&["mkdir", &s.id, directory]).expect(0);
        feed(ctl(shared(), &["write", &s.id, &file]), &bytes).expect(0);
        let out = run(&["cat", &s.id, &file, &file]);
        out.expect(0);
        assert!(out.stdout == [&bytes[..], &bytes].concat(), "{} bytes", out.stdout.len());
        assert!(run(&["stat", &s.id, &file]).expect(0).contains("a'b"));
        assert_eq!(run(&["stat", &s.id, &file, "--json"]).json()["size"], 300_000);
        assert!(run(&["ls", &s.id, directory]).expect(0).contains("a'b"));
        let whole = run(&["realpath", &s.id, &file]).expect(0);
        assert!(whole.starts_with('/') && whole.trim_end().ends_with(&file), "{whole}");
        run(&["rm", &s.id, directory]).expect(0);
        for command in ["stat", "cat", "rm"] {
            run(&[command, &s.id, &file]).expect(66);
        }
    }
    assert!(go(&format!("rm {} /workspace", s.id)).expect(65).is_empty());
}

#[test]
fn what_was_left_behind_is_looked_at_without_waking_it() {
    let s = shared().session("base");
    s.sh("mkdir -p a/b && printf 'one\\ntwo\\nthree\\n' > a/b/lines && printf 'x\\0y' > bin").expect("");
    let id = &s.id;
    assert!(go("workspaces list --limit 100").expect(0).contains(id.as_str()));
    assert!(go("workspaces list --json --skip 1000000").json()["workspaces"].as_array().unwrap().is_empty());
    assert!(go(&format!("workspaces ls {id} a")).expect(0).contains("b/"));
    assert!(go(&format!("workspaces tree {id}")).expect(0).contains("a/b/lines"));
    assert!(!go(&format!("workspaces tree {id} --depth 1")).expect(0).contains("a/b/lines"));
    let some = go(&format!("workspaces tree {id} it-no-such-workspace"));
    assert!(some.expect(1).contains("a/b/lines") && some.stderr.contains("it-no-such-workspace"), "{some:?}");
    let lines = go(&format!("workspaces read {id} a/b/lines --offset 1 --limit 1")).expect(0);
    assert!(lines.contains("two") && !lines.contains("three"), "{lines}");
    assert_eq!(go(&format!("workspaces cat {id} bin")).stdout, b"x\0y");
    assert_eq!(go(&format!("workspaces browse {id} --json")).json()["files"], 2);
    assert!(go(&format!("workspaces cat {id} none")).expect(66).is_empty());
    let open = go(&format!("workspaces rm {id}"));
    assert!(open.expect(65).is_empty() && open.stderr.contains("Session exists"), "{open:?}");
    let closed = go("open --runtime base").expect(0).trim().to_owned();
    go(&format!("close {closed}")).expect(0);
    assert!(go(&format!("workspaces rm {closed}")).expect(0).contains("is deleted"));
    assert!(go(&format!("workspaces rm {closed}")).expect(66).is_empty());
    assert!(go("du").expect(0).contains(id.as_str()));
}

#[test]
fn what_was_done_is_searched_and_listed() {
    let s = shared().session("base");
    s.sh("exit 3");
    s.run(["true"]).expect("");
    let id = &s.id;
    let failed = go(&format!("operations --session {id} --failed")).expect(0);
    assert!(failed.contains("exit 3") && failed.ends_with("1 of 1 operation\n"), "{failed}");
    assert_eq!(go(&format!("operations --session {id} --succeeded --json")).json()["total"], 1);
    assert_eq!(go(&format!("operations --session {id} -q exit --json")).json()["total"], 1);
    assert_eq!(go(&format!("operations --session {id} --op stat --json")).json()["total"], 0);
    assert_eq!(go("operations --op nonsense").code, 65);
    let events = go(&format!("events {id} --json")).json();
    assert_eq!(events["events"].as_array().unwrap().len(), 2);
    let after = events["events"][0]["seq"].as_u64().unwrap();
    assert_eq!(go(&format!("events {id} --after {after} --json")).json()["events"].as_array().unwrap().len(), 1);
}

#[test]
fn the_policy_is_shown_and_changed() {
    let daemon = Options::new().env("SANDBOXD_PREWARM", "false").start();
    let run = |arguments: &[&str]| finish(ctl(&daemon, arguments));
    assert_eq!(run(&["policy"]).expect(0), run(&["policy", "get"]).expect(0));
    let set =
        ["policy", "set", "max_sessions=7", "mem_limit=512m", "evict_idle_after=null", "runtimes.base.pids_limit=64"];
    let told = run(&set).expect(0);
    assert!(
        told.contains("max_sessions              7\n") && told.contains("runtimes.base.pids_limit  64\n"),
        "{told}"
    );
    let policy = run(&["policy", "--json"]).json();
    assert_eq!((&policy["max_sessions"], &policy["mem_limit"]), (&7.into(), &"512m".into()));
    assert!(policy["evict_idle_after"].is_null());
    let file = feed(ctl(&daemon, &["policy", "set", "--file", "-", "--json"]), br#"{"max_sessions": null}"#);
    assert!(file.json()["max_sessions"].is_null());
    let refused = run(&["policy", "set", "network_mode=\"bridge\""]);
    assert!(refused.expect(65).is_empty() && refused.stderr.contains("network_mode"), "{refused:?}");
    assert_eq!(run(&["policy", "set", "max_sessions=many"]).code, 2);
    assert_eq!(run(&["policy", "--json"]).json()["mem_limit"], "512m");
}

#[test]
fn the_service_says_what_it_is() {
    assert!(go("health").expect(0).starts_with("ok: "));
    assert_eq!(go("health --json").json()["status"], "ok");
    assert!(go("service").expect(0).contains("  /sessions/{session_id}/run\n"));
    assert_eq!(go("service --json").json()["service"], "sandboxd");
    assert!(go("openapi --json").json()["paths"].is_object());
    assert!(go("openapi --html").expect(0).contains("<html"));
    assert!(go("images").expect(0).contains("IMAGE"));
    assert!(go("images --json").json().is_array());
}

#[test]
fn a_runtime_is_made_ready_and_no_session_stays() {
    let told = go("prepare base").expect(0);
    assert!(told.starts_with("base is ready ("), "{told}");
    let listed = go("prepare base --json").json();
    assert_eq!((&listed[0]["runtime"], &listed[0]["ready"]), (&"base".into(), &true.into()));
    assert!(!go("sessions").expect(0).contains("prepare-"));
    assert!(!go("workspaces list --limit 100").expect(0).contains("prepare-"));
    assert_eq!(go("prepare no-such-runtime").code, 2);
}

#[test]
fn who_asks_nobody_needs_no_service() {
    let run = |line: &str| {
        let mut command = bare();
        command.args(line.split_whitespace());
        finish(command).expect(0)
    };
    assert_eq!(run("token new").trim().len(), 43);
    assert!(run("completions bash").contains("sandboxctl"));
    assert!(run("manual").starts_with(".TH SANDBOXCTL 1"));
    let nobody = finish({
        let mut command = bare();
        command.args(["--socket", "/nonexistent/s", "sessions"]);
        command
    });
    assert!(nobody.expect(69).is_empty() && nobody.stderr.contains("  -> "), "{nobody:?}");
}

/// The same environment for a shell's line.
pub fn by_shell(like: &Command, line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]).env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PATH", std::env::var_os("PATH").unwrap());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same, on a terminal, which has one stream for both outputs.
pub fn on_terminal(like: &Command, line: &str) -> Command {
    let mut command = Command::new("script");
    command.args(["-qefc", line, "/dev/null"]);
    command.env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PATH", std::env::var_os("PATH").unwrap()).env("TERM", "xterm");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A copy of 6 MiB into a session, with a terminal for its standard error or without; what it wrote there.
fn copied(terminal: bool, more: &str) -> String {
    let s = shared().session("base");
    let file = std::env::temp_dir().join(format!("{}-{terminal}-{}", s.id, more.len()));
    std::fs::write(&file, vec![7; 6 << 20]).unwrap();
    let line = format!("{} cp {} {}:/workspace/big {more}", binary("sandboxctl").display(), file.display(), s.id);
    let command = if terminal { on_terminal(&ctl(shared(), &[]), &line) } else { by_shell(&ctl(shared(), &[]), &line) };
    let done = finish(command);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(done.code, 0, "{done:?}");
    s.sh("stat -c %s big").expect("6291456\n");
    if terminal { String::from_utf8_lossy(&done.stdout).into_owned() } else { done.stderr }
}

#[test]
fn a_copy_shows_a_bar_on_a_terminal_and_nowhere_else() {
    let shown = copied(true, "");
    assert!(shown.contains("MiB/s") && shown.contains("copied 1 file, 6.0 MiB"), "{shown:?}");
    assert_eq!(copied(false, ""), "");
    let json = copied(true, "--json");
    assert_eq!(json.trim_end(), r#"{"files":1,"directories":0,"bytes":6291456,"skipped":[]}"#);
}

#[test]
fn an_open_that_waits_shows_what_is_made_and_how_far_that_is() {
    // The base is in the tests' store from here on; what is made here is not.
    drop(shared().session("base"));
    let commands = ["sleep 3; echo one > /one", "sleep 4; echo two > /two"];
    let entry =
        json!({"alias": "slow", "base_image": "debian-bookworm", "setup_commands": commands, "needs_network": false});
    let mut pair = Pair::prepare(&[("SANDBOXD_PREWARM", "false"), ("SANDBOXD_DEFAULT_RUNTIME", "")], None, None);
    pair.own_images(&["recipe/debian-bookworm"]);
    let catalog = pair.state.join("catalog.json");
    std::fs::write(&catalog, json!([entry]).to_string()).unwrap();
    pair.set("SANDBOXD_CATALOG", catalog.to_str().unwrap());
    pair.start_launcher(None);
    pair.start_service(None);
    let Endpoint::Unix(socket) = &pair.client.endpoint else { panic!("no socket") };
    let mut like = bare();
    like.env("SANDBOXD_SOCKET", socket).env("SANDBOXD_TOKEN", String::from_utf8_lossy(&pair.client.token).as_ref());
    let done = finish(on_terminal(&like, &format!("{} open --id slow", binary("sandboxctl").display())));
    let shown = done.expect(0);
    for step in ["making the image of slow, step 1 of 3: ", "making the image of slow, step 2 of 3: "] {
        assert!(shown.contains(step), "{step}: {shown:?}");
    }
    assert!(shown.ends_with("slow\r\n"), "{shown:?}");
}
