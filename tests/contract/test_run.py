"""Commands: arguments, streams, status, deadlines and ends."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from client import DEADLINES, eventually, quickest, run_id

pytestmark = pytest.mark.sandbox
FIELDS = {"stdout", "stderr", "exit_code", "timed_out", "output_limited", "output_limit"}
KEPT = 64 * 1024
LIMIT = 10 * 1024 * 1024
TICK = "while :; do echo x >> {work}/ticks; sleep 0.05; done"
#: Ways of a process to get away from the command that started it.
ESCAPES = {
    "a child": "{tick} & wait",
    "setsid": "setsid sh -c '{tick}' & wait",
    "a double fork": "( ( setsid sh -c '{tick}' & ) & ) ; sleep 60",
    "nohup": "nohup sh -c '{tick}' >/dev/null 2>&1 & sleep 60",
    "an orphan": "sh -c '{tick}' </dev/null >/dev/null 2>&1 & sleep 60",
    "deaf to TERM": "trap '' TERM HUP INT; {tick}",
}
PLAIN = {"timed_out": False, "output_limited": False, "output_limit": None}


def escape(name, work):
    return ESCAPES[name].format(tick=TICK.format(work=work))


def ticks(session, work):
    answer = session.file("stat", f"{work}/ticks")
    return answer.json()["size"] if answer.status_code == 200 else 0


def still(session, work):
    """Whether nothing ticks any more."""
    before = ticks(session, work)
    time.sleep(0.5)
    return ticks(session, work) == before


def goes_on(session, work):
    """Whether something ticks still."""
    before = ticks(session, work)
    return eventually(lambda: ticks(session, work) > before)


@pytest.fixture
def started(session, work):
    """Start a command in the background and wait until it ticks; its run and its answer."""
    threads = []

    def start(script, **options):
        run, answers = run_id(), []
        thread = threading.Thread(target=lambda: answers.append(session.try_run("sh", "-c", script, run=run, **options)))
        thread.start()
        threads.append((thread, run))
        assert eventually(lambda: ticks(session, work) > 0)
        return run, thread, answers

    yield start
    for thread, run in threads:
        session.stop(run)
        thread.join(60)


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_the_answer_has_a_field(session, field):
    """RunResponse."""
    assert field in session.run("true")


def test_a_command_that_was_not_stopped_says_so(session):
    """timed_out, output_limited, output_limit."""
    assert session.run("true").items() >= PLAIN.items()


@pytest.mark.parametrize("argument", ["$HOME", "a b", "'", '"', "*", "; id", "`id`", "$(id)", "\\", "a\nb", "", "żółć 🎲", "-"])
def test_an_argument_is_passed_literally(session, argument):
    """argv: passed literally; no shell."""
    assert session.run("printf", "%s", argument)["stdout"] == argument


def test_many_arguments_are_passed(session):
    """argv: as many as there are."""
    assert session.run("sh", "-c", "echo $#", "sh", *["x"] * 5000)["stdout"] == "5000\n"


def test_a_shell_is_there_when_the_client_spells_it(session):
    """No shell unless the client spells it."""
    assert session.run("sh", "-c", "echo a; echo b | tr b c")["stdout"] == "a\nc\n"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"run_id": "0" * 32}, "argv"),
        ({"argv": [], "run_id": "0" * 32}, "argv"),
        ({"argv": "true", "run_id": "0" * 32}, "argv"),
        ({"argv": [1], "run_id": "0" * 32}, "argv"),
        ({"argv": None, "run_id": "0" * 32}, "argv"),
        ({"argv": ["true"]}, "run_id"),
        ({"argv": ["true"], "run_id": None}, "run_id"),
        ({"argv": ["true"], "run_id": "0" * 32, "env": []}, "env"),
        ({"argv": ["true"], "run_id": "0" * 32, "env": {"A": 1}}, "env"),
        ({"argv": ["true"], "run_id": "0" * 32, "timeout_seconds": 0}, "timeout_seconds"),
        ({"argv": ["true"], "run_id": "0" * 32, "timeout_seconds": -1}, "timeout_seconds"),
        ({"argv": ["true"], "run_id": "0" * 32, "timeout_seconds": "soon"}, "timeout_seconds"),
    ],
    ids=str,
)
def test_a_request_that_does_not_validate_is_422_and_names_the_field(session, body, field):
    """argv >= 1 item; env; timeout_seconds > 0; run_id."""
    answer = session.call("POST", "/run", json=body)
    assert answer.status_code == 422 and field in answer.json()["detail"][0]["loc"], answer.text


@pytest.mark.parametrize("body", [{"argv": ["a\0b"]}, {"argv": ["true"], "env": {"A": "a\0b"}}, {"argv": ["true"], "env": {"A=B": "c"}}])
def test_what_no_kernel_takes_is_the_client_s_fault(session, body):
    """Never a 500."""
    assert 400 <= session.call("POST", "/run", json={"run_id": run_id(), **body}).status_code < 500


def test_a_variable_is_set(session):
    """env."""
    assert session.run("sh", "-c", 'printf %s "$A"', env={"A": "b c=d"})["stdout"] == "b c=d"


def test_variables_lie_over_the_sandbox_s_own(session):
    """env: layered over the sandbox's own."""
    assert session.run("sh", "-c", 'printf %s "$PATH"', env={"A": "b"})["stdout"] != ""


@pytest.mark.parametrize("name", ["HOME", "PATH"])
def test_a_variable_replaces_the_sandbox_s_own(session, name):
    """env: layered over."""
    assert session.run("/bin/sh", "-c", f'printf %s "${name}"', env={name: "/mine"})["stdout"] == "/mine"


def test_a_variable_does_not_outlive_its_command(session):
    """env is the request's."""
    session.run("true", env={"ONCE": "1"})
    assert session.out('printf %s "$ONCE"') == ""


def test_the_service_s_own_variables_stay_outside(session, api):
    """The sandbox's own, not the service's."""
    assert "SANDBOXD_" not in session.out("env") and api.service.token not in session.out("env")


def test_streams_are_kept_apart(session):
    """stdout, stderr: kept apart."""
    answer = session.sh("echo out; echo err >&2")
    assert (answer["stdout"], answer["stderr"]) == ("out\n", "err\n")


@pytest.mark.parametrize(
    ("octal", "text"),
    [("\\377a", "\ufffda"), ("a\\303", "a\ufffd"), ("\\200\\200", "\ufffd\ufffd"), ("\\303\\274\\000b", "ü\0b")],
    ids=["never a start", "broken off", "two of them", "not broken"],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_undecodable_bytes_are_replaced_and_not_dropped(session, stream, octal, text):
    """Undecodable bytes replaced, not dropped."""
    assert session.sh(f"printf '{octal}' {'>&2' if stream == 'stderr' else ''}")[stream] == text


def test_a_character_is_not_torn_between_readings(session):
    """Whole characters are not broken where the service reads."""
    answer = session.sh("for i in $(seq 2000); do printf ż; printf '%0.sx' $(seq 30); done")
    assert answer["stdout"] == ("ż" + "x" * 30) * 2000


def test_standard_input_is_at_its_end(session):
    """Standard input is at EOF."""
    answer = session.run("cat", timeout_seconds=120)
    assert (answer["exit_code"], answer["stdout"]) == (0, "")


def test_a_command_starts_in_the_work_directory(session, work):
    """Starts in work_dir."""
    assert session.out("pwd") == f"{work}\n"


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program", "./no-such-program"])
def test_a_program_that_does_not_exist_is_127(session, program):
    """Exit 127."""
    assert session.run(program)["exit_code"] == 127


@pytest.mark.parametrize("code", [0, 1, 2, 127, 255])
def test_an_exit_code_is_told(session, code):
    """exit_code."""
    assert session.sh(f"exit {code}")["exit_code"] == code


@pytest.mark.parametrize(("signal", "code"), [("HUP", 129), ("INT", 130), ("KILL", 137), ("SEGV", 139), ("TERM", 143)])
def test_a_command_killed_by_a_signal_is_128_and_its_number(session, signal, code):
    """Killed by signal N: 128 + N."""
    assert session.sh(f"kill -{signal} $$; sleep 5")["exit_code"] == code


def test_output_before_a_signal_is_there(session):
    """stdout of what was killed."""
    assert session.sh("echo before; kill -KILL $$")["stdout"] == "before\n"


# ---- deadlines and the output limit


def test_a_deadline_stops_a_command(session):
    """Stopped: exit_code null, timed_out true."""
    begun = time.monotonic()
    answer = session.run("sleep", "30", timeout_seconds=0.5)
    assert 0.4 < time.monotonic() - begun < 25
    assert (answer["exit_code"], answer["timed_out"], answer["output_limited"]) == (None, True, False)


def test_what_was_said_before_the_deadline_is_there(session):
    """And what it wrote until then."""
    for seconds in DEADLINES:
        answer = session.sh("echo out; echo err >&2; sleep 600", timeout_seconds=seconds)
        assert answer["timed_out"]
        if (answer["stdout"], answer["stderr"]) == ("out\n", "err\n"):
            return
    raise AssertionError(answer)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stopped_command_keeps_the_first_64_kib_of_a_stream(session, stream):
    """The first 64 KiB of each stream."""
    redirect = ">&2" if stream == "stderr" else ""
    script = f"(printf first; head -c 100000 /dev/zero | tr '\\0' a) {redirect}; sleep 600"
    for seconds in DEADLINES:
        text = session.sh(script, timeout_seconds=seconds)[stream]
        if len(text) == KEPT:
            break
    assert text == "first" + "a" * (KEPT - 5)


def test_a_command_faster_than_its_deadline_is_not_stopped(session):
    """timeout_seconds."""
    assert session.run("true", timeout_seconds=30).items() >= (PLAIN | {"exit_code": 0}).items()


@pytest.mark.settings(execute_timeout=1)
@pytest.mark.parametrize("asked", [None, 60, 1e9])
def test_the_service_s_deadline_bounds_the_request_s(session, asked):
    """The smaller of the request's and execute_timeout."""
    begun = time.monotonic()
    assert session.run("sleep", "600", timeout_seconds=asked)["timed_out"]
    assert time.monotonic() - begun < 50


@pytest.mark.settings(execute_timeout=60)
def test_the_request_s_deadline_holds_when_it_is_the_smaller(session):
    """The smaller of the request's and execute_timeout."""
    begun = time.monotonic()
    assert session.run("sleep", "600", timeout_seconds=0.5)["timed_out"]
    assert time.monotonic() - begun < 50


def test_a_command_that_says_too_much_is_stopped(session):
    """Combined output over 10 MiB stops the command."""
    answer = session.run("yes", timeout_seconds=250)
    assert (answer["exit_code"], answer["timed_out"], answer["output_limited"]) == (None, False, True)
    assert answer["output_limit"] == LIMIT and len(answer["stdout"]) == KEPT


def test_both_streams_count_together(session):
    """Combined output."""
    answer = session.sh("head -c 6000000 /dev/zero; head -c 6000000 /dev/zero >&2")
    assert answer["output_limited"] and answer["exit_code"] is None
    assert len(answer["stdout"]) <= KEPT and len(answer["stderr"]) <= KEPT


@pytest.mark.parametrize(("size", "limited"), [(LIMIT, False), (LIMIT + 1, True)])
def test_the_limit_is_10_mib(session, size, limited):
    """Over 10 MiB."""
    answer = session.sh(f"head -c {size} /dev/zero")
    assert answer["output_limited"] is limited
    assert len(answer["stdout"]) == (KEPT if limited else size)


def test_the_limit_ends_what_writes_behind_it(session, work):
    """Stopped either way."""
    session.sh(f"({TICK.format(work=work)}) & yes", timeout_seconds=250)
    assert still(session, work)


# ---- stopping


@pytest.mark.parametrize("how", ESCAPES)
def test_a_deadline_ends_every_process_of_the_command(session, work, how):
    """Stopping ends every process the command started, double-forked and setsid ones included."""
    for seconds in DEADLINES:
        assert session.sh(escape(how, work), timeout_seconds=seconds)["timed_out"]
        assert still(session, work)
        if ticks(session, work) > 0:
            return
    raise AssertionError("it never ticked")


@pytest.mark.parametrize("how", ESCAPES)
def test_a_stop_ends_every_process_of_the_command(session, work, started, how):
    """POST stop: 204; every process."""
    run, thread, _ = started(escape(how, work))
    assert session.stop(run).status_code == 204
    thread.join(60)
    assert not thread.is_alive() and still(session, work)


def test_a_stop_is_term_first(session, work, started):
    """TERM, then KILL after 2 s."""
    run, thread, _ = started(f"trap 'echo asked > {work}/asked; exit 0' TERM; {TICK.format(work=work)}")
    session.stop(run)
    thread.join(60)
    assert session.read(f"{work}/asked") == b"asked\n"


def test_a_stop_is_kill_after_two_seconds(session, work, started):
    """TERM, then KILL after 2 s."""

    def stop():
        session.file("remove", f"{work}/ticks")
        run, thread, _ = started(escape("deaf to TERM", work))
        begun = time.monotonic()
        session.stop(run)
        thread.join(60)
        assert time.monotonic() - begun > 1.5 and still(session, work)

    # With what starting it and looking twice take.
    quickest(6, stop)


def test_a_stop_touches_its_own_run_only(session, work, started):
    """Each command on its own."""
    _, other, answers = started(f"echo x > {work}/ticks; until [ -e {work}/go ]; do sleep 0.05; done; echo done")
    run, thread, _ = started(f": > {work}/up; exec sleep 600")
    assert eventually(lambda: session.file("stat", f"{work}/up").status_code == 200)
    session.stop(run)
    thread.join(60)
    assert not thread.is_alive() and not answers
    session.put(f"{work}/go")
    other.join(60)
    assert answers[0].json()["stdout"] == "done\n"


def test_a_stop_of_a_run_that_is_over_is_204(session):
    """204, also for a run already over."""
    run = run_id()
    session.run("true", run=run)
    assert session.stop(run).status_code == 204


def test_a_stop_of_a_run_that_never_was_is_204(session):
    """204: there is nothing to stop."""
    assert session.stop(run_id()).status_code == 204


def test_a_stop_twice_is_204_twice(session, work, started):
    """204, also for a run already over."""
    run, _, _ = started(TICK.format(work=work))
    assert [session.stop(run).status_code for _ in range(2)] == [204, 204]


def test_a_client_that_goes_away_leaves_nothing_running(session, work):
    """The run is stopped."""
    for seconds in DEADLINES:
        with pytest.raises(httpx.ReadTimeout):
            session.sh(escape("setsid", work), timeout=seconds)
        if ticks(session, work) > 0:
            break
    assert ticks(session, work) > 0 and eventually(lambda: still(session, work))


# ---- background processes


@pytest.mark.parametrize("how", ["setsid sh -c '{tick}' >/dev/null 2>&1 &", "({tick}) >/dev/null 2>&1 &"], ids=["setsid", "plain"])
def test_a_background_process_goes_on_after_a_normal_end(session, work, how):
    """A command that finished normally may leave background processes running."""
    answer = session.sh(how.format(tick=TICK.format(work=work)) + " echo started")
    assert (answer["exit_code"], answer["stdout"]) == (0, "started\n")
    assert goes_on(session, work)


def test_a_command_does_not_wait_for_processes_that_hold_its_streams(session):
    """Returns without waiting for them even when they hold its streams; grace at most 2 s."""

    def leave():
        answer = session.sh("sleep 600 & echo done")
        assert answer["stdout"] == "done\n" and answer["exit_code"] == 0

    quickest(3, leave)


def test_a_background_process_is_seen_by_the_next_command(session, work):
    """Running in the session."""
    pid = session.out("sleep 60 >/dev/null 2>&1 & echo $!").strip()
    assert session.sh(f"kill -0 {pid}")["exit_code"] == 0


# ---- at once


def test_commands_run_at_once(session):
    """Any number of commands run at once in one session."""
    # Each waits for all the others.
    together = ": > up-{n}; until [ $(ls | grep -c up-) = 8 ]; do sleep 0.05; done; exit {n}"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: session.sh(together.format(n=n), timeout_seconds=250), range(8)))
    assert [answer["exit_code"] for answer in answers] == list(range(8))


def test_commands_at_once_keep_their_streams(session):
    """Each on its own."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: session.sh(f"for i in $(seq 200); do echo {n}; done")["stdout"], range(8)))
    assert answers == [f"{n}\n" * 200 for n in range(8)]


def test_a_slow_command_does_not_hold_up_file_operations(session, work, started):
    """Any number at once; files as well."""
    started(TICK.format(work=work))
    begun = time.monotonic()
    session.put(f"{work}/b", b"b")
    assert session.read(f"{work}/b") == b"b" and time.monotonic() - begun < 50


def test_a_process_sees_its_own_session_only(api, session):
    """Each session has its own processes."""
    session.out("sleep 61 >/dev/null 2>&1 & echo")
    listing = api.open().out("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep 61" not in listing
