"""A throw-away service for tests: starts `sandboxd dev` on a state directory of its own, ends it with
SIGTERM, and says what it left behind, which has to be nothing."""

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
BINARIES = Path(os.environ.get("IT_PROGRAMS") or TARGET / "release")
# Images are kept between runs: they are the same whatever the state.
IMAGES = TARGET / "images"

#: Which OCI runtime starts the sandboxes of the test.
CHOICE = "SANDBOXD_OCI_RUNTIME"
READY_WITHIN = 60.0
END_WITHIN = 30.0


class ServiceError(Exception):
    """It did not start, or it left something behind. The text says what."""


def program(name: str, main: Callable[[], int]) -> None:
    """Run a test program: whatever ends it, SIGTERM included, ends its service as well."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except ServiceError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{name}: interrupted")


class Service:
    """`with Service("catalog/test.json") as service:` has `url`, `token` and `socket`."""

    def __init__(
        self, catalog: str, images: Path = IMAGES, arguments: Sequence[str] = (), settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        # In /tmp: a unix socket's path is short, and the service's own user has to reach it.
        self.directory = Path(tempfile.mkdtemp(prefix="sandboxd-test-"))
        self.directory.chmod(0o755)
        self.state = self.directory / "state"
        self.log = self.directory / "log"
        self.catalog = ROOT / catalog
        self.images = images
        self.arguments, self.settings = arguments, settings
        self.process: subprocess.Popen[str] | None = None
        self.url = self.token = self.socket = ""

    def __enter__(self) -> "Service":
        try:
            self.start()
        except BaseException:
            self._kill()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is None:
            self.stop()
            return
        # The first failure is the one to tell; the log helps with it.
        if issubclass(kind, Exception):
            print(f"--- the end of the service's log\n{self.tail()}", flush=True)
        self._terminate()
        self._kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Start it and wait for its line."""
        if os.geteuid() != 0:
            raise ServiceError("this needs root: the launcher makes namespaces, mounts and cgroups")
        program = BINARIES / "sandboxd"
        if not program.exists():
            raise ServiceError(f"{program} is not there; build it first: make build")
        self.images.parent.mkdir(parents=True, exist_ok=True)
        command = [program, "dev", "--state", self.state, "--listen", "127.0.0.1:0", "--catalog", self.catalog]
        command += ["--images", self.images, *self.arguments]
        # Settings of whoever runs the tests are not the tests', but for the one that they may be run with.
        env = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOXD_") or name == CHOICE}
        env |= self.settings
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env, cwd=ROOT)
        line = self._first_line()
        try:
            ready = json.loads(line)
            self.url, self.token, self.socket = ready["url"], ready["token"], ready["socket"]
        except (ValueError, KeyError, TypeError):
            raise ServiceError(f"its first line is not the promised JSON: {line!r}\n{self.tail()}") from None

    def _first_line(self) -> str:
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: lines.put(self.process.stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=READY_WITHIN)
        except queue.Empty:
            raise ServiceError(f"it is not ready after {READY_WITHIN:.0f} s\n{self.tail()}") from None
        if not line:
            raise ServiceError(f"it ended with status {self.process.wait()} before it was ready\n{self.tail()}")
        return line

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """End it with SIGTERM; raises unless it ends well and leaves nothing."""
        status = self._terminate()
        left = self._left(status)
        tail = self.tail()
        self._kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.directory.exists():
            left.append(f"file: {self.directory} cannot be removed")
        if left:
            raise ServiceError("the service left something behind:\n  " + "\n  ".join(left) + f"\n--- log\n{tail}")

    def _terminate(self) -> int | None:
        if self.process is None or self.process.poll() is not None:
            return None if self.process is None else self.process.returncode
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            return None

    def _kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self._processes():
            # What is left after a failure, by its id: each has the state directory in its command line or is a child of one.
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def _left(self, status: int | None) -> list[str]:
        left = []
        if status is None:
            left.append(f"process: sandboxd dev is still there {END_WITHIN:.0f} s after SIGTERM")
        elif status != 0:
            left.append(f"status: sandboxd dev ended with {status}, not 0")
        # The kernel takes down a killed process and its cgroup a moment later than the answer.
        for wait in (0.0, 0.1, 0.4, 1.5):
            time.sleep(wait)
            found = self._look()
            if not found:
                break
        return left + found

    def _look(self) -> list[str]:
        left = [f"process: {pid} {_command(pid)}" for pid in self._processes()]
        text = Path("/proc/self/mountinfo").read_text()
        left += [f"mount: {line}" for line in text.splitlines() if str(self.directory) in line]
        left += [f"cgroup: {path}" for path in _cgroups(f"sandboxd-dev-{self.process.pid}")]
        if self.socket and Path(self.socket).exists():
            left.append(f"file: {self.socket}")
        if self.url and _answers(self.url):
            left.append(f"listener: {self.url}")
        return left

    def _processes(self) -> list[int]:
        needle = str(self.directory).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if needle in (entry / "cmdline").read_bytes() or needle in _mounts(entry):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


def _mounts(entry: Path) -> bytes:
    """The mounts of a process in a mount namespace of its own: a sandbox's workspace names the state directory."""
    if os.readlink(entry / "ns/mnt") == os.readlink("/proc/self/ns/mnt"):
        return b""
    return (entry / "mountinfo").read_bytes()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"


def _cgroups(name: str) -> list[str]:
    """The cgroup of that name and those below it."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            top = Path(left.split()[4])
            return [directory for found in top.rglob(name) for directory, _, _ in os.walk(found)]
    return []


def _answers(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, int(port))) == 0
