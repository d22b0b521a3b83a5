"""Start a service, let schemathesis loose on it, count."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "contract"))

import services  # noqa: E402
from client import Api  # noqa: E402

#: Fewer cases than this show nothing.
WANTED = 2000
#: Seconds after which it has had its time.
WITHIN = 600
SETTINGS = {
    # Cases open sessions; each is closed at once, but several may be on their way.
    "max_sessions": 64,
    "execute_timeout": 2,
    "max_read_bytes": 65536,
}
OPTIONS = [
    "--phases=examples,coverage,fuzzing",
    "--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    "--max-examples=100",
    # One: with two, Python 3.11 fails now and then to read the program that it runs (gh-106905), which ends a phase.
    "--workers=1",
    "--continue-on-failure",
    "--generation-database=none",
    "--request-timeout=60",
    "--suppress-health-check=all",
    "--no-color",
    "--warnings=off",
]


def fuzz(api, arguments):
    """The number of cases and of failures, and schemathesis's exit status."""
    with tempfile.TemporaryDirectory(prefix="sandboxd-schemathesis-") as directory:
        report = Path(directory) / "cases.ndjson"
        environment = dict(os.environ, SCHEMATHESIS_HOOKS="hooks", PYTHONPATH=str(HERE), NO_COLOR="1")
        environment |= {"FUZZ_URL": api.service.url, "FUZZ_TOKEN": api.service.token, "FUZZ_SESSION": session(api)}
        command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{api.service.url}/openapi.json"]
        command += [*OPTIONS, f"--header=X-Sandbox-Token:{api.service.token}", f"--report-ndjson-path={report}", *arguments]
        status = subprocess.run(command, env=environment, cwd=directory, timeout=WITHIN).returncode
        return *count(report), status


def session(api):
    """An open session with a file in it."""
    opened = api.open()
    opened.put(f"{api.policy()['work_dir']}/known/file.txt", b"some lines\n" * 100)
    return opened.id


def count(report):
    """The cases of the report, and those that failed."""
    cases = failed = 0
    for line in report.read_text().splitlines():
        event = json.loads(line)
        scenario = event.get("ScenarioFinished")
        if scenario is None:
            continue
        recorder = scenario["recorder"]
        cases += len(recorder.get("interactions", {}))
        checks = recorder.get("checks", {})
        failed += sum(any(check["status"] == "failure" for check in case) for case in checks.values())
    return cases, failed


def main():
    """Run; the closing line; the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    service = services.start(SETTINGS)
    try:
        api = Api(service)
        cases, failed, status = fuzz(api, sys.argv[1:])
        if api.health()["status"] != "ok":
            failed += 1
        panics = [line for line in service.log().splitlines() if "panicked" in line]
        print(*panics, sep="\n", end="\n" if panics else "")
        failed += len(panics)
    finally:
        service.stop()
    if cases < WANTED and not sys.argv[1:]:
        print(f"only {cases} cases; {WANTED} are wanted")
        failed += 1
    print(f"schemathesis: {cases} cases, {failed} failed")
    return 1 if failed or status else 0


if __name__ == "__main__":
    sys.exit(main())
