//! `key`: the same derivation as the service's, here.

use serde::Serialize;
use wire::api::ServicePolicy;
use wire::id::SessionId;
use wire::key::{Key, KeyError, SANDBOX};

use crate::args;
use crate::client::{Call, Client};
use crate::error::Failure;
use crate::output::{print, print_json};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Derived {
    session_id: SessionId,
    host_id: String,
}

/// Print the id of the session that a key means.
pub async fn key(client: &mut Client, asked: args::KeyOf, json: bool) -> Result<(), Failure> {
    let args::KeyOf { scope, organization, agent, run, conversation, user, channel, host } = asked;
    let key = Key { scope, organization, agent, run, conversation, user, channel };
    // Before the service is asked for anything.
    key.check().map_err(usage)?;
    let host_id = match host {
        Some(host) => host,
        None => client.ask(Call::get("read the policy", "/policy")).await?.parse::<ServicePolicy>()?.host_id,
    };
    let session_id = key.derive(&host_id, SANDBOX).map_err(usage)?;
    if json { print_json(&Derived { session_id, host_id }) } else { print(format!("{session_id}\n")) }
}

fn usage(error: KeyError) -> Failure {
    match error.field() {
        Some(field) => Failure::Usage(format!("--{field}: {error}")),
        None => Failure::Usage(error.to_string()),
    }
}
