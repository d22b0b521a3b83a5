"""Identity: who may do what, and what nobody learns without a token."""

import re

import pytest
from client import HEADER, fresh_id, run_id

SERVICE_ROUTES = [
    ("POST", "/sessions", {"session_id": "-refused-"}),
    ("GET", "/sessions", None),
    ("GET", "/policy", None),
    ("PUT", "/policy", {}),
    ("POST", "/workspaces/nobody/ls", {"path": "."}),
    ("POST", "/workspaces/nobody/tree", {}),
    ("POST", "/workspaces/trees", {"sessions": ["nobody"]}),
    ("POST", "/workspaces/nobody/read", {"path": "a"}),
    ("POST", "/workspaces/nobody/read_bytes", {"path": "a"}),
]
SESSION_ROUTES = [
    ("GET", "", None),
    ("GET", "/events", None),
    ("DELETE", "", None),
    ("POST", "/run", {"argv": ["true"], "run_id": "0" * 32}),
    ("POST", f"/runs/{'0' * 32}/stop", None),
    ("POST", "/files/read", {"path": "/workspace/a"}),
    ("POST", "/files/write?path=/workspace/a", None),
    ("POST", "/files/stat", {"path": "/workspace/a"}),
    ("POST", "/files/list", {"path": "/workspace"}),
    ("POST", "/files/realpath", {"path": "/workspace/a"}),
    ("POST", "/files/mkdir", {"path": "/workspace/d"}),
    ("POST", "/files/remove", {"path": "/workspace/a"}),
]
WRONG = {
    "empty": b"",
    "another": b"not-the-token",
    "latin-1": "jeton-é".encode("latin-1"),
    "utf-8": "żeton-🎲".encode(),
    "not utf-8": b"\xff\xfe\x80",
    "a tab": b"to\tken",
    "4 KiB": b"x" * 4096,
}
BAD_IDS = ["-a", ".a", "_a", "a" * 65, "a b", "ä", "a$b", "a:b", "a,b", "a@b", pytest.param("a%2Fb", marks=pytest.mark.ours), "a%00b", "a%0Ab"]
GOOD_IDS = ["a", "A", "7", "a.b_c-D9", "a" * 64, "a..b", "a--"]


def name(route):
    return f"{route[0]} {route[1].split('?')[0]}"


def ask(api, route, prefix="", **options):
    method, path, body = route
    if body is not None:
        options["json"] = body
    return api.call(method, prefix + path, **options)


@pytest.mark.parametrize("route", SERVICE_ROUTES, ids=name)
def test_a_service_route_without_a_token_is_401(api, route):
    """Service token only: sessions, policy, workspaces."""
    assert ask(api, route, token=None).status_code == 401


@pytest.mark.parametrize("route", SERVICE_ROUTES, ids=name)
def test_a_service_route_with_another_token_is_401(api, route):
    """Service token only."""
    assert ask(api, route, token="x" * 64).status_code == 401


@pytest.mark.sandbox
@pytest.mark.parametrize("route", SERVICE_ROUTES, ids=name)
def test_a_service_route_refuses_a_session_s_token(api, session, route):
    """A session token reaches its own session only."""
    assert ask(api, route, token=session.token).status_code == 401


@pytest.mark.parametrize("route", SERVICE_ROUTES[1:4], ids=name)
def test_a_service_route_takes_the_service_token(api, route):
    """The service token opens service routes."""
    assert ask(api, route).status_code == 200


@pytest.mark.parametrize("route", SESSION_ROUTES, ids=name)
def test_an_unknown_session_is_401_without_a_token(api, route):
    """The token is checked before existence is revealed."""
    assert ask(api, route, f"/sessions/{fresh_id()}", token=None).status_code == 401


@pytest.mark.parametrize("route", SESSION_ROUTES, ids=name)
def test_an_unknown_session_is_401_with_a_token_of_nobody(api, route):
    """Without a valid token an unknown session answers 401."""
    assert ask(api, route, f"/sessions/{fresh_id()}", token="y" * 43).status_code == 401


@pytest.mark.parametrize("route", SESSION_ROUTES, ids=name)
def test_an_unknown_session_is_404_with_the_service_token(api, route):
    """With the service token 404."""
    answer = ask(api, route, f"/sessions/{fresh_id()}")
    assert answer.status_code == 404 and isinstance(answer.json()["detail"], str)


@pytest.mark.sandbox
@pytest.mark.parametrize("route", SESSION_ROUTES, ids=name)
def test_a_session_s_token_does_not_reach_another(api, session, route):
    """A session token reaches its own session only."""
    other = api.open()
    assert ask(api, route, f"/sessions/{other.id}", token=session.token).status_code == 401
    assert other.info()["session_id"] == other.id


@pytest.mark.sandbox
@pytest.mark.parametrize("route", SESSION_ROUTES, ids=name)
def test_a_session_s_token_reaches_its_own(api, session, work, route):
    """A session token reaches its own session."""
    session.put(f"{work}/a", b"content")
    assert ask(api, route, f"/sessions/{session.id}", token=session.token).status_code in (200, 204)


@pytest.mark.sandbox
@pytest.mark.parametrize("route", SESSION_ROUTES, ids=name)
def test_the_service_token_reaches_every_session(api, session, work, route):
    """X-Sandbox-Token carries the service token or a session token."""
    session.put(f"{work}/a", b"content")
    assert ask(api, route, f"/sessions/{session.id}").status_code in (200, 204)


@pytest.mark.parametrize("token", WRONG.values(), ids=WRONG)
def test_any_bytes_as_a_token_get_401_from_a_service_route(api, token):
    """Any bytes in the header, non-ASCII included, get 401, never 500."""
    assert api.get("/policy", token=token).status_code == 401


@pytest.mark.parametrize("token", WRONG.values(), ids=WRONG)
def test_any_bytes_as_a_token_get_401_from_a_session_route(api, token):
    """Any bytes in the header get 401, never 500."""
    assert api.get(f"/sessions/{fresh_id()}", token=token).status_code == 401


@pytest.mark.parametrize(
    "change",
    [lambda t: t[:-1], lambda t: t + "0", lambda t: t.swapcase(), lambda t: f"Bearer {t}", lambda t: t[::-1]],
    ids=["shorter", "longer", "other case", "Bearer", "reversed"],
)
def test_what_resembles_the_token_is_not_it(api, change):
    """Compared as a whole."""
    assert api.get("/policy", token=change(api.service.token)).status_code == 401


def test_another_header_carries_no_token(api):
    """The header is X-Sandbox-Token."""
    headers = {"Authorization": f"Bearer {api.service.token}"}
    assert api.get("/policy", token=None, headers=headers).status_code == 401


def test_the_header_s_name_is_in_any_case(api):
    """A header's name has no case."""
    assert api.get("/policy", token=None, headers={HEADER.lower(): api.service.token}).status_code == 200


def test_no_token_and_a_wrong_one_answer_alike(api):
    """The 401 says nothing about what was wrong."""
    answers = [api.get("/policy", token=token).json() for token in (None, "x", b"\xff")]
    assert answers[0] == answers[1] == answers[2] and isinstance(answers[0]["detail"], str)


@pytest.mark.sandbox
def test_a_known_and_an_unknown_session_answer_a_stranger_alike(api, session):
    """Existence is not revealed."""
    known = api.get(f"/sessions/{session.id}", token="stranger")
    unknown = api.get(f"/sessions/{fresh_id()}", token="stranger")
    assert (known.status_code, known.json()) == (unknown.status_code, unknown.json())


@pytest.mark.sandbox
def test_a_closed_session_s_token_is_worth_nothing(api, session):
    """Closed: its token opens nothing, and does not tell that it once did."""
    session.close()
    assert session.call("GET", "").status_code == 401


@pytest.mark.parametrize("session_id", BAD_IDS)
def test_a_bad_session_id_in_a_path_is_422(api, session_id):
    """Session id: ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$; a violation is 422."""
    answer = api.get(f"/sessions/{session_id}")
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"][0]["loc"] == ["path", "session_id"]


@pytest.mark.parametrize("session_id", GOOD_IDS)
def test_a_good_session_id_in_a_path_validates(api, session_id):
    """Up to 64 letters, digits, dots, underscores and hyphens."""
    assert api.get(f"/sessions/{session_id}").status_code in (200, 404)


@pytest.mark.parametrize("field", ["session_id", "tenant"])
@pytest.mark.parametrize("value", ["-a", ".a", "", "a" * 65, "a/b", "../a", "a b", "é", "a\n", "a\0b"], ids=ascii)
def test_a_bad_name_in_a_body_is_422_and_named(api, field, value):
    """session_id and tenant have the same pattern; a violation is 422."""
    answer = api.post("/sessions", {field: value})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", field]


@pytest.mark.parametrize("route", ["ls", "tree", "read", "read_bytes"])
def test_a_bad_id_of_a_stored_workspace_is_422(api, route):
    """The pattern holds for workspaces as well."""
    assert api.post(f"/workspaces/-x/{route}", {"path": "a"}).status_code == 422


@pytest.mark.sandbox
@pytest.mark.parametrize("run", ["0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 31 + "é", "-" * 32])
def test_a_bad_run_id_in_a_path_is_422(session, run):
    """run id: ^[0-9a-f]{32}$."""
    answer = session.stop(run)
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["path", "run_id"]


@pytest.mark.sandbox
@pytest.mark.parametrize("run", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 32 + "\n"], ids=ascii)
def test_a_bad_run_id_in_a_body_is_422(session, run):
    """run id: ^[0-9a-f]{32}$."""
    answer = session.call("POST", "/run", json={"argv": ["true"], "run_id": run})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", "run_id"]


@pytest.mark.sandbox
def test_a_generated_session_id_is_the_beginning_of_a_uuid4(api):
    """`s-` and 16 hex digits from a uuid4: the 13th says the version."""
    names = {api.open().id for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"s-[0-9a-f]{12}4[0-9a-f]{3}", name) for name in names), names


@pytest.mark.sandbox
def test_tokens_are_long_and_different(api):
    """Each session has a token of its own."""
    tokens = [api.open().token for _ in range(3)]
    assert len(set(tokens)) == 3 and all(len(token) >= 32 for token in tokens)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b"1", pytest.param(b"\xff", marks=pytest.mark.ours)], ids=repr)
def test_a_body_that_is_no_object_is_422(api, body):
    """A body that does not validate: a list of loc, msg and type."""
    answer = api.post("/sessions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    first = answer.json()["detail"][0]
    assert {"loc", "msg", "type"} <= first.keys() and first["loc"][0] == "body"


def test_an_unknown_route_is_404_with_a_detail(api):
    """Errors are {"detail": ...}."""
    answer = api.get("/nowhere")
    assert answer.status_code == 404 and answer.json()["detail"]


def test_a_method_that_a_route_lacks_is_405_with_a_detail(api):
    """Errors are {"detail": ...}."""
    answer = api.call("PATCH", "/sessions")
    assert answer.status_code == 405 and answer.json()["detail"]


@pytest.mark.sandbox
def test_a_run_id_may_be_chosen_by_the_client(session):
    """run id: chosen by the client."""
    assert session.run("true", run=run_id())["exit_code"] == 0
