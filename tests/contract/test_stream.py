"""The same `/run`, as a stream of events (`Accept: text/event-stream`): an addition of ours."""

import base64
import contextlib
import json
import threading
import time

import httpx
import pytest
from client import DEADLINES, HEADER, eventually, run_id

pytestmark = [pytest.mark.sandbox, pytest.mark.ours]
ACCEPT = "text/event-stream"
#: What the last event of a command that ended has: all that the plain answer has but the output itself.
END = {"exit_code", "timed_out", "output_limited", "output_limit"}
#: How often a silent stream shows that it is alive, in seconds.
HEARTBEAT = 10
TICK = "while :; do echo x >> ticks; sleep 0.05; done"


@contextlib.contextmanager
def streamed(session, *argv, run=None, accept=ACCEPT, token=None, timeout=300, **options):
    """The answer, of which nothing but the head has been read."""
    headers = {HEADER: token or session.token, "Accept": accept}
    body = {"argv": argv, "run_id": run or run_id(), **options}
    with session.api.http.stream("POST", f"/sessions/{session.id}/run", headers=headers, json=body, timeout=timeout) as answer:
        yield answer


def events(answer):
    """What comes, as `(name, data)`: a comment has no name, data of a stream is bytes, that of an end is an object."""
    name, data = None, None
    for line in answer.iter_lines():
        if line.startswith(":"):
            yield None, line[1:].strip()
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif line == "" and name is not None:
            yield name, base64.b64decode(data, validate=True) if name in ("stdout", "stderr") else json.loads(data)
            name, data = None, None


def collect(session, script, **options):
    """Every event but comments of a shell script."""
    with streamed(session, "sh", "-c", script, **options) as answer:
        assert answer.status_code == 200
        return [event for event in events(answer) if event[0] is not None]


def of(name, seen):
    """All the bytes of a stream."""
    return b"".join(data for event, data in seen if event == name)


def size(session, path):
    answer = session.file("stat", path)
    return answer.json()["size"] if answer.status_code == 200 else 0


def test_who_asks_gets_a_stream_that_nobody_keeps(session):
    """text/event-stream."""
    with streamed(session, "true") as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, ACCEPT)
        assert answer.headers["cache-control"] == "no-store"
        answer.read()


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/plain"])
def test_who_does_not_ask_gets_the_plain_answer(session, accept):
    """Only when asked."""
    with streamed(session, "echo", "a", accept=accept) as answer:
        answer.read()
    assert answer.json()["stdout"] == "a\n"


@pytest.mark.parametrize("accept", ["application/json, text/event-stream;q=0.9", "text/event-stream; charset=utf-8"])
def test_it_is_asked_for_among_others(session, accept):
    """Accept, as RFC 9110 has it."""
    with streamed(session, "true", accept=accept) as answer:
        assert answer.headers["content-type"] == ACCEPT
        answer.read()


def test_both_streams_come_apart_and_whole(session):
    """Pieces per stream."""
    seen = collect(session, "for i in $(seq 500); do echo out $i; echo err $i >&2; done")
    assert of("stdout", seen) == b"".join(b"out %d\n" % n for n in range(1, 501))
    assert of("stderr", seen) == b"".join(b"err %d\n" % n for n in range(1, 501))


def test_bytes_that_are_no_text_come_as_they_are(session):
    """Base64."""
    seen = collect(session, r"printf '\000\377\303('; printf '\r\n\nevent: exit\ndata: {}\n\n' >&2")
    assert of("stdout", seen) == b"\0\xff\xc3(" and of("stderr", seen) == b"\r\n\nevent: exit\ndata: {}\n\n"
    assert [name for name, _ in seen].count("exit") == 1


def test_a_piece_comes_before_the_command_ends(session, work):
    """As it comes."""
    script = f"echo first; until [ -e {work}/go ]; do sleep 0.05; done; echo second"
    with streamed(session, "sh", "-c", script) as answer:
        coming = events(answer)
        first = next(event for event in coming if event[0] is not None)
        assert first == ("stdout", b"first\n")
        session.put(f"{work}/go")
        assert [event for event in coming if event[0] is not None][0] == ("stdout", b"second\n")


def test_the_stream_begins_when_the_command_has(session, work):
    """A client knows that it runs before it says anything."""
    with streamed(session, "sh", "-c", f"until [ -e {work}/go ]; do sleep 0.05; done") as answer:
        assert answer.status_code == 200
        session.put(f"{work}/go")
        assert [name for name, _ in events(answer) if name is not None] == ["exit"]


@pytest.mark.parametrize("field", sorted(END))
def test_the_end_has_a_field(session, field):
    """All that the plain answer says of an end."""
    name, end = collect(session, "exit 3")[-1]
    assert name == "exit" and field in end and "stdout" not in end


@pytest.mark.parametrize(
    ("script", "options", "end"),
    [
        ("true", {}, {"exit_code": 0, "timed_out": False, "output_limited": False}),
        ("exit 3", {}, {"exit_code": 3, "timed_out": False, "output_limited": False}),
        ("kill -9 $$", {}, {"exit_code": 137, "timed_out": False}),
        ("echo a; sleep 60", {"timeout_seconds": 1}, {"exit_code": None, "timed_out": True}),
        ("yes", {}, {"output_limited": True}),
    ],
    ids=["well", "a status", "a signal", "its deadline", "its output"],
)
def test_every_end_is_told_once_and_last(session, script, options, end):
    """Exactly one terminal event."""
    seen = collect(session, script, **options)
    assert [name for name, _ in seen if name not in ("stdout", "stderr")] == ["exit"]
    name, told = seen[-1]
    plain = session.sh(script, **options)
    assert name == "exit" and told.items() >= {key: plain[key] for key in end}.items()
    assert all(told[key] == value for key, value in end.items() if value is not None)


def test_a_program_that_is_not_there_ends_as_in_the_plain_answer(session):
    """126 and 127."""
    with streamed(session, "no-such-program") as answer:
        seen = [event for event in events(answer) if event[0] is not None]
    plain = session.run("no-such-program")
    assert seen[-1][1]["exit_code"] == plain["exit_code"] and of("stderr", seen).decode() == plain["stderr"]


def test_a_stop_ends_it(session, work):
    """POST /runs/{run_id}/stop."""
    run = run_id()
    with streamed(session, "sh", "-c", "echo up; sleep 600", run=run) as answer:
        coming = events(answer)
        assert next(event for event in coming if event[0] is not None) == ("stdout", b"up\n")
        assert session.stop(run).status_code == 204
        assert [name for name, _ in coming if name is not None] == ["exit"]


def test_a_session_that_ends_under_it_is_an_error_at_its_end(api, session):
    """A clean error."""
    with streamed(session, "sh", "-c", "echo up; sleep 600") as answer:
        coming = events(answer)
        assert next(event for event in coming if event[0] is not None) == ("stdout", b"up\n")
        closing = threading.Thread(target=session.close)
        closing.start()
        rest = [event for event in coming if event[0] is not None]
        closing.join()
    assert [name for name, _ in rest] in (["error"], ["exit"]), rest
    name, data = rest[-1]
    assert "detail" in data if name == "error" else data["exit_code"] != 0


def test_a_silent_stream_shows_that_it_is_alive(session):
    """A heartbeat."""
    with streamed(session, "sleep", str(HEARTBEAT + 3)) as answer:
        seen = list(events(answer))
    assert (None, "heartbeat") in seen and [name for name, _ in seen if name] == ["exit"], seen


def test_a_reader_that_goes_away_stops_the_run(session, work):
    """A gone reader stops the run, with all that it has started."""
    with streamed(session, "sh", "-c", f"echo up; setsid sh -c '{TICK}' & {TICK}") as answer:
        # Held: a generator that is gone closes the connection.
        coming = events(answer)
        assert next(event for event in coming if event[0] is not None) == ("stdout", b"up\n")
        assert eventually(lambda: size(session, f"{work}/ticks") > 0)

    def still():
        before = size(session, f"{work}/ticks")
        time.sleep(0.5)
        return size(session, f"{work}/ticks") == before

    assert eventually(still)


def test_a_silent_command_ends_as_well_when_its_reader_goes(session, work):
    """Also where nothing is written that would tell."""
    with streamed(session, "sh", "-c", TICK):
        assert eventually(lambda: size(session, f"{work}/ticks") > 0)
    last = [-1]

    def still():
        last.append(size(session, f"{work}/ticks"))
        time.sleep(0.5)
        return last[-1] == size(session, f"{work}/ticks")

    assert eventually(still)


def test_a_slow_reader_gets_all_of_it(session):
    """The command waits for its reader."""
    count = 8 << 20
    with streamed(session, "sh", "-c", f"head -c {count} /dev/zero") as answer:
        time.sleep(2)
        seen = [event for event in events(answer) if event[0] is not None]
    assert len(of("stdout", seen)) == count and seen[-1] == ("exit", seen[-1][1]) and seen[-1][1]["exit_code"] == 0


def test_it_is_in_the_session_s_events(session):
    """Recorded as any command."""
    with streamed(session, "sh", "-c", "exit 3") as answer:
        answer.read()
    event = session.last()
    assert (event["op"], event["ok"], event["detail"]) == ("run", False, "exit 3") and "exit 3" in event["target"], event


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"token": "0" * 64}, 401),
        ({"argv": []}, 422),
        ({"argv": ["a\0b"]}, 422),
        ({"timeout_seconds": 0}, 422),
        ({"run_id": "x/y"}, 422),
    ],
    ids=["another's token", "no argument", "no argument of the kernel's", "no time", "no run's name"],
)
def test_what_is_refused_has_a_status_and_no_stream(session, change, status):
    """Refused before the stream begins."""
    body = {"argv": ["true"], "run_id": run_id()} | {key: value for key, value in change.items() if key != "token"}
    headers = {"Accept": ACCEPT}
    answer = session.call("POST", "/run", json=body, headers=headers, token=change.get("token", session.token))
    assert answer.status_code == status and answer.headers["content-type"] == "application/json", answer.text


def test_a_run_of_that_name_is_409(session, work):
    """A run of that id is running: a status, not an event."""
    run = run_id()
    with streamed(session, "sh", "-c", f"echo up; until [ -e {work}/go ]; do sleep 0.05; done", run=run) as answer:
        coming = events(answer)
        next(event for event in coming if event[0] is not None)
        with streamed(session, "true", run=run) as other:
            other.read()
        assert other.status_code == 409 and other.headers["content-type"] == "application/json", other.text
        session.put(f"{work}/go")
        assert [name for name, _ in coming if name is not None] == ["exit"]


@pytest.mark.settings(max_running_commands=1)
def test_one_command_too_many_is_429(session, work):
    """max_running_commands: a status, not an event."""
    with streamed(session, "sh", "-c", f"echo up; until [ -e {work}/go ]; do sleep 0.05; done") as answer:
        coming = events(answer)
        next(event for event in coming if event[0] is not None)
        with streamed(session, "true") as other:
            other.read()
        assert other.status_code == 429 and "detail" in other.json(), other.text
        session.put(f"{work}/go")
        assert [name for name, _ in coming if name is not None] == ["exit"]
    assert eventually(lambda: session.try_run("true").status_code == 200)


@pytest.mark.settings(max_sessions=1, evict_idle_after=0, prewarm="false")
def test_a_sleeper_is_woken_for_it(api, session):
    """As for any command."""
    other = api.open()
    assert session.info()["state"] == "hibernated"
    other.close()
    assert of("stdout", collect(session, "echo awake")) == b"awake\n"


def test_a_reader_that_goes_before_it_begins_leaves_nothing(session, work):
    """Nobody waits: nothing runs."""
    for seconds in DEADLINES:
        with contextlib.suppress(httpx.TimeoutException):
            with streamed(session, "sh", "-c", TICK, timeout=seconds / 100) as answer:
                answer.read()
    before = -1

    def still():
        nonlocal before
        last, before = before, size(session, f"{work}/ticks")
        time.sleep(0.3)
        return last == before

    assert eventually(still)
