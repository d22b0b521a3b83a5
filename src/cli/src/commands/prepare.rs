//! `prepare`: runtimes made ready, each shown to be so by a session that is opened on it and closed again.

use std::time::Instant;

use serde::Serialize;
use uuid::Uuid;
use wire::api::{CreateSessionRequest, ServicePolicy};
use wire::id::SessionId;

use super::{opening, session};
use crate::args::Prepare;
use crate::client::{Call, Client};
use crate::error::Failure;
use crate::execute::Signals;
use crate::output::{harmless, print, print_json, span};

/// What became of one runtime; `--json` prints a list of them.
#[derive(Debug, Serialize)]
struct Prepared {
    runtime: String,
    ready: bool,
    seconds: f64,
    error: Option<String>,
}

/// Make them ready, one after another: exit status 1 if one is not.
pub async fn prepare(client: &mut Client, prepare: Prepare, json: bool) -> Result<u8, Failure> {
    let policy: ServicePolicy = client.ask(Call::get("read the policy", "/policy")).await?.parse()?;
    let known: Vec<String> = policy.runtimes.into_iter().map(|runtime| runtime.alias).collect();
    if let Some(unknown) = prepare.runtimes.iter().find(|runtime| !known.contains(runtime)) {
        return Err(Failure::Usage(format!("no runtime {unknown}; allowed: {}", harmless(&known.join(", ")))));
    }
    let runtimes = if prepare.runtimes.is_empty() { known } else { prepare.runtimes };
    let mut signals = Signals::catch()?;
    let mut all = Vec::new();
    for runtime in runtimes {
        let id = SessionId::parse(&format!("prepare-{}", Uuid::new_v4().simple()))
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let watcher = client.another();
        let begun = Instant::now();
        let tried = tokio::select! {
            tried = one(client, &runtime, &id) => tried,
            status = signals.next() => {
                // The service finishes an opening that nobody waits for: what it made of it is closed.
                let _ = close(&mut watcher.another(), &id).await;
                return Ok(status);
            }
            never = opening::notice(watcher.another(), Some(runtime.clone()), json) => match never {},
        };
        let seconds = begun.elapsed().as_secs_f64();
        let prepared =
            Prepared { runtime, ready: tried.is_ok(), seconds, error: tried.err().map(|failure| failure.text()) };
        if !json {
            tell(&prepared)?;
        }
        all.push(prepared);
    }
    if json {
        print_json(&all)?;
    }
    Ok(u8::from(all.iter().any(|prepared| !prepared.ready)))
}

async fn one(client: &mut Client, runtime: &str, id: &SessionId) -> Result<(), Failure> {
    let request = CreateSessionRequest {
        session_id: Some(id.clone()),
        runtime: Some(runtime.to_owned()),
        ..CreateSessionRequest::default()
    };
    session::ask(client, &request).await?;
    close(client, id).await
}

async fn close(client: &mut Client, id: &SessionId) -> Result<(), Failure> {
    let what = format!("close session {id}");
    client.ask(Call::delete(&what, format!("/sessions/{id}?purge=true"))).await?.ok().map(drop)
}

fn tell(prepared: &Prepared) -> Result<(), Failure> {
    let runtime = harmless(&prepared.runtime);
    match &prepared.error {
        None => print(format!("{runtime} is ready ({})\n", span(prepared.seconds))),
        Some(error) => {
            eprintln!("sandboxctl: {runtime} is not ready: {error}");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Server, reply};

    #[tokio::test]
    async fn each_runtime_is_opened_and_closed_and_one_that_fails_does_not_end_it() {
        let runtime = |alias: &str| {
            serde_json::json!({"alias": alias, "image": "", "description": "", "builds": true, "mem_limit": null,
                "memswap_limit": null, "cpus": null, "cpu_shares": null, "pids_limit": null, "network_mode": "none", "oci_runtime": null})
        };
        let policy: String = serde_json::json!({
            "runtimes": [runtime("good"), runtime("bad")],
            "default_runtime": "good", "max_sessions": null, "max_open_sessions": null, "max_sessions_per_tenant": null,
            "evict_idle_after": null, "mem_limit": null, "memswap_limit": null, "cpus": null, "cpu_shares": null, "pids_limit": null,
            "network_mode": "none", "oci_runtime": null, "work_dir": "/workspace", "idle_timeout": 1, "execute_timeout": 1,
            "max_read_bytes": 1, "persist_containers": false, "sandbox_uid": null, "workspace_ttl": null, "container_ttl": null,
            "tmpfs_size": null, "prewarm": true, "buildkit": true, "native_files": true, "native_writes": true, "native_realpath": true
        })
        .to_string();
        let server = Server::tcp(move |request| match (request.method(), request.path()) {
            ("GET", "/policy") => reply(200, &policy),
            ("POST", "/sessions") if request.json()["runtime"] == "bad" => reply(502, r#"{"detail": "no"}"#),
            ("POST", "/sessions") => reply(201, "{}"),
            _ => reply(204, ""),
        })
        .await;
        let asked = |runtimes: &[&str]| Prepare { runtimes: runtimes.iter().map(|name| (*name).to_owned()).collect() };
        assert_eq!(prepare(&mut server.client(), asked(&[]), true).await.unwrap(), 1);
        assert_eq!(server.seen().iter().filter(|request| request.method() == "DELETE").count(), 1);
        assert_eq!(prepare(&mut server.client(), asked(&["good"]), true).await.unwrap(), 0);
        assert_eq!(prepare(&mut server.client(), asked(&["none"]), true).await.unwrap_err().status(), 2);
    }
}
