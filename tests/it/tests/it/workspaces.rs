//! Stored workspaces: what is kept, looked at without a sandbox, by the platform and by people.

use std::time::{Duration, Instant};

use it::daemon::Options;
use it::session::fresh_id;
use it::{Daemon, Response, Session, shared};
use serde_json::{Value, json};

/// Two pages and what they say of themselves, made by a library that many agents use.
const REPORT: &[u8] = include_bytes!("../../data/report.pdf");
/// The same kind with a password.
const ENCRYPTED: &[u8] = include_bytes!("../../data/encrypted.pdf");

/// Ask for something of a stored workspace, with the service token.
#[track_caller]
fn ask(daemon: &Daemon, id: &str, op: &str, body: Value) -> Response {
    daemon.client.post(&format!("/workspaces/{id}/{op}"), body)
}

#[track_caller]
fn read(id: &str, body: Value) -> String {
    let answer = ask(shared(), id, "read", body).expect(200).json();
    answer["content"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The paths of entries, in their order.
fn paths(entries: &Value) -> Vec<&str> {
    let entries = entries.as_array().unwrap_or_else(|| panic!("{entries}"));
    entries.iter().map(|entry| entry["path"].as_str().unwrap()).collect()
}

/// The workspace's element of `GET /workspaces`, on whichever page it is.
#[track_caller]
fn listed(daemon: &Daemon, id: &str) -> Option<Value> {
    let mut skip = 0;
    loop {
        let page = daemon.client.get(&format!("/workspaces?skip={skip}&limit=100")).expect(200).json();
        let workspaces = page["workspaces"].as_array().unwrap();
        if let Some(found) = workspaces.iter().find(|workspace| workspace["session_id"] == id) {
            return Some(found.clone());
        }
        skip += workspaces.len() as u64;
        if workspaces.is_empty() || skip >= page["total"].as_u64().unwrap() {
            return None;
        }
    }
}

fn with_files() -> Session {
    let s = shared().session("python");
    s.sh("mkdir -p src/deep uploads && printf 'one\\ntwo\\nthree\\n' > notes.md && echo x > src/b && echo y > src/deep/c")
        .expect("");
    s.sh("ln -s notes.md link; ln -s /etc etc; mkfifo pipe; printf '\\0\\1\\2' > bin").expect("");
    s
}

#[test]
fn a_listing_has_directories_first_and_no_links() {
    let s = with_files();
    for path in [".", "", "/workspace", "/", "./src/.."] {
        let answer = ask(shared(), &s.id, "ls", json!({"path": path}));
        if path.contains("..") {
            answer.expect(400);
            continue;
        }
        let entries = answer.expect(200).json();
        assert_eq!(paths(&entries), ["src", "uploads", "bin", "notes.md", "pipe"], "{path:?}");
        let (directory, file) = (&entries[0], &entries[3]);
        assert_eq!((&directory["is_dir"], &directory["size"]), (&json!(true), &Value::Null));
        assert_eq!((&file["is_dir"], &file["size"], &file["name"]), (&json!(false), &json!(14), &json!("notes.md")));
        let modified = file["modified_at"].as_str().unwrap();
        assert!(modified.contains('T') && modified.ends_with("+00:00"), "{modified}");
    }
    assert_eq!(
        paths(&ask(shared(), &s.id, "ls", json!({"path": "/workspace/src"})).expect(200).json()),
        ["src/deep", "src/b"]
    );
}

#[test]
fn what_is_kept_is_there_while_open_and_when_closed_and_gone_when_purged() {
    let s = with_files();
    let sessions = || shared().client.get("/sessions").expect(200).json();
    let has = |list: &Value| list["sessions"].as_array().unwrap().iter().any(|session| session["session_id"] == s.id);
    assert_eq!(read(&s.id, json!({"path": "notes.md"})), "one\ntwo\nthree");
    assert_eq!(listed(shared(), &s.id).unwrap()["state"], "open");
    s.close();
    assert_eq!(read(&s.id, json!({"path": "notes.md"})), "one\ntwo\nthree");
    ask(shared(), &s.id, "tree", json!({})).expect(200);
    ask(shared(), &s.id, "files", json!({})).expect(200);
    let workspace = listed(shared(), &s.id).unwrap();
    assert_eq!((&workspace["state"], &workspace["runtime"]), (&json!("closed"), &json!("python")));
    assert!(!has(&sessions()), "a look opened the session");
    let again = Session::open(shared(), json!({"session_id": s.id, "reuse": true}));
    shared().client.delete(&format!("/sessions/{}?purge=true", again.id)).expect(204);
    for (op, body) in [("ls", json!({"path": "."})), ("tree", json!({})), ("read", json!({"path": "x"}))] {
        let detail = ask(shared(), &s.id, op, body).expect(404).detail();
        assert_eq!(detail, format!("No workspace for session: {}", s.id));
    }
    assert_eq!(listed(shared(), &s.id), None);
}

#[test]
fn the_workspace_of_a_closed_session_is_deleted_without_a_sandbox() {
    let s = with_files();
    let (path, client) = (format!("/workspaces/{}", s.id), &shared().client);
    let detail = client.delete(&path).expect(409).detail();
    assert_eq!(detail, format!("Session exists: {}", s.id));
    assert_eq!(s.file("read", "/workspace/notes.md").expect(200).text(), "one\ntwo\nthree\n");
    assert!(matches!(s.client.delete(&path).status, 401 | 403 | 404), "its own token deletes what is kept of it");
    s.close();
    assert_eq!(client.anonymous().delete(&path).status, 401);
    assert_eq!(listed(shared(), &s.id).unwrap()["state"], "closed");
    client.delete(&path).expect(204);
    assert_eq!(listed(shared(), &s.id), None);
    assert!(!shared().state.join("workspaces").join(&s.id).exists(), "it is on the disk still");
    let detail = client.delete(&path).expect(404).detail();
    assert_eq!(detail, format!("No workspace for session: {}", s.id));
    client.delete("/workspaces/-x").expect(422);
    // The name is as any other: nothing of what was there comes back with it.
    let again = Session::open(shared(), json!({"session_id": s.id, "runtime": "python"}));
    again.sh("ls -A").expect("");
}

#[test]
fn deleted_once_however_many_ask_and_never_under_a_session_that_opens() {
    let s = with_files();
    s.close();
    let path = format!("/workspaces/{}", s.id);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(|| shared().client.delete(&path).status)).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|&&status| status == 204).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| [204, 404, 409].contains(status)), "{statuses:?}");
    // Whoever wins: a session that is open has its files, all of them.
    for _ in 0..4 {
        let s = shared().session("python");
        s.sh("echo x > f").expect("");
        s.close();
        let path = format!("/workspaces/{}", s.id);
        let (deleted, opened) = std::thread::scope(|scope| {
            let deleting = scope.spawn(|| shared().client.delete(&path).status);
            let body = json!({"session_id": s.id, "runtime": "python"});
            let opening = scope.spawn(move || shared().client.post("/sessions", body));
            (deleting.join().unwrap(), opening.join().unwrap())
        });
        assert!([204, 409].contains(&deleted) && [200, 409].contains(&opened.status), "{deleted} {opened:?}");
        if opened.status == 200 {
            let outcome = Session::from_answer(shared(), &opened.json()).sh("cat f 2>&1; echo y > g && cat g");
            let left = outcome.stdout();
            assert!(left.ends_with("y\n") && (deleted == 204 || left.starts_with("x\n")), "{deleted}: {left}");
        }
        shared().client.delete(&format!("/sessions/{}?purge=true", s.id));
        shared().client.delete(&path);
    }
}

#[test]
fn a_sleeping_session_is_not_woken() {
    let daemon = shared();
    let s = daemon.session("python");
    s.sh("echo x > f").expect("");
    // No clock does so by itself: whoever is awake afterwards was woken.
    s.client.post(&s.path("/hibernate"), json!(null)).expect(200);
    let content = ask(daemon, &s.id, "read", json!({"path": "f"})).expect(200).json();
    assert_eq!(content["content"], "x");
    ask(daemon, &s.id, "ls", json!({"path": "."})).expect(200);
    assert_eq!(listed(daemon, &s.id).unwrap()["state"], "asleep");
    assert_eq!(s.client.get(&s.path("")).expect(200).json()["state"], "hibernated", "a look woke it");
}

#[test]
fn only_the_service_token_looks_at_stored_workspaces() {
    let s = shared().session("python");
    for op in ["ls", "tree", "read", "read_bytes", "files"] {
        let path = format!("/workspaces/{}/{op}", s.id);
        for client in [&s.client, &s.client.anonymous(), &s.client.with_token("\u{e9}")] {
            client.post(&path, json!({"path": "."})).expect(401);
            client.post(&format!("/workspaces/unknown/{op}"), json!({"path": "."})).expect(401);
        }
        shared().client.post(&format!("/workspaces/unknown/{op}"), json!({"path": "."})).expect(404);
        shared().client.post(&format!("/workspaces/.hidden/{op}"), json!({"path": "."})).expect_invalid("session_id");
    }
    s.client.get("/workspaces").expect(401);
    s.client.post("/workspaces/trees", json!({"sessions": [s.id]})).expect(401);
}

#[test]
fn what_does_not_validate_names_its_field() {
    let s = shared().session("python");
    for (op, body, field) in [
        ("ls", json!({}), "path"),
        ("ls", json!({"path": 1}), "path"),
        ("tree", json!({"max_depth": 0}), "max_depth"),
        ("tree", json!({"max_depth": 65}), "max_depth"),
        ("tree", json!({"max_entries": 0}), "max_entries"),
        ("tree", json!({"max_entries": 100_001}), "max_entries"),
        ("read", json!({"path": "f", "offset": -1}), "offset"),
        ("read", json!({"path": "f", "limit": 0}), "limit"),
        ("read_bytes", json!({}), "path"),
        ("files", json!({"thumbnails": 25}), "thumbnails"),
        ("files", json!({"max_depth": 0}), "max_depth"),
    ] {
        ask(shared(), &s.id, op, body).expect_invalid(field);
    }
    let trees = |body: Value| shared().client.post("/workspaces/trees", body);
    trees(json!({})).expect_invalid("sessions");
    trees(json!({"sessions": []})).expect_invalid("sessions");
    trees(json!({"sessions": vec!["a"; 101]})).expect_invalid("sessions");
    trees(json!({"sessions": ["../x"]})).expect(422);
    trees(json!({"sessions": ["a"], "max_depth": 65})).expect_invalid("max_depth");
    for limit in ["0", "101", "-1", "x"] {
        shared().client.get(&format!("/workspaces?limit={limit}")).expect(422);
    }
}

#[test]
fn paths_stay_inside() {
    let s = with_files();
    for path in ["..", "../x", "src/../../x", "etc", "etc/passwd", "link", "/workspace/../etc"] {
        for op in ["read", "read_bytes"] {
            ask(shared(), &s.id, op, json!({"path": path})).expect(400);
        }
    }
    for path in ["/var/passwd", "missing", "src", "notes.md/x", ""] {
        ask(shared(), &s.id, "read", json!({"path": path})).expect(404);
    }
    ask(shared(), &s.id, "read_bytes", json!({"path": "pipe"})).expect(400);
    for path in ["etc", "..", "link"] {
        ask(shared(), &s.id, "tree", json!({"path": path})).expect(400);
    }
    let bytes = ask(shared(), &s.id, "read_bytes", json!({"path": "/workspace/bin"})).expect(200).json();
    assert_eq!(bytes, json!({"content_b64": "AAEC"}));
}

#[test]
fn a_tree_is_breadth_first_and_says_when_there_is_more() {
    let s = with_files();
    let tree = |body: Value| ask(shared(), &s.id, "tree", body).expect(200).json();
    let all = ["src", "uploads", "bin", "notes.md", "pipe", "src/deep", "src/b", "src/deep/c"];
    let whole = tree(json!({}));
    assert_eq!((paths(&whole["entries"]), &whole["truncated"]), (all.to_vec(), &json!(false)));
    for body in [json!({"max_depth": 2}), json!({"max_entries": 7}), json!({"max_depth": 1, "path": "src"})] {
        assert_eq!(tree(body)["truncated"], true);
    }
    let trees = json!({"sessions": [s.id, "unknown", s.id], "path": "src"});
    let results = shared().client.post("/workspaces/trees", trees).expect(200).json();
    let results = results["results"].as_array().unwrap();
    assert_eq!(paths(&results[0]["tree"]["entries"]), ["src/deep", "src/b", "src/deep/c"]);
    assert_eq!((&results[0]["error"], &results[0]["status_code"]), (&Value::Null, &Value::Null));
    assert_eq!((&results[1]["tree"], &results[1]["status_code"]), (&Value::Null, &json!(404)));
    assert_eq!(results[2], results[0]);
}

#[test]
fn a_directory_that_is_closed_is_skipped_and_said() {
    let s = with_files();
    s.sh("chmod 0 src/deep").expect("");
    let tree = ask(shared(), &s.id, "tree", json!({})).expect(200).json();
    assert_eq!((paths(&tree["entries"]).len(), &tree["truncated"]), (7, &json!(true)));
    ask(shared(), &s.id, "ls", json!({"path": "src/deep"})).expect(403);
    s.sh("chmod 755 src/deep").expect("");
}

#[test]
fn a_huge_directory_costs_what_is_wanted_of_it() {
    let s = shared().session("python");
    s.sh("mkdir many && cd many && seq -f f%.0f 30000 | xargs touch").expect("");
    let time = |entries: u64| {
        let begun = Instant::now();
        let tree = ask(shared(), &s.id, "tree", json!({"max_entries": entries})).expect(200).json();
        assert_eq!(tree["truncated"], entries < 30_001);
        begun.elapsed()
    };
    let cheap = |_| {
        let (few, all) = ((0..5).map(|_| time(10)).min().unwrap(), time(100_000));
        println!("{few:?} for ten entries, {all:?} for all");
        few * 5 < all
    };
    // If it were looked at whole each time, the two were the same each time.
    assert!((0..5).any(cheap));
}

#[test]
fn text_is_decoded_and_sliced() {
    let s = with_files();
    let name = |path: &str| json!({"path": path});
    assert_eq!(read(&s.id, name("/workspace/notes.md")), "one\ntwo\nthree");
    let part = json!({"path": "notes.md", "offset": 1, "limit": 1});
    assert_eq!(read(&s.id, part), "two\n\n[... 1 more lines. Use offset=2 to read more.]");
    assert_eq!(read(&s.id, json!({"path": "notes.md", "offset": 3})), "[End of file]");
    s.write("/workspace/bom", b"\xef\xbb\xbfgr\xc3\xbcn").expect(204);
    s.write("/workspace/wide.txt", b"\xff\xfeh\0i\0").expect(204);
    s.write(
        "/workspace/latin",
        "Die Stra\u{df}e f\u{fc}hrt \u{fc}ber die Br\u{fc}cke nach K\u{f6}ln."
            .chars()
            .map(|c| c as u8)
            .collect::<Vec<_>>()
            .as_slice(),
    )
    .expect(204);
    assert_eq!(read(&s.id, name("bom")), "grün");
    assert_eq!(read(&s.id, name("wide.txt")), "hi");
    assert_eq!(read(&s.id, name("latin")), "Die Straße führt über die Brücke nach Köln.");
    assert_eq!(ask(shared(), &s.id, "read", name("bin")).expect(400).detail(), "[Binary File]");
    s.sh("head -c 9000000 /dev/zero > big.txt").expect("");
    let detail = ask(shared(), &s.id, "read", name("big.txt")).expect(400).detail();
    assert!(detail.as_str().unwrap().contains("8388608-byte read limit"), "{detail}");
    ask(shared(), &s.id, "read_bytes", name("big.txt")).expect(400);
}

#[test]
fn a_pdf_is_read_as_its_text() {
    let s = shared().session("python");
    s.write("/workspace/Report.PDF", REPORT).expect(204);
    let text = read(&s.id, json!({"path": "Report.PDF"}));
    let expected = "Title: Quarter\nAuthor: Ada\nSubject: Sums\n\n--- Page 1 ---\nHello PDF world\n\n\
                    --- Page 2 ---\nSecond page: größer";
    assert_eq!(text, expected);
    let part = json!({"path": "Report.PDF", "offset": 5, "limit": 1});
    assert_eq!(read(&s.id, part), "Hello PDF world\n\n[... 3 more lines. Use offset=6 to read more.]");
    let bytes = ask(shared(), &s.id, "read_bytes", json!({"path": "Report.PDF"})).expect(200).json();
    assert_eq!(bytes["content_b64"].as_str().unwrap().len(), REPORT.len().div_ceil(3) * 4);
}

/// PDFs that are made to hurt whoever reads them: made in the sandbox, as they would be.
const HOSTILE: &str = r#"
import zlib
def pdf(name, *objects):
    out, places = b'%PDF-1.4\n', []
    for i, o in enumerate(objects, 1):
        places.append(len(out)); out += b'%d 0 obj\n' % i + o + b'\nendobj\n'
    table = len(out); out += b'xref\n0 %d\n0000000000 65535 f \n' % (len(objects) + 1)
    for place in places: out += b'%010d 00000 n \n' % place
    out += b'trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n' % (len(objects) + 1, table)
    open(name, 'wb').write(out)
def stream(data, more=b''): return b'<</Length %d%s>>stream\n' % (len(data), more) + data + b'\nendstream'
def squeeze(data, times):
    z = zlib.compressobj(9); return b''.join([z.compress(data) for _ in range(times)]) + z.flush()
catalog, pages = b'<</Type/Catalog/Pages 2 0 R>>', b'<</Type/Pages/Kids[3 0 R]/Count 1>>'
page = b'<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R>>'
pdf('bomb.pdf', catalog, pages, page, stream(squeeze(b' ' * (1 << 20), 2000), b'/Filter/FlateDecode'))
pdf('kids.pdf', catalog, b'<</Type/Pages/Kids[2 0 R]/Count 9>>')
pdf('parent.pdf', catalog, pages, b'<</Type/Page/Parent 3 0 R/Contents 4 0 R>>', stream(b'BT (x) Tj ET'))
form = b'/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<</X 5 0 R>>>>'
pdf('form.pdf', catalog, pages, page[:-2] + b'/Resources<</XObject<</X 5 0 R>>>>>>', stream(b'/X Do'), stream(b'/X Do', form))
open('noise.pdf', 'wb').write(bytes(range(256)) * 400)
open('empty.pdf', 'wb').write(b'')
"#;

#[test]
fn a_hostile_pdf_hurts_nobody() {
    let s = shared().session("python");
    s.run(["python3", "-c", HOSTILE]).expect("");
    s.write("/workspace/secret.pdf", ENCRYPTED).expect(204);
    s.write("/workspace/cut.pdf", &REPORT[..REPORT.len() / 2]).expect(204);
    std::thread::scope(|scope| {
        // As many at once as the service reads at once: more wait, and on a machine that is busy for too long.
        for names in [["bomb", "kids", "parent", "form"], ["noise", "empty", "secret", "cut"]] {
            let s = &s;
            scope.spawn(move || {
                for name in names {
                    let begun = Instant::now();
                    let answer = ask(shared(), &s.id, "read", json!({"path": format!("{name}.pdf")}));
                    let detail = answer.expect(400).detail();
                    assert!(detail.as_str().unwrap().starts_with("Failed to parse PDF: "), "{name}: {detail}");
                    assert!(begun.elapsed() < Duration::from_secs(60), "{name}: {:?}", begun.elapsed());
                }
            });
        }
        // Meanwhile the service answers.
        for _ in 0..20 {
            let begun = Instant::now();
            shared().client.get("/healthz").expect(200);
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// Pictures, one of them a link, one too large, one that is none.
const PICTURES: &str = r#"
import os, struct, zlib
def chunk(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
def png(width, height, pixel):
    rows = (b'\0' + pixel * width) * height
    header = struct.pack('>IIBBBBB', width, height, 8, 6 if len(pixel) == 4 else 2, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')
os.mkdir('uploads')
open('a.png', 'wb').write(png(800, 400, b'abc'))
open('b.PNG', 'wb').write(png(10, 10, b'abc\x80'))
open('c.png', 'wb').write(b'no picture')
open('d.png', 'wb').write(png(9, 9, b'abc')[:40])
open('e.jpg', 'wb').write(png(9, 9, b'abc'))
open('f.txt', 'wb').write(png(9, 9, b'abc'))
open('uploads/g.png', 'wb').write(png(9, 9, b'abc'))
os.symlink('a.png', 'h.png')
open('huge.png', 'wb').write(png(9, 9, b'abc') + b'\0' * (9 << 20))
open('wide.png', 'wb').write(png(1, 1, b'abc')[:16] + struct.pack('>II', 100000, 100000) + png(1, 1, b'abc')[24:])
for hidden in ('skills/pdf', '.spill', 'work/skills'):
    os.makedirs(hidden); open(hidden + '/x.md', 'w').write('12345')
"#;

#[test]
fn people_see_what_is_for_them() {
    let s = shared().session("python");
    s.run(["python3", "-c", PICTURES]).expect("");
    let browse = |body: Value| ask(shared(), &s.id, "files", body).expect(200).json();
    let plain = browse(json!({}));
    let all = paths(&plain["entries"]);
    assert_eq!(all.len(), 13, "{all:?}");
    assert!(all.iter().all(|path| !path.starts_with("skills") && !path.starts_with(".spill") && *path != "h.png"));
    assert!(all.contains(&"work/skills/x.md"));
    for entry in plain["entries"].as_array().unwrap() {
        assert_eq!(entry["attached"], entry["path"] == "uploads/g.png", "{entry}");
        assert_eq!(entry["thumbnail"], Value::Null);
    }
    let drawn = browse(json!({"thumbnails": 24}));
    for entry in drawn["entries"].as_array().unwrap() {
        let kind = match entry["path"].as_str().unwrap() {
            "a.png" | "e.jpg" | "uploads/g.png" => Some("data:image/jpeg;base64,/9j/"),
            "b.PNG" => Some("data:image/png;base64,iVBOR"),
            _ => None,
        };
        let thumbnail = entry["thumbnail"].as_str();
        assert_eq!(thumbnail.is_some(), kind.is_some(), "{entry}");
        assert!(thumbnail.is_none_or(|uri| uri.starts_with(kind.unwrap()) && uri.len() < 100_000), "{entry}");
    }
    let two = browse(json!({"thumbnails": 2}));
    let count = two["entries"].as_array().unwrap().iter().filter(|entry| !entry["thumbnail"].is_null()).count();
    assert_eq!(count, 2);
    assert!(paths(&browse(json!({"path": "skills"}))["entries"]).is_empty());
}

#[test]
fn counts_agree_with_listings() {
    let s = shared().session("python");
    s.run(["python3", "-c", PICTURES]).expect("");
    let agree = |files: u64| {
        let listing = ask(shared(), &s.id, "files", json!({})).expect(200).json();
        let entries = listing["entries"].as_array().unwrap();
        let seen: Vec<&Value> = entries.iter().filter(|entry| entry["is_dir"] == false).collect();
        let bytes: u64 = seen.iter().map(|entry| entry["size"].as_u64().unwrap()).sum();
        let row = listed(shared(), &s.id).unwrap();
        assert_eq!(seen.len() as u64, files);
        for counted in [&listing, &row] {
            assert_eq!((&counted["files"], &counted["bytes"]), (&json!(files), &json!(bytes)), "{counted}");
            assert_eq!(counted["truncated"], listing["truncated"]);
        }
        assert_eq!(listing["notice"].is_string(), listing["truncated"] == true);
        listing["truncated"] == true
    };
    assert!(!agree(10));
    s.sh("mkdir -p 1/2/3/4/5/6 && echo x > 1/2/3/4/5/6/deep").expect("");
    assert!(agree(10), "six levels end above it");
    s.sh("rm -r 1 && mkdir many && cd many && seq 3000 | xargs touch").expect("");
    // Directories are entries as well, and `work/skills` comes after the bound.
    assert!(agree(2000 - 3));
}

#[test]
fn workspaces_come_in_pages() {
    let daemon = Options::new().env("SANDBOXD_HIDDEN_PREFIXES", "private").start();
    let page = |query: &str| daemon.client.get(&format!("/workspaces{query}")).expect(200).json();
    assert_eq!(
        page(""),
        json!({"workspaces": [], "total": 0, "skip": 0, "limit": 50, "disk_bytes": 0, "disk_inodes": 0})
    );
    let key = json!({"scope": "conversation", "organization": "acme-europe", "agent": "clerk", "conversation": "7"});
    let keyed = Session::open(&daemon, json!({"runtime": "python", "key": key, "tenant": "acme"}));
    let named = Session::open(&daemon, json!({"runtime": "python", "session_id": fresh_id("pages")}));
    named.sh("mkdir private skills && echo 1 > private/f && echo 22 > skills/f").expect("");
    let all = page("");
    let ids: Vec<&str> =
        all["workspaces"].as_array().unwrap().iter().map(|w| w["session_id"].as_str().unwrap()).collect();
    assert_eq!((ids, &all["total"]), (vec![named.id.as_str(), keyed.id.as_str()], &json!(2)));
    let (by_name, by_key) = (&all["workspaces"][0], &all["workspaces"][1]);
    assert_eq!((&by_name["files"], &by_name["bytes"], &by_name["key"]), (&json!(1), &json!(3), &Value::Null));
    assert_eq!(by_name["access"], "whoever the platform gives this session to");
    assert_eq!(by_key["access"], "whoever is in that conversation");
    assert_eq!((&by_key["key"]["scope"], &by_key["key"]["organization"]), (&json!("conversation"), &json!("acme-eur")));
    assert_eq!((&by_key["tenant"], &by_key["files"], &by_key["error"]), (&json!("acme"), &json!(0), &Value::Null));
    assert!(by_key["last_opened"].as_f64() < by_name["last_opened"].as_f64());
    let second = page("?skip=1&limit=1");
    assert_eq!((&second["workspaces"][0], &second["total"], &second["skip"]), (by_key, &json!(2), &json!(1)));
    assert_eq!(page("?skip=2")["workspaces"], json!([]));
}
