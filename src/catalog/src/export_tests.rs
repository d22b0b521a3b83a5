//! Exported copies: read again, found different, mended.

use std::process::Command;

use super::*;
use crate::{Egress, parse_runtimes};

const ENTRIES: &str = r#"[
    {"alias": "z", "description": "It's \"one\" for $HOME", "base_image": "b:1", "setup_commands": ["echo '$PATH' \"$$\" `id` \\ # x"],
     "packages": ["a[b]>=1"], "package_manager": "pip", "env_vars": {"A": "$x"}, "mem_limit": "2g", "needs_network": true,
     "egress_default": "deny", "egress_allow": ["pypi.org", "*.example.org:443/tcp", "10.0.0.0/8:1-2/udp"], "egress_deny": ["192.0.2.1"]},
    {"alias": "a", "image": "x", "env_vars": {"B": "c"}, "oci_runtime": "crun", "needs_network": false},
    {"alias": "m", "image": "y"}]"#;

fn catalogue() -> Catalogue {
    Catalogue::parse("c.json", ENTRIES).unwrap()
}

#[test]
fn what_is_exported_means_the_same_runtimes_in_the_same_order() {
    let catalogue = catalogue();
    let read = parse_runtimes(&export(&catalogue, Form::Json), &Catalogue::default()).unwrap();
    let known: Vec<Runtime> = catalogue
        .runtimes()
        .iter()
        .map(|runtime| Runtime { shipped: false, briefing: Vec::new(), ..runtime.clone() })
        .collect();
    assert_eq!(read, known);
    assert_ne!(read[0].egress, Egress::default());
}

#[test]
fn a_shell_reads_the_line_of_a_file_of_variables() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.env");
    std::fs::write(&file, export(&catalogue(), Form::Env)).unwrap();
    let script = r#". "$1"; printf %s "$SANDBOXD_RUNTIMES""#;
    let said = Command::new("sh").args(["-euc", script, "sh"]).arg(&file).output().unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), allowlist(&catalogue()));
}

#[test]
fn in_a_compose_file_no_dollar_is_alone() {
    let line = export(&catalogue(), Form::Compose);
    assert_eq!(line.lines().count(), 1);
    assert!(!line.replace("$$", "").contains('$') && line.contains("$$PATH") && line.contains("$$$$"));
    assert_eq!(line.matches('\'').count(), 2, "{line}");
}

#[test]
fn a_copy_that_has_drifted_says_where_and_is_mended() {
    let old = Catalogue::parse("c.json", &ENTRIES.replace("a[b]>=1", "a[b]>=2")).unwrap();
    for form in Form::ALL {
        let around = |text: String| match form {
            Form::Json => text,
            Form::Env => format!("A=1\n{text}B=2\n"),
            Form::Compose => format!("services:\n  s:\n    environment:\n      A: b\n      {text}      C: d\n"),
        };
        let (right, wrong) = (around(export(&catalogue(), form)), around(export(&old, form)));
        assert_eq!(differs(&catalogue(), form, &right), None);
        let difference = differs(&catalogue(), form, &wrong).unwrap();
        assert_eq!(difference, "differs in the entry \"z\", field runtime", "{form:?}");
        assert_eq!(renew(&catalogue(), form, &wrong).unwrap(), right);
        assert!(differs(&catalogue(), form, "").is_some());
    }
    let few = Catalogue::parse("c.json", r#"[{"alias": "m", "image": "y"}]"#).unwrap();
    let more = export(&catalogue(), Form::Env);
    assert_eq!(differs(&few, Form::Env, &more).unwrap(), "has the entry \"z\", which the catalogue has not");
    assert_eq!(differs(&catalogue(), Form::Env, &export(&few, Form::Env)).unwrap(), "lacks the entry \"z\"");
    assert_eq!(renew(&few, Form::Compose, "services:\n"), Err(NoPlace));
    assert_eq!(renew(&few, Form::Env, "A=1").unwrap(), format!("A=1\n{}", export(&few, Form::Env)));
    let two = |text: &str| Catalogue::parse("c.json", text).unwrap();
    let (one, other) = (r#"{"alias": "a", "image": "x"}"#, r#"{"alias": "b", "image": "y"}"#);
    let copy = export(&two(&format!("[{other}, {one}]")), Form::Json);
    assert!(differs(&two(&format!("[{one}, {other}]")), Form::Json, &copy).unwrap().contains("another order"));
}
