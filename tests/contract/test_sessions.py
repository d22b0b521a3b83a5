"""Sessions: opening, attaching, seeing and closing them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from client import fresh_id

INFO = {"session_id", "runtime", "tenant", "alive", "state", "created_at", "last_activity", "idle_seconds", "usage"}
USAGE = {"memory_bytes", "memory_limit_bytes", "cpu_percent", "pids"}
sandbox = pytest.mark.sandbox


@sandbox
def test_an_empty_request_opens_a_session(api):
    """Every field is optional."""
    session = api.open()
    assert session.run("true")["exit_code"] == 0


@sandbox
def test_the_answer_is_the_session_and_its_token(api):
    """SessionCreated {session, token}."""
    answer = api.try_open()
    assert {"session", "token"} <= answer.json().keys() and isinstance(answer.json()["token"], str)


@sandbox
@pytest.mark.parametrize("field", sorted(INFO))
def test_a_session_has_a_field(session, field):
    """SessionInfo."""
    assert field in session.opened_as and field in session.info()


@sandbox
def test_a_new_session_runs(session):
    """alive, state."""
    assert (session.opened_as["alive"], session.opened_as["state"]) == (True, "running")


@sandbox
def test_a_new_session_s_times_are_now(session):
    """Unix seconds, float."""
    info = session.opened_as
    assert all(isinstance(info[field], float) for field in ("created_at", "last_activity", "idle_seconds"))
    assert abs(info["created_at"] - time.time()) < 60 and 0 <= info["idle_seconds"] < 60


@sandbox
def test_a_named_session_has_its_name(api):
    """session_id?"""
    name = fresh_id()
    assert api.open(session_id=name).id == name


@sandbox
def test_a_session_of_a_tenant_says_so(api):
    """tenant?"""
    assert api.open(tenant="acme").info()["tenant"] == "acme"


@sandbox
def test_a_session_of_nobody_has_no_tenant(session):
    """tenant: null."""
    assert session.opened_as["tenant"] is None


@sandbox
def test_a_session_without_a_runtime_gets_the_default_one(api, session):
    """runtime? (alias)."""
    assert session.opened_as["runtime"] == api.policy()["default_runtime"]


@sandbox
@pytest.mark.settings()
def test_a_session_gets_the_runtime_that_it_names(api):
    """runtime? (alias)."""
    aliases = [runtime["alias"] for runtime in api.policy()["runtimes"]]
    assert [api.open(runtime=alias).info()["runtime"] for alias in aliases] == aliases


@sandbox
@pytest.mark.parametrize("field", ["image", "network_mode", "mem_limit", "volumes", "privileged", "user"])
def test_a_request_names_nothing_else_about_the_sandbox(api, field):
    """A request can name nothing else about the sandbox: refused or without effect."""
    before = api.open().info()
    answer = api.try_open(**{field: "host"})
    assert answer.status_code in (200, 422)
    if answer.status_code == 200:
        assert answer.json()["session"]["runtime"] == before["runtime"]


@pytest.mark.parametrize("more", [{}, {"session_id": "some"}, {"reuse": True, "session_id": "some"}], ids=str)
def test_an_alias_that_is_not_allowed_is_400_with_what_is(api, more):
    """alias not on the allowlist: 400, listing what is allowed."""
    answer = api.post("/sessions", {"runtime": "nobody", **more})
    assert answer.status_code == 400
    assert all(alias in answer.json()["detail"] for alias in api.health()["runtimes"])


@pytest.mark.parametrize(
    ("field", "value"),
    [("runtime", 7), ("reuse", "perhaps"), ("attach", []), ("session_id", 7), ("tenant", {})],
)
def test_a_field_of_another_type_is_422_and_named(api, field, value):
    """A body that does not validate names the field."""
    answer = api.post("/sessions", {field: value})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", field]


@sandbox
@pytest.mark.parametrize("field", ["session_id", "runtime", "tenant"])
def test_null_is_as_good_as_absent(api, field):
    """Optional: null."""
    assert api.try_open(**{field: None}).status_code == 200


@sandbox
def test_a_name_that_is_open_is_409(api, session):
    """id already open: 409."""
    answer = api.post("/sessions", {"session_id": session.id})
    assert answer.status_code == 409 and session.id in answer.json()["detail"]


@sandbox
@pytest.mark.parametrize("how", [{"reuse": True}, {"attach": True}, {"reuse": True, "attach": True}], ids=str)
def test_an_open_session_is_found_with_its_own_token(api, session, how):
    """Unless reuse or attach: then the open session, with its existing token."""
    again = api.open(session_id=session.id, **how)
    assert (again.id, again.token) == (session.id, session.token)


@sandbox
@pytest.mark.parametrize("how", ["reuse", "attach"])
def test_an_open_session_is_found_with_its_files(api, session, work, how):
    """The same session."""
    session.put(f"{work}/a", b"here")
    assert api.open(session_id=session.id, **{how: True}).read(f"{work}/a") == b"here"


@sandbox
@pytest.mark.parametrize("how", ["reuse", "attach"])
def test_an_open_session_is_found_on_its_own_runtime(api, session, how):
    """A runtime that agrees is no conflict."""
    again = api.try_open(session_id=session.id, runtime=session.opened_as["runtime"], **{how: True})
    assert again.status_code == 200


@sandbox
@pytest.mark.settings()
@pytest.mark.parametrize("how", ["reuse", "attach"])
def test_an_open_session_on_another_runtime_is_409(api, session, how):
    """A runtime that disagrees with the one it was opened on is 409."""
    other = next(alias for alias in api.health()["runtimes"] if alias != session.opened_as["runtime"])
    answer = api.try_open(session_id=session.id, runtime=other, **{how: True})
    assert answer.status_code == 409 and session.opened_as["runtime"] in answer.json()["detail"]


@sandbox
@pytest.mark.settings()
def test_a_session_that_is_not_on_the_default_runtime_is_found_without_naming_it(api):
    """Only a runtime that is named can disagree."""
    other = next(alias for alias in api.health()["runtimes"] if alias != api.policy()["default_runtime"])
    first = api.open(runtime=other)
    assert api.open(session_id=first.id, reuse=True).info()["runtime"] == other


def test_attach_without_a_name_is_400(api):
    """attach never creates: 400 without session_id."""
    assert api.post("/sessions", {"attach": True}).status_code == 400


def test_attach_to_nothing_is_404(api):
    """404 when neither an open session nor a kept workspace has that id."""
    name = fresh_id()
    answer = api.post("/sessions", {"session_id": name, "attach": True})
    assert answer.status_code == 404 and name not in api.listed()


def test_attach_and_reuse_of_nothing_is_404(api):
    """attach never creates."""
    assert api.post("/sessions", {"session_id": fresh_id(), "attach": True, "reuse": True}).status_code == 404


@sandbox
@pytest.mark.parametrize("how", ["reuse", "attach"])
def test_a_kept_workspace_is_found_again(api, session, work, how):
    """A kept workspace is found again."""
    session.put(f"{work}/a", b"kept")
    session.close()
    again = api.open(session_id=session.id, **{how: True})
    assert again.read(f"{work}/a") == b"kept" and again.out(f"cat {work}/a") == "kept"


@sandbox
def test_a_session_that_is_opened_again_has_a_new_token(api, session):
    """The closed session's token stays worthless."""
    session.close()
    assert api.open(session_id=session.id, reuse=True).token != session.token
    assert session.call("GET", "").status_code == 401


@sandbox
def test_reuse_of_nothing_opens_a_fresh_session(api, work):
    """reuse with nothing there opens a fresh session."""
    session = api.open(session_id=fresh_id(), reuse=True)
    assert session.file("list", work).json() == []


@sandbox
def test_nothing_is_left_to_attach_to_after_a_purge(api, session):
    """purge also deletes the workspace."""
    session.close(purge=True)
    assert api.post("/sessions", {"session_id": session.id, "attach": True}).status_code == 404


@sandbox
def test_a_purged_name_begins_anew(api, session, work):
    """purge also deletes the workspace."""
    session.put(f"{work}/a")
    session.close(purge=True)
    assert api.open(session_id=session.id, reuse=True).file("list", work).json() == []


@sandbox
def test_two_opens_of_one_name_at_once_make_one_session(api):
    """id being opened right now by another request: 409."""
    name = fresh_id()
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: api.try_open(session_id=name).status_code, range(6)))
    assert sorted(answers) == [200] + [409] * 5
    assert api.listed().count(name) == 1


@sandbox
def test_reuses_of_one_name_at_once_get_one_session(api):
    """Whoever is not told 409 gets the same token."""
    name = fresh_id()
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: api.try_open(session_id=name, reuse=True), range(6)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len({answer.json()["token"] for answer in answers if answer.status_code == 200}) == 1


@sandbox
def test_sessions_of_different_names_open_at_once(api):
    """Each on its own."""
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: api.try_open().status_code, range(5)))
    assert answers == [200] * 5


@sandbox
def test_a_session_is_closed(api, session):
    """DELETE: 204."""
    answer = session.call("DELETE", "")
    assert (answer.status_code, answer.content) == (204, b"")
    assert session.id not in api.listed() and api.get(f"/sessions/{session.id}").status_code == 404


@sandbox
def test_a_session_is_closed_once(api, session):
    """An unknown session is 404."""
    session.close()
    assert api.delete(f"/sessions/{session.id}").status_code == 404


@sandbox
def test_a_closed_session_s_workspace_is_kept(api, session, work):
    """purge also deletes the workspace; without it, it stays."""
    session.put(f"{work}/a")
    session.close()
    assert [entry["name"] for entry in api.post(f"/workspaces/{session.id}/ls", {"path": "."}).json()] == ["a"]


@sandbox
def test_a_purged_session_s_workspace_is_gone(api, session, work):
    """purge also deletes the write layer and the workspace."""
    session.put(f"{work}/a")
    session.close(purge=True)
    assert api.post(f"/workspaces/{session.id}/ls", {"path": "."}).status_code == 404


@sandbox
def test_closing_ends_what_runs(api, session):
    """A close ends the sandbox, and a command in it does not hang."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(session.try_run("sleep", "600").status_code))
    thread.start()
    time.sleep(0.5)
    begun = time.monotonic()
    session.close()
    thread.join(60)
    assert time.monotonic() - begun < 60 and answers and answers[0] < 500


@sandbox
@pytest.mark.parametrize("value", ["maybe", "", "2"])
@pytest.mark.parametrize(("method", "query"), [("GET", "usage"), ("DELETE", "purge")])
def test_a_flag_that_is_no_boolean_is_422(session, method, query, value):
    """usage=bool, purge=bool."""
    answer = session.call(method, "", params={query: value})
    assert answer.status_code == 422 and query in answer.json()["detail"][0]["loc"]


@pytest.mark.parametrize("value", ["maybe", "2"])
def test_a_listing_s_flag_that_is_no_boolean_is_422(api, value):
    """usage=bool."""
    answer = api.get("/sessions", params={"usage": value})
    assert answer.status_code == 422 and "usage" in answer.json()["detail"][0]["loc"]


@pytest.mark.parametrize("field", ["sessions", "limit", "open_limit", "tenant_limit"])
def test_the_listing_has_a_field(api, field):
    """SessionList {sessions, limit, open_limit, tenant_limit}."""
    assert field in api.get("/sessions").json()


def test_the_listing_says_the_ceilings_in_force(api):
    """limit, open_limit, tenant_limit."""
    listing, policy = api.get("/sessions").json(), api.policy()
    assert listing["limit"] == policy["max_sessions"]
    assert listing["open_limit"] == policy["max_open_sessions"]
    assert listing["tenant_limit"] == policy["max_sessions_per_tenant"]


@sandbox
def test_the_listing_has_every_open_session(api):
    """sessions."""
    names = {api.open().id for _ in range(3)}
    assert names <= set(api.listed())


@sandbox
@pytest.mark.parametrize("usage", ["false", "0", None])
def test_usage_is_null_unless_asked_for(api, session, usage):
    """null unless asked."""
    params = {} if usage is None else {"usage": usage}
    listed = api.get("/sessions", params=params).json()["sessions"]
    assert all(entry["usage"] is None for entry in listed)
    assert session.info(params=params)["usage"] is None


@sandbox
def test_usage_is_told_of_one_session(session):
    """usage: memory_bytes, memory_limit_bytes, cpu_percent, pids."""
    assert session.info(params={"usage": "true"})["usage"].keys() >= USAGE


@sandbox
def test_usage_is_told_in_the_listing(api, session):
    """usage: memory_bytes, memory_limit_bytes, cpu_percent, pids."""
    listed = api.get("/sessions", params={"usage": "true"}).json()["sessions"]
    assert next(entry for entry in listed if entry["session_id"] == session.id)["usage"].keys() >= USAGE


@sandbox
def test_looking_is_no_activity(session):
    """GET never wakes or revives; the session goes on being idle."""
    first = session.info()
    time.sleep(0.3)
    second = session.info()
    assert second["last_activity"] == pytest.approx(first["last_activity"], abs=0.05)
    assert second["idle_seconds"] > first["idle_seconds"]


@sandbox
@pytest.mark.parametrize("op", ["run", "write", "read", "stat", "list", "realpath", "mkdir", "remove"])
def test_an_operation_is_activity(session, work, op):
    """last_activity; file operations count as activity."""
    session.put(f"{work}/a")
    time.sleep(0.05)
    before = session.info()["last_activity"]
    if op == "run":
        session.run("true")
    elif op == "write":
        session.put(f"{work}/a")
    else:
        session.file(op, f"{work}/a")
    assert session.info()["last_activity"] > before


@sandbox
def test_a_session_s_birth_does_not_move(session):
    """created_at."""
    session.run("true")
    assert session.info()["created_at"] == session.opened_as["created_at"]


@sandbox
def test_sessions_do_not_see_each_other_s_files(api, work):
    """Each has a workspace of its own."""
    first, second = api.open(), api.open()
    first.put(f"{work}/a")
    assert second.file("stat", f"{work}/a").status_code == 404 and second.out(f"ls {work}") == ""


# ---- ceilings


@sandbox
@pytest.mark.settings(max_sessions=2)
def test_one_more_than_max_sessions_is_429(api):
    """429 at max_sessions."""
    api.open(), api.open()
    answer = api.try_open()
    assert answer.status_code == 429 and isinstance(answer.json()["detail"], str)


@sandbox
@pytest.mark.settings(max_sessions=2)
def test_a_refused_open_leaves_nothing_behind(api):
    """A failed open leaves nothing behind."""
    name = fresh_id()
    first, _ = api.open(), api.open()
    assert api.try_open(session_id=name).status_code == 429
    assert name not in api.listed()
    first.close()
    assert api.try_open(session_id=name).status_code == 200


@sandbox
@pytest.mark.settings(max_sessions=2)
def test_attaching_to_an_open_session_takes_no_room(api):
    """At the ceiling the open session is found all the same."""
    first, _ = api.open(), api.open()
    assert api.open(session_id=first.id, reuse=True).token == first.token


@sandbox
@pytest.mark.settings(max_sessions=2)
def test_a_closed_session_makes_room(api):
    """max_sessions counts sandboxes that are resident or starting."""
    first, _ = api.open(), api.open()
    first.close()
    assert api.try_open().status_code == 200


@sandbox
@pytest.mark.settings(max_sessions=2)
def test_many_opens_at_once_do_not_pass_max_sessions(api):
    """Opens still in flight count."""
    with ThreadPoolExecutor(8) as pool:
        answers = sorted(pool.map(lambda _: api.try_open().status_code, range(8)))
    assert answers == [200] * 2 + [429] * 6


@sandbox
@pytest.mark.settings(max_sessions=2, max_open_sessions=2)
def test_one_more_than_max_open_sessions_is_429_when_all_are_awake(api):
    """429 at max_open_sessions."""
    api.open(), api.open()
    assert api.try_open().status_code == 429


@sandbox
@pytest.mark.settings(max_sessions_per_tenant=1)
def test_one_more_than_a_tenant_s_ceiling_is_429(api):
    """Text: tenant already holds N of M sessions."""
    api.open(tenant="acme")
    answer = api.try_open(tenant="acme")
    assert answer.status_code == 429
    assert "acme" in answer.json()["detail"] and "already holds 1 of 1 sessions" in answer.json()["detail"]


@sandbox
@pytest.mark.settings(max_sessions_per_tenant=1)
def test_another_tenant_has_its_own_ceiling(api):
    """The tenant's ceiling."""
    api.open(tenant="acme")
    assert api.try_open(tenant="other").status_code == 200


@sandbox
@pytest.mark.settings(max_sessions_per_tenant=1)
def test_sessions_of_nobody_have_no_tenant_s_ceiling(api):
    """The tenant's ceiling is a tenant's."""
    assert [api.try_open().status_code for _ in range(2)] == [200, 200]


@sandbox
@pytest.mark.settings(max_sessions_per_tenant=1)
def test_a_tenant_s_closed_session_makes_room(api):
    """Counts what is open."""
    api.open(tenant="acme").close()
    assert api.try_open(tenant="acme").status_code == 200


@sandbox
@pytest.mark.settings(max_sessions_per_tenant=1)
def test_a_tenant_s_opens_at_once_do_not_pass_its_ceiling(api):
    """Opens still in flight count."""
    with ThreadPoolExecutor(5) as pool:
        answers = sorted(pool.map(lambda _: api.try_open(tenant="acme").status_code, range(5)))
    assert answers == [200] + [429] * 4
