//! A command as one would type it, and what of a target is kept.

/// Characters of a target that are kept.
pub const TARGET_MAX: usize = 200;

/// `argv` quoted for a shell, as far as it is kept: of a long command no more than the beginning is looked at.
#[must_use]
pub fn command(argv: &[String]) -> String {
    let mut text = String::new();
    let mut left = TARGET_MAX + 1;
    for (position, argument) in argv.iter().enumerate() {
        if left == 0 {
            break;
        }
        if position > 0 {
            text.push(' ');
            left -= 1;
        }
        left -= quote(argument, left, &mut text);
    }
    cut(&text)
}

/// A target, cut after 200 characters with `…`.
#[must_use]
pub fn cut(target: &str) -> String {
    match target.char_indices().nth(TARGET_MAX) {
        None => target.to_owned(),
        Some((end, _)) => format!("{}…", &target[..end]),
    }
}

/// Append the argument, quoted if need be, at most `most` characters of it; how many those were.
fn quote(argument: &str, most: usize, text: &mut String) -> usize {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    // The part that is kept decides: an argument is not searched to its end for one odd character.
    let seen = || argument.chars().take(most);
    let before = text.len();
    if !argument.is_empty() && seen().all(plain) {
        text.extend(seen());
        return text.len() - before;
    }
    let quoted = std::iter::once("'".to_owned())
        .chain(seen().map(|c| if c == '\'' { "'\"'\"'".to_owned() } else { c.to_string() }))
        .chain(std::iter::once("'".to_owned()));
    let kept: String = quoted.flat_map(|piece| piece.chars().collect::<Vec<_>>()).take(most).collect();
    text.push_str(&kept);
    kept.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(argv: &[&str]) -> String {
        command(&argv.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn commands_are_quoted_as_a_shell_takes_them() {
        assert_eq!(argv(&["ls", "-l", "/a_b/c.d"]), "ls -l /a_b/c.d");
        assert_eq!(argv(&["sh", "-c", "echo it's; true", "", "é"]), "sh -c 'echo it'\"'\"'s; true' '' 'é'");
    }

    #[test]
    fn long_ones_are_cut_after_200_characters() {
        let exact = "a".repeat(200);
        assert_eq!(argv(&[&exact]), exact);
        for long in [
            vec!["a".repeat(201)],
            vec!["a".repeat(199), "bb".into()],
            vec!["é".repeat(8 << 20)],
            vec!["'".repeat(300)],
        ] {
            let text = command(&long);
            assert_eq!((text.chars().count(), text.ends_with('…')), (201, true), "{text}");
        }
        assert_eq!(command(&vec!["a".into(); 100_000]).chars().count(), 201);
        assert_eq!(cut(&"漢".repeat(300)), format!("{}…", "漢".repeat(200)));
    }
}
