//! A file's bytes as text, and a slice of its lines.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8};

/// What an encoding is guessed from, in bytes: more tells no more.
const SAMPLE: usize = 32 * 1024;

/// Extensions of files that are text whatever is in them, sorted.
const TEXT_EXTENSIONS: &[&str] = &[
    "bat", "c", "cpp", "cs", "css", "csv", "go", "h", "htm", "html", "ics", "java", "js", "json", "jsx", "ksh", "log",
    "md", "mjs", "php", "pl", "py", "rb", "rs", "sgml", "sh", "sql", "toml", "ts", "tsv", "tsx", "txt", "vcf", "vtt",
    "xml", "yaml", "yml",
];

/// `bytes` as text, if they are: of a name that says so always, otherwise unless they look binary.
/// UTF-8, else what the byte order mark says, else what is likely. What does not decode is U+FFFD.
pub(super) fn decode(name: &str, bytes: &[u8]) -> Option<String> {
    if is_text_name(name) {
        return Some(decode_as(encoding_of(bytes), bytes));
    }
    let encoding = encoding_of(bytes);
    if encoding.is_ascii_compatible() && bytes.contains(&0) {
        return None;
    }
    let text = decode_as(encoding, bytes);
    let odd = text.chars().filter(|c| *c == '\u{fffd}' || (c.is_control() && !is_layout(*c))).count();
    (odd < (text.len() / 100).max(2)).then_some(text)
}

fn is_text_name(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    extension.is_some_and(|extension| TEXT_EXTENSIONS.binary_search(&extension.as_str()).is_ok())
}

/// Whether a control character is one that text is laid out with; a terminal's colours begin with `ESC`.
fn is_layout(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | '\x0b' | '\x0c' | '\x08' | '\x1b' | '\u{85}')
}

fn encoding_of(bytes: &[u8]) -> &'static Encoding {
    if let Some((encoding, _)) = Encoding::for_bom(bytes) {
        return encoding;
    }
    if std::str::from_utf8(bytes).is_ok() {
        return UTF_8;
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes.get(..SAMPLE).unwrap_or(bytes), bytes.len() <= SAMPLE);
    detector.guess(None, Utf8Detection::Allow)
}

fn decode_as(encoding: &'static Encoding, bytes: &[u8]) -> String {
    encoding.decode_with_bom_removal(bytes).0.into_owned()
}

/// Lines `offset..offset + limit` of `text`, counted from 0, and how to get the rest.
#[must_use]
pub fn slice(text: &str, offset: usize, limit: usize) -> String {
    let mut lines = lines(text).skip(offset).peekable();
    if lines.peek().is_none() {
        return "[End of file]".to_owned();
    }
    let mut out = String::new();
    for (index, line) in lines.by_ref().take(limit).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        out.push_str(line);
    }
    match lines.count() {
        0 => out,
        more => {
            let next = offset.saturating_add(limit);
            format!("{out}\n\n[... {more} more lines. Use offset={next} to read more.]")
        }
    }
}

/// The lines of `text` without their ends, divided where Unicode divides them (UAX #14, mandatory breaks) and at the
/// ASCII separators, as clients of this contract count them.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find(is_line_end).unwrap_or(rest.len());
        let (line, tail) = rest.split_at(end);
        rest = tail.strip_prefix("\r\n").or_else(|| tail.strip_prefix(is_line_end)).unwrap_or(tail);
        Some(line)
    })
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extensions_can_be_searched() {
        assert!(TEXT_EXTENSIONS.is_sorted());
        assert!(is_text_name("A.PY") && is_text_name(".txt") && !is_text_name("py") && !is_text_name("a.png"));
    }

    #[test]
    fn encodings_are_told_apart() {
        assert_eq!(decode("x", "grün ✓".as_bytes()).unwrap(), "grün ✓");
        assert_eq!(decode("x", b"\xef\xbb\xbfbom").unwrap(), "bom");
        assert_eq!(decode("x", b"\xff\xfeh\0i\0").unwrap(), "hi");
        assert_eq!(decode("x", b"\xfe\xff\0h\0i").unwrap(), "hi");
        let latin = "Die Straße führt über die Brücke nach Köln.".chars().map(|c| u8::try_from(u32::from(c)).unwrap());
        assert_eq!(decode("x", &latin.collect::<Vec<_>>()).unwrap(), "Die Straße führt über die Brücke nach Köln.");
        let (japanese, _, _) = encoding_rs::SHIFT_JIS.encode("これは日本語の文章です。");
        assert_eq!(decode("x", &japanese).unwrap(), "これは日本語の文章です。");
        assert_eq!(decode("x", b"").unwrap(), "");
        assert_eq!(decode("x", b"\x1b[31mred\x1b[0m\tx\r\n").unwrap(), "\x1b[31mred\x1b[0m\tx\r\n");
    }

    #[test]
    fn binary_is_no_text_unless_its_name_says_so() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01";
        let random: Vec<u8> = (0..4000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 | 1).collect();
        assert_eq!(decode("a.png", png), None);
        assert_eq!(decode("core", &random), None);
        assert!(decode("a.txt", png).is_some());
    }

    #[test]
    fn lines_end_where_the_client_thinks() {
        let split: Vec<_> = lines("a\r\nb\rc\n\nd\x0be\x0cf\x1cg\u{85}h\u{2028}i\u{2029}").collect();
        assert_eq!(split, ["a", "b", "c", "", "d", "e", "f", "g", "h", "i"]);
        assert_eq!(lines("").count(), 0);
        assert_eq!(lines("\n").count(), 1);
        assert_eq!(lines("\r\r\n").count(), 2);
    }

    #[test]
    fn a_slice_says_what_is_left() {
        let text = "0\n1\n2\n3\n4\n";
        assert_eq!(slice(text, 0, 2000), "0\n1\n2\n3\n4");
        assert_eq!(slice(text, 1, 2), "1\n2\n\n[... 2 more lines. Use offset=3 to read more.]");
        assert_eq!(slice(text, 3, 2), "3\n4");
        assert_eq!(slice(text, 4, 0), "\n\n[... 1 more lines. Use offset=4 to read more.]");
        assert_eq!(slice(text, 5, 10), "[End of file]");
        assert_eq!(slice("", 0, 10), "[End of file]");
        assert_eq!(slice(text, usize::MAX, usize::MAX), "[End of file]");
        assert_eq!(slice(text, 4, usize::MAX), "4");
    }
}
