//! References to images at registries, by the grammar of the distribution project (`reference.go`), in ASCII alone.
//!
//! Our own: the library's is a regular expression whose automaton takes 10 MiB, as much as everything else that the service
//! holds at rest. A test compares them.

use oci_spec::distribution::Reference;

/// What a name without one is looked for at, and what it also was called.
const HUB: [&str; 2] = ["docker.io", "index.docker.io"];
/// Where images without a namespace are there.
const OFFICIAL: &str = "library";
/// The tag that is meant where neither tag nor digest is named.
const LATEST: &str = "latest";
/// Longest repository, in bytes.
const REPOSITORY_MAX: usize = 255;
/// Longest tag, in bytes.
const TAG_MAX: usize = 128;
/// Digests, and how many hexadecimal digits each has.
const DIGESTS: [(&str, usize); 3] = [("sha256", 64), ("sha384", 96), ("sha512", 128)];

/// Parse `[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(text: &str) -> Result<Reference, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            (rest, Some(checked(digest, is_digest, "its digest is none of sha256, sha384, sha512")?))
        }
        None => (text, None),
    };
    // A colon before the last slash is a port's.
    let (name, tag) = match rest.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
        Some((name, tag)) => (name, Some(checked(tag, is_tag, "its tag is not [A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")?)),
        None => (rest, None),
    };
    let (host, repository) = match name.split_once('/') {
        Some((host, repository)) if is_registry(host) => {
            (checked(host, is_host, "its registry is no host name")?, repository)
        }
        Some(_) | None => (HUB[0], name),
    };
    let host = if host == HUB[1] { HUB[0] } else { host };
    if !repository.split('/').all(is_component) {
        return Err("its path is not lower-case words, with . _ __ or - between them, and slashes");
    }
    let official = host == HUB[0] && !repository.contains('/');
    let repository = if official { format!("{OFFICIAL}/{repository}") } else { repository.to_owned() };
    if repository.len() > REPOSITORY_MAX {
        return Err("its path is longer than 255 bytes");
    }
    let (host, tag, digest) = (host.to_owned(), tag.map(str::to_owned), digest.map(str::to_owned));
    Ok(match (tag, digest) {
        (Some(tag), Some(digest)) => Reference::with_tag_and_digest(host, repository, tag, digest),
        (None, Some(digest)) => Reference::with_digest(host, repository, digest),
        (tag, None) => Reference::with_tag(host, repository, tag.unwrap_or_else(|| LATEST.to_owned())),
    })
}

/// Whether the first component of a name is a host: it has a dot or a port, or is `localhost`.
pub(super) fn is_registry(component: &str) -> bool {
    component == "localhost" || component.contains(['.', ':'])
}

fn checked<'a>(text: &'a str, is: impl Fn(&str) -> bool, problem: &'static str) -> Result<&'a str, &'static str> {
    if is(text) { Ok(text) } else { Err(problem) }
}

fn is_host(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let label = |label: &str| {
        let alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        alphanumeric(label.bytes().next())
            && alphanumeric(label.bytes().last())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let number = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    host.split('.').all(label) && port.is_none_or(number)
}

/// Words of `[a-z0-9]+` with `.`, `_`, `__` or any number of `-` between two of them.
fn is_component(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().copied().is_some_and(word) && bytes.last().copied().is_some_and(word);
    let separators = text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    ends && separators.into_iter().all(|run| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|b| b == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= TAG_MAX
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, digits)) = text.split_once(':') else { return false };
    DIGESTS.contains(&(algorithm, digits.len())) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of which names are made, sound ones and others.
    const HOSTS: [&str; 14] = [
        "",
        "docker.io/",
        "index.docker.io/",
        "localhost/",
        "localhost:5000/",
        "a.b/",
        "A-1.example:443/",
        "a..b/",
        "-a.b/",
        "a-.b/",
        "a.b:/",
        "a.b:x/",
        "1.2.3.4:80/",
        "host/",
    ];
    const PATHS: [&str; 22] = [
        "a", "a/b", "a/b/c", "a.b", "a_b", "a__b", "a___b", "a-b", "a---b", "a-_b", "a..b", ".a", "a.", "-a", "a-",
        "A", "a/", "/a", "a//b", "", "..", "a b",
    ];
    const TAGS: [&str; 9] = ["", ":", ":1", ":1.2-x_Y", ":_", ":.a", ":-a", ":a/b", ":a:b"];

    #[test]
    fn it_says_what_the_library_says() {
        let hex = |length: usize| "0123456789abcdefABCDEF".chars().cycle().take(length).collect::<String>();
        let mut digests =
            vec![String::new(), "@".into(), "@sha256:".into(), "@sha256".into(), "@md5:".to_owned() + &hex(32)];
        for (algorithm, length) in DIGESTS {
            digests.extend([length, length - 1, length + 1].map(|length| format!("@{algorithm}:{}", hex(length))));
        }
        digests.push(format!("@sha256:{}g", hex(63)));
        let mut agreed = [0, 0];
        for (host, path) in HOSTS.iter().flat_map(|host| PATHS.map(|path| (host, path))) {
            for (tag, digest) in TAGS.iter().flat_map(|tag| digests.iter().map(move |digest| (tag, digest))) {
                let name = format!("{host}{path}{tag}{digest}");
                let theirs = Reference::try_from(name.as_str()).ok().map(|reference| reference.whole());
                let ours = parse(&name).ok().map(|reference| reference.whole());
                assert_eq!(ours, theirs, "{name}");
                agreed[usize::from(ours.is_some())] += 1;
            }
        }
        assert!(agreed.iter().all(|count| *count > 300), "{agreed:?}");
    }

    #[test]
    fn lengths_have_their_bounds() {
        for (length, sound) in [(255, true), (256, false)] {
            assert_eq!(parse(&format!("a.b/{}", "x".repeat(length))).is_ok(), sound, "{length}");
        }
        for (length, sound) in [(128, true), (129, false)] {
            assert_eq!(parse(&format!("a.b/c:{}", "x".repeat(length))).is_ok(), sound, "{length}");
        }
        // Letters of other alphabets are none, which the library lets pass.
        assert!(parse("a.b/c:é").is_err());
    }
}
