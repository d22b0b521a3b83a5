//! What comes of a layer when its pull ends before it has, and what the next one makes of it.

use super::*;

/// Three megabytes, so that what comes of it is kept.
fn long_layer() -> Vec<u8> {
    (0..750_000_u32).flat_map(u32::to_le_bytes).collect()
}

/// A host that a pull of [`long_layer`] has left 2,000,000 bytes of it at, and the layer's digest.
async fn begun(registry: &Registry, address: &str) -> (Host, String) {
    let host = Host::new();
    let digest = registry.image(&long_layer());
    // Announced as it is, and then there is no more than this.
    registry.cut(&format!("blobs/sha256:{digest}"), 3_000_000, &long_layer()[..2_000_000]);
    let error = host.pull(address).await.unwrap_err().to_string();
    assert!(error.contains("broke off after 2000000 of 3000000 bytes"), "{error}");
    registry.image(&long_layer());
    registry.heard.lock().unwrap().clear();
    (host, digest)
}

fn part_of(host: &Host, digest: &str) -> PathBuf {
    host.root.path().join("partial").join(digest)
}

#[tokio::test]
async fn the_next_pull_fetches_the_rest() {
    let registry = Registry::default();
    let address = registry.serve().await;
    let (host, digest) = begun(&registry, &address).await;
    assert_eq!(std::fs::metadata(part_of(&host, &digest)).unwrap().len(), 2_000_000);
    host.pull(&address).await.unwrap();
    assert_eq!(host.unpacked(), [long_layer()]);
    let heard = registry.heard.lock().unwrap();
    let asked: Vec<&String> = heard.iter().filter(|text| text.contains(&digest)).collect();
    assert!(asked.len() == 1 && asked[0].contains("range: bytes=2000000-"), "{asked:?}");
    assert!(!part_of(&host, &digest).exists());
}

#[tokio::test]
async fn a_part_that_is_whole_is_not_asked_for() {
    let registry = Registry::default();
    let address = registry.serve().await;
    let host = Host::new();
    let digest = registry.image(&long_layer());
    std::fs::write(part_of(&host, &digest), long_layer()).unwrap();
    host.pull(&address).await.unwrap();
    assert_eq!((host.unpacked(), registry.asked(&digest)), (vec![long_layer()], 0));
    // Nor kept, where the layer is here and a service died before it had removed it.
    std::fs::write(part_of(&host, &digest), long_layer()).unwrap();
    host.pull(&address).await.unwrap();
    assert!(!part_of(&host, &digest).exists() && registry.asked(&digest) == 0);
}

/// A launcher still reads it for a service that was killed.
#[tokio::test]
async fn a_part_that_somebody_else_still_reads_is_not_left() {
    let (host, registry) = (Host::new(), Registry::default());
    let digest = registry.image(&long_layer());
    std::fs::write(part_of(&host, &digest), long_layer()).unwrap();
    let other = File::open(part_of(&host, &digest)).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    *host.machine.holds.lock().unwrap() = Some(other);
    let address = registry.serve().await;
    host.pull(&address).await.unwrap();
    assert_eq!((host.unpacked(), registry.asked(&digest)), (vec![long_layer()], 1), "it is fetched beside that one");
    assert!(!part_of(&host, &digest).exists());
}

#[tokio::test]
async fn a_part_is_worth_nothing_where_there_is_no_rest_or_the_whole_is_wrong() {
    let (whole, beyond) =
        (Manners { whole: true, ..Manners::default() }, Manners { beyond: true, ..Manners::default() });
    for (what, manners, spoil) in [
        ("the answer is the whole", whole, false),
        ("there is no such place", beyond, false),
        ("a power cut spoiled it", Manners::default(), true),
    ] {
        let registry = Registry::default();
        let address = registry.serve().await;
        let (host, digest) = begun(&registry, &address).await;
        if spoil {
            std::fs::write(part_of(&host, &digest), vec![0; 2_000_000]).unwrap();
        }
        *registry.manners.lock().unwrap() = manners;
        host.pull(&address).await.unwrap();
        assert_eq!((host.unpacked(), part_of(&host, &digest).exists()), (vec![long_layer()], false), "{what}");
    }
}

#[tokio::test]
async fn a_lie_is_not_kept() {
    let (host, registry) = (Host::new(), Registry::default());
    let digest = registry.image(&long_layer());
    registry.put(&format!("blobs/sha256:{digest}"), &vec![1; 3_000_000]);
    let address = registry.serve().await;
    let error = host.pull(&address).await.unwrap_err().to_string();
    assert!(error.contains("has the digest"), "{error}");
    assert!(host.is_empty() && registry.asked(&digest) == 1);
    // Nor where the beginning was right and kept.
    let (host, digest) = begun(&registry, &address).await;
    registry.put(&format!("blobs/sha256:{digest}"), &vec![1; 3_000_000]);
    assert!(host.pull(&address).await.is_err());
    assert!(host.is_empty());
}

/// However a pull ends, what came is at rest: nobody has its lock, and it is as long as what was told.
#[tokio::test]
async fn who_pulls_next_finds_what_came_at_rest() {
    let lied = vec![1; 3_000_000];
    let mut longer = long_layer();
    longer.resize(3_100_000, 0);
    for (what, announced, sent, left) in [
        ("it breaks off", 3_000_000, &long_layer()[..2_500_000], Some(2_500_000)),
        ("it is too long", 3_100_000, &longer, None),
        ("it is a lie", 3_000_000, &lied, None),
    ] {
        let registry = Registry::default();
        let address = registry.serve().await;
        let (host, digest) = begun(&registry, &address).await;
        registry.cut(&format!("blobs/sha256:{digest}"), announced, sent);
        assert!(host.pull(&address).await.is_err(), "{what}");
        let part = File::open(part_of(&host, &digest)).ok();
        let kept = part.as_ref().map(|part| part.metadata().unwrap().len());
        assert_eq!(kept, left, "{what}");
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        assert!(part.is_none_or(|part| rustix::fs::flock(part, lock).is_ok()), "{what}");
        registry.image(&long_layer());
        host.pull(&address).await.unwrap();
        assert_eq!(host.unpacked(), [long_layer()], "{what}");
    }
    // Out of time in the middle of it.
    let (host, registry) = (Host::new(), Registry::default());
    let digest = registry.image(&long_layer());
    registry.manners.lock().unwrap().stalls = Some(2_000_000);
    let address = registry.serve().await;
    let settings = Settings {
        insecure_registries: vec![address.clone()],
        pull_timeout: std::time::Duration::from_millis(300),
        ..Settings::default()
    };
    let error = host.pull_with(&settings, &format!("{address}/test:1")).await.unwrap_err();
    assert!(matches!(error, PullError::Deadline { .. }), "{error}");
    if let Ok(part) = File::open(part_of(&host, &digest)) {
        rustix::fs::flock(part, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    }
}
