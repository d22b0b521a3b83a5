//! What a person is shown while a session is opened: how far the service says that it is with the runtime's image.

use std::convert::Infallible;
use std::time::Duration;

use wire::api::{BuildProgress, RuntimeInfo, RuntimeList};

use crate::client::{Call, Client};
use crate::output::harmless;
use crate::progress::{Far, Told, Waiting};

/// After how long a person is told what is being waited for.
const NOTICE: Duration = Duration::from_secs(2);
/// Pause between two questions for it.
const AGAIN: Duration = Duration::from_secs(1);

/// Say what is being waited for, for as long as it is. `runtime`: its alias; none, the default one.
pub async fn notice(mut client: Client, runtime: Option<String>, json: bool) -> Infallible {
    let mut shown = Waiting::new(json);
    if shown.is_silent() {
        return std::future::pending().await;
    }
    tokio::time::sleep(NOTICE).await;
    loop {
        // Whoever may not ask, a session's own token for one, is not told.
        let asked = client.ask(Call::get("list the runtimes", "/runtimes")).await;
        shown.show(match asked.and_then(|answer| answer.parse::<RuntimeList>()) {
            Ok(list) => told(&list.runtimes, runtime.as_deref()),
            Err(_) => Told::words("waiting for the service, which may be making the runtime's image"),
        });
        tokio::time::sleep(AGAIN).await;
    }
}

fn told(runtimes: &[RuntimeInfo], wanted: Option<&str>) -> Told {
    let is_wanted = |runtime: &&RuntimeInfo| wanted.map_or(runtime.default, |alias| runtime.alias == alias);
    let is_made = |runtime: &&RuntimeInfo| runtime.state == "building";
    if let Some(runtime) = runtimes.iter().filter(is_made).find(is_wanted) {
        return made(runtime);
    }
    // Images are made one after another.
    match runtimes.iter().find(is_made) {
        Some(other) => {
            let Told { words, far } = made(other);
            Told { words: format!("waiting for the service, which is {words}"), far }
        }
        None => Told::words("waiting for the service"),
    }
}

/// How far the image of a runtime is that is being made.
fn made(runtime: &RuntimeInfo) -> Told {
    let (alias, image) = (harmless(&runtime.alias), harmless(&runtime.image));
    if let Some(pull) = runtime.pull {
        let words = format!("pulling {image}");
        return Told::pull(if runtime.builds { format!("making the image of {alias}: {words}") } else { words }, pull);
    }
    match &runtime.progress {
        Some(BuildProgress { step, steps: 0, .. }) => {
            Told::words(format!("making the image of {alias}: {}", harmless(step)))
        }
        Some(BuildProgress { step, number, steps, .. }) => Told {
            words: format!("making the image of {alias}, step {number} of {steps}: {}", harmless(step)),
            far: Far::Steps(number.saturating_sub(1), *steps),
        },
        None => Told::words(format!("making the image of {alias}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::api::PullProgress;

    fn runtime(alias: &str, state: &str, progress: Option<(&str, u64, u64)>) -> RuntimeInfo {
        let progress = progress.map(
            |(step, number, steps)| serde_json::json!({"step": step, "number": number, "steps": steps, "since": 0.0}),
        );
        serde_json::from_value(serde_json::json!({
            "alias": alias, "description": "", "default": alias == "first", "shipped": true, "builds": true, "image": "", "packages": [],
            "package_manager": null, "network_mode": "none", "reads_documents": null, "state": state, "tag": null,
            "progress": progress, "pull": null, "error": null
        }))
        .unwrap()
    }

    #[test]
    fn the_runtime_that_is_opened_is_told_of_and_else_what_is_in_its_way() {
        let all = [runtime("first", "ready", None), runtime("second", "building", Some(("apt\u{1b}", 1, 3)))];
        let words = "step 1 of 3: apt\\u{1b}";
        let second = Told { words: format!("making the image of second, {words}"), far: Far::Steps(0, 3) };
        assert_eq!(told(&all, Some("second")), second);
        for alias in [None, Some("first"), Some("unknown")] {
            let words = format!("waiting for the service, which is {}", second.words);
            assert_eq!(told(&all, alias), Told { words, far: second.far });
        }
        assert_eq!(told(&all[..1], None), Told::words("waiting for the service"));
        let base = [runtime("first", "building", Some(("the base", 0, 0)))];
        assert_eq!(told(&base, None), Told::words("making the image of first: the base"));
        assert_eq!(told(&[runtime("first", "building", None)], None), Told::words("making the image of first"));
    }

    #[test]
    fn a_pull_is_told_by_its_bytes() {
        let pull = PullProgress { layers: 2, layers_ready: 1, bytes: 2048, bytes_received: 1024, resumed: 0 };
        let mut pulled = runtime("first", "building", None);
        (pulled.builds, pulled.image, pulled.pull) = (false, "box\u{7}:1".into(), Some(pull));
        let words = "pulling box\\u{7}:1";
        assert_eq!(told(&[pulled.clone()], None), Told { words: words.into(), far: Far::Pull(pull) });
        pulled.builds = true;
        let words = format!("making the image of first: {words}");
        assert_eq!(told(&[pulled], None), Told { words, far: Far::Pull(pull) });
    }
}
