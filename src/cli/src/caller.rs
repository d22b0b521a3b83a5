//! For whom this program asks: an agent and its run, which go with every request as headers and into the operations log.

use hyper::header::{HeaderName, HeaderValue};
use wire::api::{AGENT_HEADER, CALLER_MAX, RUN_HEADER};

use crate::args::Global;
use crate::error::Failure;
use crate::target::{Env, text};

/// The headers; none of whom nothing is said.
pub type Caller = Vec<(HeaderName, HeaderValue)>;

/// What options and environment say.
///
/// # Errors
/// [`Failure::Usage`]: a variable that cannot be a name.
pub fn choose(global: &Global, env: Env<'_>) -> Result<Caller, Failure> {
    let places =
        [(AGENT_HEADER, &global.for_agent, "SANDBOXCTL_AGENT"), (RUN_HEADER, &global.for_run, "SANDBOXCTL_RUN")];
    let mut caller = Caller::new();
    for (header, option, variable) in places {
        let Some(value) = option.clone().map_or_else(|| text(env, variable), |value| Ok(Some(value)))? else {
            continue;
        };
        let wrong = |rule: String| Failure::Usage(format!("{variable}: {rule}"));
        let value = HeaderValue::from_str(name(&value).map_err(wrong)?).map_err(|e| wrong(e.to_string()))?;
        caller.push((HeaderName::from_static(header), value));
    }
    Ok(caller)
}

/// Check such a name.
///
/// # Errors
/// The rule, in words.
pub fn name(text: &str) -> Result<&str, String> {
    let sound = (1..=CALLER_MAX).contains(&text.len()) && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if sound { Ok(text) } else { Err(format!("1 to {CALLER_MAX} printable ASCII characters")) }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn an_option_wins_over_a_variable_and_nonsense_is_refused() {
        let env = |pairs: &'static [(&str, &str)]| {
            move |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
        };
        let both = env(&[("SANDBOXCTL_AGENT", "clerk 7"), ("SANDBOXCTL_RUN", "r-1")]);
        let shown = |caller: Caller| -> Vec<String> {
            caller.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
        };
        let told = shown(choose(&Global::default(), &both).unwrap());
        assert_eq!(told, ["x-sandbox-agent: clerk 7", "x-sandbox-run: r-1"]);
        let option = Global { for_run: Some("r-2".into()), ..Global::default() };
        assert_eq!(shown(choose(&option, &env(&[("SANDBOXCTL_RUN", "r-1")])).unwrap()), ["x-sandbox-run: r-2"]);
        assert!(choose(&Global::default(), &env(&[])).unwrap().is_empty());
        let wrong = choose(&Global::default(), &env(&[("SANDBOXCTL_AGENT", "a\nb")]));
        assert!(matches!(wrong, Err(Failure::Usage(message)) if message.starts_with("SANDBOXCTL_AGENT: ")));
    }
}
