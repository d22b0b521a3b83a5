"""The overrides file: the same update, from a file."""

import json
import os
import tempfile
import time
from itertools import count
from pathlib import Path

import pytest
from client import Api, eventually
from services import start

pytestmark = pytest.mark.settings(overrides=True)
BROKEN = {
    "not JSON": "{",
    "empty": "",
    "a list": "[]",
    "an unknown field": '{"max_sessions": 5, "anything": 1}',
    "a forbidden field": '{"max_sessions": 5, "work_dir": "/x"}',
    "a negative number": '{"max_sessions": -5}',
    "another type": '{"max_sessions": "many"}',
    "an alias that is not allowed": '{"default_runtime": "nobody"}',
    "not UTF-8": b"\xff\xfe{",
}


@pytest.fixture
def file():
    """Where the overrides file is; every directory above lets everybody pass."""
    with tempfile.TemporaryDirectory(prefix="sandboxd-contract-") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory) / "overrides.json"


CLOCK = count(1_700_000_000, 10)


def put(file, content):
    """Replace the file; its mtime differs from every earlier one."""
    temporary = file.with_suffix(".new")
    temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
    temporary.chmod(0o644)
    stamp = next(CLOCK)
    os.utime(temporary, (stamp, stamp))
    temporary.rename(file)


@pytest.fixture
def serve(file):
    """Start a service that has the file."""
    started = []

    def serve():
        service = start({"policy_overrides": file, "cleanup_interval": 1, "prewarm": "false"})
        started.append((service, Api(service)))
        return started[-1][1]

    yield serve
    for service, api in started:
        api.close()
        service.stop()


def test_it_is_read_before_anything_is_served(file, serve):
    """Read before anything is served."""
    put(file, json.dumps({"max_sessions": 7, "execute_timeout": 77}))
    policy = serve().policy()
    assert (policy["max_sessions"], policy["execute_timeout"]) == (7, 77)


def test_it_is_read_again_when_its_mtime_moves(file, serve):
    """And again when its mtime moves."""
    put(file, '{"max_sessions": 7}')
    api = serve()
    put(file, '{"max_sessions": 8}')
    assert eventually(lambda: api.policy()["max_sessions"] == 8)


def test_it_may_come_later(file, serve):
    """An absent file is no fault; one that appears is read."""
    api = serve()
    assert api.policy()["max_sessions"] == 20
    put(file, '{"max_sessions": 6}')
    assert eventually(lambda: api.policy()["max_sessions"] == 6)


def test_it_is_not_read_again_while_its_mtime_stands(file, serve):
    """Only when its mtime moves: a later PUT /policy stands."""
    put(file, '{"max_sessions": 7}')
    api = serve()
    api.put("/policy", {"max_sessions": 9})
    time.sleep(2.5)
    assert api.policy()["max_sessions"] == 9


def test_a_deleted_file_reverts_nothing(file, serve):
    """A deleted file reverts nothing."""
    put(file, '{"max_sessions": 7}')
    api = serve()
    file.unlink()
    time.sleep(2.5)
    assert api.policy()["max_sessions"] == 7


def test_it_sets_a_runtime_s_ceilings(file, serve):
    """The same update as PUT /policy."""
    api = serve()
    alias = api.policy()["default_runtime"]
    put(file, json.dumps({"runtimes": {alias: {"pids_limit": 55}}}))
    value = lambda: next(r["pids_limit"] for r in api.policy()["runtimes"] if r["alias"] == alias)  # noqa: E731
    assert eventually(lambda: value() == 55)


def cases():
    """What cannot be used. (The reference does not start with a file that is not UTF-8.)"""
    ours = {"not UTF-8": [pytest.mark.ours]}
    return [pytest.param(content, id=name, marks=ours.get(name, [])) for name, content in BROKEN.items()]


@pytest.mark.parametrize("content", cases())
def test_what_cannot_be_used_is_ignored_at_the_start(file, serve, content):
    """Malformed, unreadable or forbidden content is ignored."""
    put(file, content)
    assert serve().policy()["max_sessions"] == 20


def test_an_unreadable_file_is_ignored_at_the_start(file, serve):
    """Unreadable content is ignored."""
    file.mkdir()
    assert serve().policy()["max_sessions"] == 20


@pytest.mark.parametrize("content", cases())
def test_what_cannot_be_used_leaves_the_earlier_values(file, serve, content):
    """The earlier values stand; a good file after it is applied."""
    put(file, '{"max_sessions": 7}')
    api = serve()
    put(file, content)
    time.sleep(1.6)
    assert api.policy()["max_sessions"] == 7
    put(file, '{"max_sessions": 8}')
    assert eventually(lambda: api.policy()["max_sessions"] == 8)


@pytest.mark.parametrize("content", [BROKEN["not JSON"], BROKEN["a forbidden field"]], ids=["malformed", "forbidden"])
def test_what_cannot_be_used_is_logged(file, serve, content):
    """Logged and ignored."""
    put(file, content)
    api = serve()
    assert eventually(lambda: "overrides" in api.service.log())
