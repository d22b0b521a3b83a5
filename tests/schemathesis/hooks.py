"""What schemathesis cannot know: which session is open, and to leave the service as it was."""

import os
import random

import httpx
import schemathesis

TOKEN = {"X-Sandbox-Token": os.environ["FUZZ_TOKEN"]}
SESSION = os.environ["FUZZ_SESSION"]
#: A connection for each: one that was kept may be closed by the service in the moment it is used again.
HTTP = httpx.Client(
    base_url=os.environ["FUZZ_URL"],
    headers=TOKEN,
    trust_env=False,
    timeout=60,
    limits=httpx.Limits(max_keepalive_connections=0),
)
POLICY = HTTP.get("/policy").json()
#: What an update may carry, as it was.
BEFORE = {
    name: POLICY[name]
    for name in """default_runtime max_sessions max_open_sessions max_sessions_per_tenant evict_idle_after
    idle_timeout workspace_ttl container_ttl execute_timeout max_read_bytes mem_limit memswap_limit cpus
    cpu_shares pids_limit tmpfs_size""".split()
}


#: Which of the cases are changed: the same ones for the same cases.
CHOICE = random.Random(0)


def path(text):
    """A path that is there, or one that may be made."""
    work = POLICY["work_dir"]
    return CHOICE.choice([f"{work}/known/file.txt", f"{work}/known", f"{work}/{text}", text])


def place(fields):
    """Let a request's `path` lead somewhere now and then."""
    if isinstance(fields, dict) and isinstance(fields.get("path"), str):
        fields["path"] = path(fields["path"])


def expendable():
    """A session that may be deleted; none where the policy that another case has just set opens none."""
    opened = HTTP.post("/sessions", json={})
    return opened.json()["session"]["session_id"] if opened.status_code == 200 else None


def harmless(case):
    """The image store is that of other tests as well: nothing is removed from it, and nothing fetched into it."""
    if not isinstance(case.body, dict):
        return
    if case.path == "/images/gc" and case.body.get("dry_run") is not True and set(case.body) <= {"unused", "dry_run"}:
        case.body["dry_run"] = True
    if case.path == "/images/pull" and isinstance(case.body.get("reference"), str) and case.body["reference"]:
        case.body["reference"] = f"127.0.0.1:1/{case.body['reference']}"[:512]


@schemathesis.hook
def before_call(context, case, kwargs):
    """Half of what names a session names one that is open, and most of what names a path one that may be there."""
    harmless(case)
    if CHOICE.random() < 0.5:
        return
    if isinstance(case.path_parameters, dict) and "session_id" in case.path_parameters:
        known = SESSION if case.method != "DELETE" else expendable()
        case.path_parameters["session_id"] = known or case.path_parameters["session_id"]
    if isinstance(case.path_parameters, dict) and "alias" in case.path_parameters:
        case.path_parameters["alias"] = CHOICE.choice(POLICY["runtimes"])["alias"]
    if isinstance(case.body, dict) and isinstance(case.body.get("sessions"), list):
        case.body["sessions"] = [SESSION, *case.body["sessions"]][:100]
    place(case.body)
    place(case.query)


@schemathesis.hook
def after_call(context, case, response):
    """Close what was opened, put back what was changed."""
    if response.status_code != 200:
        return
    if case.method == "POST" and case.path == "/sessions":
        HTTP.delete(f"/sessions/{response.json()['session']['session_id']}?purge=true")
    if case.method == "PUT" and case.path == "/policy":
        limits = {
            runtime["alias"]: {name: None for name in ("mem_limit", "memswap_limit", "cpus", "cpu_shares", "pids_limit")}
            for runtime in POLICY["runtimes"]
        }
        HTTP.put("/policy", json={**BEFORE, "runtimes": limits})
