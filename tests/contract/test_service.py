"""The service's own routes: what it is, how it is."""

import httpx
import pytest

ROUTES = [
    ("get", "/"),
    ("get", "/healthz"),
    ("get", "/policy"),
    ("put", "/policy"),
    ("post", "/sessions"),
    ("get", "/sessions"),
    ("get", "/sessions/{session_id}"),
    ("get", "/sessions/{session_id}/events"),
    ("delete", "/sessions/{session_id}"),
    ("post", "/sessions/{session_id}/run"),
    ("post", "/sessions/{session_id}/runs/{run_id}/stop"),
    ("post", "/sessions/{session_id}/files/read"),
    ("post", "/sessions/{session_id}/files/write"),
    ("post", "/sessions/{session_id}/files/stat"),
    ("post", "/sessions/{session_id}/files/list"),
    ("post", "/sessions/{session_id}/files/realpath"),
    ("post", "/sessions/{session_id}/files/mkdir"),
    ("post", "/sessions/{session_id}/files/remove"),
    ("post", "/workspaces/{session_id}/ls"),
    ("post", "/workspaces/{session_id}/tree"),
    ("post", "/workspaces/trees"),
    ("post", "/workspaces/{session_id}/read"),
    ("post", "/workspaces/{session_id}/read_bytes"),
]


@pytest.mark.parametrize("path", ["/", "/healthz", "/docs", "/openapi.json"])
def test_a_public_route_needs_no_token(api, path):
    """token: none."""
    assert api.get(path, token=None).status_code == 200


@pytest.mark.parametrize("path", ["/", "/healthz", "/docs", "/openapi.json"])
def test_a_public_route_does_not_mind_a_wrong_token(api, path):
    """token: none, so none is looked at."""
    assert api.get(path, token="wrong").status_code == 200


def test_the_index_names_the_service_and_its_places(api):
    """service, health, docs_url, openapi_url, ui_url, endpoints."""
    index = api.get("/", token=None).json()
    assert {"service", "health", "docs_url", "openapi_url", "ui_url", "endpoints"} <= index.keys()
    assert (index["service"], index["docs_url"], index["openapi_url"]) == ("sandboxd", "/docs", "/openapi.json")


def test_the_index_has_the_health_in_it(api):
    """health: as /healthz."""
    assert api.get("/", token=None).json()["health"].keys() == api.health().keys()


@pytest.mark.settings()
def test_the_index_has_no_dashboard_when_it_is_off(api):
    """ui_url: null when the dashboard is off."""
    assert api.get("/", token=None).json()["ui_url"] is None


@pytest.mark.settings()
def test_the_dashboard_is_404_when_it_is_off(api):
    """GET /ui: only when enabled; else 404."""
    assert api.get("/ui", token=None).status_code == 404


@pytest.mark.settings(ui_enabled="true", prewarm="false")
def test_the_dashboard_is_served_when_it_is_on(api):
    """GET /ui: none needed, the dashboard."""
    answer = api.get("/ui", token=None)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")


@pytest.mark.settings(ui_enabled="true", prewarm="false")
def test_the_index_names_the_dashboard_when_it_is_on(api):
    """ui_url."""
    assert api.get("/", token=None).json()["ui_url"] == "/ui"


def test_the_endpoints_are_sorted_and_said_once(api):
    """endpoints: sorted."""
    endpoints = api.get("/", token=None).json()["endpoints"]
    assert endpoints == sorted(set(endpoints))


@pytest.mark.parametrize("path", sorted({path for _, path in ROUTES} - {"/"}))
def test_the_endpoints_name_a_route(api, path):
    """endpoints: the real routes."""
    assert path in api.get("/", token=None).json()["endpoints"]


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=lambda part: part)
def test_the_description_has_a_route(api, method, path):
    """The OpenAPI description."""
    assert method in api.get("/openapi.json", token=None).json()["paths"].get(path, {})


def test_the_description_is_openapi_3(api):
    """GET /openapi.json."""
    answer = api.get("/openapi.json", token=None)
    assert answer.headers["content-type"] == "application/json" and answer.json()["openapi"].startswith("3.")


def test_the_docs_are_a_page(api):
    """GET /docs."""
    assert api.get("/docs", token=None).headers["content-type"].startswith("text/html")


def test_health_has_its_fields(api):
    """status, sessions, limit, open_sessions, open_limit, runtimes."""
    assert {"status", "sessions", "limit", "open_sessions", "open_limit", "runtimes"} <= api.health().keys()


def test_health_is_ok(api):
    """status."""
    assert api.health()["status"] == "ok"


def test_health_says_the_ceilings_in_force(api):
    """limit and open_limit."""
    health, policy = api.health(), api.policy()
    assert (health["limit"], health["open_limit"]) == (policy["max_sessions"], policy["max_open_sessions"])


def test_health_names_the_runtimes_sorted(api):
    """runtimes: sorted aliases."""
    runtimes = api.health()["runtimes"]
    assert runtimes == sorted(runtimes) == [runtime["alias"] for runtime in api.policy()["runtimes"]]


@pytest.mark.sandbox
def test_health_counts_sessions_that_hold_a_sandbox(api):
    """sessions: holding a sandbox now; open_sessions: existing."""
    before = api.health()
    session = api.open()
    during = api.health()
    session.close()
    after = api.health()
    assert [h["sessions"] - before["sessions"] for h in (during, after)] == [1, 0]
    assert [h["open_sessions"] - before["open_sessions"] for h in (during, after)] == [1, 0]


def test_a_head_request_does_not_fail(api):
    """A probe may ask for headers only."""
    assert api.call("HEAD", "/healthz", token=None).status_code in (200, 405)


def test_requests_share_a_connection(api):
    """Keep-alive: many requests on one connection."""
    with httpx.Client(base_url=api.service.url, trust_env=False, limits=httpx.Limits(max_connections=1)) as http:
        assert [http.get("/healthz").status_code for _ in range(20)] == [200] * 20
