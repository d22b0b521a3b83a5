"""Configuration: what may be set, and what stops the start with one line."""

import subprocess
import tempfile
from pathlib import Path

import pytest
import services

TOKEN = "0123456789abcdef" * 4
OK = {
    "max_sessions": ("7", 7),
    "max_open_sessions": ("70", 70),
    "max_sessions_per_tenant": ("3", 3),
    "evict_idle_after": ("11", 11),
    "mem_limit": ("512m", "512m"),
    "memswap_limit": ("600m", "600m"),
    "cpus": ("0.5", 0.5),
    "cpu_shares": ("300", 300),
    "pids_limit": ("64", 64),
    "tmpfs_size": ("32m", "32m"),
    "network_mode": ("bridge", "bridge"),
    "work_dir": ("/srv/work", "/srv/work"),
    "persist_containers": ("yes", True),
    "prewarm": ("off", False),
    "idle_timeout": ("60", 60),
    "workspace_ttl": ("600", 600),
    "container_ttl": ("500", 500),
    "sandbox_uid": ("2000", 2000),
    "max_read_bytes": ("1234", 1234),
    "execute_timeout": ("12", 12),
    "native_files": ("0", False),
}
NULL = """max_sessions max_open_sessions max_sessions_per_tenant evict_idle_after mem_limit memswap_limit cpus
cpu_shares pids_limit tmpfs_size oci_runtime workspace_ttl container_ttl""".split()
BAD = [
    ("port", "http"),
    ("max_sessions", "many"),
    ("max_sessions", "1.5"),
    ("max_open_sessions", "x"),
    ("max_sessions_per_tenant", "x"),
    ("evict_idle_after", "soon"),
    ("cpus", "fast"),
    ("cpu_shares", "x"),
    ("pids_limit", "x"),
    ("persist_containers", "maybe"),
    ("prewarm", "2"),
    ("native_files", "sure"),
    ("ui_enabled", "nope"),
    ("idle_timeout", "soon"),
    ("idle_timeout", ""),
    ("cleanup_interval", "x"),
    ("workspace_ttl", "x"),
    ("container_ttl", "x"),
    ("sandbox_uid", "root"),
    ("max_read_bytes", "8m"),
    ("execute_timeout", "x"),
    ("max_running_commands", "x"),
    ("work_dir", ""),
    ("default_runtime", "nobody"),
    ("runtimes", ""),
    ("runtimes", "python"),
    ("runtimes", "=image"),
    ("runtimes", "python="),
    ("runtimes", "python=@"),
    ("runtimes", "a=image;cpus"),
    ("runtimes", "a=image;cpus=fast"),
    ("runtimes", "a=image;privileged=1"),
    ("runtimes", "{"),
    ("runtimes", "{}"),
    ("runtimes", "[]"),
    ("runtimes", '{"a": 7}'),
    ("runtimes", '{"a": ""}'),
    ("runtimes", '{"a": {}}'),
    ("runtimes", '{"a": {"image": "x", "runtime": "y"}}'),
    ("runtimes", '{"a": {"image": "x", "anything": 1}}'),
]
BAD_OURS = [
    ("host", "nowhere"),
    ("port", "70000"),
    ("max_sessions", "-1"),
    ("cpus", "0"),
    ("cpus", "nan"),
    ("mem_limit", "lots"),
    ("memswap_limit", "lots"),
    ("tmpfs_size", "big"),
    ("network_mode", "host"),
    ("oci_runtime", "nobody"),
    ("work_dir", "relative"),
    ("work_dir", "/a/../b"),
    ("execute_timeout", "0"),
    ("max_read_bytes", "0"),
    ("max_running_commands", "0"),
    ("sandbox_uid", "0"),
    ("token", "short"),
    ("runtimes", "a=@nobody-knows-it"),
    ("runtimes", '{"a": {"image": "x", "network_mode": "host"}}'),
    ("runtimes", '{"a": {"runtime": {"base_image": "debian-bookworm", "packages": ["x"], "package_manager": "brew"}}}'),
]


def refused(settings, config=None):
    """Start the program with `settings`; the one line that it ends with."""
    with tempfile.TemporaryDirectory(prefix="sandboxd-contract-") as directory:
        if services.REFERENCE:
            command, more = [services.REFERENCE, "-m", "pydantic_ai_backends.remote.server"], {}
        else:
            command = [str(services.PROGRAM)]
            more = {name: f"{directory}/{name}" for name in ("state_dir", "runtime_dir")}
            Path(more["state_dir"]).mkdir()
            # Not every host on which this runs can enforce limits, which is no matter of these cases.
            more |= {"catalog": services.ROOT / "catalog" / "test.json", "limits": "best-effort"}
        if config is not None:
            (Path(directory) / "sandboxd.toml").write_text(config)
            command += ["--config", f"{directory}/sandboxd.toml"]
        environment = services.environment({"token": TOKEN, "log": "error", **more, **settings})
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0 and ended.stdout == ""
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1, ended.stderr
    return lines[0]


def names(line, setting):
    """Whether the line names the variable. (Of a combination the reference names the field.)"""
    variable = f"SANDBOXD_{setting.upper()}"
    return variable in line or (services.REFERENCE and setting in line)


@pytest.mark.programs
@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_value_that_does_not_parse_stops_the_start(name, value):
    """One line naming the variable."""
    assert names(refused({name: value}), name)


@pytest.mark.ours
@pytest.mark.programs
@pytest.mark.parametrize(("name", "value"), BAD_OURS)
def test_a_value_that_makes_no_sense_stops_the_start(name, value):
    """One line naming the variable."""
    assert names(refused({name: value}), name)


@pytest.mark.programs
def test_no_token_stops_the_start():
    """One line naming the variable."""
    assert names(refused({"token": ""}), "token")


@pytest.mark.programs
def test_a_ceiling_of_open_sessions_below_that_of_resident_ones_stops_the_start():
    """max_open_sessions below max_sessions."""
    assert names(refused({"max_sessions": 5, "max_open_sessions": 4}), "max_open_sessions")


@pytest.mark.programs
def test_eviction_with_nowhere_to_keep_files_stops_the_start():
    """An evict_idle_after with nowhere to keep files."""
    line = refused({"evict_idle_after": 5, "workspace_root": ""})
    assert names(line, "evict_idle_after") or names(line, "workspace_root")


@pytest.mark.programs
@pytest.mark.parametrize("name", ["max_sessions", "cpus", "prewarm", "runtimes"])
def test_what_is_wrong_is_said(name):
    """A value that does not parse is told, so that it can be found."""
    assert "wrong-value" in refused({name: "wrong-value"})


@pytest.mark.ours
@pytest.mark.programs
@pytest.mark.parametrize(
    ("config", "name"),
    [
        ('max_sessions = "many"', "max_sessions"),
        ('prewarm = "maybe"', "prewarm"),
        ("port = 70000", "port"),
        ("max_sesions = 3", "max_sesions"),
        ('default_runtime = "nobody"', "default_runtime"),
    ],
)
def test_a_value_of_the_file_stops_the_start(config, name):
    """From sandboxd.toml under the same lower-case name."""
    assert names(refused({}, config), name)


@pytest.mark.ours
@pytest.mark.programs
def test_the_environment_wins_over_the_file():
    """The environment wins."""
    line = refused({"max_sessions": 3, "default_runtime": "nobody"}, 'max_sessions = "many"\ndefault_runtime = "python"')
    assert names(line, "default_runtime")


@pytest.mark.ours
@pytest.mark.programs
def test_a_file_that_is_no_toml_stops_the_start():
    """One line, naming the file."""
    assert "sandboxd.toml" in refused({}, "max_sessions = = 3")


@pytest.mark.ours
@pytest.mark.programs
@pytest.mark.parametrize("token", ["hunter2", "żółć" * 20])
def test_a_token_is_never_repeated(token):
    """A secret is not written to a log."""
    assert token not in refused({"token": token})


# ---- what may be set


@pytest.mark.settings(**{name: text for name, (text, _) in OK.items()})
@pytest.mark.parametrize("name", OK)
def test_a_setting_is_read_from_the_environment(api, name):
    """SANDBOXD_ and its upper-case name."""
    assert api.policy()[name] == OK[name][1]


@pytest.mark.settings(**{name: "" for name in NULL}, prewarm="false")
@pytest.mark.parametrize("name", NULL)
def test_an_empty_setting_is_off_where_it_may_be(api, name):
    """Empty, where null is allowed: null."""
    assert api.policy()[name] is None


@pytest.mark.settings(**{name: "" for name in NULL}, prewarm="false")
@pytest.mark.parametrize("name", ["mem_limit", "cpus", "pids_limit", "memswap_limit", "cpu_shares"])
def test_a_ceiling_that_is_off_is_off_for_runtimes(api, name):
    """Effective values."""
    assert all(runtime[name] is None for runtime in api.policy()["runtimes"])


@pytest.mark.sandbox
@pytest.mark.settings(**{name: "" for name in NULL}, prewarm="false")
def test_sessions_open_with_every_ceiling_off(api):
    """Empty turns it off."""
    assert api.open().run("true")["exit_code"] == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param(text, value, marks=pytest.mark.settings(persist_containers=text, prewarm="false"))
        for text, value in [("1", True), ("true", True), ("yes", True), ("on", True), ("0", False), ("false", False), ("no", False), ("off", False), ("TRUE", True), ("Off", False)]
    ],
)
def test_a_boolean_is_spelled_in_many_ways(api, text, value):
    """1/0, true/false, yes/no, on/off."""
    assert api.policy()["persist_containers"] is value


@pytest.mark.parametrize(
    "aliases",
    [
        pytest.param(["one"], marks=pytest.mark.settings(runtimes="one=example.test/a:1", prewarm="false")),
        pytest.param(["b", "a"], marks=pytest.mark.settings(runtimes="b=example.test/a:1, a=example.test/b:1", prewarm="false")),
        pytest.param(["j"], marks=pytest.mark.settings(runtimes='{"j": "example.test/a:1"}', prewarm="false")),
        pytest.param(["k", "c"], marks=pytest.mark.settings(runtimes='{"k": {"image": "example.test/a:1"}, "c": "example.test/b:1"}', prewarm="false")),
    ],
    ids=["compact", "compact, two", "JSON", "JSON, two"],
)
def test_runtimes_are_the_allowlist(api, aliases):
    """SANDBOXD_RUNTIMES; the first entry is the default."""
    assert (api.health()["runtimes"], api.policy()["default_runtime"]) == (sorted(aliases), aliases[0])


@pytest.mark.settings(runtimes="a=example.test/a:1;mem_limit=2g;cpus=1.5;pids_limit=9;network_mode=bridge;cpu_shares=99", prewarm="false")
@pytest.mark.parametrize(("field", "value"), [("mem_limit", "2g"), ("cpus", 1.5), ("pids_limit", 9), ("network_mode", "bridge"), ("cpu_shares", 99)])
def test_a_compact_entry_sets_fields(api, field, value):
    """alias=image[;field=value...]."""
    assert api.policy()["runtimes"][0][field] == value


@pytest.mark.settings(runtimes="b=example.test/a:1,a=example.test/b:1", default_runtime="a", prewarm="false")
def test_a_default_runtime_may_be_named(api):
    """default_runtime."""
    assert api.policy()["default_runtime"] == "a"


@pytest.mark.ours
@pytest.mark.settings(runtimes="mine=@python", prewarm="false")
def test_an_at_sign_names_a_catalogue_entry(api):
    """@name = a catalogue entry."""
    runtime = api.policy()["runtimes"][0]
    assert (runtime["alias"], runtime["builds"]) == ("mine", True)


@pytest.mark.ours
@pytest.mark.settings(runtimes='{"mine": {"runtime": "python", "mem_limit": "2g"}}', prewarm="false")
def test_a_runtime_may_be_a_catalogue_name(api):
    """runtime is a catalogue name."""
    runtime = api.policy()["runtimes"][0]
    assert (runtime["builds"], runtime["mem_limit"]) == (True, "2g")


@pytest.mark.sandbox
@pytest.mark.settings(
    runtimes='{"mine": {"runtime": {"name": "mine", "base_image": "debian-bookworm", "setup_commands": ["echo made > /made"], "env_vars": {"GREETING": "hello"}}}}',
    prewarm="false",
)
def test_a_runtime_is_made_of_its_definition(api):
    """setup_commands, env_vars."""
    session = api.open()
    assert session.out("cat /made; echo $GREETING") == "made\nhello\n"
    assert session.out("id -u").strip() == "10001"
