"""The disks that machines start from: built by `tests/vm/image`, kept in target/vm/disks under a digest of what made them."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
REPOSITORY = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target") / "vm"
SUITES = {"12": "bookworm", "13": "trixie", "14": "forky"}
# Building one takes a minute; a mirror may be slow.
BUILD_SECONDS = 1200


class BuildFailed(Exception):
    """The disk could not be built; the message ends with what the build said last."""


def find(debian, kernel, say):
    """The directory with the disk of this release for a machine with this kernel (`none` or `stock`); built if need be."""
    directory = TARGET / "disks"
    directory.mkdir(parents=True, exist_ok=True)
    name = f"debian{debian}-{kernel}-{digest()}"
    # Two at once would build the same one twice; the lock goes with the process.
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / name).is_dir():
            say(f"building {name}")
            build(debian, kernel, directory, name)
    return directory / name


def digest():
    """Of every file that the content of a disk comes from."""
    files = [HERE / "image", HERE / "initrd-init", REPOSITORY / "images/_sources"]
    files += sorted(path for path in (HERE / "guest").rglob("*") if path.is_file())
    sum = hashlib.sha256()
    for path in files:
        sum.update(f"{path.relative_to(REPOSITORY)} {path.stat().st_mode & 0o100} {path.stat().st_size}\n".encode())
        sum.update(path.read_bytes())
    return sum.hexdigest()[:16]


def build(debian, kernel, directory, name):
    part = directory / "part"
    remove(part)
    command = [HERE / "image", SUITES[debian], kernel, part]
    log = directory / f"{name}.log"
    try:
        with open(log, "wb") as out:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=BUILD_SECONDS, check=True
            )
    except (subprocess.SubprocessError, OSError) as error:
        remove(part)
        last = log.read_text(errors="replace").splitlines()[-20:] if log.exists() else []
        raise BuildFailed("\n".join([f"build {name}: {error}", *last])) from error
    except BaseException:
        remove(part)
        raise
    for old in directory.glob(f"debian{debian}-{kernel}-*"):
        remove(old)
    part.rename(directory / name)


def remove(path):
    if path.is_dir() and not path.is_symlink():
        # A build that was cut short may have left what it had mounted for the packages' scripts.
        mounts = [line.split()[4] for line in open("/proc/self/mountinfo")]
        for mount in sorted((m for m in mounts if m.startswith(f"{path}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
