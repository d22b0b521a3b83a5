"""The services under test: one that somebody names, or those that the suite starts itself."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("SANDBOXD_TARGET", ROOT / "target"))
PROGRAM = Path(os.environ.get("SANDBOXD_PROGRAM", TARGET / "release" / "sandboxd"))
#: A service that is there already; then nothing is started.
URL = os.environ.get("SANDBOXD_URL")
#: The Python that has the reference implementation; then that is what is started.
REFERENCE = os.environ.get("SANDBOXD_REFERENCE")
#: Services of the suite's own that are kept running at once.
KEPT = 3
START_WITHIN = 120
END_WITHIN = 30


def environment(settings):
    """This process's environment with `settings` as the only ones of the service."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOXD_")}
    return clean | {f"SANDBOXD_{name.upper()}": str(value) for name, value in settings.items()}


class Service:
    """A running service: where it is and the token that opens it."""

    def __init__(self, url, token, state=None, process=None):
        self.url, self.token, self.state, self.process = url, token, state, process

    def stop(self):
        """End it and delete its state; one that somebody else started is left alone."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGKILL if REFERENCE else signal.SIGTERM)
        try:
            self.process.wait(END_WITHIN)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout:
                self.process.stdout.close()
            shutil.rmtree(self.state.parent, ignore_errors=True)

    def log(self):
        """What it wrote to its log."""
        return (self.state.parent / "log").read_text(errors="replace")


def start(settings):
    """Start a service with `settings`; it owns its state and every process of it."""
    home = Path(tempfile.mkdtemp(prefix="service-"))
    home.chmod(0o755)
    state = home / "state"
    state.mkdir()
    try:
        return (_start_reference if REFERENCE else _start_ours)(home, state, dict(settings))
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def _start_ours(home, state, settings):
    token = settings.setdefault("token", secrets.token_hex(32))
    command = [PROGRAM, "dev", "--state", state, "--listen", "127.0.0.1:0"]
    command += ["--catalog", ROOT / "catalog" / "test.json", "--images", TARGET / "images"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(part) for part in command], env=environment(settings), stdout=subprocess.PIPE, stderr=log
        )
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise RuntimeError(f"the service did not start: {(home / 'log').read_text(errors='replace')[-2000:]}")
    return Service(json.loads(line)["url"], token, state, process)


def _start_reference(home, state, settings):
    token = settings.setdefault("token", secrets.token_hex(32))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        settings["port"] = probe.getsockname()[1]
    settings.setdefault("workspace_root", state / "workspaces")
    (state / "workspaces").mkdir()
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [REFERENCE, "-m", "pydantic_ai_backends.remote.server"],
            env=environment(settings),
            stdout=log,
            stderr=log,
        )
    service = Service(f"http://127.0.0.1:{settings['port']}", token, state, process)
    until = time.monotonic() + START_WITHIN
    while time.monotonic() < until:
        try:
            httpx.get(f"{service.url}/healthz")
            return service
        except httpx.TransportError:
            time.sleep(0.1)
    service.stop()
    raise RuntimeError("the reference did not start")


class Pool:
    """Services by their settings, started when first asked for; the least recently used one gives way."""

    def __init__(self):
        self.running = {}

    def get(self, settings):
        """The service with exactly these settings."""
        if URL and not settings:
            return self.running.setdefault((), Service(URL.rstrip("/"), os.environ["SANDBOXD_TOKEN"]))
        key = tuple(sorted(settings.items()))
        service = self.running.pop(key, None)
        if service is None:
            while len(self.running) >= KEPT:
                self.running.pop(next(iter(self.running))).stop()
            service = start(settings)
        self.running[key] = service
        return service

    def stop(self):
        """End them all."""
        while self.running:
            self.running.popitem()[1].stop()
