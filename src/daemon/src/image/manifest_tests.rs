//! Documents as registries send them, and as hostile ones would.

use super::*;

fn descriptor(media_type: &str, digit: &str, size: u64) -> String {
    format!(r#"{{"mediaType": "{media_type}", "digest": "sha256:{}", "size": {size}}}"#, digit.repeat(64))
}

fn manifest(layers: &[String]) -> String {
    let config = descriptor(CONFIGS[0], "c", 100);
    format!(
        r#"{{"schemaVersion": 2, "mediaType": "{}", "config": {config}, "layers": [{}]}}"#,
        MANIFESTS[0],
        layers.join(",")
    )
}

fn error(text: &str) -> String {
    parse(text.as_bytes()).unwrap_err().to_string()
}

fn config(os: &str, arch: &str, rest: &str) -> String {
    format!(r#"{{"os": "{os}", "architecture": "{arch}", {rest}}}"#)
}

fn arch() -> String {
    Platform::host().architecture
}

#[test]
fn both_families_and_every_compression() {
    let layers: Vec<_> = LAYERS.iter().enumerate().map(|(i, (name, _))| descriptor(name, &format!("{i}"), 7)).collect();
    let Document::Image(image) = parse(manifest(&layers).as_bytes()).unwrap() else { panic!("an image") };
    assert_eq!(image.config, Blob { hex: "c".repeat(64), size: 100 });
    let compressions: Vec<_> = image.layers.iter().map(|(_, c)| *c).collect();
    assert_eq!(compressions, LAYERS.map(|(_, c)| c));
    let docker = manifest(&layers).replace(MANIFESTS[0], MANIFESTS[1]).replace(CONFIGS[0], CONFIGS[1]);
    assert!(matches!(parse(docker.as_bytes()), Ok(Document::Image(_))));
}

#[test]
fn an_index_gives_this_platforms_manifest() {
    let entry = |digit: &str, os: &str, arch: &str| {
        let digest = digit.repeat(64);
        format!(
            r#"{{"mediaType": "m", "digest": "sha256:{digest}", "size": 1, "platform": {{"os": "{os}", "architecture": "{arch}"}}}}"#
        )
    };
    let index = |entries: &[String]| format!(r#"{{"schemaVersion": 2, "manifests": [{}]}}"#, entries.join(","));
    let text = index(&[entry("1", "windows", &arch()), entry("2", "linux", "s390x"), entry("3", "linux", &arch())]);
    let Document::Index(digest) = parse(text.as_bytes()).unwrap() else { panic!("an index") };
    assert_eq!(digest, format!("sha256:{}", "3".repeat(64)));
    let message = error(&index(&[entry("2", "linux", "s390x")]));
    assert!(message.contains(&Platform::host().to_string()) && message.contains("linux/s390x"), "{message}");
    let many: Vec<_> = (0..1001).map(|_| entry("2", "linux", "s390x")).collect();
    assert!(error(&index(&many)).contains("at most 1000"));
}

#[test]
fn hostile_manifests() {
    let gzip = LAYERS[1].0;
    let good = descriptor(gzip, "a", 7);
    let many: Vec<_> = (0..129).map(|_| good.clone()).collect();
    let cases = [
        ("{".to_owned(), "is not valid"),
        ("[]".to_owned(), "is not valid"),
        (r#"{"schemaVersion": 1, "fsLayers": []}"#.to_owned(), "schema version 1"),
        (r#"{"schemaVersion": 2}"#.to_owned(), "neither"),
        (manifest(&[]), "has no layer"),
        (manifest(&many), "the number of layers is 129; allowed: at most 128"),
        (manifest(&[descriptor(gzip, "a", u64::MAX)]), "allowed: at most"),
        (
            manifest(&[
                descriptor(gzip, "a", MAX_BLOB),
                descriptor(gzip, "b", MAX_BLOB),
                descriptor(gzip, "d", MAX_BLOB),
            ]),
            "the image in bytes",
        ),
        (manifest(&[good.replace("\"size\": 7", "\"size\": -1")]), "is not valid"),
        (manifest(&[good.replace(gzip, "application/x-sh")]), "application/x-sh"),
        (
            manifest(&[good.replace(gzip, "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip")]),
            "not supported",
        ),
        (manifest(&[good.replace("sha256:", "sha512:")]), "is not a SHA-256 digest"),
        (manifest(&[good.replace("sha256:aaaa", "sha256:../x")]), "is not a SHA-256 digest"),
        (
            manifest(std::slice::from_ref(&good)).replace(CONFIGS[0], "application/x"),
            "the configuration has the media type",
        ),
        (
            manifest(std::slice::from_ref(&good)).replace("\"size\": 100", "\"size\": 99999999"),
            "the configuration in bytes",
        ),
        (" ".repeat(4 * 1024 * 1024 + 1), "the manifest in bytes"),
    ];
    for (text, expected) in cases {
        let message = error(&text);
        assert!(message.contains(expected), "{message}\n  {expected}");
    }
}

#[test]
fn a_configuration_decides_env_and_user_only() {
    let ids = |n: usize| (0..n).map(|_| format!("\"sha256:{}\"", "d".repeat(64))).collect::<Vec<_>>().join(",");
    let rest = format!(
        r#""config": {{"Env": ["PATH=/bin", "A=1=2", "PATH=/usr/bin"], "User": "node", "Volumes": {{"/etc": {{}}}}, "Entrypoint": ["/x"]}},
            "rootfs": {{"type": "layers", "diff_ids": [{}]}}"#,
        ids(2)
    );
    let parsed = parse_config(config("linux", &arch(), &rest).as_bytes(), 2).unwrap();
    assert_eq!(parsed.env, [("PATH".to_owned(), "/usr/bin".to_owned()), ("A".to_owned(), "1=2".to_owned())]);
    assert_eq!((parsed.user.as_str(), parsed.diff_ids.len()), ("node", 2));

    let fails = |text: String, layers: usize| parse_config(text.as_bytes(), layers).unwrap_err().to_string();
    assert!(fails(config("linux", &arch(), &rest), 3).contains("names 2 layers, the manifest 3"));
    assert!(fails(config("linux", "s390x", &rest), 2).contains("linux/s390x"));
    assert!(fails(config("windows", &arch(), &rest), 2).contains("windows/"));
    assert!(fails(config("linux", &arch(), &rest.replace("A=1=2", "nothing")), 2).contains("not NAME=VALUE"));
    assert!(fails(config("linux", &arch(), &rest.replace("dd", "zz")), 2).contains("is not a SHA-256 digest"));
    let env = (0..257).map(|i| format!("\"A{i}=1\"")).collect::<Vec<_>>().join(",");
    let many = format!(r#""config": {{"Env": [{env}]}}, "rootfs": {{"diff_ids": [{}]}}"#, ids(1));
    assert!(fails(config("linux", &arch(), &many), 1).contains("the number of variables"));
}

#[test]
fn repeated_layers_count_once_where_they_are_topmost() {
    let id = |digit: &str| LayerId::parse(&digit.repeat(64)).unwrap();
    assert_eq!(stack(&[id("a"), id("b"), id("a"), id("c")]), [id("c"), id("a"), id("b")]);
}

#[test]
fn an_environment_with_which_nothing_could_start_is_refused() {
    let with = |count: usize, bytes: usize| {
        let variables: Vec<_> = (0..count).map(|n| format!(r#""V{n}={}""#, "x".repeat(bytes))).collect();
        let rest = format!(r#""config": {{"Env": [{}]}}, "rootfs": {{"diff_ids": []}}"#, variables.join(","));
        parse_config(config("linux", &arch(), &rest).as_bytes(), 0)
    };
    assert_eq!(with(200, 1000).unwrap().env.len(), 200);
    let refused = with(200, 10_000).unwrap_err().to_string();
    assert!(refused.contains("the environment in bytes is") && refused.contains("at most 262144"), "{refused}");
}
