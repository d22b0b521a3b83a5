"""The life of one machine: boot, forward what it says, boot again when its payload asks for that, end it."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from . import disks, tiers

# A line of the channel that is for us; what is between is the payload's.
MARK = b"\0vm "
# How long a guest that said "reboot" may take to shut down.
SHUTDOWN_SECONDS = 60
CONSOLE_LINES = 25


class Failed(Exception):
    """The machine did not come to a verdict; `status` is the program's."""

    def __init__(self, message, status=125):
        super().__init__(message)
        self.status = status


class Log:
    """Lines for --verbose."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.begun = time.monotonic()

    def __call__(self, text):
        if self.wanted:
            print(f"[vm {time.monotonic() - self.begun:6.2f}] {text}", file=sys.stderr, flush=True)


def end_on_signals():
    """Let every signal that ends us run what cleans up."""

    def end(number, _frame):
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def run(options):
    """Run the payload; its exit status."""
    payload = Path(options.payload)
    if not os.access(payload / "run", os.X_OK):
        raise Failed(f"{payload} has no executable file `run`")
    say = Log(options.verbose)
    tier, kernel = tiers.choose(options.tier)
    if options.network and tier != "qemu":
        raise Failed("--network needs --tier qemu: the user-mode kernel has no network device")
    try:
        image = disks.find(options.debian, kernel, say)
    except disks.BuildFailed as error:
        raise Failed(str(error)) from error
    sweep()
    directory = tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=running())
    try:
        machine = prepare(directory, image, payload, options)
        say(f"{tier}, Debian {options.debian}, {machine.disk}")
        return live(tier, machine, options, say)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def running():
    """Directories of machines, each named by the process that it belongs to."""
    directory = disks.TARGET / "running"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def sweep():
    """Remove what machines left whose process was killed."""
    for path in running().iterdir():
        if not os.path.exists(f"/proc/{path.name.partition('-')[0]}"):
            shutil.rmtree(path, ignore_errors=True)


def prepare(directory, image, payload, options):
    """Disk, drive and payload of a new machine."""
    disk = os.path.abspath(options.disk or f"{directory}/root.ext4")
    if not os.path.exists(disk):
        copy(image / "root.ext4", disk)
    drive = None
    if options.drive:
        drive = f"{directory}/drive"
        copy(options.drive, drive)
    archive = f"{directory}/payload.tar"
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(payload, arcname=".")
    return tiers.Machine(directory, image, disk, archive, drive, options.memory, options.kvm, options.network)


def copy(source, destination):
    """A file with holes, quickly."""
    part = f"{destination}.part"
    subprocess.run(["cp", "--sparse=always", "--reflink=auto", source, part], check=True)
    os.rename(part, destination)


def live(tier, machine, options, say):
    """Boot until there is an exit status."""
    deadline = time.monotonic() + options.timeout
    for number in range(1, options.boots + 1):
        machine.words = [f"vm.boot={number}"]
        verdict = boot(tier, machine, deadline, say)
        say(f"boot {number}: {verdict}")
        if verdict.startswith("exit "):
            return int(verdict.split()[1])
    raise Failed(f"{options.boots} boots, and the payload asks for one more")


def boot(tier, machine, deadline, say):
    """One boot: what its payload said last (`exit N`, `crash`, `reboot`)."""
    console = f"{machine.directory}/console"
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", buffering=0) as source, open(console, "wb") as log:
        with os.fdopen(write_end, "wb", buffering=0) as channel:
            command = getattr(tiers, tier)(machine, channel)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[write_end], start_new_session=True
            )
        try:
            verdict = listen(source, process, deadline, say)
            if verdict == "reboot":
                process.wait(min(SHUTDOWN_SECONDS, max(0, deadline - time.monotonic())))
            return verdict
        except (Failed, subprocess.TimeoutExpired) as error:
            last = "\n".join(Path(console).read_text(errors="replace").splitlines()[-CONSOLE_LINES:])
            raise Failed(f"{error}; its console said last:\n{last}", getattr(error, "status", 124)) from error
        finally:
            # The first process of its namespace goes with this one, and everything else with that.
            process.kill()
            process.wait()


def listen(source, process, deadline, say):
    """Forward what comes until a verdict does."""
    pending = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Failed("time is up", 124)
        ready, _, _ = select.select([source], [], [], min(left, 1))
        if not ready:
            if process.poll() is not None:
                raise Failed(f"the machine ended by itself ({process.returncode})")
            continue
        chunk = source.read(65536)
        if not chunk:
            raise Failed(f"the machine ended by itself ({process.wait()})")
        pending, verdict = forward(pending + chunk, say)
        if verdict:
            return verdict


def forward(data, say):
    """Write out what is the payload's; what is left of a line that is ours, and a verdict if there was one."""
    while True:
        start = data.find(b"\0")
        plain = data if start < 0 else data[:start]
        sys.stdout.buffer.write(plain)
        sys.stdout.flush()
        data = data[len(plain) :]
        if not data or (len(data) < len(MARK) and MARK.startswith(data)):
            return data, None
        if not data.startswith(MARK):
            sys.stdout.buffer.write(data[:1])
            data = data[1:]
            continue
        line, newline, rest = data.partition(b"\n")
        if not newline:
            return data, None
        word = line[len(MARK) :].decode(errors="replace")
        if word != "started":
            return rest, word
        say("started")
        data = rest
