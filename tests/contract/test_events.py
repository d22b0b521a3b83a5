"""Events: what was done to a session, and never with what."""

import shlex

import pytest
from client import fresh_id

pytestmark = pytest.mark.sandbox
SECRET = "hunter2-swordfish"
FIELDS = ["seq", "at", "op", "target", "ok", "detail", "duration_ms"]
OPS = {"read": "read", "write": "write", "stat": "stat", "list": "ls", "realpath": "realpath", "mkdir": "mkdir", "remove": "remove"}
COMMANDS = [
    ["echo", "plain"],
    ["echo", "two words"],
    ["echo", "it's"],
    ["echo", '"quoted"'],
    ["echo", ""],
    ["echo", "$HOME;`id`"],
    ["echo", "zażółć"],
    ["echo", "a\nb"],
    ["echo", "-n", "--", "*"],
    ["sh", "-c", "echo 'a  b' | wc -c"],
]


def test_a_new_session_has_none(session):
    """SessionEvents {events, latest_seq}."""
    assert session.events() == {"events": [], "latest_seq": 0}


@pytest.mark.parametrize("field", FIELDS)
def test_an_event_has_a_field(session, field):
    """SessionEvent."""
    session.run("true")
    assert field in session.last()


def test_an_event_s_numbers_are_numbers(session):
    """at, duration_ms."""
    session.run("sleep", "0.2")
    event = session.last()
    assert 200 <= event["duration_ms"] < 60_000 and abs(event["at"] - session.info()["last_activity"]) < 60


def test_a_command_is_recorded(session):
    """op: run; target: the command."""
    session.run("echo", "hello")
    event = session.last()
    assert (event["op"], event["target"], event["ok"], event["detail"]) == ("run", "echo hello", True, "exit 0")


@pytest.mark.parametrize("op", OPS)
def test_a_file_operation_is_recorded(session, work, op):
    """op: read, write, stat, ls, realpath, mkdir, remove; target: the path."""
    path = f"{work}/dir" if op in ("list", "mkdir") else f"{work}/dir/a"
    session.put(f"{work}/dir/a")
    answer = session.write(path) if op == "write" else session.file(op, path)
    assert answer.status_code in (200, 204)
    event = session.last()
    assert (event["op"], event["target"], event["ok"]) == (OPS[op], path, True)


@pytest.mark.parametrize("argv", COMMANDS, ids=shlex.join)
def test_a_command_is_shell_quoted(session, argv):
    """target: the command, shell-quoted."""
    session.run(*argv)
    assert shlex.split(session.last()["target"]) == argv


@pytest.mark.parametrize("length", [199, 200])
def test_a_target_of_up_to_200_characters_is_whole(session, length):
    """Cut at 200 characters."""
    session.run("echo", "x" * (length - 5))
    assert session.last()["target"] == "echo " + "x" * (length - 5)


def test_a_longer_command_is_cut(session):
    """Cut at 200 characters with an ellipsis."""
    session.run("echo", "x" * 196)
    assert session.last()["target"] == "echo " + "x" * 195 + "…"


def test_a_longer_path_is_cut(session, work):
    """Cut at 200 characters with an ellipsis."""
    path = f"{work}/{'d' * 150}/{'f' * 150}"
    session.put(path)
    assert session.last()["target"] == path[:200] + "…"


def test_characters_are_counted_and_not_bytes(session):
    """200 characters."""
    path = "/" + "ż" * 250
    session.file("stat", path)
    assert session.last()["target"] == path[:200] + "…"


@pytest.mark.parametrize("code", [0, 1, 42])
def test_a_command_s_detail_is_its_exit_code(session, code):
    """detail: exit 0."""
    session.sh(f"exit {code}")
    event = session.last()
    assert (event["detail"], event["ok"]) == (f"exit {code}", code == 0)


def test_a_command_that_does_not_exist_has_exit_127(session):
    """detail: exit N."""
    session.run("no-such-program")
    assert session.last()["detail"] == "exit 127"


def test_a_command_past_its_deadline_timed_out(session):
    """detail: timed out."""
    session.run("sleep", "30", timeout_seconds=0.2)
    event = session.last()
    assert (event["detail"], event["ok"]) == ("timed out", False)


def test_a_command_that_says_too_much_passed_the_limit(session):
    """detail: output limit."""
    session.sh("head -c 11000000 /dev/zero")
    event = session.last()
    assert (event["detail"], event["ok"]) == ("output limit", False)


@pytest.mark.parametrize("op", ["read", "stat", "list", "remove"])
def test_a_missing_file_s_detail(session, work, op):
    """detail: not found."""
    session.file(op, f"{work}/missing")
    event = session.last()
    assert (event["detail"], event["ok"]) == ("not found", False)


@pytest.mark.parametrize(
    ("op", "path", "name"),
    [
        ("read", "dir", "IsADirectoryError"),
        ("list", "file", "NotADirectoryError"),
        ("mkdir", "file", "FileExistsError"),
        ("remove", "", "ValueError"),
    ],
)
def test_a_path_error_s_detail_is_its_name(session, work, op, path, name):
    """detail: or an error's name."""
    session.put(f"{work}/file")
    session.file("mkdir", f"{work}/dir")
    session.file(op, f"{work}/{path}".rstrip("/"))
    event = session.last()
    assert (event["detail"], event["ok"]) == (name, False)


def test_a_file_that_the_sandbox_has_to_resolve(session, work):
    """detail: via the sandbox."""
    session.out(f"head -c {9 << 20} /dev/zero > {work}/big")
    assert session.file("read", f"{work}/big").status_code == 409
    event = session.last()
    assert (event["detail"], event["ok"]) == ("via the sandbox", False)


def test_numbers_rise_by_one(session):
    """seq."""
    for _ in range(4):
        session.run("true")
    events = session.events()
    assert [event["seq"] for event in events["events"]] == [1, 2, 3, 4] and events["latest_seq"] == 4


def test_events_after_a_number(session):
    """after=SEQ."""
    for word in ("a", "b", "c"):
        session.run("echo", word)
    events = session.events(after=1)
    assert [event["target"] for event in events["events"]] == ["echo b", "echo c"] and events["latest_seq"] == 3


@pytest.mark.parametrize("after", [2, 1000])
def test_nothing_is_after_the_latest(session, after):
    """after=SEQ, latest_seq."""
    session.run("true"), session.run("true")
    assert session.events(after=after) == {"events": [], "latest_seq": 2}


@pytest.mark.parametrize("after", ["-1", "x", "1.5", ""])
def test_after_is_0_or_more(session, after):
    """after >= 0."""
    answer = session.call("GET", "/events", params={"after": after})
    assert answer.status_code == 422 and "after" in answer.json()["detail"][0]["loc"]


def test_looking_is_no_event(session):
    """Operations are run and the file operations."""
    session.info(), session.events()
    assert session.events()["latest_seq"] == 0


def test_a_request_that_does_not_validate_is_no_event(session):
    """Nothing was done."""
    session.call("POST", "/run", json={"argv": []})
    session.call("POST", "/files/read", json={})
    assert session.events()["latest_seq"] == 0


@pytest.mark.parametrize("what", ["output", "errors", "environment", "input of a write", "contents of a read"])
def test_a_payload_is_never_recorded(session, work, what):
    """Never file contents, never a command's output."""
    session.put(f"{work}/a", SECRET.encode())
    if what == "output":
        assert SECRET in session.run("cat", f"{work}/a")["stdout"]
    elif what == "errors":
        assert SECRET in session.sh(f"cat {work}/a >&2; exit 3")["stderr"]
    elif what == "environment":
        session.run("true", env={"SECRET": SECRET})
    elif what == "contents of a read":
        session.read(f"{work}/a")
    assert SECRET not in session.call("GET", "/events").text


def test_events_of_another_session_are_not_seen(api, session):
    """Each session has its own."""
    session.run("echo", "mine")
    assert api.open().events()["events"] == []


def test_operations_at_once_have_different_numbers(session, work):
    """seq rises by one, whoever asks."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: session.put(f"{work}/{n}"), range(24)))
    assert [event["seq"] for event in session.events()["events"]] == list(range(1, 25))


def test_a_new_session_of_an_old_name_begins_at_1(api, work):
    """Events are the session's, not the name's."""
    first = api.open(session_id=fresh_id())
    first.put(f"{work}/a")
    first.close()
    again = api.open(session_id=first.id, reuse=True)
    assert [event["target"] for event in again.events()["events"]] == []
