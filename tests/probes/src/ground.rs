//! What the probes stand on: an instance of the service with images of their own, and the program that runs in them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use it::daemon::{Options, StateDir, target};
use it::{Daemon, Response, Session};
use serde_json::{Value, json};

use crate::archive::{self, Entry, Kind};
use crate::registry::{Body, Layer, Registry};

/// The image whose commands run as root inside, and the one whose commands run as the sandbox user.
pub const WHO: [&str; 2] = ["root", "user"];
/// Where the program is in every image.
const PROGRAM: &str = "/probe";
/// How long a run of it may take, in seconds.
const PATIENCE: u64 = 120;

/// What was tried, by name, and what came of it.
pub type Answers = BTreeMap<String, String>;

/// An instance, and what belongs to it.
pub struct Ground {
    /// The service.
    pub daemon: Daemon,
    /// Where its images come from.
    pub registry: Registry,
    /// The program that runs inside, on the host.
    pub program: PathBuf,
    /// A directory of the host's that nobody in a sandbox, an image or a request may reach. It holds `marker`.
    pub outside: PathBuf,
    /// The layer with the program.
    pub base: Layer,
    /// The instance's image store.
    pub images: PathBuf,
    _state: StateDir,
    _home: StateDir,
}

/// An image: its name, the user of its commands, its layers above the one with the program.
pub type Image = (String, &'static str, Vec<Layer>);

impl Ground {
    /// Start the service with a runtime for each of `images`, and for each name of `lazy`, which is served later.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn new(images: impl FnOnce(&Path, &[u8]) -> Vec<Image>, lazy: &[&str]) -> Self {
        let beside = std::env::var_os("IT_PROGRAMS").map(|programs| PathBuf::from(programs).join("probe-inside"));
        let built = || target().join(format!("{}-unknown-linux-musl/init/probe-inside", std::env::consts::ARCH));
        let program = beside.filter(|path| path.exists()).unwrap_or_else(built);
        let bytes = fs::read(&program).unwrap_or_else(|e| panic!("{}: {e}; run tests/probes/build", program.display()));
        let home = StateDir::new();
        let (outside, store) = (home.0.join("outside"), home.0.join("images"));
        plant(&outside);
        let registry = Registry::start().expect("a port for the registry");
        let base = Layer::gzip(&Body::of(archive::archive(&[
            Entry::new("probe", Kind::File(bytes.clone())).mode(0o755),
            Entry::new("etc", Kind::Directory),
            Entry::new("etc/passwd", Kind::File(b"root:x:0:0::/:/probe\nagent:x:10001:10001::/:/probe\n".to_vec())),
        ])));
        let mut names: Vec<String> = lazy.iter().map(|name| (*name).to_owned()).collect();
        let plain = [("root".to_owned(), "0", Vec::new()), ("user".to_owned(), "10001:10001", Vec::new())];
        for (name, user, layers) in plain.into_iter().chain(images(&outside, &bytes)) {
            registry.image(&name, user, &[std::slice::from_ref(&base), &layers].concat());
            names.push(name);
        }
        let entries: Vec<Value> =
            names.iter().map(|name| json!({"alias": name, "image": registry.reference(name)})).collect();
        let catalogue = home.0.join("catalogue.json");
        fs::write(&catalogue, Value::from(entries).to_string()).expect("write the catalogue");
        let state = StateDir(home.0.join("state"));
        fs::create_dir(&state.0).expect("make the state directory");
        let daemon = Options::new()
            .env("SANDBOXD_INSECURE_REGISTRIES", &registry.address.to_string())
            .env("SANDBOXD_PREWARM", "false")
            .env("SANDBOXD_MAX_SESSIONS", "100")
            .env("SANDBOXD_MEM_LIMIT", "256m")
            .env("SANDBOXD_PIDS_LIMIT", "4096")
            .env("SANDBOXD_CPUS", "1")
            .env("SANDBOXD_DISK_QUOTA", "300m")
            .env("SANDBOXD_DISK_INODES", "8000")
            .env("SANDBOXD_DEFAULT_RUNTIME", "user")
            .catalog(&catalogue)
            .images(&store)
            .state(&state)
            .start();
        Self { daemon, registry, program, outside, base, images: store, _state: state, _home: home }
    }

    /// A session of the image of this name.
    #[must_use]
    pub fn session(&self, image: &str) -> Session {
        self.daemon.session(image)
    }

    /// The answer to opening one, whatever it is.
    #[must_use]
    pub fn try_session(&self, image: &str) -> (Response, Option<Session>) {
        let answer = self.daemon.client.post("/sessions", json!({"runtime": image}));
        let session = (answer.status == 200).then(|| Session::from_answer(&self.daemon, &answer.json()));
        (answer, session)
    }

    /// Run the program on this host, as root, and have its answers.
    #[must_use]
    pub fn here(&self, arguments: &[&str]) -> Answers {
        let output = Command::new(&self.program).args(arguments).output().expect("run the program");
        answers(&String::from_utf8_lossy(&output.stdout))
    }

    /// A directory of the host's for the controls of a class; it is entered by everybody.
    #[must_use]
    pub fn scratch(&self, class: &str) -> PathBuf {
        let path = self.outside.with_file_name(format!("scratch-{class}"));
        fs::create_dir_all(&path).expect("make a directory for controls");
        path
    }

    /// What of `outside` is not as it was planted.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        damage(&self.outside)
    }
}

/// Make the directory that is not to be reached.
pub fn plant(outside: &Path) {
    fs::create_dir_all(outside).expect("make the directory outside");
    // Whoever gets here may write.
    fs::set_permissions(outside, fs::Permissions::from_mode(0o777)).expect("open it");
    fs::write(outside.join("marker"), "untouched").expect("plant the marker");
    fs::set_permissions(outside.join("marker"), fs::Permissions::from_mode(0o666)).expect("open it");
}

/// What of a planted directory is not as it was.
#[must_use]
pub fn damage(outside: &Path) -> Option<String> {
    let names: Vec<_> = fs::read_dir(outside).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    let marker = fs::read_to_string(outside.join("marker")).unwrap_or_default();
    (names != ["marker"] || marker != "untouched").then(|| format!("{names:?}, the marker says {marker:?}"))
}

/// Run the program in a session and have its answers.
#[must_use]
pub fn inside(session: &Session, arguments: &[&str]) -> Answers {
    let outcome = run(session, arguments);
    assert!(outcome.code().is_some(), "probe {arguments:?} was ended: {}", outcome.body);
    answers(outcome.stdout())
}

/// Run it and have the command's outcome.
#[must_use]
pub fn run(session: &Session, arguments: &[&str]) -> it::Outcome {
    let argv = [PROGRAM].iter().chain(arguments).copied();
    session.run_with(argv, json!({"timeout_seconds": PATIENCE}))
}

fn answers(text: &str) -> Answers {
    text.lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, said)| (name.to_owned(), said.to_owned()))
        .collect()
}
