//! The setting `runtimes` in both forms.

use wire::launch::OciRuntime;

use super::*;

fn catalogue() -> Catalogue {
    let text = r#"[{"alias": "workbench", "description": "The bench", "base_image": "python:3.12-slim", "packages": ["pandas"],
        "mem_limit": "2g", "needs_network": true, "briefing": ["No compiler."]}]"#;
    Catalogue::parse("c.json", text).unwrap()
}

fn parse(text: &str) -> Result<Vec<Runtime>, CatalogError> {
    parse_runtimes(text, &catalogue())
}

#[test]
fn the_compact_form() {
    let runtimes =
        parse(" py = python:3.12-slim ; cpus=1.5;pids_limit=64; network_mode=bridge , data=@workbench;mem_limit=4g,")
            .unwrap();
    let [py, data] = runtimes.as_slice() else { panic!("two runtimes") };
    assert_eq!((py.alias.as_str(), py.policy_image().as_str()), ("py", "python:3.12-slim"));
    assert_eq!((py.limits.cpus, py.limits.pids_limit, py.network), (Some(1.5), Some(64), Some(NetworkMode::Bridge)));
    assert_eq!((data.alias.as_str(), data.description.as_str()), ("data", "The bench"));
    assert_eq!(data.limits.mem_limit.as_ref().unwrap().text(), "4g");
    assert_eq!(data.network, Some(NetworkMode::Bridge));
}

#[test]
fn the_json_form() {
    let text = r#"{"py": "python:3.12-slim", "bench": "@workbench", "own": {"runtime": {"name": "own", "base_image": "debian-bookworm",
        "setup_commands": ["apt-get update"], "packages": ["git"], "package_manager": "apt", "env_vars": {"A": "b"}},
        "description": "Mine", "cpu_shares": 512, "oci_runtime": "crun"}, "named": {"runtime": "workbench", "network_mode": "none"}}"#;
    let runtimes = parse(text).unwrap();
    let aliases: Vec<_> = runtimes.iter().map(|r| r.alias.as_str()).collect();
    assert_eq!(aliases, ["py", "bench", "own", "named"]);
    let Source::Build(definition) = &runtimes[2].source else { panic!("a build") };
    assert_eq!(definition.package_manager, PackageManager::Apt);
    assert_eq!((runtimes[2].limits.cpu_shares, runtimes[2].oci_runtime), (Some(512), Some(OciRuntime::Crun)));
    assert_eq!(
        (runtimes[3].network, runtimes[3].limits.mem_limit.as_ref().unwrap().text()),
        (Some(NetworkMode::None), "2g")
    );
}

#[test]
fn errors_are_one_line_that_names_the_variable() {
    let cases = [
        ("", "SANDBOXD_RUNTIMES: names no runtime"),
        ("python", "SANDBOXD_RUNTIMES: entry \"python\": is not alias=image"),
        ("py=", "SANDBOXD_RUNTIMES: entry \"py\": field image: \"\" is not the name of an image"),
        ("py=@", "SANDBOXD_RUNTIMES: entry \"py\": \"\" is not in the catalogue; allowed: workbench"),
        ("py=@none", "SANDBOXD_RUNTIMES: entry \"py\": \"none\" is not in the catalogue; allowed: workbench"),
        ("a b=x", "SANDBOXD_RUNTIMES: entry \"a b\": field alias"),
        ("py=x;cpus", "SANDBOXD_RUNTIMES: entry \"py\": \"cpus\" is not field=value; allowed fields: description"),
        ("py=x;cpus=lots", "SANDBOXD_RUNTIMES: entry \"py\": field cpus: \"lots\" is not a number"),
        ("py=x;cpus=0", "SANDBOXD_RUNTIMES: entry \"py\": field cpus: 0 is out of range"),
        ("py=x;cpus=NaN", "SANDBOXD_RUNTIMES: entry \"py\": field cpus: NaN is out of range"),
        ("py=x;image=y", "SANDBOXD_RUNTIMES: entry \"py\": field image: unknown field"),
        ("py=x;me\n\0m=y", "SANDBOXD_RUNTIMES: entry \"py\": field me\\n\\u{0}m: unknown field"),
        ("py=x;mem_limit=2x", "SANDBOXD_RUNTIMES: entry \"py\": field mem_limit: \"2x\" is not a size"),
        (
            "py=x;network_mode=host",
            "SANDBOXD_RUNTIMES: entry \"py\": field network_mode: \"host\" is not a network; allowed: none or bridge",
        ),
        ("py=x;oci_runtime=/bin/sh", "SANDBOXD_RUNTIMES: entry \"py\": field oci_runtime"),
        ("py=x,py=y", "SANDBOXD_RUNTIMES: entry \"py\": this alias occurs twice"),
        ("[]", "SANDBOXD_RUNTIMES: is not a JSON object of aliases: "),
        ("{", "SANDBOXD_RUNTIMES: is not a JSON object of aliases: "),
        (r#"{"a": "x", "a": "y"}"#, "SANDBOXD_RUNTIMES: entry \"a\": this alias occurs twice"),
        (r#"{"a": 7}"#, "SANDBOXD_RUNTIMES: entry \"a\": is neither an image's name nor an object"),
        (r#"{"a": {}}"#, "SANDBOXD_RUNTIMES: entry \"a\": has neither image nor runtime"),
        (
            r#"{"a": {"image": "x", "runtime": "workbench"}}"#,
            "SANDBOXD_RUNTIMES: entry \"a\": has both image and runtime",
        ),
        (
            r#"{"a": {"image": "x", "privileged": true}}"#,
            "SANDBOXD_RUNTIMES: entry \"a\": field privileged: unknown field",
        ),
        (
            r#"{"a": {"runtime": {"base_image": "x", "package_manager": "yum"}}}"#,
            "SANDBOXD_RUNTIMES: entry \"a\": runtime: field package_manager: unknown variant",
        ),
        (
            r#"{"a": {"runtime": {"base_image": "x", "packages": ["$(id)"]}}}"#,
            "SANDBOXD_RUNTIMES: entry \"a\": field packages: ",
        ),
    ];
    for (text, expected) in cases {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{text}\n  {message}\n  {expected}");
        assert!(!message.contains('\n'), "{message}");
    }
}
