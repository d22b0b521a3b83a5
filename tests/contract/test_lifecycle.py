"""Lifecycle: what ends or sleeps by itself, what wakes it, and what stays."""

import threading
import time

import pytest
from client import eventually, fresh_id, in_rhythm, run_id

pytestmark = pytest.mark.sandbox
#: One sandbox at a time; whoever is idle gives way at once.
one = pytest.mark.settings(max_sessions=1, evict_idle_after=0, prewarm="false")
two = pytest.mark.settings(max_sessions=2, evict_idle_after=0, prewarm="false")
IDLE = 2
short = pytest.mark.settings(idle_timeout=IDLE, cleanup_interval=1, prewarm="false")
persist = pytest.mark.settings(persist_containers="true", prewarm="false")
OPS = ["read", "write", "stat", "list", "realpath", "mkdir", "remove"]


def do(session, op, path):
    return session.write(path, b"new") if op == "write" else session.file(op, path)


def gone(api, session):
    return api.get(f"/sessions/{session.id}").status_code == 404


@pytest.fixture
def asleep(api, work):
    """A session with a file and an event that was put to sleep by a newcomer."""
    session = api.open(tenant="acme")
    session.put(f"{work}/a", b"kept")
    session.run("echo", "before")
    session.newcomer = api.open()
    assert session.info()["state"] == "hibernated"
    return session


class Busy:
    """A command that runs until it is let go."""

    def __init__(self, session):
        self.session, self.run = session, run_id()
        self.mark = f"{session.api.policy()['work_dir']}/{self.run}"
        script = f": > {self.mark}; exec sleep 600"
        self.thread = threading.Thread(target=lambda: session.try_run("sh", "-c", script, run=self.run, timeout=600))

    def __enter__(self):
        self.thread.start()
        assert eventually(lambda: self.session.file("stat", self.mark).status_code == 200)
        return self

    def __exit__(self, *_):
        self.session.stop(self.run)
        self.thread.join(60)


# ---- idle_timeout


@short
def test_an_idle_session_is_closed(api):
    """idle_timeout: an idle session's sandbox is closed."""
    session = api.open()
    assert eventually(lambda: gone(api, session))
    assert eventually(lambda: api.health()["sessions"] == 0)


@short
def test_an_idle_session_s_workspace_stays(api, work):
    """Its workspace stays."""
    session = api.open()
    session.put(f"{work}/a", b"kept")
    assert eventually(lambda: gone(api, session))
    assert api.open(session_id=session.id, attach=True).read(f"{work}/a") == b"kept"


@short
def test_a_session_under_a_command_is_not_idle(api):
    """Never while a command is under way."""

    def work(rhythm):
        session = api.open()
        answer = session.try_run("sh", "-c", f"sleep {3 * IDLE}; echo done")
        # What it took beyond its sleep was before it began, or after.
        rhythm.last += 3 * IDLE
        assert answer.status_code == 200 and answer.json()["stdout"] == "done\n"

    in_rhythm(IDLE / 2, work)


@short
def test_a_session_under_a_file_operation_is_not_idle(api, work):
    """Never while a file operation is under way."""

    def slowly(rhythm):
        for _ in range(8):
            rhythm.step()
            yield b"x" * 10
            time.sleep(IDLE / 2.5)

    def write(rhythm):
        session = api.open()
        answer = session.write(f"{work}/a", slowly(rhythm))
        rhythm.step()
        assert answer.status_code == 204
        assert session.read(f"{work}/a") == b"x" * 80

    in_rhythm(IDLE * 0.8, write)


@short
@pytest.mark.parametrize("op", ["run", "stat", "write"])
def test_a_session_that_is_used_is_not_idle(api, work, op):
    """File operations count as activity."""

    def use(rhythm):
        session = api.open()
        for _ in range(8):
            rhythm.step()
            time.sleep(IDLE / 2.5)
            if op == "run":
                session.run("true")
            else:
                do(session, op, work if op == "stat" else f"{work}/a")
        rhythm.step()
        assert not gone(api, session)

    in_rhythm(IDLE * 0.8, use)


@short
def test_looking_does_not_keep_a_session(api):
    """GET is no activity."""
    session = api.open()
    assert eventually(lambda: (session.info(), gone(api, session))[1])


@pytest.mark.settings(idle_timeout=3600, cleanup_interval=1, prewarm="false")
def test_a_session_within_its_time_stays(api):
    """idle_timeout."""
    session = api.open()
    time.sleep(2.5)
    assert session.info()["alive"]


# ---- hibernation


@one
def test_a_newcomer_puts_an_idle_session_to_sleep(api):
    """With evict_idle_after, the least recently used idle session is hibernated."""
    session = api.open()
    newcomer = api.open()
    assert session.info().items() >= {"state": "hibernated", "alive": False}.items()
    assert newcomer.info()["state"] == "running"


@two
def test_the_least_recently_used_session_sleeps(api):
    """The least recently used."""
    first, second = api.open(), api.open()
    time.sleep(0.05)
    first.run("true")
    api.open()
    assert (first.info()["state"], second.info()["state"]) == ("running", "hibernated")


@two
def test_a_file_operation_is_use(api, work):
    """File operations count as activity."""
    first, second = api.open(), api.open()
    time.sleep(0.05)
    first.put(f"{work}/a")
    api.open()
    assert (first.info()["state"], second.info()["state"]) == ("running", "hibernated")


@one
def test_a_sleeper_s_token_stays(asleep):
    """Its token stays."""
    assert asleep.call("GET", "").status_code == 200


@one
def test_a_sleeper_s_events_stay(asleep, work):
    """Its events stay."""
    assert [event["target"] for event in asleep.events()["events"]] == [f"{work}/a", "echo before"]


@one
def test_a_sleeper_s_files_stay(asleep, work):
    """Its files stay."""
    assert asleep.read(f"{work}/a") == b"kept"


@one
def test_a_sleeper_s_tenant_and_runtime_stay(asleep):
    """It is the session that it was."""
    info = asleep.info()
    assert (info["tenant"], info["runtime"], info["created_at"]) == (
        "acme",
        asleep.opened_as["runtime"],
        asleep.opened_as["created_at"],
    )


@one
def test_a_sleeper_is_listed(api, asleep):
    """GET /sessions: resident and asleep."""
    states = {entry["session_id"]: entry["state"] for entry in api.get("/sessions").json()["sessions"]}
    assert states[asleep.id] == "hibernated"


@one
def test_a_sleeper_uses_nothing(asleep):
    """usage: null, or all of it null, where there is nothing to measure."""
    usage = asleep.info(params={"usage": "true"})["usage"]
    assert usage is None or not any(usage.values())


@one
def test_health_counts_sleepers_apart(api, asleep):
    """sessions: holding a sandbox now; open_sessions: existing."""
    health = api.health()
    assert (health["sessions"], health["open_sessions"]) == (1, 2)


@one
def test_looking_at_a_sleeper_does_not_wake_it(api, asleep):
    """Never wakes or revives a sandbox."""
    asleep.info(), asleep.events(), api.get("/sessions", params={"usage": "true"})
    assert asleep.info()["state"] == "hibernated"


@one
def test_a_command_wakes_a_sleeper(asleep, work):
    """Its next command wakes it."""
    assert asleep.out(f"cat {work}/a") == "kept"
    assert asleep.info().items() >= {"state": "running", "alive": True}.items()


@one
def test_waking_puts_another_to_sleep(asleep):
    """max_sessions counts sandboxes that are resident or starting."""
    asleep.run("true")
    assert asleep.newcomer.info()["state"] == "hibernated"


@one
def test_sessions_take_turns(asleep):
    """Again and again, on the same tokens."""
    for turn in range(4):
        for session in (asleep, asleep.newcomer):
            assert session.run("echo", str(turn))["stdout"] == f"{turn}\n"


@one
def test_events_go_on_after_waking(asleep):
    """seq rises by one."""
    asleep.run("echo", "after")
    assert [event["seq"] for event in asleep.events()["events"]] == [1, 2, 3]


@one
@pytest.mark.parametrize("how", ["reuse", "attach"])
def test_attaching_wakes_a_sleeper(api, asleep, how):
    """Attaching to a hibernated session wakes it; its existing token."""
    again = api.open(session_id=asleep.id, **{how: True})
    assert again.token == asleep.token and again.opened_as["state"] == "running"


@one
@pytest.mark.parametrize("op", OPS)
def test_a_file_operation_does_not_wake_a_sleeper(asleep, work, op):
    """On a hibernated session they are served without waking it."""
    path = {"list": work, "mkdir": f"{work}/d"}.get(op, f"{work}/a")
    assert do(asleep, op, path).status_code in (200, 204)
    assert asleep.info()["state"] == "hibernated"


@one
def test_what_is_written_to_a_sleeper_is_there_when_it_wakes(asleep, work):
    """Served without waking it."""
    asleep.put(f"{work}/b/c", b"while asleep")
    assert asleep.out(f"cat {work}/b/c && echo more >> {work}/b/c") == "while asleep"


@one
def test_a_stop_does_not_wake_a_sleeper(asleep):
    """stop: 204, also for a session without a sandbox."""
    assert asleep.stop("0" * 32).status_code == 204
    assert asleep.info()["state"] == "hibernated"


@one
def test_a_sleeper_is_closed(api, asleep):
    """DELETE: 204."""
    asleep.close()
    assert gone(api, asleep) and api.health()["open_sessions"] == 1


@one
def test_a_sleeper_is_purged(api, asleep):
    """purge of a hibernated session."""
    asleep.close(purge=True)
    assert api.post("/sessions", {"session_id": asleep.id, "attach": True}).status_code == 404


@one
def test_a_busy_session_is_not_put_to_sleep(api):
    """429 when nobody idle can be hibernated."""
    session = api.open()
    with Busy(session):
        assert api.try_open().status_code == 429
        assert session.info()["state"] == "running"
    assert api.try_open().status_code == 200


@one
def test_no_room_to_wake_is_429(asleep):
    """run: 429 hibernated and no room to wake."""
    with Busy(asleep.newcomer):
        assert asleep.try_run("true").status_code == 429
    assert asleep.run("true")["exit_code"] == 0


@one
def test_no_room_to_wake_by_attaching_is_429(api, asleep):
    """429 at max_sessions."""
    with Busy(asleep.newcomer):
        assert api.try_open(session_id=asleep.id, attach=True).status_code == 429


@pytest.mark.settings(max_sessions=1, evict_idle_after=3600, prewarm="false")
def test_a_session_that_is_not_idle_for_long_enough_is_not_put_to_sleep(api):
    """evict_idle_after."""
    session = api.open()
    assert api.try_open().status_code == 429
    assert session.info()["state"] == "running"


@pytest.mark.settings(max_sessions=1, evict_idle_after=1, prewarm="false")
def test_a_session_is_put_to_sleep_once_idle_for_long_enough(api):
    """evict_idle_after."""
    api.open()
    time.sleep(1.1)
    assert api.try_open().status_code == 200


@pytest.mark.settings(max_sessions=1, prewarm="false")
def test_without_eviction_the_newcomer_is_refused(api):
    """429 at max_sessions."""
    api.open()
    assert api.try_open().status_code == 429


@pytest.mark.settings(max_sessions=1, max_open_sessions=2, evict_idle_after=0, prewarm="false")
def test_at_the_ceiling_of_open_sessions_the_longest_asleep_is_closed(api, work):
    """max_open_sessions counts resident and hibernated together; the longest asleep is closed."""
    first, second = api.open(), api.open()
    first.put(f"{work}/a", b"kept")
    third = api.open()
    assert gone(api, first)
    assert (second.info()["state"], third.info()["state"]) == ("hibernated", "running")


@pytest.mark.settings(max_sessions=1, max_open_sessions=2, evict_idle_after=0, prewarm="false")
def test_what_the_longest_asleep_wrote_is_kept(api, work):
    """Closed: its workspace stays."""
    first = api.open()
    first.put(f"{work}/a", b"kept")
    api.open(), api.open()
    assert gone(api, first)
    assert api.open(session_id=first.id, attach=True).read(f"{work}/a") == b"kept"


@pytest.mark.settings(max_sessions=2, max_open_sessions=2, evict_idle_after=0, prewarm="false")
def test_all_awake_and_busy_is_429(api):
    """All awake and busy: 429."""
    first, second = api.open(), api.open()
    with Busy(first), Busy(second):
        assert api.try_open().status_code == 429


# ---- what is kept


@persist
def test_what_was_installed_survives_a_stop(api):
    """persist_containers: what a session installed outside the workspace survives a stop."""
    session = api.open()
    session.out("echo installed > $HOME/thing")
    session.close()
    assert api.open(session_id=session.id, reuse=True).out("cat $HOME/thing") == "installed\n"


@persist
def test_what_was_installed_is_purged(api):
    """purge also deletes the write layer."""
    session = api.open()
    session.out("echo installed > $HOME/thing")
    session.close(purge=True)
    assert api.open(session_id=session.id, reuse=True).sh("cat $HOME/thing")["exit_code"] == 1


@pytest.mark.settings(persist_containers="false", prewarm="false")
def test_what_was_installed_does_not_survive_unless_told(api, work):
    """persist_containers (false): the workspace alone."""
    session = api.open()
    session.out(f"echo installed > $HOME/thing; echo kept > {work}/a")
    session.close()
    again = api.open(session_id=session.id, reuse=True)
    assert again.sh("cat $HOME/thing")["exit_code"] == 1 and again.out(f"cat {work}/a") == "kept\n"


@pytest.mark.settings(persist_containers="true", max_sessions=1, evict_idle_after=0, prewarm="false")
def test_what_was_installed_survives_sleep(api):
    """A stop by hibernation is one."""
    session = api.open()
    session.out("echo installed > $HOME/thing")
    api.open()
    assert session.out("cat $HOME/thing") == "installed\n"


@pytest.mark.settings(persist_containers="true", container_ttl=1, cleanup_interval=1, prewarm="false")
def test_what_was_installed_is_reclaimed_after_its_time(api, work):
    """container_ttl reclaims that layer once stopped for so long, never the workspace."""
    session = api.open()
    session.out(f"echo installed > $HOME/thing; echo kept > {work}/a")
    session.close()
    # Looking is opening: each look begins its time anew, so each waits longer.
    for seconds in (4, 8, 16, 32):
        time.sleep(seconds)
        again = api.open(session_id=session.id, reuse=True)
        assert again.out(f"cat {work}/a") == "kept\n"
        if again.sh("cat $HOME/thing")["exit_code"] == 1:
            return
        again.close()
    raise AssertionError("what was installed is there still")


@pytest.mark.settings(persist_containers="true", container_ttl=1, cleanup_interval=1, prewarm="false")
def test_what_is_in_use_is_not_reclaimed(api):
    """container_ttl: once stopped."""
    session = api.open()
    session.out("echo installed > $HOME/thing")
    time.sleep(3.5)
    assert session.out("cat $HOME/thing") == "installed\n"


@pytest.mark.settings(workspace_ttl=1, cleanup_interval=1, prewarm="false")
def test_a_workspace_is_swept_after_its_time(api, work):
    """workspace_ttl sweeps workspaces not opened for so long."""
    session = api.open()
    session.put(f"{work}/a")
    session.close()
    swept = lambda: api.post(f"/workspaces/{session.id}/ls", {"path": "."}).status_code == 404  # noqa: E731
    assert eventually(swept)
    assert api.post("/sessions", {"session_id": session.id, "attach": True}).status_code == 404


@pytest.mark.settings(workspace_ttl=1, cleanup_interval=1, prewarm="false")
def test_an_open_workspace_is_not_swept(api, work):
    """Never an open one."""
    session = api.open()
    session.put(f"{work}/a", b"kept")
    time.sleep(3.5)
    assert session.out(f"cat {work}/a") == "kept"


@pytest.mark.settings(workspace_ttl=1, cleanup_interval=1, max_sessions=1, evict_idle_after=0, prewarm="false")
def test_a_sleeper_s_workspace_is_not_swept(api, work):
    """Never an open one, asleep or not."""
    session = api.open()
    session.put(f"{work}/a", b"kept")
    api.open()
    time.sleep(3.5)
    assert session.out(f"cat {work}/a") == "kept"


@pytest.mark.settings(cleanup_interval=1, prewarm="false")
def test_a_workspace_is_kept_for_ever_unless_told(api, work):
    """workspace_ttl (unset = kept for ever)."""
    session = api.open()
    session.put(f"{work}/a", b"kept")
    session.close()
    time.sleep(2.5)
    assert api.open(session_id=session.id, attach=True).read(f"{work}/a") == b"kept"


# ---- prewarm


@pytest.mark.settings(runtimes="fails=127.0.0.1:1/image:1,works=@base", insecure_registries="127.0.0.1:1", prewarm="true")
def test_a_runtime_that_cannot_be_made_ready_is_skipped(api):
    """prewarm: one that fails is logged and skipped."""
    assert api.open(runtime="works").run("true")["exit_code"] == 0
    assert eventually(lambda: "fails" in api.service.log())
    assert api.health()["status"] == "ok"


@pytest.mark.settings(runtimes="fails=127.0.0.1:1/image:1,works=@base", insecure_registries="127.0.0.1:1", prewarm="true")
def test_requests_are_served_while_runtimes_are_made_ready(api):
    """prewarm: in the background at start."""
    assert api.open(session_id=fresh_id(), runtime="works").info()["alive"]
