"""Stored workspaces: looked at without a sandbox."""

import base64
import time
from datetime import datetime

import pytest
from client import fresh_id, quickest

PDF_TEXT = "Quarterly figures of Acme"


def pdf(text):
    """A PDF of one page that says `text`."""
    stream = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + b"xref\n0 6\n0000000000 65535 f \n%strailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (table, len(out))


POLISH = "Zażółć gęślą jaźń, powiedział król i wyjechał z miasta, żeby nigdy już nie wrócić. " * 4
FRENCH = (
    "La réunion du conseil d'administration a été repoussée à la semaine prochaine, parce que le président est "
    "malade. Les employés de la société préfèrent travailler à la maison le vendredi, même s'ils doivent être "
    "présents au bureau le lundi. À l'été dernier, nous avons visité une forêt près de la frontière, où les chênes "
    "étaient très âgés; les élèves y ont dîné à côté d'un château du siècle passé. "
)
JAPANESE = "これは日本語の文章です。文字コードを判定するための試験に使います。" * 6
ENCODED = {
    "utf-8": (POLISH, "utf-8"),
    "utf-8 with a mark": (POLISH, "utf-8-sig"),
    "utf-16 with a mark": (POLISH, "utf-16"),
    "latin-1": (FRENCH, "latin-1"),
    "cp1252": (FRENCH.replace("'", "’"), "cp1252"),
    "cp1250": (POLISH, "cp1250"),
    "shift-jis": (JAPANESE, "shift_jis"),
    "ascii": ("plain " * 20, "ascii"),
}


@pytest.fixture
def browsed(stored):
    """A workspace with directories, files and links, closed."""
    stored.put("b.txt", b"bb")
    stored.put("a.txt", b"a")
    stored.put("zeta/inner/deep.txt", b"deep")
    stored.put("zeta/one.txt", b"1")
    stored.mkdir("alpha")
    stored.link("link", "a.txt")
    stored.link("dirlink", "zeta")
    stored.link("out", "/etc/hostname")
    stored.link("broken", "nowhere")
    stored.seal()
    return stored


@pytest.fixture
def lines(stored):
    """A file of ten lines."""
    stored.put("ten.txt", "".join(f"line {n}\n" for n in range(10)).encode())
    stored.seal()
    return stored


def names(entries):
    return [entry["path"] for entry in entries]


# ---- ls


def test_directories_come_first_and_then_names(browsed):
    """Directories first, then by name."""
    assert names(browsed.get("ls", path=".")) == ["alpha", "zeta", "a.txt", "b.txt"]


@pytest.mark.parametrize("path", [".", "/", "", "./", "{work}", "{work}/"])
def test_a_workspace_s_top_has_many_names(browsed, path):
    """Paths are relative to the work directory; an absolute in-sandbox path names the same."""
    assert names(browsed.get("ls", path=path.format(work=browsed.work))) == ["alpha", "zeta", "a.txt", "b.txt"]


@pytest.mark.parametrize("path", ["zeta", "./zeta", "zeta/", "{work}/zeta", "zeta/./."])
def test_a_directory_is_named_in_many_ways(browsed, path):
    """Relative, or absolute in the sandbox; paths relative to the workspace."""
    assert names(browsed.get("ls", path=path.format(work=browsed.work))) == ["zeta/inner", "zeta/one.txt"]


def test_a_file_s_entry_in_a_listing(browsed):
    """FileEntry."""
    entry = browsed.get("ls", path=".")[3]
    assert (entry["name"], entry["path"], entry["is_dir"], entry["size"]) == ("b.txt", "b.txt", False, 2)


def test_when_a_file_was_modified_is_iso_8601(browsed):
    """modified_at ISO 8601."""
    modified = datetime.fromisoformat(browsed.get("ls", path=".")[3]["modified_at"])
    assert modified.tzinfo is not None and abs(modified.timestamp() - time.time()) < 300


def test_a_directory_s_entry_in_a_listing(browsed):
    """size null for a directory."""
    entry = browsed.get("ls", path=".")[0]
    assert (entry["name"], entry["is_dir"], entry["size"]) == ("alpha", True, None)


def test_an_empty_directory_is_an_empty_listing(browsed):
    """[FileEntry]."""
    assert browsed.get("ls", path="alpha") == []


@pytest.mark.parametrize("name", ["link", "dirlink", "out", "broken"])
def test_a_link_is_left_out(browsed, name):
    """Links are left out of listings."""
    assert name not in names(browsed.get("ls", path="."))


@pytest.mark.parametrize("route", ["ls", "tree", "read", "read_bytes"])
@pytest.mark.parametrize("path", ["..", "../x", "zeta/../a.txt", "/workspace/../etc/hostname", "zeta/../.."])
def test_a_path_that_climbs_is_400(browsed, route, path):
    """`..`: 400."""
    answer = browsed.ask(route, path=path)
    assert answer.status_code == 400 and answer.json()["detail"]


@pytest.mark.parametrize(
    ("route", "path"),
    [
        ("ls", "dirlink"),
        ("ls", "dirlink/inner"),
        ("tree", "dirlink"),
        ("read", "link"),
        ("read", "out"),
        ("read", "broken"),
        ("read", "dirlink/one.txt"),
        ("read_bytes", "link"),
        ("read_bytes", "out"),
        ("read_bytes", "dirlink/one.txt"),
    ],
)
def test_a_path_through_a_link_is_400(browsed, route, path):
    """Anything through a link: 400."""
    assert browsed.ask(route, path=path).status_code == 400


@pytest.mark.parametrize("route", ["ls", "tree", "read", "read_bytes"])
@pytest.mark.parametrize("path", ["missing", "missing/deeper", "/etc/hostname", "/etc", "a.txt/below"])
def test_what_is_missing_is_404(browsed, route, path):
    """Missing: 404; any other absolute path lands inside the workspace, where it does not exist."""
    assert browsed.ask(route, path=path).status_code == 404


@pytest.mark.parametrize("route", ["ls", "tree"])
def test_a_file_is_no_directory_to_list(browsed, route):
    """No such directory: 404."""
    assert browsed.ask(route, path="a.txt").status_code == 404


@pytest.mark.parametrize("route", ["read", "read_bytes"])
def test_a_directory_is_no_file_to_read(browsed, route):
    """No such file: 404."""
    assert browsed.ask(route, path="zeta").status_code == 404


@pytest.mark.parametrize("route", ["ls", "tree", "read", "read_bytes"])
def test_an_unknown_workspace_is_404(api, route):
    """Missing: 404."""
    assert api.post(f"/workspaces/{fresh_id()}/{route}", {"path": "a"}).status_code == 404


@pytest.mark.parametrize("route", ["ls", "read", "read_bytes"])
def test_a_body_without_a_path_is_422(api, route):
    """{path}."""
    answer = api.post(f"/workspaces/{fresh_id()}/{route}", {})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", "path"]


def test_an_absolute_path_lands_inside(stored):
    """Any other absolute path lands inside the workspace."""
    stored.put("etc/hostname", b"mine")
    stored.seal()
    assert stored.get("read", path="/etc/hostname") == {"content": "mine"}


# ---- tree


def test_a_tree_is_breadth_first(browsed):
    """Breadth first."""
    tree = browsed.get("tree", path=".")
    assert names(tree["entries"]) == ["alpha", "zeta", "a.txt", "b.txt", "zeta/inner", "zeta/one.txt", "zeta/inner/deep.txt"]


def test_a_whole_tree_is_not_truncated(browsed):
    """truncated."""
    assert browsed.get("tree")["truncated"] is False


def test_a_tree_begins_at_the_top_unless_told(browsed):
    """path="."."""
    assert browsed.get("tree") == browsed.get("tree", path=".")


def test_a_tree_begins_where_it_is_told(browsed):
    """path."""
    tree = browsed.get("tree", path=f"{browsed.work}/zeta")
    assert names(tree["entries"]) == ["zeta/inner", "zeta/one.txt", "zeta/inner/deep.txt"]


@pytest.mark.parametrize(("depth", "count", "truncated"), [(1, 4, True), (2, 6, True), (3, 7, False), (64, 7, False)])
def test_a_tree_is_as_deep_as_told(browsed, depth, count, truncated):
    """truncated is true when a directory was left unopened at max_depth."""
    tree = browsed.get("tree", max_depth=depth)
    assert (len(tree["entries"]), tree["truncated"]) == (count, truncated)


@pytest.mark.parametrize(("most", "truncated"), [(1, True), (2, True), (3, False), (100, False)])
def test_a_tree_is_as_long_as_told(browsed, most, truncated):
    """max_entries stopped it."""
    tree = browsed.get("tree", path="zeta", max_entries=most)
    assert (len(tree["entries"]), tree["truncated"]) == (min(most, 3), truncated)


@pytest.mark.parametrize("most", [1, 4, 6])
def test_a_tree_with_links_is_no_longer_than_told(browsed, most):
    """max_entries, of what is looked at."""
    tree = browsed.get("tree", max_entries=most)
    assert len(tree["entries"]) <= most and tree["truncated"]


def test_a_tree_is_six_deep_unless_told(stored):
    """max_depth=6."""
    stored.put("1/2/3/4/5/6/7/file")
    stored.seal()
    tree = stored.get("tree")
    assert names(tree["entries"])[-1] == "1/2/3/4/5/6" and tree["truncated"]


def test_a_tree_has_2000_entries_unless_told(stored):
    """max_entries=2000."""
    stored.many("many", 2100)
    stored.seal()
    tree = stored.get("tree")
    assert len(tree["entries"]) == 2000 and tree["truncated"]


@pytest.mark.parametrize(
    ("field", "value"), [("max_depth", 0), ("max_depth", 65), ("max_entries", 0), ("max_entries", 100_001), ("max_depth", "x")]
)
@pytest.mark.parametrize("route", ["workspaces/some/tree", "workspaces/trees"])
def test_a_tree_s_bounds_are_bounded(api, route, field, value):
    """max_depth 1..64, max_entries 1..100000."""
    answer = api.post(f"/{route}", {"sessions": ["some"], field: value})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", field]


def test_a_tree_of_a_huge_directory_costs_little(stored):
    """The work is bounded too."""
    stored.many("many", 20_000)
    stored.seal()
    stored.get("tree", max_entries=10)

    def look():
        tree = stored.get("tree", path="many", max_entries=10)
        assert len(tree["entries"]) == 10 and tree["truncated"]

    quickest(0.5, look)


@pytest.mark.parametrize("name", ["link", "dirlink", "dirlink/one.txt", "out", "broken"])
def test_a_tree_leaves_links_out(browsed, name):
    """Links are left out of listings."""
    assert name not in names(browsed.get("tree")["entries"])


# ---- trees


def test_trees_come_in_the_order_asked(api, browsed):
    """results, in the order asked."""
    asked = [fresh_id(), browsed.id, fresh_id()]
    results = api.post("/workspaces/trees", {"sessions": asked}).json()["results"]
    assert [result["session_id"] for result in results] == asked


def test_a_tree_among_trees_is_the_tree(api, browsed):
    """tree?"""
    result = api.post("/workspaces/trees", {"sessions": [browsed.id]}).json()["results"][0]
    assert result["tree"] == browsed.get("tree") and result.get("error") is None


def test_one_bad_workspace_is_its_own_error(api, browsed):
    """One bad workspace is its own error."""
    answer = api.post("/workspaces/trees", {"sessions": [fresh_id(), browsed.id]})
    bad, good = answer.json()["results"]
    assert (bad["status_code"], bad.get("tree")) == (404, None) and isinstance(bad["error"], str)
    assert good["tree"]["entries"]


@pytest.mark.parametrize(("path", "status"), [("..", 400), ("dirlink", 400), ("missing", 404)])
def test_a_refused_path_is_each_workspace_s_error(api, browsed, path, status):
    """error?, status_code?"""
    answer = api.post("/workspaces/trees", {"sessions": [browsed.id], "path": path})
    assert answer.status_code == 200 and answer.json()["results"][0]["status_code"] == status


def test_trees_are_bounded_each(api, browsed):
    """path, max_depth, max_entries."""
    body = {"sessions": [browsed.id, browsed.id], "path": "zeta", "max_depth": 1, "max_entries": 5}
    trees = [result["tree"] for result in api.post("/workspaces/trees", body).json()["results"]]
    assert [names(tree["entries"]) for tree in trees] == [["zeta/inner", "zeta/one.txt"]] * 2


@pytest.mark.parametrize("sessions", [[], ["a"] * 101, ["-bad"], "some", None, [7]], ids=lambda s: str(s)[:12])
def test_trees_are_of_1_to_100_workspaces(api, sessions):
    """sessions: 1..100 ids."""
    answer = api.post("/workspaces/trees", {"sessions": sessions})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"][:2] == ["body", "sessions"]


def test_trees_of_100_workspaces(api):
    """sessions: 1..100 ids."""
    asked = [f"nobody-{number}" for number in range(100)]
    results = api.post("/workspaces/trees", {"sessions": asked}).json()["results"]
    assert [result["status_code"] for result in results] == [404] * 100


# ---- read


def test_a_file_is_read(lines):
    """{content}."""
    assert lines.get("read", path="ten.txt") == {"content": "\n".join(f"line {n}" for n in range(10))}


@pytest.mark.parametrize(("offset", "limit", "wanted"), [(0, 10, range(10)), (3, 7, range(3, 10)), (9, 2000, [9]), (5, 100, range(5, 10))])
def test_a_slice_up_to_the_end(lines, offset, limit, wanted):
    """A slice of lines."""
    content = lines.get("read", path="ten.txt", offset=offset, limit=limit)["content"]
    assert content == "\n".join(f"line {n}" for n in wanted)


@pytest.mark.parametrize(("offset", "limit"), [(0, 1), (0, 9), (4, 3), (8, 1)])
def test_a_slice_with_more_to_come(lines, offset, limit):
    """The slice, a blank line, [... N more lines. Use offset=M to read more.]"""
    content = lines.get("read", path="ten.txt", offset=offset, limit=limit)["content"]
    end = offset + limit
    wanted = "\n".join(f"line {n}" for n in range(offset, end))
    assert content == f"{wanted}\n\n[... {10 - end} more lines. Use offset={end} to read more.]"


@pytest.mark.parametrize("offset", [10, 11, 100_000])
def test_past_the_end(lines, offset):
    """[End of file]."""
    assert lines.get("read", path="ten.txt", offset=offset)["content"] == "[End of file]"


def test_an_empty_file_is_at_its_end(stored):
    """[End of file]."""
    stored.put("empty.txt", b"")
    stored.seal()
    assert stored.get("read", path="empty.txt")["content"] == "[End of file]"


def test_2000_lines_are_read_unless_told(stored):
    """limit=2000."""
    stored.put("long.txt", b"x\n" * 2005)
    stored.seal()
    assert stored.get("read", path="long.txt")["content"].endswith("x\n\n[... 5 more lines. Use offset=2000 to read more.]")


@pytest.mark.parametrize("ending", ["\r\n", "\n", "\r"], ids=["crlf", "lf", "cr"])
def test_lines_end_as_they_end(stored, ending):
    """A slice of lines."""
    stored.put("a.txt", ending.join(["one", "two", "three"]).encode())
    stored.seal()
    assert stored.get("read", path="a.txt", offset=1, limit=2)["content"] == "two\nthree"


@pytest.mark.parametrize(("field", "value"), [("offset", -1), ("limit", 0), ("limit", -5), ("offset", "x")])
def test_a_slice_is_of_numbers(api, field, value):
    """offset, limit."""
    answer = api.post("/workspaces/some/read", {"path": "a", field: value})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["body", field]


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("suffix", ["txt", "dat"])
def test_an_encoding_is_found_out(stored, name, suffix):
    """UTF-8, else detected encoding."""
    text, encoding = ENCODED[name]
    stored.put(f"a.{suffix}", text.encode(encoding))
    stored.seal()
    assert stored.get("read", path=f"a.{suffix}")["content"] == text


def test_a_pdf_s_text_is_extracted(stored):
    """A PDF's text is extracted."""
    stored.put("report.pdf", pdf(PDF_TEXT))
    stored.seal()
    assert PDF_TEXT in stored.get("read", path="report.pdf")["content"]


@pytest.mark.parametrize("content", [b"%PDF-1.4\nbroken", b"", b"no pdf at all"], ids=["broken", "empty", "text"])
def test_a_pdf_that_is_none_is_400(stored, content):
    """Not text: 400."""
    stored.put("report.pdf", content)
    stored.seal()
    assert stored.ask("read", path="report.pdf").status_code == 400


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40),
        ("a.bin", bytes(range(256)) * 40),
        ("a.zip", b"PK\x03\x04" + bytes((n * 7919) % 256 for n in range(20_000))),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_binary_content_is_400(stored, name, content):
    """Binary content is 400."""
    stored.put(name, content)
    stored.seal()
    assert stored.ask("read", path=name).status_code == 400


@pytest.mark.settings(max_read_bytes=1000)
@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 400)])
@pytest.mark.parametrize("route", ["read", "read_bytes"])
def test_a_file_over_the_limit_is_400(stored, route, size, status):
    """Over max_read_bytes: 400."""
    stored.put("a.txt", b"x" * min(size, 1000))
    if size > 1000:
        if hasattr(stored.made, "session"):
            stored.session.out(f"printf x >> {stored.work}/a.txt")
        else:
            stored.put("a.txt", b"x" * size)
    stored.seal()
    assert stored.ask(route, path="a.txt").status_code == status


@pytest.mark.parametrize("path", ["zeta/one.txt", "./zeta/one.txt", "{work}/zeta/one.txt"])
def test_a_file_is_named_in_many_ways(browsed, path):
    """An absolute in-sandbox path names the same file."""
    assert browsed.get("read", path=path.format(work=browsed.work)) == {"content": "1"}


# ---- read_bytes


@pytest.mark.parametrize("content", [b"", b"text\n", bytes(range(256)), b"\x89PNG\r\n"], ids=["empty", "text", "every byte", "png"])
def test_bytes_come_as_they_are(stored, content):
    """{content_b64}."""
    stored.put("a", content)
    stored.seal()
    assert base64.b64decode(stored.get("read_bytes", path="a")["content_b64"], validate=True) == content


# ---- no sandbox


@pytest.mark.sandbox
@pytest.mark.parametrize("route", ["ls", "tree", "read", "read_bytes"])
def test_no_sandbox_is_started(api, browsed, route):
    """No sandbox is started."""
    before = api.health()
    browsed.get(route, path="a.txt" if "read" in route else ".")
    assert api.health()["open_sessions"] == before["open_sessions"] and browsed.id not in api.listed()


@pytest.mark.sandbox
def test_an_open_session_s_workspace_is_looked_at(api, session, work):
    """Stored workspaces, open or not."""
    session.put(f"{work}/a", b"live")
    assert api.post(f"/workspaces/{session.id}/read", {"path": "a"}).json() == {"content": "live"}


@pytest.mark.sandbox
def test_looking_at_a_workspace_is_no_event(api, session):
    """Events are the session's operations."""
    api.post(f"/workspaces/{session.id}/ls", {"path": "."})
    assert session.events()["latest_seq"] == 0


@pytest.mark.sandbox
def test_a_fifo_does_not_hang_a_listing(api, session, work):
    """Special files are entries like others, or left out; nothing hangs."""
    session.out(f"mkfifo {work}/fifo")
    assert api.post(f"/workspaces/{session.id}/ls", {"path": "."}).status_code == 200
    assert api.post(f"/workspaces/{session.id}/read", {"path": "fifo"}).status_code in (400, 404)
