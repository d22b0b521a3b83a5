//! `shell`: line by line, each line a process of its own.
//!
//! What a process leaves to the next is carried by this program, not by the sandbox, so that it survives a session that
//! was put to sleep meanwhile: at its end a line's process writes its directory and its exported variables to a file in
//! `/tmp`, we read that, and the next line begins with it. The operations log shows the line itself.

mod editor;

use std::collections::BTreeMap;

use uuid::Uuid;
use wire::api::RunRequest;
use wire::id::{RunId, SessionId};

use crate::args::ShellIn;
use crate::client::{Call, Client};
use crate::error::Failure;
use crate::execute::{self, End, Signals, execute};
use crate::output::harmless;
use editor::{Editor, Read};

/// Most of what is carried from one line to the next, in bytes: one variable of a process may have twice as much.
const STATE_MAX: usize = 64 << 10;
/// Evaluated by the process of each line, whose `$0` is the line. Names that begin with `_sandboxctl` are ours; none of them
/// is exported any more when the line is evaluated. `PWD` is carried as a variable, and entered.
const SCRIPT: &str = "_sandboxctl_now=$SANDBOXCTL_STATE _sandboxctl_file=$SANDBOXCTL_FILE
unset SANDBOXCTL_SCRIPT SANDBOXCTL_STATE SANDBOXCTL_FILE
rm -f \"$_sandboxctl_file\"
if [ \"$_sandboxctl_now\" ]; then
    eval \"$_sandboxctl_now\"
    _sandboxctl_old=$OLDPWD
    cd -- \"$PWD\" || echo \"the working directory is gone\" >&2
    OLDPWD=$_sandboxctl_old
fi
unset _sandboxctl_now _sandboxctl_old
_sandboxctl_end() {
    _sandboxctl_status=$?
    export PWD OLDPWD
    { pwd && export -p; } >\"$_sandboxctl_file.new\" 2>/dev/null && mv -f \"$_sandboxctl_file.new\" \"$_sandboxctl_file\"
    exit $_sandboxctl_status
}
trap _sandboxctl_end EXIT
eval \"$0\"";
/// What the shell's first argument is: the script comes as a variable, so that the log shows the line and not this.
const BEGIN: &str = "eval \"$SANDBOXCTL_SCRIPT\"";

/// What is carried from line to line.
#[derive(Debug, Default)]
struct State {
    /// The working directory, for the prompt; empty before the first line.
    directory: String,
    /// Commands of the sandbox's shell that make the exported variables.
    variables: String,
}

/// Read lines and run each, until there are no more: the exit status of the last.
pub async fn shell(client: &mut Client, shell: ShellIn, json: bool) -> Result<u8, Failure> {
    if json {
        return Err(Failure::Usage("a shell has no JSON; see run --json".to_owned()));
    }
    let mut editor = Editor::new(&|name| std::env::var_os(name));
    let mut shell = Shell::new(client, shell)?;
    if editor.is_for_people() {
        eprintln!(
            "Each line is a process of its own; directory and exported variables go on to the next. Ctrl-D ends."
        );
    }
    let done = loop {
        let read;
        (editor, read) = editor.read(shell.prompt()).await?;
        let line = match read {
            Read::Line(line) => line,
            Read::Interrupted => continue,
            Read::End => break Ok(shell.status),
        };
        match leaving(&line, shell.status) {
            Some(status) => break Ok(status),
            None if line.trim().is_empty() => {}
            None => match shell.run(&line).await {
                // Whoever reads a script from standard input is not there to try again.
                Err(failure) if !editor.is_for_people() || !is_of_the_line(&failure) => break Err(failure),
                Err(failure) => failure.report(),
                Ok(Some(status)) if !editor.is_for_people() => break Ok(status),
                Ok(_) => {}
            },
        }
    };
    shell.forget().await;
    done
}

/// Whether the next line may fare better.
fn is_of_the_line(failure: &Failure) -> bool {
    match failure {
        Failure::Refused { status, .. } => !matches!(status, 401 | 403 | 404 | 410),
        Failure::Connect { .. } | Failure::Broken { .. } | Failure::Late { .. } | Failure::Copy { .. } => true,
        Failure::Usage(_)
        | Failure::Foreign { .. }
        | Failure::Local { .. }
        | Failure::Catalog(_)
        | Failure::Differs(_)
        | Failure::Output(_) => false,
    }
}

/// The status with which a line leaves the shell, if it is `exit`.
fn leaving(line: &str, last: u8) -> Option<u8> {
    let mut words = line.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some("exit"), None, None) => Some(last),
        (Some("exit"), Some(status), None) => status.parse::<u8>().ok(),
        _ => None,
    }
}

/// A session, and what is carried from line to line.
#[derive(Debug)]
struct Shell<'c> {
    client: &'c mut Client,
    session: SessionId,
    program: String,
    timeout: Option<f64>,
    signals: Signals,
    /// In the sandbox.
    file: String,
    state: State,
    status: u8,
}

impl<'c> Shell<'c> {
    fn new(client: &'c mut Client, asked: ShellIn) -> Result<Self, Failure> {
        let ShellIn { session, program, timeout } = asked;
        let file = format!("/tmp/.sandboxctl-{}", Uuid::new_v4().simple());
        let signals = Signals::catch()?;
        Ok(Self { client, session, program, timeout, signals, file, state: State::default(), status: 0 })
    }

    fn prompt(&self) -> String {
        match self.state.directory.as_str() {
            "" => format!("{}$ ", self.session),
            directory => format!("{}:{}$ ", self.session, harmless(directory)),
        }
    }

    /// Run a line. `Some`: a signal to this program ended it.
    async fn run(&mut self, line: &str) -> Result<Option<u8>, Failure> {
        let variables = [
            ("SANDBOXCTL_SCRIPT", SCRIPT),
            ("SANDBOXCTL_STATE", self.state.variables.as_str()),
            ("SANDBOXCTL_FILE", self.file.as_str()),
        ];
        let env: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let argv = [self.program.as_str(), "-c", BEGIN, line].map(str::to_owned).into();
        let run_id = RunId::from_u128(Uuid::new_v4().as_u128());
        let request = RunRequest { argv, env, timeout_seconds: self.timeout, run_id };
        match execute(self.client, &self.session, &request, &mut self.signals).await? {
            End::Signalled(status) => {
                self.status = status;
                Ok(Some(status))
            }
            End::Ended(exit) => {
                self.status = execute::status(&exit);
                match execute::stopped(&exit, self.timeout) {
                    Some(reason) => eprintln!("sandboxctl: {reason}"),
                    None => self.carry().await?,
                }
                Ok(None)
            }
        }
    }

    /// Read what the line's process left. One that left nothing, because it replaced itself or was killed, changes nothing.
    async fn carry(&mut self) -> Result<(), Failure> {
        let what = format!("read the shell's state in session {}", self.session);
        let call = Call::post(&what, format!("/sessions/{}/files/read", self.session));
        let answer = self.client.ask_json(call, &serde_json::json!({"path": self.file})).await?;
        if !answer.status.is_success() {
            return Ok(());
        }
        match state(&answer.body) {
            Some(state) => self.state = state,
            None => {
                eprintln!("sandboxctl: directory and variables are as before: more than {STATE_MAX} bytes, or no text")
            }
        }
        Ok(())
    }

    /// Take the file away. The service may be gone: then it goes with the sandbox.
    async fn forget(&mut self) {
        if !self.state.directory.is_empty() {
            let call = Call::post("tidy up", format!("/sessions/{}/files/remove", self.session)).within(Some(5));
            let _ = self.client.ask_json(call, &serde_json::json!({"path": self.file})).await;
        }
    }
}

fn state(bytes: &[u8]) -> Option<State> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= STATE_MAX && !text.contains('\0'))?;
    // A directory whose name has a line break shows half of it in the prompt, and is entered all the same.
    let (directory, variables) = text.split_once('\n')?;
    Some(State { directory: directory.to_owned(), variables: variables.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Output};

    use super::*;

    /// What one line does here, in this machine's shell, and what it leaves.
    fn line(program: &str, dir: &Path, state: &mut State, line: &str) -> Output {
        let file = dir.join("state");
        let output = Command::new(program)
            .args(["-c", BEGIN, line])
            .current_dir(dir)
            .env("SANDBOXCTL_SCRIPT", SCRIPT)
            .env("SANDBOXCTL_STATE", &state.variables)
            .env("SANDBOXCTL_FILE", &file)
            .output()
            .unwrap();
        if let Some(left) = std::fs::read(&file).ok().and_then(|bytes| super::state(&bytes)) {
            *state = left;
        }
        output
    }

    fn text(output: &Output) -> String {
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn directory_and_exported_variables_go_on_and_statuses_are_the_line_s() {
        for program in ["sh", "bash"] {
            let dir = tempfile::tempdir().unwrap();
            let odd = dir.path().join("a 'b' $c");
            std::fs::create_dir(&odd).unwrap();
            let mut state = State::default();
            let mut go = |text: &str| line(program, dir.path(), &mut state, text);
            go("cd \"a 'b' \\$c\" && export QUOTED=\"it's \\\"two\\\"\nlines\" && plain=gone");
            assert_eq!(
                text(&go("pwd; printf '%s|%s' \"$QUOTED\" \"$plain\"")),
                format!("{}\nit's \"two\"\nlines|", odd.display())
            );
            assert_eq!(go("cd ..; exit 7").status.code(), Some(7));
            assert_eq!(text(&go("pwd")), format!("{}\n", dir.path().display()));
            assert_eq!(go("false").status.code(), Some(1));
            assert_eq!(text(&go("cd - >/dev/null; pwd")), format!("{}\n", odd.display()));
            // A line that is no line, one that replaces its process, one that is killed: nothing is lost.
            assert_ne!(go("if then").status.code(), Some(0));
            assert_eq!(text(&go("exec pwd")), format!("{}\n", odd.display()));
            go("kill -9 $$");
            assert_eq!(text(&go("pwd")), format!("{}\n", odd.display()));
            assert_eq!(text(&go("env | grep -i ^_*sandboxctl; set -- x; echo \"$1\"")), "x\n", "{program}");
            go("unset QUOTED");
            assert_eq!(text(&go("echo ${QUOTED-unset}")), "unset\n", "{program}: what was unset comes back");
            std::fs::remove_dir(&odd).unwrap();
            let gone = go("pwd");
            assert!(String::from_utf8_lossy(&gone.stderr).contains("is gone"), "{gone:?}");
        }
    }

    #[test]
    fn exit_leaves_and_what_only_begins_like_it_does_not() {
        assert_eq!(leaving("exit", 3), Some(3));
        assert_eq!(leaving("  exit 7 ", 3), Some(7));
        for line in ["exit 300", "exit 1 2", "exit; ls", "exits", "", "true"] {
            assert_eq!(leaving(line, 3), None, "{line}");
        }
    }

    #[test]
    fn what_is_carried_is_bounded_text() {
        assert_eq!(state(b"/a\nexport A='1'\n").unwrap().directory, "/a");
        assert!(state(b"").is_none() && state(b"/a\n\xff").is_none() && state(b"/a\n\0").is_none());
        assert!(state(&[&b"/a\n"[..], &vec![b'x'; STATE_MAX]].concat()).is_none());
    }
}
