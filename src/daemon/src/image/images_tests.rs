//! Jobs, layers and records over a machine that only pretends to run anything. Real
//! bootstraps, builds and pulls are the integration tests'.

use super::*;
use crate::catalog::Catalogue;
use sha2::Digest;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Notify;
use wire::launch::Compression;

/// Makes empty layers, remembers what it was asked, fails a step whose command says so.
struct Pretend {
    layers: PathBuf,
    asked: Mutex<Vec<String>>,
    gate: Notify,
}

impl Pretend {
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn note(&self, what: &str) {
        self.asked.lock().unwrap().push(what.to_owned());
    }

    fn make(&self, layer: &LayerId) {
        std::fs::create_dir_all(self.layers.join(layer.as_str()).join("etc")).unwrap();
    }
}

impl Machine for Pretend {
    fn unpack<'a>(&'a self, _: OwnedFd, layer: &'a LayerId, _: Compression) -> MachineFuture<'a, Unpacked> {
        self.note("unpack");
        self.make(layer);
        Box::pin(async { Ok(Unpacked::default()) })
    }

    fn pack<'a>(&'a self, _: &'a LayerId, _: OwnedFd) -> MachineFuture<'a, ()> {
        Box::pin(async { Err(MachineError::new("pack it", "not here")) })
    }

    fn bootstrap<'a>(&'a self, recipe: &'a str, output: OwnedFd) -> MachineFuture<'a, ()> {
        use std::io::Write;
        self.note(&format!("bootstrap {recipe}"));
        std::fs::File::from(output).write_all(b"a tar").unwrap();
        Box::pin(async { Ok(()) })
    }

    fn run_step(&self, step: BuildStep) -> MachineFuture<'_, StepEnd> {
        let command = step.argv.last().cloned().unwrap_or_default();
        self.note(&format!("step {command}"));
        assert!(step.parents.iter().all(|parent| self.layers.join(parent.as_str()).is_dir()));
        Box::pin(async move {
            if command == "wait" {
                self.gate.notified().await;
            }
            step.log.append(format!("output of {command}\n").as_bytes());
            if command == "fail" {
                return Ok(StepEnd::Exited(7, None));
            }
            self.make(&step.layer);
            Ok(StepEnd::Exited(0, None))
        })
    }

    fn caches(&self, _: Option<u64>, _: bool) -> MachineFuture<'_, Vec<wire::launch::Cache>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn remove_layer<'a>(&'a self, layer: &'a LayerId) -> MachineFuture<'a, ()> {
        self.note("remove");
        std::fs::remove_dir_all(self.layers.join(layer.as_str())).unwrap();
        Box::pin(async { Ok(()) })
    }
}

fn machine(root: &Path) -> Arc<Pretend> {
    Arc::new(Pretend { layers: root.join("layers"), asked: Mutex::new(Vec::new()), gate: Notify::new() })
}

fn images(root: &Path, machine: &Arc<Pretend>) -> Images {
    let settings = Settings { recipes: vec!["tiny".into(), "_part".into()], ..Settings::default() };
    Images::open(std::fs::File::open(root).unwrap().into(), machine.clone(), settings).unwrap()
}

fn runtimes(commands: &[&str]) -> Vec<Arc<Runtime>> {
    let entries: Vec<_> = commands
        .iter()
        .enumerate()
        .map(|(i, command)| format!(r#"{{"alias": "r{i}", "base_image": "tiny", "setup_commands": ["same", "{command}"], "env_vars": {{"A": "1"}}}}"#))
        .collect();
    let catalogue = Catalogue::parse("c.json", &format!("[{}]", entries.join(","))).unwrap();
    catalogue.runtimes().iter().cloned().map(Arc::new).collect()
}

fn steps(machine: &Pretend, command: &str) -> usize {
    machine.asked().iter().filter(|asked| **asked == format!("step {command}")).count()
}

#[tokio::test]
async fn one_build_for_all_who_want_it_and_nobody_who_leaves_stops_it() {
    let root = tempfile::tempdir().unwrap();
    let machine = machine(root.path());
    let images = images(root.path(), &machine);
    let runtime = runtimes(&["wait"]).remove(0);
    assert!(images.ready(&runtime).is_none());
    let wait = |images: Images, runtime: Arc<Runtime>| tokio::spawn(async move { images.ensure(&runtime).await });
    let first = wait(images.clone(), runtime.clone());
    while steps(&machine, "wait") == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(images.overview(std::slice::from_ref(&runtime))[0].state, "building");
    first.abort();
    let others: Vec<_> = (0..4).map(|_| wait(images.clone(), runtime.clone())).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    machine.gate.notify_one();
    for other in others {
        let image = other.await.unwrap().unwrap();
        assert_eq!((image.uid, image.home.as_str(), image.built), (10_001, "/home/agent", true));
        assert_eq!(image.layers.len(), 4);
        assert!(image.env.contains(&("A".to_owned(), "1".to_owned())));
    }
    assert_eq!((steps(&machine, "wait"), steps(&machine, "same")), (1, 1));
    assert_eq!(machine.asked().iter().filter(|a| *a == "bootstrap tiny").count(), 1);
    let listed = images.overview(std::slice::from_ref(&runtime));
    let states: Vec<_> = listed.iter().map(|i| (i.reference.as_str(), i.state.as_str(), i.runtimes.len())).collect();
    assert_eq!(states, [(images.ready(&runtime).unwrap().tag.as_str(), "ready", 1), ("tiny", "ready", 0)]);
}

#[tokio::test]
async fn a_failed_step_is_named_with_its_output_and_poisons_nothing() {
    let root = tempfile::tempdir().unwrap();
    let machine = machine(root.path());
    let images = images(root.path(), &machine);
    let both = runtimes(&["fail", "good"]);
    let error = images.ensure(&both[0]).await.unwrap_err().to_string();
    assert_eq!(error, "build r0: setup command 2 of 2 (fail) exited with status 7: output of fail");
    let log = images.log(&both[0]).unwrap().unwrap();
    assert!(
        log.contains("== setup command 1 of 2 (same)")
            && log.contains("output of same")
            && log.contains("exited with status 7"),
        "{log}"
    );
    let listed = images.overview(&both);
    let failed = listed.iter().find(|image| image.runtimes == ["r0"]).unwrap();
    assert_eq!((failed.state.as_str(), failed.error.as_deref()), ("failed", Some(error.as_str())));

    images.ensure(&both[1]).await.unwrap();
    assert_eq!(steps(&machine, "same"), 1, "the layer of the failed build is used");
    assert!(images.ensure(&both[0]).await.is_err());
    assert_eq!(steps(&machine, "fail"), 2, "it is tried again");
}

#[tokio::test]
async fn a_restart_finds_everything_and_a_lost_layer_is_made_again() {
    let root = tempfile::tempdir().unwrap();
    let machine = machine(root.path());
    let runtime = runtimes(&["good"]).remove(0);
    let image = images(root.path(), &machine).ensure(&runtime).await.unwrap();

    let again = images(root.path(), &machine);
    assert_eq!(again.ready(&runtime).as_deref(), Some(&*image));

    std::fs::remove_dir_all(root.path().join("layers").join(image.layers[0].as_str())).unwrap();
    let third = images(root.path(), &machine);
    assert!(third.ready(&runtime).is_none());
    assert_eq!(third.ensure(&runtime).await.unwrap().layers, image.layers);
    assert_eq!(steps(&machine, "good"), 1, "only what is missing is made");
}

#[tokio::test]
async fn a_ready_made_image_takes_the_variables_of_its_runtime() {
    let root = tempfile::tempdir().unwrap();
    let images = images(root.path(), &machine(root.path()));
    let text =
        r#"[{"alias": "a", "image": "tiny"}, {"alias": "b", "image": "tiny", "env_vars": {"LANG": "C", "B": "2"}}]"#;
    let catalogue = Catalogue::parse("c.json", text).unwrap();
    let plain = images.ensure(&catalogue.runtimes()[0]).await.unwrap();
    assert_eq!((plain.uid, plain.home.as_str(), plain.built), (0, "/root", false));
    let changed = images.ready(&catalogue.runtimes()[1]).unwrap();
    assert_eq!(changed.layers, plain.layers);
    assert!(
        changed.env.contains(&("LANG".to_owned(), "C".to_owned()))
            && changed.env.contains(&("B".to_owned(), "2".to_owned()))
    );
}

#[tokio::test]
async fn a_registry_that_is_not_there_is_an_error_with_its_cause() {
    let root = tempfile::tempdir().unwrap();
    let settings = Settings {
        registry: "127.0.0.1:1".into(),
        insecure_registries: vec!["127.0.0.1:1".into()],
        ..Settings::default()
    };
    let images =
        Images::open(std::fs::File::open(root.path()).unwrap().into(), machine(root.path()), settings).unwrap();
    let catalogue = Catalogue::parse("c.json", r#"[{"alias": "a", "image": "team/image:1"}]"#).unwrap();
    let error = images.ensure(&catalogue.runtimes()[0]).await.unwrap_err();
    assert_eq!(error.to_string(), "pull 127.0.0.1:1/team/image:1");
    assert!(std::error::Error::source(&*error).is_some());
}

/// A record that this version cannot read may be of an image that sleeping sessions stand on.
#[tokio::test]
async fn nothing_is_removed_while_it_is_not_known_what_is_needed() {
    let root = tempfile::tempdir().unwrap();
    let machine = machine(root.path());
    let images = images(root.path(), &machine);
    let both = runtimes(&["one", "two"]);
    for runtime in &both {
        images.ensure(runtime).await.unwrap();
    }
    let refs = root.path().join("refs");
    let record = |runtime: &Runtime| {
        let tag = images.ready(runtime).unwrap().tag.clone();
        let of = |path: &PathBuf| std::fs::read_to_string(path).unwrap().contains(&format!("build/{tag}"));
        std::fs::read_dir(&refs).unwrap().map(|entry| entry.unwrap().path()).find(of).unwrap()
    };
    let (file, layers) = (record(&both[0]), || std::fs::read_dir(root.path().join("layers")).unwrap().count());
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"version\":1", "\"version\":2")).unwrap();

    let images = self::images(root.path(), &machine);
    let still = images.hold_still().unwrap();
    let before = layers();
    let all = images.unused(&[], true, |_| false);
    assert!(!all.is_empty());
    let said = images.would_collect(&all).await.unwrap_err().to_string();
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    assert!(said.contains(&name) && said.contains("has version 2") && said.contains("Nothing is removed"), "{said}");
    assert!(matches!(images.collect(images.take_free(&all), &still).await, Err(ManageError::Unreadable { .. })));
    let one = images.take(&all[0]).unwrap();
    assert!(matches!(images.remove(one).await, Err(ManageError::Unreadable { .. })));
    assert!(images.ready(&both[1]).is_some() && layers() == before, "all of it is there");

    std::fs::remove_file(&file).unwrap();
    images.collect(images.take_free(&all), &still).await.unwrap();
    assert_eq!(layers(), 0);
}

/// A docker archive of one layer, whose configuration says so.
fn archive(what: &str) -> Vec<u8> {
    let host = platform::Platform::host();
    let layer = record::hex(&sha2::Sha256::digest(what));
    let config = serde_json::json!({"os": host.os, "architecture": host.architecture,
        "config": {"Env": [format!("WHAT={what}")]}, "rootfs": {"diff_ids": [format!("sha256:{layer}")]}});
    let manifest = serde_json::json!([{"Config": "config.json", "RepoTags": ["t.example/box:1"], "Layers": ["layer"]}]);
    let mut tar = tar::Builder::new(Vec::new());
    for (name, text) in
        [("layer", what.to_owned()), ("config.json", config.to_string()), ("manifest.json", manifest.to_string())]
    {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        tar.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

/// Who is told that his image is here must not have been given another's.
#[tokio::test]
async fn what_is_sent_under_one_name_at_a_time_is_imported_one_after_another() {
    let root = tempfile::tempdir().unwrap();
    let images = images(root.path(), &machine(root.path()));
    let import = |what: &'static str| {
        let images = images.clone();
        async move {
            let mut spool = images.spool(0).unwrap();
            assert!(spool.write(archive(what).into()).await.unwrap());
            images.import(spool, None, None).await.unwrap()
        }
    };
    let keys = futures_util::future::join_all(["one", "two", "three"].map(import)).await;
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    let mut what: Vec<_> = images.0.records.all().iter().flat_map(|record| record.env.clone()).collect();
    what.retain(|(name, _)| name == "WHAT");
    what.sort();
    let values: Vec<&str> = what.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["one", "three", "two"], "the last has the name, the others are under their digests");
}

/// Who pulls by hand what the catalogue names is led no less far than a session is, and else no further than a setting says.
#[tokio::test]
async fn what_the_catalogue_names_may_be_anywhere_whoever_pulls_it() {
    let root = tempfile::tempdir().unwrap();
    let images = images(root.path(), &machine(root.path()));
    let entries = r#"[{"alias": "a", "image": "127.0.0.1:1/named:1"},
        {"alias": "b", "base_image": "127.0.0.1:1/base:1", "setup_commands": ["true"]}]"#;
    let catalogue = Catalogue::parse("c.json", entries).unwrap();
    let runtimes: Vec<_> = catalogue.runtimes().iter().cloned().map(Arc::new).collect();
    let named =
        |name: &str| runtimes.iter().any(|runtime| images.0.needs(runtime, &format!("registry/127.0.0.1:1/{name}")));
    assert!(named("named:1") && named("base:1") && !named("named:2") && !named("other:1"));
    let mut other = images.pull("127.0.0.1:1/other:1", &runtimes).unwrap();
    let last = loop {
        match other.next().await.unwrap() {
            wire::api::PullEvent::Progress { .. } => {}
            last => break format!("{last:?}"),
        }
    };
    assert!(last.contains("no setting names it"), "{last}");
}

/// Who hangs up does not end his pull, so there may be no more of them than somebody counts.
#[tokio::test]
async fn pulls_by_hand_are_no_more_than_may_wait() {
    let root = tempfile::tempdir().unwrap();
    let images = images(root.path(), &machine(root.path()));
    let most = u32::try_from(manage::PULLS).unwrap();
    let all = Arc::clone(&images.0.by_hand).try_acquire_many_owned(most).unwrap();
    let refused = images.pull("127.0.0.1:1/one:1", &[]).err().map(|error| error.to_string());
    assert!(refused.is_some_and(|text| text.starts_with("64 pulls are under way")));
    drop(all);
    let mut one = images.pull("127.0.0.1:1/one:1", &[]).unwrap();
    while let Some(event) = one.next().await {
        assert!(images.0.by_hand.available_permits() >= manage::PULLS - 1, "{event:?}");
    }
    // One that is over has given its place back.
    while images.0.by_hand.available_permits() < manage::PULLS {
        tokio::task::yield_now().await;
    }
}
