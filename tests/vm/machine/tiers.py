"""How a machine is started: the command line of each tier.

A machine has a root disk, a tar with the payload and perhaps a drive, all of them block devices, one terminal line to the host (the
channel) and a console. It has no network, unless it is QEMU's and one is asked for: then a user of this host's, without a privilege.
"""

import os
import shutil
import subprocess

from .disks import HERE, TARGET

NAMES = ["uml", "qemu"]
# Everything runs in a process namespace of its own, whose end ends all; and it ends with us, whatever ends us.
ENCLOSED = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Said to every kernel.
COMMON = "rw panic=-1 quiet loglevel=4 systemd.show_status=no"


class Machine:
    """What a tier needs to know: files of this host, MiB of memory, more words for the kernel's command line."""

    def __init__(self, directory, image, disk, payload, drive, memory, kvm, network=False):
        self.directory = directory
        self.image = image
        self.disk = disk
        self.payload = payload
        self.drive = drive
        self.memory = memory
        self.kvm = kvm
        self.network = network
        self.words = []


def choose(wanted):
    """The tier to use and the kernel that its disk has to bring; `wanted` may be None."""
    if wanted == "qemu" or (wanted is None and uml_kernel() is None):
        return "qemu", "stock"
    return "uml", "none"


def uml_kernel():
    """The file of the user-mode kernel, packed or not: $VM_UML_KERNEL, else the repository's."""
    named = os.environ.get("VM_UML_KERNEL")
    file = named or str(HERE / "kernel/linux-uml.zst")
    return file if os.path.exists(file) and (named or shutil.which("zstd")) else None


def uml(machine, channel):
    """User-mode Linux: a kernel that is a process of this host. Its memory is a file in a tmpfs of its own."""
    kernel = os.path.join(machine.directory, "linux")
    unpack_kernel(kernel)
    words = [
        kernel,
        f"mem={machine.memory}M",
        f"ubd0={machine.disk}",
        f"ubd1r={machine.payload}",
        *([f"ubd2={machine.drive}"] if machine.drive else []),
        "root=/dev/ubda",
        "rootfstype=ext4",
        "rootflags=prjquota",
        "init=/lib/systemd/systemd",
        "seccomp=on",
        "ncpus=2",
        "con=null",
        "con0=null,fd:1",
        f"ssl0=null,fd:{channel.fileno()}",
        "vm.channel=/dev/ttyS0",
        "vm.payload=/dev/ubdb",
        *(["vm.drive=/dev/ubdc"] if machine.drive else []),
        *COMMON.split(),
        *machine.words,
    ]
    # More than the guest has: on a full tmpfs, a page of it that is touched is a bus error.
    mount = f'mount -t tmpfs -o size={machine.memory + 64}m tmpfs /dev/shm && TMPDIR=/dev/shm exec "$@"'
    return [*ENCLOSED, "sh", "-c", mount, "sh", *words]


def unpack_kernel(to):
    if os.path.exists(to):
        return
    file = uml_kernel()
    if file is None:
        raise FileNotFoundError("no user-mode kernel: set VM_UML_KERNEL, or use --tier qemu")
    if file.endswith(".zst"):
        subprocess.run(["zstd", "--quiet", "--decompress", file, "-o", to], check=True)
    else:
        shutil.copy(file, to)
    os.chmod(to, 0o755)


def qemu(machine, channel):
    """QEMU with the stock kernel of the guest's release."""
    files = [(machine.disk, "off"), (machine.payload, "on")]
    if machine.drive:
        files.append((machine.drive, "off"))
    drives = []
    for number, (file, read_only) in enumerate(files):
        drives += ["-drive", f"file={file},if=none,id=d{number},format=raw,cache=unsafe,readonly={read_only}"]
        drives += ["-device", f"virtio-blk-pci,drive=d{number}"]
    append = [
        "console=ttyS0",
        "vm.channel=/dev/ttyS1",
        "vm.payload=/dev/vdb",
        *(["vm.drive=/dev/vdc"] if machine.drive else []),
        *COMMON.split(),
        *machine.words,
        *([] if machine.kvm else ["mitigations=off", "no_timer_check", "tsc=reliable", "audit=0"]),
    ]
    return [
        *ENCLOSED,
        "qemu-system-x86_64",
        *["-machine", "q35", "-smp", "2", "-m", str(machine.memory)],
        *(["-accel", "kvm", "-cpu", "host"] if machine.kvm else ["-accel", "tcg,thread=multi", "-cpu", "Nehalem"]),
        *["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"],
        *["-nic", "user,model=virtio-net-pci" if machine.network else "none"],
        *["-kernel", f"{machine.image}/vmlinuz", "-initrd", f"{machine.image}/initrd"],
        *["-append", " ".join(append)],
        *["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"],
        *["-add-fd", f"fd={channel.fileno()},set=1", "-chardev", "file,id=channel,path=/dev/fdset/1,append=on"],
        *["-serial", "chardev:channel", "-device", "virtio-rng-pci"],
        *drives,
    ]
