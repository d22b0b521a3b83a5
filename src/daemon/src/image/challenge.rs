//! What a registry says about how to log in: the `WWW-Authenticate` header of a refusal, RFC 6750 and RFC 9110.

/// Where a token is had.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    /// The address of the service of tokens.
    pub(super) realm: String,
    /// What it calls the registry.
    pub(super) service: Option<String>,
}

impl Challenge {
    /// `Bearer realm="https://…",service="…"`, RFC 6750.
    pub(super) fn bearer(text: &str) -> Option<Self> {
        if !scheme_is(text, "bearer") {
            return None;
        }
        let rest = text.split_once(' ')?.1;
        Some(Self { realm: parameter(rest, "realm")?, service: parameter(rest, "service") })
    }
}

/// Whether a challenge is of the scheme `name`.
pub(super) fn scheme_is(challenge: &str, name: &str) -> bool {
    challenge.split(' ').next().is_some_and(|scheme| scheme.eq_ignore_ascii_case(name))
}

/// The value of a parameter; a comma within quotes separates nothing.
fn parameter(text: &str, name: &str) -> Option<String> {
    let mut quoted = false;
    let parts = text.split(|c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    let value = |part: &str| {
        let (key, value) = part.trim().split_once('=')?;
        key.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"').to_owned())
    };
    parts.filter_map(value).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_as_registries_write_them() {
        let docker = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        let challenge = Challenge::bearer(docker).unwrap();
        assert_eq!(challenge.realm, "https://auth.docker.io/token");
        assert_eq!(challenge.service.as_deref(), Some("registry.docker.io"));
        assert_eq!(Challenge::bearer("bearer realm=x").unwrap(), Challenge { realm: "x".into(), service: None });
        for no in [r#"Basic realm="x""#, "Bearer", r#"Bearer service="x""#, ""] {
            assert_eq!(Challenge::bearer(no), None, "{no}");
        }
        assert_eq!(parameter(r#"scope="a,realm=b", realm="c""#, "realm").as_deref(), Some("c"));
    }
}
