//! The files of a live session: every route, and every error that the contract names.

use it::session::escape;
use it::shared;
use serde_json::{Value, json};

#[test]
fn what_is_written_is_read_by_both_sides() {
    let s = shared().session("python");
    let all: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    s.write("/workspace/a/b/all.bin", &all).expect(204);
    let answer = s.file("read", "/workspace/a/b/all.bin").expect(200);
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    assert!(answer.body == all, "{} bytes of {}", answer.body.len(), all.len());
    s.run(["sh", "-c", "wc -c < a/b/all.bin"]).expect("300000\n");
    s.sh("printf hello > from-inside").expect("");
    assert_eq!(s.file("read", "/workspace/from-inside").expect(200).text(), "hello");
    s.write("/workspace/empty", b"").expect(204);
    assert_eq!(s.file("read", "/workspace/empty").expect(200).body, b"");
}

#[test]
fn whoever_writes_the_sandbox_user_owns_it() {
    let s = shared().session("python");
    s.write("/workspace/d/by-api", b"1").expect(204);
    s.file("mkdir", "/workspace/made").expect(204);
    s.sh("stat -c %u:%g d d/by-api made").expect("10001:10001\n10001:10001\n10001:10001\n");
    s.sh("echo 2 > d/by-api; echo 3 > d/new; rmdir made; rm -r d").expect("");
    s.sh("touch private; chmod 600 private; mkdir -m 700 closed; echo x > closed/x").expect("");
    s.file("read", "/workspace/private").expect(200);
    assert_eq!(s.file("read", "/workspace/closed/x").expect(200).text(), "x\n");
    s.file("remove", "/workspace/closed").expect(204);
}

#[test]
fn a_write_replaces_whole_and_keeps_the_mode() {
    let s = shared().session("python");
    s.sh("echo old > script; chmod 750 script; ln script other-name").expect("");
    s.write("/workspace/script", b"new").expect(204);
    s.sh("stat -c %a script; cat script other-name").expect("750\nnewold\n");
    s.sh("ls -A | sort").expect("other-name\nscript\n");
}

#[test]
fn a_write_replaces_a_planted_link_rather_than_following_it() {
    let s = shared().session("python");
    s.sh("echo safe > target; ln -s target link; ln -s /etc/passwd out").expect("");
    for link in ["link", "out"] {
        let status = s.write(&format!("/workspace/{link}"), b"mine").status;
        assert!(matches!(status, 204 | 409), "{status}");
        if status == 204 {
            s.run(["sh", "-c", &format!("test ! -L {link} && cat {link}")]).expect("mine");
        }
    }
    s.run(["cat", "target"]).expect("safe\n");
}

#[test]
fn stat_says_what_it_is() {
    let s = shared().session("python");
    s.write("/workspace/f.txt", b"12345").expect(204);
    s.file("mkdir", "/workspace/d").expect(204);
    let file = s.file("stat", "/workspace/f.txt").expect(200).json();
    assert_eq!((&file["name"], &file["path"]), (&json!("f.txt"), &json!("/workspace/f.txt")));
    assert_eq!((&file["is_dir"], &file["size"]), (&json!(false), &json!(5)));
    let directory = s.file("stat", "/workspace/d").expect(200).json();
    assert_eq!((&directory["is_dir"], &directory["size"]), (&json!(true), &Value::Null));
    assert_eq!(s.file("stat", "/workspace").expect(200).json()["is_dir"], true);
    assert_eq!(s.file("stat", "/workspace/d/../f.txt").expect(200).json()["size"], 5);
}

#[test]
fn list_is_sorted_with_full_paths_and_not_recursive() {
    let s = shared().session("python");
    for name in ["b", "a", ".hidden", "dir/inner", "Z"] {
        s.write(&format!("/workspace/l/{name}"), b"x").expect(204);
    }
    let list = s.file("list", "/workspace/l").expect(200).json();
    let paths: Vec<&str> = list.as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap()).collect();
    assert_eq!(
        paths,
        ["/workspace/l/.hidden", "/workspace/l/Z", "/workspace/l/a", "/workspace/l/b", "/workspace/l/dir"]
    );
    assert_eq!(list[4]["is_dir"], true);
    assert_eq!(s.file("list", "/workspace/l/dir").expect(200).json().as_array().unwrap().len(), 1);
}

#[test]
fn realpath_resolves_and_keeps_a_missing_tail() {
    let s = shared().session("python");
    s.sh("mkdir -p real/deep; ln -s real link").expect("");
    let resolve = |path: &str| {
        let answer = s.file("realpath", path);
        (answer.status == 200).then(|| answer.json()["path"].as_str().unwrap().to_owned())
    };
    assert_eq!(resolve("/workspace/real/deep").as_deref(), Some("/workspace/real/deep"));
    assert_eq!(resolve("/workspace/real/none/at/all").as_deref(), Some("/workspace/real/none/at/all"));
    assert_eq!(resolve("/workspace/./real/../real").as_deref(), Some("/workspace/real"));
    // A link may be left to the sandbox (409), but not be answered otherwise than it would.
    let linked = resolve("/workspace/link/deep");
    assert!(linked.is_none() || linked.as_deref() == Some("/workspace/real/deep"), "{linked:?}");
}

#[test]
fn mkdir_makes_parents_and_does_not_mind() {
    let s = shared().session("python");
    s.file("mkdir", "/workspace/m/n/o").expect(204);
    s.file("mkdir", "/workspace/m/n/o").expect(204);
    s.file("mkdir", "/workspace").expect(204);
    s.run(["sh", "-c", "test -d m/n/o && echo yes"]).expect("yes\n");
}

#[test]
fn remove_takes_a_file_a_link_itself_or_a_tree() {
    let s = shared().session("python");
    s.sh("mkdir -p t/u/v; echo 1 > t/u/v/w; ln -s t/u link; ln -s / t/root; echo f > f").expect("");
    s.file("remove", "/workspace/f").expect(204);
    let link = s.file("remove", "/workspace/link");
    assert!(matches!(link.status, 204 | 409), "{}", link.status);
    s.run(["sh", "-c", "cat t/u/v/w"]).expect("1\n");
    s.file("remove", "/workspace/t").expect(204);
    s.run(["sh", "-c", "test -e t || echo gone; test -e /etc/passwd && echo there"]).expect("gone\nthere\n");
}

#[test]
fn missing_is_file_not_found() {
    let s = shared().session("python");
    for operation in ["read", "stat", "list", "remove"] {
        for path in ["/workspace/none", "/workspace/no/such/file"] {
            s.file(operation, path).expect_path_error(404, "FileNotFoundError");
        }
    }
}

#[test]
fn a_directory_is_no_file_and_a_file_is_no_directory() {
    let s = shared().session("python");
    s.write("/workspace/file", b"x").expect(204);
    s.file("mkdir", "/workspace/dir").expect(204);
    s.file("read", "/workspace/dir").expect_path_error(400, "IsADirectoryError");
    s.write("/workspace/dir", b"x").expect_path_error(400, "IsADirectoryError");
    s.file("list", "/workspace/file").expect_path_error(400, "NotADirectoryError");
    s.file("read", "/workspace/file/below").expect_path_error(400, "NotADirectoryError");
    s.write("/workspace/file/below", b"x").expect_path_error(400, "NotADirectoryError");
    s.file("mkdir", "/workspace/file").expect_path_error(400, "FileExistsError");
}

#[test]
fn a_path_must_be_absolute_and_sound() {
    let s = shared().session("python");
    for operation in ["read", "stat", "list", "realpath", "mkdir", "remove"] {
        s.file(operation, "relative/path").expect_path_error(400, "ValueError");
        s.file(operation, "").expect_path_error(400, "ValueError");
        s.file(operation, "/workspace/nul\0byte").expect_path_error(400, "ValueError");
    }
    s.write("relative", b"x").expect_path_error(400, "ValueError");
}

#[test]
fn the_work_directory_itself_is_not_removed() {
    let s = shared().session("python");
    s.write("/workspace/kept", b"x").expect(204);
    for path in ["/workspace", "/workspace/", "/workspace/kept/.."] {
        let answer = s.file("remove", path);
        assert!(matches!(answer.status, 400 | 409), "{path}: {} {}", answer.status, answer.text());
    }
    s.file("read", "/workspace/kept").expect(200);
}

#[test]
fn nothing_of_the_host_is_served() {
    let s = shared().session("python");
    s.sh("ln -s /etc etc; ln -s ../../../../../../etc/shadow up; ln -s /proc/self/root root; mkfifo fifo").expect("");
    let paths = [
        "/etc/shadow",
        "/workspace/../etc/shadow",
        "/workspace/etc/shadow",
        "/workspace/up",
        "/workspace/root/etc/shadow",
        "/proc/1/environ",
    ];
    for path in paths {
        for operation in ["read", "stat", "list"] {
            let answer = s.file(operation, path);
            assert!(
                matches!(answer.status, 400 | 404 | 409),
                "{operation} {path}: {} {}",
                answer.status,
                answer.text()
            );
        }
    }
    for path in ["/etc/passwd", "/workspace/../etc/passwd", "/workspace/etc/passwd"] {
        let answer = s.file("remove", path);
        assert!(matches!(answer.status, 400 | 409), "remove {path}: {} {}", answer.status, answer.text());
    }
    s.run(["test", "-s", "/etc/passwd"]).expect("");
    let begun = std::time::Instant::now();
    let fifo = s.file("read", "/workspace/fifo");
    assert!(fifo.status == 409 && begun.elapsed().as_secs() < 60, "a FIFO makes nobody wait: {}", fifo.status);
}

#[test]
fn over_the_ceiling_is_left_to_the_sandbox_and_bytes_count_as_they_come() {
    let s = shared().session("python");
    s.write("/workspace/big", b"before").expect(204);
    s.sh("head -c 8388609 /dev/zero > large; head -c 8388608 /dev/zero > most").expect("");
    s.file("read", "/workspace/large").expect(409);
    assert_eq!(s.file("read", "/workspace/most").expect(200).body.len(), 8 << 20);
    s.write("/workspace/big", &vec![0; (8 << 20) + 1]).expect(409);
    assert_eq!(s.file("read", "/workspace/big").expect(200).text(), "before");
    let mut connection = s.client.connect();
    let path = s.path(&format!("/files/write?path={}", escape("/workspace/big")));
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nX-Sandbox-Token: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        String::from_utf8_lossy(&s.client.token)
    );
    connection.write(head.as_bytes()).unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b'x'; 1 << 20], b"\r\n"].concat();
    for _ in 0..9 {
        // The service may have answered already.
        let _ = connection.write(&chunk);
    }
    let _ = connection.write(b"0\r\n\r\n");
    assert_eq!(connection.answer().unwrap().status, 409);
    s.sh("cat big; ls -A | sort | tr '\\n' ' '").expect("beforebig large most ");
}

#[test]
fn a_write_that_is_broken_off_changes_nothing() {
    let s = shared().session("python");
    s.write("/workspace/f", b"before").expect(204);
    let mut connection = s.client.connect();
    let head = s.client.head("POST", &s.path("/files/write?path=/workspace/f"), None, 1000);
    connection.write(&[head.as_slice(), b"only a part"].concat()).unwrap();
    drop(connection);
    let settled = it::daemon::wait_for(std::time::Duration::from_secs(5), || {
        (s.run(["ls", "-A"]).stdout() == "f\n").then_some(())
    });
    assert!(settled.is_some(), "{}", s.run(["ls", "-A"]).stdout());
    assert_eq!(s.file("read", "/workspace/f").expect(200).text(), "before");
}

#[test]
fn odd_names_are_names() {
    let s = shared().session("python");
    for name in ["sp ace", "ünï \u{1F980}", "-rf", "a%2Fb", "q?x=1&y", "new\nline", "'\"$(id)"] {
        let path = format!("/workspace/{name}");
        s.write(&path, name.as_bytes()).expect(204);
        assert_eq!(s.file("read", &path).expect(200).text(), name);
        assert_eq!(s.file("stat", &path).expect(200).json()["name"], *name);
        s.run(["cat", "--", &path]).expect(name);
        s.file("remove", &path).expect(204);
    }
    assert_eq!(s.file("list", "/workspace").expect(200).json(), json!([]));
}
