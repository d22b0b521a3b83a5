"""A client of the contract, as plain as it can be: it adds the token and nothing else."""

import time
import uuid

import httpx

HEADER = "X-Sandbox-Token"
#: How long something that happens in the background may take, in seconds: spent only when a case fails, and a machine that has
#: others to serve may need it.
SOON = 60.0
#: Deadlines for a command that has something to do before it: a machine that is too slow for the first gets the next.
DEADLINES = (1.0, 4.0, 16.0, 64.0)
ABSENT = object()


def fresh_id():
    """An id that no session has."""
    return f"contract-{uuid.uuid4().hex[:12]}"


def run_id():
    """An id for a run."""
    return uuid.uuid4().hex


def eventually(check, within=SOON):
    """Ask `check` again and again until it says yes; whether it ever did."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        if check():
            return True
        time.sleep(0.05)
    return bool(check())


def quickest(most, act):
    """Do something until it takes no longer than `most` seconds, five times at most: what another process on this machine holds
    up is done quickly at another time, and what is slow is slow each time."""
    took = []
    for _ in range(5):
        begun = time.monotonic()
        act()
        took.append(time.monotonic() - begun)
        if took[-1] <= most:
            return
    raise AssertionError(f"longer than {most} s each time: {took}")


class Rhythm:
    """How regularly a case has done its steps."""

    def __init__(self):
        self.last, self.longest = time.monotonic(), 0.0

    def step(self):
        """One more is done."""
        now = time.monotonic()
        self.last, self.longest = now, max(self.longest, now - self.last)


def in_rhythm(most, act):
    """`act(rhythm)`, which shows something only if no more than `most` seconds pass between two of its steps: where this machine
    made it wait longer, it is done again."""
    for _ in range(20):
        rhythm = Rhythm()
        try:
            return act(rhythm)
        except AssertionError:
            rhythm.step()
            if rhythm.longest <= most:
                raise
    raise AssertionError(f"this machine never does two things within {most} s")


class Api:
    """One service, called with its own token unless told otherwise."""

    def __init__(self, service):
        self.service = service
        self.http = httpx.Client(base_url=service.url, timeout=300, trust_env=False)
        self.opened = []

    def call(self, method, path, *, token=ABSENT, **options):
        """One request; `token=None` sends none."""
        headers = dict(options.pop("headers", {}))
        token = self.service.token if token is ABSENT else token
        if token is not None:
            headers[HEADER] = token
        return self.http.request(method, path, headers=headers, **options)

    def get(self, path, **options):
        """GET."""
        return self.call("GET", path, **options)

    def post(self, path, json=ABSENT, **options):
        """POST, JSON unless `content` is given."""
        if json is not ABSENT:
            options["json"] = json
        return self.call("POST", path, **options)

    def put(self, path, json, **options):
        """PUT, JSON."""
        return self.call("PUT", path, json=json, **options)

    def delete(self, path, **options):
        """DELETE."""
        return self.call("DELETE", path, **options)

    def try_open(self, **body):
        """`POST /sessions`, whatever comes of it."""
        answer = self.post("/sessions", body)
        if answer.status_code == 200:
            self.opened.append(answer.json()["session"]["session_id"])
        return answer

    def open(self, **body):
        """A session."""
        answer = self.try_open(**body)
        assert answer.status_code == 200, answer.text
        return Session(self, answer.json())

    def health(self):
        """`GET /healthz`."""
        return self.get("/healthz", token=None).json()

    def policy(self):
        """`GET /policy`."""
        return self.get("/policy").json()

    def listed(self):
        """The ids of the open sessions."""
        return [session["session_id"] for session in self.get("/sessions").json()["sessions"]]

    def close(self):
        """Close and purge every session that was opened here."""
        for name in dict.fromkeys(self.opened):
            answer = self.delete(f"/sessions/{name}?purge=true")
            if answer.status_code == 404 and self.service.process is None:
                # Closed without a purge: on a service that lives on, its workspace would stay.
                if self.post("/sessions", {"session_id": name, "attach": True}).status_code == 200:
                    self.delete(f"/sessions/{name}?purge=true")
        self.http.close()


class Session:
    """One session, called with its own token."""

    def __init__(self, api, created):
        self.api = api
        self.token = created["token"]
        self.opened_as = created["session"]
        self.id = created["session"]["session_id"]

    def call(self, method, path, **options):
        """One request below the session's route."""
        options.setdefault("token", self.token)
        return self.api.call(method, f"/sessions/{self.id}{path}", **options)

    def try_run(self, *argv, run=None, **options):
        """`run`, whatever comes of it."""
        http = {name: options.pop(name) for name in ("timeout",) if name in options}
        return self.call("POST", "/run", json={"argv": argv, "run_id": run or run_id(), **options}, **http)

    def run(self, *argv, **options):
        """A command's answer."""
        answer = self.try_run(*argv, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def sh(self, script, **options):
        """A shell script's answer."""
        return self.run("sh", "-c", script, **options)

    def out(self, script):
        """What a shell script that succeeds prints."""
        answer = self.sh(script)
        assert answer["exit_code"] == 0, answer
        return answer["stdout"]

    def stop(self, run, **options):
        """Stop a run."""
        return self.call("POST", f"/runs/{run}/stop", **options)

    def file(self, op, path, **options):
        """A file operation that names a path."""
        return self.call("POST", f"/files/{op}", json={"path": path}, **options)

    def write(self, path, content=b"", **options):
        """`files/write`."""
        return self.call("POST", "/files/write", params={"path": path}, content=content, **options)

    def put(self, path, content=b""):
        """A file that is there now."""
        answer = self.write(path, content)
        assert answer.status_code == 204, answer.text

    def read(self, path):
        """A file's bytes."""
        answer = self.file("read", path)
        assert answer.status_code == 200, answer.text
        return answer.content

    def info(self, **options):
        """`GET /sessions/{id}`."""
        return self.call("GET", "", **options).json()

    def events(self, after=0):
        """`GET /sessions/{id}/events`."""
        return self.call("GET", "/events", params={"after": after}).json()

    def last(self):
        """The newest event."""
        return self.events()["events"][-1]

    def close(self, purge=False):
        """`DELETE /sessions/{id}`."""
        answer = self.call("DELETE", "", params={"purge": "true"} if purge else {})
        assert answer.status_code == 204, answer.text
