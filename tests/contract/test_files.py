"""A live session's files: the operations, their errors, and what stays with the sandbox."""

import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from client import run_id

pytestmark = pytest.mark.sandbox
PATH_OPS = ["read", "stat", "list", "realpath", "mkdir", "remove"]
OPS = [*PATH_OPS, "write"]
NAMES = ["plain", "two words", "żółć", "🎲", ".hidden", "a'b\"c", "-rf", "*", "a\nb", "$HOME", "x" * 200]


def do(session, op, path):
    return session.write(path, b"new") if op == "write" else session.file(op, path)


def error(answer, status, name):
    """Whether it is that path error, in the contract's shape."""
    assert answer.status_code == status, answer.text
    detail = answer.json()["detail"]
    return detail["error"] == name and isinstance(detail["message"], str)


@pytest.fixture
def tree(session, work):
    """A directory with a file, a directory and links."""
    session.put(f"{work}/dir/file", b"content")
    session.put(f"{work}/dir/sub/deep", b"deep")
    session.out(f"cd {work}/dir && ln -s file link && ln -s sub dirlink && ln -s /etc/hostname out && ln -s nowhere broken && mkfifo fifo")
    return f"{work}/dir"


# ---- bytes


@pytest.mark.parametrize(
    "content", [b"", b"text", bytes(range(256)), b"\r\n\0\n", b"\xff\xfe" * 1000, os.urandom(1 << 20)],
    ids=["empty", "text", "every byte", "ends of line", "no text", "1 MiB"],
)
def test_bytes_come_back_as_they_were(session, work, content):
    """read: the bytes; write: body = the bytes."""
    session.put(f"{work}/a", content)
    assert session.read(f"{work}/a") == content


def test_a_write_is_204_and_says_nothing(session, work):
    """write: 204."""
    answer = session.write(f"{work}/a", b"x")
    assert (answer.status_code, answer.content) == (204, b"")


def test_bytes_are_an_octet_stream(session, work):
    """application/octet-stream."""
    session.put(f"{work}/a.html", b"<html>")
    assert session.file("read", f"{work}/a.html").headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_is_any_name(session, work, name):
    """A path is bytes to the sandbox, and text to the client."""
    session.put(f"{work}/{name}", b"x")
    assert session.read(f"{work}/{name}") == b"x"
    assert [entry["name"] for entry in session.file("list", work).json()] == [name]


@pytest.mark.parametrize("type_", ["text/plain", "application/json", "multipart/form-data; boundary=x", None])
def test_a_body_is_bytes_whatever_it_is_called(session, work, type_):
    """body = the bytes."""
    headers = {"content-type": type_} if type_ else {}
    assert session.write(f"{work}/a", b'{"a": 1}', headers=headers).status_code == 204
    assert session.read(f"{work}/a") == b'{"a": 1}'


def test_a_write_makes_parents(session, work):
    """Creates parents."""
    session.put(f"{work}/a/b/c/d", b"deep")
    assert session.out(f"cat {work}/a/b/c/d") == "deep"


def test_a_command_reads_what_was_written(session, work):
    """One file system."""
    session.put(f"{work}/a", b"from outside")
    assert session.out(f"cat {work}/a") == "from outside"


def test_a_command_changes_what_was_written(session, work):
    """A file belongs to whom the commands run as."""
    session.put(f"{work}/d/a", b"1")
    session.out(f"echo 2 >> {work}/d/a && chmod 600 {work}/d/a && rm {work}/d/a && rmdir {work}/d")


def test_what_a_command_wrote_is_read(session, work):
    """One file system."""
    session.out(f"printf 'from inside' > {work}/a")
    assert session.read(f"{work}/a") == b"from inside"


def test_a_write_replaces(session, work):
    """The whole content."""
    session.put(f"{work}/a", b"long content")
    session.put(f"{work}/a", b"short")
    assert session.read(f"{work}/a") == b"short"


@pytest.mark.parametrize("mode", ["755", "600", "640"])
def test_a_write_keeps_the_mode(session, work, mode):
    """Keeps an existing file's mode."""
    session.put(f"{work}/a", b"1")
    session.out(f"chmod {mode} {work}/a")
    session.put(f"{work}/a", b"2")
    assert session.out(f"stat -c %a {work}/a").strip() == mode


def test_a_write_leaves_no_sibling(session, work):
    """A temporary sibling, then rename."""
    session.put(f"{work}/a", b"1")
    session.put(f"{work}/a", b"2")
    assert session.out(f"ls -A {work}") == "a\n"


def test_a_write_is_atomic(session, work):
    """A reader sees the old content or the new."""
    contents = [bytes([letter]) * (1 << 20) for letter in b"ab"]
    session.put(f"{work}/f", contents[0])
    done = threading.Event()

    def write():
        for turn in range(30):
            session.put(f"{work}/f", contents[turn % 2])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        assert session.read(f"{work}/f") in contents
    thread.join()


def test_writes_at_once_leave_one_of_them_whole(session, work):
    """Atomic, whoever wins."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: session.put(f"{work}/f", bytes([65 + n]) * 100_000), range(8)))
    content = session.read(f"{work}/f")
    assert len(content) == 100_000 and len(set(content)) == 1


def test_a_write_does_not_follow_a_link_at_its_target(session, work):
    """Replaces a link planted at the target rather than following it; or 409."""
    session.put(f"{work}/victim", b"untouched")
    session.out(f"ln -s victim {work}/link")
    answer = session.write(f"{work}/link", b"new")
    assert session.read(f"{work}/victim") == b"untouched"
    if answer.status_code == 204:
        assert session.out(f"test ! -L {work}/link && cat {work}/link") == "new"
    else:
        assert answer.status_code == 409


def test_a_write_does_not_follow_a_link_out_of_the_workspace(session, work):
    """No path is ever resolved by name on the host."""
    session.out(f"ln -s /tmp/elsewhere {work}/link && ln -s /tmp {work}/dir")
    assert session.write(f"{work}/link", b"new").status_code in (204, 409)
    assert session.write(f"{work}/dir/elsewhere", b"new").status_code in (204, 409)
    assert session.sh("test -e /tmp/elsewhere")["exit_code"] in (0, 1)


def test_a_chunked_body_is_written(session, work):
    """A chunked body included."""
    answer = session.write(f"{work}/a", iter([b"one ", b"two ", b"three"]))
    assert answer.status_code == 204 and session.read(f"{work}/a") == b"one two three"


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
def test_a_body_over_the_limit_is_409_and_not_written(session, work, api, chunked):
    """Anything over max_read_bytes; ceilings count bytes as they arrive, a chunked body included."""
    size = api.policy()["max_read_bytes"] + 1
    session.put(f"{work}/a", b"old")
    content = (b"x" * piece for piece in [size // 2, size - size // 2]) if chunked else b"x" * size
    assert session.write(f"{work}/a", content).status_code == 409
    assert session.read(f"{work}/a") == b"old" and session.out(f"ls -A {work}") == "a\n"


def test_a_body_of_the_limit_is_written_and_read(session, work, api):
    """Over max_read_bytes, not at it."""
    content = os.urandom(api.policy()["max_read_bytes"])
    session.put(f"{work}/a", content)
    assert session.read(f"{work}/a") == content


def test_a_file_over_the_limit_is_409(session, work, api):
    """409: anything over max_read_bytes."""
    session.out(f"head -c {api.policy()['max_read_bytes'] + 1} /dev/zero > {work}/a")
    assert session.file("read", f"{work}/a").status_code == 409


# ---- stat, list, realpath


@pytest.mark.parametrize("field", ["name", "path", "is_dir", "size"])
def test_an_entry_has_a_field(session, tree, field):
    """FileEntry."""
    assert field in session.file("stat", f"{tree}/file").json()


def test_a_file_s_entry(session, tree):
    """stat."""
    entry = session.file("stat", f"{tree}/file").json()
    assert (entry["name"], entry["path"], entry["is_dir"], entry["size"]) == ("file", f"{tree}/file", False, 7)


def test_a_directory_s_entry(session, tree):
    """size null for a directory."""
    entry = session.file("stat", tree).json()
    assert (entry["name"], entry["path"], entry["is_dir"], entry["size"]) == ("dir", tree, True, None)


def test_the_work_directory_s_entry(session, work):
    """stat of the work directory itself."""
    entry = session.file("stat", work).json()
    assert (entry["path"], entry["is_dir"], entry["size"]) == (work, True, None)


def test_when_a_file_was_modified(session, tree):
    """modified_at?: when it is said, it is ISO 8601."""
    modified = session.file("stat", f"{tree}/file").json().get("modified_at")
    assert modified is None or abs(datetime.fromisoformat(modified).timestamp() - session.info()["last_activity"]) < 60


def test_a_directory_is_listed_sorted(session, work):
    """Sorted by name."""
    for name in ("b", "a", "C", "10", "9", ".z", "ä"):
        session.put(f"{work}/{name}")
    session.file("mkdir", f"{work}/aa")
    names = [entry["name"] for entry in session.file("list", work).json()]
    assert names == sorted(["b", "a", "C", "10", "9", ".z", "ä", "aa"])


def test_a_directory_is_listed_with_full_paths(session, work):
    """Full paths."""
    session.put(f"{work}/d/a", b"xyz")
    session.file("mkdir", f"{work}/d/b")
    entries = session.file("list", f"{work}/d").json()
    assert [(entry["path"], entry["is_dir"], entry["size"]) for entry in entries] == [
        (f"{work}/d/a", False, 3),
        (f"{work}/d/b", True, None),
    ]


def test_a_directory_is_listed_alone(session, work):
    """Not recursive."""
    session.put(f"{work}/a/b/c")
    assert [entry["name"] for entry in session.file("list", work).json()] == ["a"]


def test_an_empty_directory_is_an_empty_list(session, work):
    """[FileEntry]."""
    assert session.file("list", work).json() == []


def test_a_directory_with_a_link_is_listed_as_the_sandbox_would_or_is_its(session, tree):
    """409, or exactly the answer that the sandbox itself would give."""
    answer = session.file("list", tree)
    assert answer.status_code in (200, 409)
    if answer.status_code == 200:
        names = [entry["name"] for entry in answer.json()]
        assert names == sorted(session.out(f"ls -A {tree}").split())


def test_many_entries_are_listed(session, work):
    """All of them."""
    session.out(f"mkdir {work}/many && cd {work}/many && seq 3000 | xargs touch")
    assert len(session.file("list", f"{work}/many").json()) == 3000


def test_a_path_is_its_own_real_path(session, tree):
    """realpath: {"path": ...}."""
    assert session.file("realpath", f"{tree}/file").json() == {"path": f"{tree}/file"}


@pytest.mark.parametrize("tail", ["missing", "missing/deeper/still", "file/below"])
def test_a_missing_tail_is_kept_as_written(session, tree, tail):
    """A missing tail is kept as written."""
    assert session.file("realpath", f"{tree}/{tail}").json() == {"path": f"{tree}/{tail}"}


@pytest.mark.parametrize("name", ["link", "dirlink/deep", "out", "broken", "../dir/link"])
def test_a_link_s_real_path_is_the_sandbox_s_or_409(session, tree, name):
    """409, or exactly the answer that the sandbox itself would give."""
    answer = session.file("realpath", f"{tree}/{name}")
    assert answer.status_code in (200, 409)
    if answer.status_code == 200:
        assert answer.json()["path"] == session.out(f"realpath -m {tree}/{name}").strip()


# ---- mkdir, remove


def test_mkdir_makes_parents(session, work):
    """mkdir -p; 204."""
    answer = session.file("mkdir", f"{work}/a/b/c")
    assert (answer.status_code, answer.content) == (204, b"")
    assert session.file("stat", f"{work}/a/b/c").json()["is_dir"]


@pytest.mark.parametrize("path", ["d", "d/e", ""])
def test_mkdir_of_a_directory_that_is_there_is_204(session, work, path):
    """mkdir -p."""
    session.file("mkdir", f"{work}/d/e")
    assert session.file("mkdir", f"{work}/{path}".rstrip("/")).status_code == 204


def test_a_command_writes_into_a_directory_that_was_made(session, work):
    """It belongs to whom the commands run as."""
    session.file("mkdir", f"{work}/d/e")
    session.out(f"touch {work}/d/e/f {work}/d/f")


def test_a_file_is_removed(session, tree):
    """remove: a file; 204."""
    answer = session.file("remove", f"{tree}/file")
    assert (answer.status_code, answer.content) == (204, b"")
    assert session.file("stat", f"{tree}/file").status_code == 404


def test_a_link_is_removed_and_not_its_target(session, tree):
    """remove: a link itself."""
    assert session.file("remove", f"{tree}/link").status_code == 204
    assert session.out(f"test ! -L {tree}/link && cat {tree}/file") == "content"


@pytest.mark.parametrize("name", ["broken", "out", "dirlink", "fifo"])
def test_what_is_no_file_is_removed_itself(session, tree, name):
    """remove: a link itself."""
    assert session.file("remove", f"{tree}/{name}").status_code == 204
    assert session.sh(f"test -e {tree}/{name} || test -L {tree}/{name}")["exit_code"] == 1
    assert session.out(f"cat {tree}/sub/deep /etc/hostname").startswith("deep")


def test_a_tree_is_removed(session, tree, work):
    """remove: a tree."""
    assert session.file("remove", tree).status_code == 204
    assert session.file("list", work).json() == []


def test_a_tree_is_removed_without_following_its_links(session, work):
    """A tree, and nothing behind its links."""
    session.put(f"{work}/keep/a", b"kept")
    session.out(f"mkdir {work}/go && ln -s ../keep {work}/go/link")
    assert session.file("remove", f"{work}/go").status_code == 204
    assert session.read(f"{work}/keep/a") == b"kept"


def test_a_tree_that_commands_made_is_removed(session, work):
    """Whatever its modes are."""
    session.out(f"mkdir -p {work}/t/a/b && touch {work}/t/a/b/c && chmod 500 {work}/t/a/b && chmod 000 {work}/t/a/b/c")
    assert session.file("remove", f"{work}/t").status_code in (204, 409)


def test_the_work_directory_is_not_removed(session, work):
    """The work directory itself is refused."""
    session.put(f"{work}/a")
    assert error(session.file("remove", work), 400, "ValueError")
    assert session.file("stat", f"{work}/a").status_code == 200


# ---- errors


@pytest.mark.parametrize("op", ["read", "stat", "list", "remove"])
@pytest.mark.parametrize("path", ["missing", "missing/deeper"])
def test_a_missing_file_is_404(session, work, op, path):
    """404 FileNotFoundError."""
    assert error(session.file(op, f"{work}/{path}"), 404, "FileNotFoundError")


@pytest.mark.parametrize("op", ["read", "write"])
def test_a_directory_is_no_file(session, tree, op):
    """400 IsADirectoryError."""
    assert error(do(session, op, tree), 400, "IsADirectoryError")


@pytest.mark.parametrize("op", ["read", "write"])
def test_the_work_directory_is_no_file(session, work, op):
    """400 IsADirectoryError."""
    assert error(do(session, op, work), 400, "IsADirectoryError")


@pytest.mark.parametrize("op", ["read", "stat", "list", "remove", "write", "mkdir"])
def test_a_file_is_no_directory_on_the_way(session, tree, op):
    """400 NotADirectoryError."""
    assert error(do(session, op, f"{tree}/file/below"), 400, "NotADirectoryError")


def test_a_file_is_not_listed(session, tree):
    """400 NotADirectoryError."""
    assert error(session.file("list", f"{tree}/file"), 400, "NotADirectoryError")


def test_a_file_is_where_a_directory_should_be(session, tree):
    """400 FileExistsError."""
    assert error(session.file("mkdir", f"{tree}/file"), 400, "FileExistsError")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("path", ["a", "./a", ""], ids=repr)
def test_a_path_that_is_not_absolute_is_400(session, op, path):
    """400 ValueError: a path that is not absolute."""
    assert error(do(session, op, path), 400, "ValueError")


@pytest.mark.parametrize("op", PATH_OPS)
@pytest.mark.parametrize("body", [{}, {"path": None}, {"path": 7}], ids=str)
def test_a_body_without_a_path_is_422_and_named(session, op, body):
    """{"path": ABSOLUTE}."""
    answer = session.call("POST", f"/files/{op}", json=body)
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", "path"]


def test_a_write_without_a_path_is_422_and_named(session):
    """write?path=..."""
    answer = session.call("POST", "/files/write", content=b"x")
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["query", "path"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "/".join(["d"] * 3000)], ids=["NUL", "a long name", "a long path"])
def test_a_path_that_no_kernel_takes_is_no_fault_of_the_service(session, work, op, name):
    """Never a 500."""
    assert do(session, op, f"{work}/{name}").status_code < 500


# ---- what the sandbox has to resolve


@pytest.mark.parametrize("name", ["link", "out", "dirlink/deep"])
def test_what_is_read_through_a_link_is_what_the_sandbox_reads_or_409(session, tree, name):
    """409, or exactly the answer that the sandbox itself would give."""
    answer = session.file("read", f"{tree}/{name}")
    assert answer.status_code in (200, 409)
    if answer.status_code == 200:
        assert answer.text == session.out(f"cat {tree}/{name}")


@pytest.mark.parametrize("op", ["read", "stat", "list"])
def test_a_broken_link_is_not_there_or_409(session, tree, op):
    """409, or exactly the answer that the sandbox itself would give."""
    assert session.file(op, f"{tree}/broken").status_code in (404, 409)


@pytest.mark.parametrize("op", ["read", "write", "stat"])
def test_a_fifo_is_the_sandbox_s(session, tree, op):
    """409: special files; and nothing hangs."""
    answer = do(session, op, f"{tree}/fifo")
    assert answer.status_code == 409 or (op == "write" and answer.status_code == 204)


@pytest.mark.parametrize("path", ["/etc/hostname", "/etc", "/", "/tmp", "/root/x", "/workspaces/x"])
@pytest.mark.parametrize("op", ["read", "stat", "list"])
def test_a_path_outside_the_work_directory_is_the_sandbox_s(session, op, path):
    """409: paths outside the work directory; or exactly the sandbox's answer."""
    answer = session.file(op, path)
    if answer.status_code == 200 and op == "read":
        assert answer.text == session.out(f"cat {path}")
    else:
        assert answer.status_code in (409, 200) or answer.json()["detail"]["error"]


@pytest.mark.parametrize("path", ["/", "/etc", "/tmp", "{work}/../usr"])
def test_a_directory_outside_is_listed_as_the_sandbox_lists_it_or_409(session, work, path):
    """409, or exactly the answer that the sandbox itself would give."""
    path = path.format(work=work)
    answer = session.file("list", path)
    assert answer.status_code in (200, 409)
    if answer.status_code == 200:
        assert [entry["name"] for entry in answer.json()] == sorted(session.out(f"ls -A {path}").split("\n")[:-1])


@pytest.mark.parametrize("how", ["outside", "through a link"])
def test_what_is_written_elsewhere_is_there_for_commands_or_409(session, work, how):
    """409, or exactly the answer that the sandbox itself would give."""
    session.out(f"mkdir -p /tmp/elsewhere && ln -s /tmp/elsewhere {work}/link")
    path = "/tmp/elsewhere/a/b" if how == "outside" else f"{work}/link/a/b"
    answer = session.write(path, b"new")
    assert answer.status_code in (204, 409)
    if answer.status_code == 204:
        assert session.out("cat /tmp/elsewhere/a/b && ls -A /tmp/elsewhere/a") == "newb\n"
        assert session.read(path) == b"new"


def test_a_mode_elsewhere_is_kept_or_409(session):
    """Keeps an existing file's mode."""
    session.out("printf 1 > /tmp/kept && chmod 750 /tmp/kept")
    if session.write("/tmp/kept", b"2").status_code == 204:
        assert session.out("stat -c %a /tmp/kept; cat /tmp/kept") == "750\n2"


def test_a_directory_elsewhere_is_made_and_removed_or_409(session):
    """mkdir -p; 204. remove: a tree; 204."""
    for op, there in (("mkdir", "0"), ("remove", "1")):
        answer = session.file(op, "/tmp/made/deep" if op == "mkdir" else "/tmp/made")
        assert answer.status_code in (204, 409)
        if answer.status_code == 409:
            return
        assert session.out("test -d /tmp/made; echo $?") == f"{there}\n"


@pytest.mark.parametrize("path", ["{work}", "/tmp/root{work}", "/tmp/..{work}"])
def test_the_work_directory_is_not_removed_by_another_name(session, work, path):
    """The work directory itself is refused."""
    session.put(f"{work}/a", b"kept")
    session.out("ln -sfn / /tmp/root")
    answer = session.file("remove", path.format(work=work))
    assert answer.status_code == 409 or error(answer, 400, "ValueError")
    assert session.read(f"{work}/a") == b"kept"


@pytest.mark.parametrize("path", ["/etc/shadow", "{work}/locked"])
def test_what_the_sandbox_s_user_may_not_read_is_not_read(session, work, path):
    """409: a file it may not open."""
    session.out(f"printf x > {work}/locked; chmod 0 {work}/locked")
    assert session.file("read", path.format(work=work)).status_code == 409


def test_a_device_has_no_end_and_is_not_read(session):
    """409: special files; and nothing hangs."""
    assert session.file("read", "/dev/zero").status_code == 409


@pytest.mark.parametrize("path", ["{work}/../etc/hostname", "{work}/dir/../../etc/hostname", "{work}/a/./b"])
@pytest.mark.parametrize("op", OPS)
def test_a_path_that_climbs_stays_in_the_sandbox(session, work, op, path):
    """Never the host's file."""
    hostname = Path("/etc/hostname").read_text()
    answer = do(session, op, path.format(work=work))
    assert answer.status_code < 500
    if answer.status_code == 200 and op == "read":
        assert answer.text != hostname


@pytest.mark.settings()
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("how", ["the file", "its directory"])
def test_a_link_to_the_host_s_files_leads_nowhere(session, work, op, how):
    """No path is ever resolved by name on the host."""
    with tempfile.TemporaryDirectory(prefix="sandboxd-contract-") as directory:
        os.chmod(directory, 0o777)
        host = Path(directory) / "secret"
        host.write_text("the host's")
        host.chmod(0o666)
        target, tail = (host, "") if how == "the file" else (directory, "/secret")
        session.out(f"ln -s {target} {work}/link")
        answer = do(session, op, f"{work}/link{tail}")
        assert "the host's" not in answer.text
        assert host.read_text() == "the host's" and sorted(os.listdir(directory)) == ["secret"]


def test_a_component_that_is_swapped_for_a_link_leads_nowhere(session, work):
    """Untrusted code swaps components while you look."""
    session.put(f"{work}/real/hostname", b"inside")
    possible = (b"inside", session.out("cat /etc/hostname").encode())
    swap = f"cd {work}; while :; do mv real was; ln -s /etc real; rm real; mv was real; done"
    run = run_id()
    thread = threading.Thread(target=lambda: session.try_run("sh", "-c", swap, run=run, timeout_seconds=120))
    thread.start()
    seen, enough = set(), time.monotonic() + 4
    while thread.is_alive() and (time.monotonic() < enough or 200 not in seen):
        answer = session.file("read", f"{work}/real/hostname")
        seen.add(answer.status_code)
        assert answer.status_code in (200, 404, 409) and (answer.status_code != 200 or answer.content in possible)
    session.stop(run)
    thread.join()
    assert 200 in seen


@pytest.mark.settings(native_files="false", prewarm="false")
@pytest.mark.parametrize("op", OPS)
def test_without_native_files_everything_is_the_sandbox_s(session, work, op):
    """native_files; 409: the client then does the same through /run."""
    assert do(session, op, f"{work}/a").status_code == 409


@pytest.mark.settings(native_files="false", prewarm="false")
@pytest.mark.parametrize("field", ["native_files", "native_writes", "native_realpath"])
def test_the_policy_says_that_native_files_are_off(api, field):
    """native_files, native_writes, native_realpath."""
    assert api.policy()[field] is False


@pytest.mark.settings(work_dir="/home/project", prewarm="false")
def test_another_work_directory(session):
    """work_dir."""
    assert session.out("pwd") == "/home/project\n"
    session.put("/home/project/a", b"here")
    assert session.out("cat a") == "here" and session.file("read", "/workspace/a").status_code in (404, 409)


