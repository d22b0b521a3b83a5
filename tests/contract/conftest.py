"""Fixtures, and which cases a service is asked to show."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import services  # noqa: E402
from client import Api, fresh_id  # noqa: E402


def pytest_configure(config):
    # As Ctrl-C does: no further case, and the services are ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    """Leave out what the service at hand cannot show."""
    left_out = set()
    if services.URL:
        left_out |= {"settings", "programs"}
    if services.REFERENCE:
        left_out |= {"sandbox", "ours"}
    kept = [item for item in items if not left_out & {mark.name for mark in item.iter_markers()}]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """The closing line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.collectonly:
        return
    count = {name: len(reporter.stats.get(name, [])) for name in ("passed", "failed", "error", "xpassed")}
    print(f"contract: {count['passed']} passed, {count['failed'] + count['error'] + count['xpassed']} failed")


@pytest.fixture(scope="session")
def pool():
    """The services of this run."""
    pool = services.Pool()
    yield pool
    pool.stop()


@pytest.fixture
def service(request, pool):
    """The service that a case asks for by its `settings` mark."""
    settings = {}
    for mark in reversed(list(request.node.iter_markers("settings"))):
        settings |= mark.kwargs
    return pool.get(settings)


@pytest.fixture
def api(service):
    """A client of it; the sessions that it opens are purged."""
    api = Api(service)
    yield api
    api.close()


@pytest.fixture
def session(api):
    """An open session."""
    return api.open()


@pytest.fixture
def work(api):
    """The work directory."""
    return api.policy()["work_dir"]


class StoredByClient:
    """A workspace made through a session that is closed before anybody looks."""

    def __init__(self, api):
        self.api, self.id, self.work = api, fresh_id(), api.policy()["work_dir"]
        self.session = api.open(session_id=self.id)

    def put(self, path, content=b"x"):
        self.session.put(f"{self.work}/{path}", content)

    def mkdir(self, path):
        assert self.session.file("mkdir", f"{self.work}/{path}").status_code == 204

    def link(self, path, target):
        self.session.out(f"ln -s '{target}' '{self.work}/{path}'")

    def many(self, directory, count):
        self.session.out(f"mkdir -p {self.work}/{directory} && cd {self.work}/{directory} && seq {count} | xargs touch")

    def seal(self):
        self.session.close()


class StoredOnDisk:
    """The same for the reference, which starts no sandbox here: made on its disk."""

    def __init__(self, api):
        self.id, self.work = fresh_id(), api.policy()["work_dir"]
        self.root = api.service.state / "workspaces" / self.id / "workspace"
        self.root.mkdir(parents=True)

    def put(self, path, content=b"x"):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def mkdir(self, path):
        (self.root / path).mkdir(parents=True)

    def link(self, path, target):
        (self.root / path).symlink_to(target)

    def many(self, directory, count):
        self.mkdir(directory)
        for number in range(1, count + 1):
            (self.root / directory / str(number)).touch()

    def seal(self):
        pass


class Stored:
    """Asking for a stored workspace."""

    def __init__(self, api, made):
        self.api, self.made, self.id, self.work = api, made, made.id, made.work

    def __getattr__(self, name):
        return getattr(self.made, name)

    def ask(self, route, **body):
        """The answer of `POST /workspaces/{id}/ROUTE`."""
        return self.api.post(f"/workspaces/{self.id}/{route}", body)

    def get(self, route, **body):
        """The same, which must succeed."""
        answer = self.ask(route, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def stored(api):
    """An empty stored workspace to fill, `seal()` and look at."""
    return Stored(api, (StoredOnDisk if services.REFERENCE else StoredByClient)(api))
