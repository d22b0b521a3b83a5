//! What the service tells systemd (`sd_notify(3)`): that it serves, what it does, that it lives, that it ends. Here a socket of the
//! test's stands for systemd's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use it::daemon::wait_for;
use it::pair::{Pair, Which};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// What is to be told is told within.
const SOON: Duration = Duration::from_secs(60);

/// A registry that is not there.
const NOBODY: &str = "127.0.0.1:1";

/// Who is told.
struct Manager {
    socket: UnixDatagram,
    told: Vec<String>,
}

impl Manager {
    fn listen(pair: &mut Pair) -> Self {
        let path = pair.state.join("run/notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        pair.set("NOTIFY_SOCKET", path.to_str().unwrap());
        Self { socket, told: Vec::new() }
    }

    /// Listen until `count` of what was told hold this line.
    #[track_caller]
    fn until(&mut self, wanted: &str, count: usize) {
        let end = Instant::now() + SOON;
        while self.times(wanted) < count {
            assert!(Instant::now() < end, "{wanted:?}, {count} times, is not in {:?}", self.told);
            let mut buffer = [0; 4096];
            if let Ok(length) = self.socket.recv(&mut buffer) {
                self.told.extend(String::from_utf8_lossy(&buffer[..length]).lines().map(str::to_owned));
            }
        }
    }

    fn times(&self, wanted: &str) -> usize {
        self.told.iter().filter(|line| *line == wanted).count()
    }
}

#[test]
fn systemd_is_told_what_it_does_and_that_it_lives() {
    let settings = [
        ("SANDBOXD_PREWARM", "true"),
        ("SANDBOXD_DEFAULT_RUNTIME", ""),
        ("SANDBOXD_INSECURE_REGISTRIES", NOBODY),
        ("WATCHDOG_USEC", "2000000"),
    ];
    let mut pair = Pair::prepare(&settings, None, None);
    pair.own_images(&[]);
    let catalog = pair.state.join("catalog.json");
    fs::write(&catalog, json!([{"alias": "none", "image": format!("{NOBODY}/none:1")}]).to_string()).unwrap();
    pair.set("SANDBOXD_CATALOG", catalog.to_str().unwrap());
    let mut manager = Manager::listen(&mut pair);
    pair.start_launcher(None);
    pair.begin_service(None);
    manager.until("READY=1", 1);
    assert!(pair.ready(), "{}", pair.said());
    // A status for each runtime whose image is made ready, and again the first when all have been tried.
    manager.until("STATUS=serving; preparing none, 1 of 1", 1);
    manager.until("STATUS=serving", 2);
    // Twice in each of the watchdog's periods.
    manager.until("WATCHDOG=1", 3);

    kill_process(Pid::from_raw(pair.pid(Which::Service).cast_signed()).unwrap(), Signal::TERM).unwrap();
    manager.until("STOPPING=1", 1);
    assert!(wait_for(SOON, || (!pair.lives(Which::Service)).then_some(())).is_some(), "{}", pair.said());
}
