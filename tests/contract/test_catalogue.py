"""The catalogue: its schema and the program that reads it agree on every example; runtimes and briefings over HTTP."""

import json
import shutil
import subprocess
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

import services

ROOT = services.ROOT
CONTROL = services.PROGRAM.parent / "sandboxctl"
SCHEMA = json.loads((ROOT / "catalog/schema.json").read_text())
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)

IMAGE = {"alias": "a", "image": "x"}
BUILD = {"alias": "a", "base_image": "x"}

VALID = {
    "an image": [IMAGE],
    "a build": [BUILD],
    "both, in order": [BUILD, {"alias": "b-2", "image": "registry.example.org:5000/team/image@sha256:00"}],
    "everything": [
        BUILD
        | {
            "description": "Größe: one line",
            "setup_commands": ["apt-get update && apt-get install -y git", "  echo '$x' \"y\"  "],
            "packages": ["pandas", "uvicorn[standard]>=0.30,<1"],
            "package_manager": "pip",
            "env_vars": {"A_1": "", "_": "x y\t$z"},
            "briefing": ["One.\nTwo."],
            "mem_limit": "1.5GiB",
            "needs_network": True,
            "egress_default": "deny",
            "egress_allow": ["10.0.0.0/8:443/tcp", "*.pypi.org", "pypi.org:443"],
            "egress_deny": ["192.0.2.1", "0.0.0.0/0:25-26/tcp"],
            "oci_runtime": "crun",
        }
    ],
    "nothing said": [IMAGE | {"base_image": None, "mem_limit": None, "needs_network": None, "oci_runtime": None}],
    "an image with variables": [IMAGE | {"env_vars": {"A": "b"}, "setup_commands": [], "packages": []}],
    "npm": [BUILD | {"package_manager": "npm", "packages": ["@types/node@^20", "tsx", "left-pad@~1.0"]}],
    "apt": [BUILD | {"package_manager": "apt", "packages": ["g++", "libc6:arm64", "git=1:2.39.2-1"]}],
    "cargo": [BUILD | {"package_manager": "cargo", "packages": ["ripgrep@14.1.0"]}],
    "the longest alias": [IMAGE | {"alias": "a" * 64}],
    "the least memory": [IMAGE | {"mem_limit": "6m"}],
}

INVALID = {
    "no list": IMAGE,
    "no entry": [],
    "a text": ["a"],
    "null": None,
    "no alias": [{"image": "x"}],
    "neither image": [{"alias": "a"}],
    "both images": [IMAGE | {"base_image": "y"}],
    "an unknown field": [IMAGE | {"pakages": []}],
    "a field of another case": [IMAGE | {"Packages": []}],
    "an alias with capitals": [IMAGE | {"alias": "A"}],
    "an alias that begins with a digit": [IMAGE | {"alias": "1a"}],
    "an alias with a line break": [IMAGE | {"alias": "a\n"}],
    "an alias that is too long": [IMAGE | {"alias": "a" * 65}],
    "an alias that is no text": [IMAGE | {"alias": 7}],
    "packages in an image": [IMAGE | {"packages": ["pandas"]}],
    "commands in an image": [IMAGE | {"setup_commands": ["true"]}],
    "an image that is an option": [{"alias": "a", "image": "-x"}],
    "an image that is a path": [{"alias": "a", "image": "/etc"}],
    "an image with a space": [{"alias": "a", "image": "a b"}],
    "an empty image": [{"alias": "a", "image": ""}],
    "a package that is an option": [BUILD | {"packages": ["-r"]}],
    "a package that is a path": [BUILD | {"packages": ["../x"]}],
    "a package that is a URL": [BUILD | {"packages": ["x@https://h/y"]}],
    "a package that is shell": [BUILD | {"packages": ["$(id)"]}],
    "a package with a space": [BUILD | {"packages": ["a b"]}],
    "a directory for npm": [BUILD | {"package_manager": "npm", "packages": ["user/repository"]}],
    "a removal by apt": [BUILD | {"package_manager": "apt", "packages": ["bash-"]}],
    "an option for apt": [BUILD | {"package_manager": "apt", "packages": ["--allow-unauthenticated"]}],
    "a path for cargo": [BUILD | {"package_manager": "cargo", "packages": ["a/b"]}],
    "another manager": [BUILD | {"package_manager": "yum"}],
    "a command of two lines": [BUILD | {"setup_commands": ["a\nb"]}],
    "an empty command": [BUILD | {"setup_commands": [" "]}],
    "commands that are one text": [BUILD | {"setup_commands": "true"}],
    "too many commands": [BUILD | {"setup_commands": ["true"] * 33}],
    "a variable without a name": [IMAGE | {"env_vars": {"": "x"}}],
    "a variable with a digit first": [IMAGE | {"env_vars": {"1": "x"}}],
    "a variable of two lines": [IMAGE | {"env_vars": {"A": "x\ny"}}],
    "a variable that is a number": [IMAGE | {"env_vars": {"A": 1}}],
    "an empty sentence": [IMAGE | {"briefing": [" "]}],
    "a description of two lines": [IMAGE | {"description": "a\nb"}],
    "memory that is a number": [IMAGE | {"mem_limit": 7}],
    "memory of another unit": [IMAGE | {"mem_limit": "2x"}],
    "memory with an exponent": [IMAGE | {"mem_limit": "1e9"}],
    "a network that is a text": [IMAGE | {"needs_network": "yes"}],
    "another egress": [IMAGE | {"egress_default": "maybe"}],
    "a rule that is a URL": [IMAGE | {"egress_allow": ["https://pypi.org"]}],
    "another OCI runtime": [IMAGE | {"oci_runtime": "/bin/sh"}],
}

#: Refused by the program alone: a schema cannot say it.
PROGRAM_ALONE = {
    "an alias that occurs twice": [IMAGE, IMAGE],
    "too little memory": [IMAGE | {"mem_limit": "5m"}],
    "a name to deny": [IMAGE | {"egress_deny": ["pypi.org"]}],
    "an address with bits beyond its range": [IMAGE | {"egress_allow": ["10.0.0.1/8"]}],
    "a text that is long in bytes": [IMAGE | {"description": "ß" * 600}],
}


def check(path):
    """What `sandboxctl catalog check` says: its status and its message."""
    done = subprocess.run([CONTROL, "catalog", "check", path], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.fixture
def write(tmp_path):
    def write(entries):
        path = tmp_path / "c.json"
        path.write_text(json.dumps(entries))
        return path

    return write


@pytest.mark.programs
@pytest.mark.ours
@pytest.mark.parametrize("name", VALID)
def test_valid(write, name):
    assert VALIDATOR.is_valid(VALID[name]), [str(error) for error in VALIDATOR.iter_errors(VALID[name])]
    assert check(write(VALID[name])) == (0, "")


@pytest.mark.programs
@pytest.mark.ours
@pytest.mark.parametrize("name", INVALID)
def test_invalid(write, name):
    assert not VALIDATOR.is_valid(INVALID[name])
    status, message = check(write(INVALID[name]))
    assert status == 65
    assert message.startswith("sandboxctl: ") and "c.json: " in message and message.count("\n") == 1, message


@pytest.mark.programs
@pytest.mark.ours
@pytest.mark.parametrize("name", PROGRAM_ALONE)
def test_what_a_schema_cannot_say(write, name):
    assert VALIDATOR.is_valid(PROGRAM_ALONE[name])
    assert check(write(PROGRAM_ALONE[name]))[0] == 65


@pytest.mark.programs
@pytest.mark.ours
@pytest.mark.parametrize("file", sorted(path.name for path in Path(ROOT / "catalog").glob("*.json") if path.name != "schema.json"))
def test_what_is_shipped(file):
    assert VALIDATOR.is_valid(json.loads((ROOT / "catalog" / file).read_text()))
    assert check(ROOT / "catalog" / file)[0] == 0


def export(*arguments):
    """What `sandboxctl catalog export` does with the shipped workbench: its status, what it prints, what it says."""
    command = [CONTROL, "catalog", "export", ROOT / "catalog/workbench.json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.programs
@pytest.mark.ours
@pytest.mark.parametrize("form", ["json", "env", "compose"])
def test_a_copy_that_drifts_is_found_and_renewed(tmp_path, form):
    around = {"json": "{}", "env": "A=1\n{}B=2\n", "compose": "services:\n  s:\n    environment:\n      {}      B: c\n"}[form]
    status, right, _ = export("--form", form)
    assert status == 0 and right.endswith("\n")
    copy = tmp_path / "copy"
    copy.write_text(around.replace("{}", right))
    copy.chmod(0o640)
    assert export("--form", form, "--check", copy) == (0, "", "")
    copy.write_text(around.replace("{}", right.replace("python:3.12-slim", "python:3.13-slim")))
    status, printed, said = export("--form", form, "--check", copy)
    assert (status, printed) == (1, "")
    assert f'{copy} differs in the entry "workbench", field runtime' in said
    assert export("--form", form, "--write", copy) == (0, "", "")
    assert copy.read_text() == around.replace("{}", right)
    assert copy.stat().st_mode & 0o777 == 0o640


#: Every character that a shell, systemd or compose makes something of.
ODD = [IMAGE | {"env_vars": {"ODD": "it's $HOME ${A:-b} $$ \"x\" \\ \\n \\u0027 % `id` # {é} :"}}]


@pytest.mark.programs
@pytest.mark.ours
@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="there is no docker-compose: tests/prepare test installs it")
@pytest.mark.parametrize("entries", [json.loads((ROOT / "catalog/workbench.json").read_text()), ODD], ids=["workbench", "odd"])
def test_compose_gives_the_exported_value_as_it_is(write, tmp_path, entries):
    source, copy = write(entries), tmp_path / "compose.yml"
    copy.write_text("version: '3.8'\nservices:\n  s:\n    image: x\n    environment:\n      SANDBOXD_RUNTIMES: '{}'\n")
    subprocess.run([CONTROL, "catalog", "export", source, "--form", "compose", "--write", copy], check=True)
    value = json.loads(subprocess.run([CONTROL, "catalog", "export", source], capture_output=True, check=True).stdout)
    read = subprocess.run(["docker-compose", "--file", copy, "config"], capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    given = yaml.safe_load(read.stdout)["services"]["s"]["environment"]["SANDBOXD_RUNTIMES"]
    # What it prints can be read by it again, so each $ of the value is doubled there.
    assert json.loads(given.replace("$$", "$")) == value
    # And without the doubling it does make something of them.
    if entries is ODD:
        copy.write_text(copy.read_text().replace("$$", "$"))
        other = subprocess.run(["docker-compose", "--file", copy, "config"], capture_output=True, text=True, check=False)
        assert other.returncode != 0 or json.loads(yaml.safe_load(other.stdout)["services"]["s"]["environment"]["SANDBOXD_RUNTIMES"].replace("$$", "$")) != value


#: A Python with the reference implementation, where one was made: `tests/contract/reference` does.
REFERENCE = services.REFERENCE or next(map(str, sorted(services.TARGET.glob("venv/reference-*/bin/python"))), None)
READ = "import sys; from pydantic_ai_backends.remote.env import _parse_runtimes; print(list(_parse_runtimes(sys.stdin.read())))"


@pytest.mark.programs
@pytest.mark.ours
@pytest.mark.skipif(REFERENCE is None, reason="no environment of the reference implementation: tests/contract/reference makes one")
@pytest.mark.parametrize("file", ["workbench", "workbench-local", "debian", "demo"])
def test_the_reference_reads_what_is_exported(file):
    printed = subprocess.run([CONTROL, "catalog", "export", ROOT / f"catalog/{file}.json"], capture_output=True, text=True, check=True).stdout
    read = subprocess.run([REFERENCE, "-c", READ], input=printed, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    assert read.stdout.strip() == str([entry["alias"] for entry in json.loads((ROOT / f"catalog/{file}.json").read_text())])


@pytest.mark.programs
@pytest.mark.ours
def test_a_copy_without_a_place_is_told(tmp_path):
    copy = tmp_path / "compose.yml"
    copy.write_text("services: {}\n")
    assert export("--form", "compose", "--check", copy)[0] == 1
    status, _, said = export("--form", "compose", "--write", copy)
    assert status == 65 and "environment:" in said and copy.read_text() == "services: {}\n"
    assert export("--check", tmp_path / "none")[0] == 74


@pytest.mark.programs
@pytest.mark.ours
@pytest.mark.settings(runtimes=export()[1] if CONTROL.exists() else "", prewarm=0)
def test_what_is_exported_is_what_the_service_reads(api):
    runtime = api.get("/runtimes/workbench").json()
    entry = json.loads((ROOT / "catalog/workbench.json").read_text())[0]
    assert (runtime["image"], runtime["packages"], runtime["network_mode"]) == (entry["base_image"], entry["packages"], "bridge")
    assert runtime["reads_documents"] is True
    assert [policy["mem_limit"] for policy in api.policy()["runtimes"]] == ["2g"]


@pytest.mark.ours
def test_runtimes(api):
    listed = api.get("/runtimes").json()["runtimes"]
    policy = api.policy()
    assert sorted(runtime["alias"] for runtime in listed) == [runtime["alias"] for runtime in policy["runtimes"]]
    assert [runtime["alias"] for runtime in listed if runtime["default"]] == [policy["default_runtime"]]
    for runtime in listed:
        one = api.get(f"/runtimes/{runtime['alias']}").json()
        assert one.keys() == runtime.keys() and one["alias"] == runtime["alias"]
        assert runtime["state"] in {"ready", "building", "failed", "absent"}
        assert runtime["builds"] or runtime["reads_documents"] is None


@pytest.mark.ours
def test_a_briefing_is_one_paragraph_of_what_is_shipped(api):
    for runtime in api.get("/runtimes").json()["runtimes"]:
        told = api.get(f"/runtimes/{runtime['alias']}/briefing").json()
        assert set(told) == {"alias", "briefing", "reads_documents"}
        assert told["reads_documents"] == runtime["reads_documents"]
        assert (told["briefing"] is None) == (not runtime["shipped"])
        assert "\n" not in (told["briefing"] or "")


@pytest.mark.ours
@pytest.mark.settings(runtimes='{"own": "debian-bookworm", "built": {"runtime": {"base_image": "debian-bookworm"}}}', prewarm=0)
def test_nothing_is_told_of_what_is_not_shipped(api):
    for alias in ("own", "built"):
        assert api.get(f"/runtimes/{alias}/briefing").json()["briefing"] is None
        assert api.get(f"/runtimes/{alias}").json()["shipped"] is False
    assert api.get("/runtimes/own").json()["reads_documents"] is None
    assert api.get("/runtimes/built").json()["reads_documents"] is False
    assert api.get("/runtimes/own/log").status_code == 404


@pytest.mark.ours
@pytest.mark.parametrize("rest", ["", "/briefing", "/log"])
def test_other_aliases(api, rest):
    assert api.get(f"/runtimes/nobody{rest}").status_code == 404
    assert api.get(f"/runtimes/-{rest}").status_code == 422
    assert api.get(f"/runtimes/nobody{rest}", token=None).status_code == 401
