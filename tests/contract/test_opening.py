"""Opens that fail, hang or are broken off: what they leave, and what they count as."""

import socket
import threading

import httpx
import pytest
from client import HEADER, Api, eventually, fresh_id
from services import start

pytestmark = [pytest.mark.sandbox, pytest.mark.settings(registry="ours")]


class Hole:
    """A registry that takes connections and never answers."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.held = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self):
        while True:
            try:
                self.held.append(self.listener.accept()[0])
            except OSError:
                return

    def close(self):
        self.listener.close()
        for connection in self.held:
            connection.close()


@pytest.fixture(scope="module")
def hole():
    """A registry that never answers."""
    hole = Hole()
    yield hole
    hole.close()


@pytest.fixture(scope="module")
def server(hole):
    """A service with one runtime that works, one that hangs and one that cannot be had."""
    settings = {
        "runtimes": f"works=@base,hangs=127.0.0.1:{hole.port}/image:1,fails=127.0.0.1:1/image:1",
        "insecure_registries": f"127.0.0.1:{hole.port},127.0.0.1:1",
        "prewarm": "false",
        "max_sessions": 2,
        "max_sessions_per_tenant": 1,
    }
    service = start(settings)
    yield service
    service.stop()


@pytest.fixture
def api(server):
    """A client of it."""
    api = Api(server)
    yield api
    api.close()
    assert eventually(lambda: api_open(server) == 0), "something of an earlier case is still open"


def api_open(server):
    return httpx.get(f"{server.url}/healthz").json()["open_sessions"]


class Opening:
    """A request that opens a session on the runtime that hangs, until it is broken off."""

    def __init__(self, api, **body):
        self.connection = socket.create_connection((api.http.base_url.host, api.http.base_url.port))
        content = httpx.Request("POST", "http://x/", json={"runtime": "hangs", **body}).content
        head = f"POST /sessions HTTP/1.1\r\nhost: x\r\n{HEADER}: {api.service.token}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        before = api.health()["sessions"]
        self.connection.sendall(head.encode() + content)
        assert eventually(lambda: api.health()["sessions"] > before), "it is not being opened"

    def break_off(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.break_off()


def test_a_sandbox_that_does_not_start_is_502(api):
    """502 when the sandbox would not start."""
    answer = api.try_open(runtime="fails")
    assert answer.status_code == 502 and isinstance(answer.json()["detail"], str)


def test_a_failed_open_leaves_no_session(api):
    """A failed open leaves nothing behind."""
    name = fresh_id()
    api.try_open(runtime="fails", session_id=name)
    assert name not in api.listed() and api.get(f"/sessions/{name}").status_code == 404


def test_a_failed_open_leaves_no_workspace(api):
    """A failed open leaves nothing behind: nothing to attach to either."""
    name = fresh_id()
    api.try_open(runtime="fails", session_id=name)
    assert api.post("/sessions", {"session_id": name, "attach": True}).status_code == 404


def test_a_failed_open_leaves_the_name_free(api):
    """A failed open leaves nothing behind."""
    name = fresh_id()
    api.try_open(runtime="fails", session_id=name)
    assert api.open(session_id=name, runtime="works").run("true")["exit_code"] == 0


def test_a_failed_open_leaves_a_kept_workspace_alone(api):
    """A failed open leaves nothing behind, and takes nothing away."""
    session = api.open(runtime="works")
    work = api.policy()["work_dir"]
    session.put(f"{work}/a", b"kept")
    session.close()
    assert api.try_open(runtime="fails", session_id=session.id, reuse=True).status_code == 502
    assert api.open(runtime="works", session_id=session.id, reuse=True).read(f"{work}/a") == b"kept"


def test_a_name_that_is_being_opened_is_409(api):
    """id being opened right now by another request: 409."""
    name = fresh_id()
    with Opening(api, session_id=name):
        assert api.try_open(session_id=name, runtime="works").status_code == 409


@pytest.mark.parametrize("how", ["reuse", "attach"])
def test_a_name_that_is_being_opened_is_409_to_those_who_would_share_it(api, how):
    """Clients that named it ask again every 0.2 s."""
    name = fresh_id()
    with Opening(api, session_id=name):
        assert api.try_open(session_id=name, **{how: True}).status_code == 409


def test_a_session_that_is_being_opened_cannot_be_seen(api):
    """There is no session yet."""
    name = fresh_id()
    with Opening(api, session_id=name):
        assert api.get(f"/sessions/{name}").status_code == 404


def test_an_open_in_flight_counts_against_max_sessions(api):
    """Opens still in flight count."""
    with Opening(api), Opening(api):
        assert api.try_open(runtime="works").status_code == 429


def test_an_open_in_flight_counts_against_its_tenant(api):
    """Opens still in flight count."""
    with Opening(api, tenant="acme"):
        answer = api.try_open(runtime="works", tenant="acme")
        assert answer.status_code == 429 and "already holds 1 of 1" in answer.json()["detail"]


def test_an_open_that_is_broken_off_leaves_the_name_free(api):
    """A cancelled open leaves nothing behind."""
    name = fresh_id()
    Opening(api, session_id=name).break_off()
    assert eventually(lambda: api.try_open(session_id=name, runtime="works").status_code == 200)


def test_an_open_that_is_broken_off_leaves_its_room(api):
    """A cancelled open leaves nothing behind."""
    both = Opening(api), Opening(api)
    for opening in both:
        opening.break_off()
    assert eventually(lambda: api.try_open(runtime="works").status_code == 200)


def test_an_open_that_is_broken_off_leaves_no_workspace(api):
    """A cancelled open leaves nothing behind."""
    name = fresh_id()
    Opening(api, session_id=name).break_off()
    attach = lambda: api.post("/sessions", {"session_id": name, "attach": True}).status_code  # noqa: E731
    assert eventually(lambda: attach() == 404)
