//! What `/run` does with a command that ends by itself.

use std::time::Duration;

use it::shared;
use serde_json::json;

#[test]
fn streams_and_exit_code_come_back_apart() {
    let s = shared().session("python");
    s.run(["echo", "hi"]).expect("hi\n");
    let both = s.sh("echo out; echo err >&2; exit 3");
    assert_eq!((both.stdout(), both.stderr()), ("out\n", "err\n"));
    both.expect_code(3);
    assert_eq!(both.body["output_limit"], json!(null));
}

#[test]
fn an_argument_is_literal() {
    let s = shared().session("python");
    let odd = ["$HOME", "*", "a b", "`id`", "'\"", "ünï\u{1F980}", "-n", "", "x\ny", "\u{7}"];
    let code = "import sys, json; print(json.dumps(sys.argv[1:]))";
    let outcome = s.run(["python3", "-c", code].into_iter().chain(odd));
    let seen: Vec<String> = serde_json::from_str(outcome.expect_code(0).stdout()).unwrap();
    assert_eq!(seen, odd);
}

#[test]
fn a_missing_program_is_127_and_says_so() {
    let s = shared().session("python");
    for program in ["no-such-program", "/no/such/program", "./nothing"] {
        let outcome = s.run([program]);
        outcome.expect_code(127);
        assert!(outcome.stderr().contains("not found"), "{program}: {:?}", outcome.stderr());
    }
}

#[test]
fn a_program_without_permission_is_126() {
    let s = shared().session("python");
    s.write("/workspace/plain", b"#!/bin/sh\necho hi\n").expect(204);
    let outcome = s.run(["/workspace/plain"]);
    outcome.expect_code(126);
    assert!(outcome.stderr().contains("ermission"), "{:?}", outcome.stderr());
    s.run(["/workspace"]).expect_code(126);
}

#[test]
fn a_script_without_interpreter_is_a_failure_not_an_error() {
    let s = shared().session("python");
    s.write("/workspace/x", b"#!/no/such/interpreter\n").expect(204);
    s.run(["chmod", "+x", "/workspace/x"]).expect("");
    let code = s.run(["/workspace/x"]).code();
    assert!(matches!(code, Some(126 | 127)), "{code:?}");
}

#[test]
fn a_signal_is_128_and_its_number() {
    let s = shared().session("python");
    for signal in [9, 15, 6, 11] {
        s.sh(&format!("kill -{signal} $$")).expect_code(128 + signal);
    }
}

#[test]
fn the_environment_is_layered() {
    let s = shared().session("python");
    let plain = s.run(["env"]);
    let plain = plain.expect_code(0).stdout().to_owned();
    let has = |text: &str, line: &str| text.lines().any(|l| l == line);
    assert!(has(&plain, "HOME=/home/agent"), "{plain}");
    assert!(has(&plain, "PYTHONUNBUFFERED=1"), "the runtime's own: {plain}");
    assert!(plain.lines().any(|l| l.starts_with("PATH=/opt/venv/bin:")), "{plain}");
    let more = s.run_with(["env"], json!({"env": {"HOME": "/tmp", "MINE": "a=b c"}}));
    let more = more.expect_code(0).stdout().to_owned();
    assert!(has(&more, "HOME=/tmp") && has(&more, "MINE=a=b c") && has(&more, "PYTHONUNBUFFERED=1"), "{more}");
    assert_eq!(s.run(["env"]).stdout(), plain, "one command's environment is not the next one's");
}

#[test]
fn nothing_of_the_service_s_environment_is_inside() {
    let s = shared().session("python");
    let env = s.run(["env"]);
    assert!(!env.stdout().contains("SANDBOXD_"), "{}", env.stdout());
    assert!(!env.stdout().contains("LISTEN_FDS"), "{}", env.stdout());
}

#[test]
fn it_starts_in_the_work_directory_with_nothing_on_standard_input() {
    let s = shared().session("python");
    s.run(["pwd"]).expect("/workspace\n");
    let cat = s.run(["cat"]);
    cat.expect("");
    assert!(cat.took < Duration::from_secs(30), "{:?}", cat.took);
    s.run(["python3", "-c", "import sys; print(repr(sys.stdin.read()))"]).expect("''\n");
}

#[test]
fn bytes_that_are_no_text_are_replaced_not_dropped() {
    let s = shared().session("python");
    s.sh(r"printf 'a\377b\300'").expect("a\u{FFFD}b\u{FFFD}");
    s.sh(r"printf 'a\0b'").expect("a\0b");
    s.sh("printf 'gr\u{fc}n \u{1F980}'").expect("gr\u{fc}n \u{1F980}");
}

#[test]
fn the_last_bytes_arrive_before_the_exit_code() {
    let s = shared().session("python");
    for _ in 0..20 {
        let outcome = s.sh("head -c 70000 /dev/zero | tr '\\0' x; printf end");
        assert_eq!(outcome.stdout().len(), 70_003);
        assert!(outcome.stdout().ends_with("xend"));
    }
}

#[test]
fn a_background_process_does_not_hold_it_up_and_lives_on() {
    let s = shared().session("python");
    // What it waits for comes after the answer.
    let line = "(until [ -e go ]; do sleep 0.05; done; echo to the closed request; echo later > later) & echo now";
    let outcome = s.sh(line);
    outcome.expect_code(0);
    assert_eq!(outcome.stdout(), "now\n");
    s.write("/workspace/go", b"").expect(204);
    let written = it::daemon::wait_for(Duration::from_secs(5), || {
        (s.file("read", "/workspace/later").status == 200).then_some(())
    });
    assert!(written.is_some(), "the background process was ended with its parent");
}

#[test]
fn a_background_process_that_goes_on_writing_is_not_broken_off() {
    let s = shared().session("python");
    let line =
        "(for i in 1 2 3 4 5; do head -c 100000 /dev/zero; sleep 0.1; done; echo done > /workspace/done) & echo hi";
    s.sh(line).expect_code(0);
    let done = it::daemon::wait_for(Duration::from_secs(10), || {
        (s.file("read", "/workspace/done").status == 200).then_some(())
    });
    assert!(done.is_some(), "SIGPIPE, or a full pipe that nobody reads");
}

#[test]
fn many_commands_run_at_once() {
    let s = shared().session("python");
    std::thread::scope(|scope| {
        // Each waits for all the others.
        let line = |i| format!("echo > up-{i}; until [ $(ls | grep -c up-) = 16 ]; do sleep 0.1; done; echo {i}");
        let all: Vec<_> = (0..16)
            .map(|i| {
                scope.spawn({
                    let s = &s;
                    move || s.sh(&line(i))
                })
            })
            .collect();
        for (i, one) in all.into_iter().enumerate() {
            one.join().unwrap().expect(&format!("{i}\n"));
        }
    });
}

#[test]
fn a_long_command_line_arrives_whole() {
    let s = shared().session("python");
    let long = "x".repeat(100_000);
    let outcome = s.run(["sh", "-c", "printf %s \"$1\" | wc -c", "sh", &long]);
    outcome.expect("100000\n");
    let many: Vec<String> =
        ["sh", "-c", "echo $#", "sh"].into_iter().map(str::to_owned).chain((0..5000).map(|i| i.to_string())).collect();
    s.run(&many).expect("5000\n");
}

#[test]
fn a_command_line_that_the_kernel_would_not_take_is_a_clear_answer() {
    let s = shared().session("python");
    let too_long = "x".repeat(3_000_000);
    let answer = s.try_run(["true", &too_long], json!({}));
    match answer.status {
        200 => assert_eq!(answer.json()["exit_code"], 126, "{}", answer.text()),
        status => assert!(matches!(status, 400 | 413 | 422), "{status} {}", answer.text()),
    }
    s.run(["echo", "still here"]).expect("still here\n");
}

#[test]
fn the_same_run_id_twice_at_once_is_a_conflict() {
    let s = shared().session("python");
    let id = it::session::run_id();
    let again = json!({"run_id": id});
    std::thread::scope(|scope| {
        let line = "echo up > /workspace/up; while [ -e /workspace/up ]; do sleep 0.1; done";
        let first = scope.spawn(|| s.run_with(["sh", "-c", line], again.clone()));
        let up = || (s.file("stat", "/workspace/up").status == 200).then_some(());
        it::daemon::wait_for(Duration::from_secs(20), up).expect("it runs");
        s.try_run(["true"], again.clone()).expect(409);
        s.run(["rm", "/workspace/up"]).expect("");
        first.join().unwrap().expect("");
    });
    // Its name is free as soon as its cgroup is gone, which is behind the answer.
    let free = || (s.try_run(["true"], again.clone()).status == 200).then_some(());
    it::daemon::wait_for(Duration::from_secs(20), free).expect("the name of a run that is over");
}

#[test]
fn an_answer_says_what_the_command_used() {
    let s = shared().session("python");
    let used = |code: &str| {
        let outcome = s.run(["python3", "-c", code]);
        outcome.expect_code(0);
        ["user_us", "system_us", "max_rss_bytes"].map(|key| outcome.body["usage"][key].as_u64().unwrap())
    };
    let little = used("");
    // A child counts once it has been waited for.
    let busy = "import time\nwhile time.process_time() < 0.4: pass";
    let much = used(&format!(
        "import subprocess, sys; subprocess.run([sys.executable, '-c', {busy:?}]); x = b'x' * (64 << 20)"
    ));
    assert!(little[0] + little[1] < 350_000, "{little:?}");
    assert!((400_000..5_000_000).contains(&(much[0] + much[1])), "{much:?}");
    assert!(much[2] > little[2] + (50 << 20), "{much:?} {little:?}");
    let refused = s.run(["no-such-program"]);
    assert_eq!(refused.body["usage"], json!(null), "{}", refused.body);
}
