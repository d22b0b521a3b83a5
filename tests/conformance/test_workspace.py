"""The workspace conformance suite of Pydantic AI, run by its own client for sandboxd.

`run` sets SANDBOXD_URL, SANDBOXD_TOKEN, SANDBOXD_RUNTIME, SANDBOXD_SOCKET (empty for TCP) and
CONFORMANCE_COUNTS, a file that takes how often the file routes served a request themselves and how
often they handed it back to the sandbox.
"""

import json
import os
from collections import Counter
from pathlib import Path

import httpx
import pytest
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite
from pydantic_ai_backends.workspaces import SandboxdWorkspace

URL = os.environ["SANDBOXD_URL"]
TOKEN = os.environ["SANDBOXD_TOKEN"]
SOCKET = os.environ.get("SANDBOXD_SOCKET") or None
RUNTIME = os.environ["SANDBOXD_RUNTIME"]


@pytest.fixture(scope="module")
def service():
    """The service as its operator sees it. Sessions that the suite leaves open are closed with their files."""
    transport = httpx.HTTPTransport(uds=SOCKET)
    headers = {"X-Sandbox-Token": TOKEN}
    with httpx.Client(base_url=URL, headers=headers, transport=transport, timeout=60) as service:
        policy = service.get("/policy").raise_for_status().json()
        off = [name for name in ("native_files", "native_writes", "native_realpath") if not policy[name]]
        assert not off, f"the policy does not offer {off}: files would go through commands"
        yield service
        for session in service.get("/sessions").raise_for_status().json()["sessions"]:
            service.delete(f"/sessions/{session['session_id']}", params={"purge": "true"}).raise_for_status()


@pytest.fixture(scope="module")
def served():
    """Requests by operation and outcome: `files/read 200`."""
    counts = Counter()
    yield counts
    Path(os.environ["CONFORMANCE_COUNTS"]).write_text(json.dumps(counts))


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def client(anyio_backend, served):
    """One client for all. Being asynchronous it also keeps one event loop alive, which its connections belong to."""

    async def count(response):
        parts = response.request.url.path.split("/")
        if len(parts) == 5 and parts[3] == "files":
            served[f"{parts[4]} {response.status_code}"] += 1

    transport = httpx.AsyncHTTPTransport(uds=SOCKET)
    async with httpx.AsyncClient(transport=transport, event_hooks={"response": [count]}) as client:
        yield client


@pytest.fixture(scope="module")
def workspace(service, client):
    return SandboxdWorkspace(service_url=URL, token=TOKEN, runtime=RUNTIME, client=client)


class TestSandboxd(WorkspaceBackendSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, workspace):
        return workspace.backend()

    @pytest.fixture
    def fresh_backend(self, workspace):
        return workspace.backend

    @pytest.fixture
    def attach_backend(self, workspace):
        return workspace.backend

    @pytest.fixture
    def destroy_environment(self, workspace):
        async def destroy(backend):
            await workspace.destroy(backend.ref)

        return destroy
