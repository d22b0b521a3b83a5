//! Contexts of `sandboxctl`, and where tokens go: to the address that they were given for. A listener that is nobody's
//! service records what it gets.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use it::shared;

use crate::cli::{Done, bare, finish};

/// A home, removed when it goes out of scope.
pub struct Home(pub PathBuf);

impl Home {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sandboxctl-it-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &[u8], mode: u32) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn go(&self, variables: &[(&str, &str)], line: &str) -> Done {
        finish(self.command(variables, line))
    }

    fn command(&self, variables: &[(&str, &str)], line: &str) -> Command {
        let mut command = bare();
        command.env("XDG_CONFIG_HOME", &self.0).envs(variables.iter().copied()).args(line.split_whitespace());
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Somebody who answers every request with `answer` and tells what was in its head.
fn listener(answer: &'static str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, heads) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            let _ = sender.send(head.join("\n").to_ascii_lowercase());
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
    (url, heads)
}

const REFUSAL: &str = "HTTP/1.1 401 X\r\nconnection: close\r\ncontent-length: 16\r\n\r\n{\"detail\": \"no\"}";

#[test]
fn tokens_go_to_the_address_that_they_were_given_for_and_nowhere_else() {
    let home = Home::new("tokens");
    let (own, own_heads) = listener(REFUSAL);
    let (other, other_heads) = listener(REFUSAL);
    let token = home.file("token", b"of-the-context", 0o600);
    home.go(&[], &format!("context add lab --url {own} --token-file {token}")).expect(0);
    home.go(&[], "context use lab").expect(0);
    let secret = ("SANDBOXD_TOKEN", "of-the-environment");
    let env = [("SANDBOXD_URL", own.as_str()), secret];
    let sent = |variables: &[(&str, &str)], line: &str, heads: &Receiver<String>| {
        home.go(variables, line).expect(77);
        let head = heads.recv_timeout(std::time::Duration::from_secs(10)).expect("it was asked");
        head.lines().find_map(|line| line.strip_prefix("x-sandbox-token: ").map(str::to_owned))
    };
    let (of_env, of_context) = (Some("of-the-environment".to_owned()), Some("of-the-context".to_owned()));
    assert_eq!(sent(&env, "sessions", &own_heads), of_env);
    assert_eq!(sent(&env, &format!("sessions --url {own}/"), &own_heads), of_env);
    assert_eq!(sent(&[], "sessions", &own_heads), of_context);
    assert_eq!(sent(&[secret], "sessions", &own_heads), of_context);
    assert_eq!(sent(&env, "sessions --context lab", &own_heads), of_context);
    assert_eq!(sent(&[("SANDBOXCTL_CONTEXT", "lab"), secret], "sessions", &own_heads), of_context);
    // Another address by hand gets neither.
    let elsewhere = format!("--url {other}");
    for variables in [&env[..], &[secret], &[]] {
        for command in ["sessions", "doctor", "run s -- true", "shell s", "logs s", "cp s:/f -"] {
            let done = home.go(variables, &format!("{elsewhere} {command}"));
            assert!(matches!(done.code, 77 | 2 | 0), "{command}: {done:?}");
        }
    }
    let seen: Vec<String> = other_heads.try_iter().collect();
    assert!(
        seen.len() >= 12 && seen.iter().all(|head| !head.contains("x-sandbox-token") && !head.contains("of-the-")),
        "{seen:?}"
    );
    // One that is named by hand goes where the hand points.
    assert_eq!(sent(&env, &format!("sessions {elsewhere} --token-file {token}"), &other_heads), of_context);
    let told = home.go(&env, &format!("sessions {elsewhere}")).stderr;
    assert!(told.contains("SANDBOXD_TOKEN was not sent"), "{told}");
    let both = home.go(&[env[0], ("SANDBOXCTL_CONTEXT", "lab")], "sessions");
    assert!(both.expect(2).is_empty() && both.stderr.contains("both say where"), "{both:?}");
}

#[test]
fn a_redirect_gets_nobody_a_token() {
    let home = Home::new("redirect");
    let (thief, heads) = listener(REFUSAL);
    let answer =
        format!("HTTP/1.1 307 X\r\nlocation: {thief}/sessions\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    let (url, _asked) = listener(answer.leak());
    for line in ["sessions", "close s", "run s -- true", "cat s /f"] {
        let done = home.go(&[("SANDBOXD_URL", &url), ("SANDBOXD_TOKEN", "secret")], line);
        assert!(done.expect(76).is_empty() && done.stderr.contains(&thief), "{done:?}");
    }
    assert_eq!(heads.try_iter().count(), 0);
}

#[test]
fn a_configuration_of_somebody_else_is_none() {
    let home = Home::new("elses");
    home.go(&[], "context add lab --url http://127.0.0.1:1").expect(0);
    home.go(&[], "context use lab").expect(0);
    fs::set_permissions(&home.0, fs::Permissions::from_mode(0o700)).unwrap();
    // Another user, in whose environment that home is still.
    let own = home.command(&[], "context show --json");
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(own.get_program()).args(own.get_args());
    other.env_clear().envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other.env("PATH", std::env::var_os("PATH").unwrap());
    let shown = finish(other).json();
    assert_eq!((&shown["by"], &shown["sends_token"]), (&"the default".into(), &false.into()));
    assert_eq!(home.go(&[], "context show --json").json()["address"], "http://127.0.0.1:1");
}

#[test]
fn a_context_is_a_service_by_name() {
    let home = Home::new("context");
    let daemon = shared();
    let token = home.file("token", &daemon.client.token, 0o600);
    let socket = daemon.socket.to_str().unwrap();
    home.go(&[], &format!("context add here --socket {socket} --token-file {token}")).expect(0);
    home.go(&[], "context add there --url http://127.0.0.1:1").expect(0);
    assert_eq!(home.go(&[], "--context here health --json").json()["status"], "ok");
    assert_eq!(home.go(&[], "--context here sessions").code, 0);
    assert_eq!(home.go(&[], "--context there sessions").code, 69);
    home.go(&[], "context use here").expect(0);
    assert_eq!(home.go(&[], "sessions").code, 0);
    let listed = home.go(&[], "context ls").expect(0);
    assert!(listed.contains("*  here") && listed.contains("http://127.0.0.1:1"), "{listed}");
    let shown = home.go(&[], "context show --json").json();
    assert_eq!((&shown["sends_token"], &shown["by"]), (&true.into(), &"the context in use (here)".into()));
    assert_eq!(home.go(&[], "context show there --json").json()["sends_token"], false);
    assert!(!home.go(&[], "context show").expect(0).contains(&*String::from_utf8_lossy(&daemon.client.token)));
    assert_eq!(home.go(&[], "--context nowhere sessions").code, 2);
    home.go(&[], "context rm here").expect(0);
    assert!(Path::new(&token).exists());
    assert_eq!(home.go(&[], "context use here").code, 2);
    home.file("token", &daemon.client.token, 0o644);
    home.go(&[], &format!("context add here --socket {socket} --token-file {token}")).expect(0);
    let open = home.go(&[], "--context here sessions");
    assert!(open.expect(2).is_empty() && open.stderr.contains("chmod o="), "{open:?}");
}
