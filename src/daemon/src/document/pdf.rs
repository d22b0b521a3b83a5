//! The text of a PDF, found in a child process.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use pdf_extract::{Document, PlainTextOutput, decode_text_string, output_doc_page};

/// After this no further page is begun. The limits of the process are above it, for a page that never ends.
const ENOUGH_TIME: Duration = Duration::from_secs(7);
/// After so many bytes likewise; the parent takes a little more.
const ENOUGH_TEXT: usize = 12 << 20;
/// What a document says of itself and a reader wants to know: the key, and its label.
const ABOUT: [&str; 3] = ["Title", "Author", "Subject"];

/// What the document says of itself, then each page that has text, under its number.
///
/// # Errors
/// Why there is none, in words.
pub(super) fn text(bytes: &[u8]) -> Result<String, String> {
    let begun = Instant::now();
    let mut document = Document::load_mem(bytes).map_err(|e| e.to_string())?;
    if document.is_encrypted() {
        // Many are encrypted with no password, against changes only.
        document.decrypt("").map_err(|_| "it is encrypted".to_owned())?;
    }
    let pages = document.get_pages();
    let mut text = about(&document);
    let mut found = !text.is_empty();
    for (done, number) in pages.keys().enumerate() {
        if begun.elapsed() > ENOUGH_TIME || text.len() > ENOUGH_TEXT {
            text.push_str(&format!("[{} more pages were not read]\n", pages.len() - done));
            break;
        }
        let page = page(&document, *number);
        if page.as_deref() == Some("") {
            continue;
        }
        found |= page.is_some();
        let page = page.unwrap_or_else(|| "[this page cannot be read]".to_owned());
        text.push_str(&format!("--- Page {number} ---\n{page}\n\n"));
    }
    if found { Ok(text.trim_end().to_owned()) } else { Err("it has no text".to_owned()) }
}

/// Lines `Title: …` and so on, and an empty one after them.
fn about(document: &Document) -> String {
    let info = document.trailer.get(b"Info").and_then(|info| match info.as_reference() {
        Ok(id) => document.get_dictionary(id),
        Err(_) => info.as_dict(),
    });
    let Ok(info) = info else { return String::new() };
    let values: BTreeMap<usize, String> = ABOUT
        .iter()
        .enumerate()
        .filter_map(|(index, key)| {
            let value = info.get(key.as_bytes()).ok()?;
            let value = document.dereference(value).ok()?.1;
            let value = tidy(&decode_text_string(value).ok()?).replace('\n', " ");
            (!value.is_empty()).then_some((index, value))
        })
        .collect();
    let mut lines: String = values.iter().map(|(index, value)| format!("{}: {value}\n", ABOUT[*index])).collect();
    if !lines.is_empty() {
        lines.push('\n');
    }
    lines
}

/// A page's text, tidied; none if its parser gives up, as it does on what it does not know.
fn page(document: &Document, number: u32) -> Option<String> {
    let mut text = String::new();
    let mut output = PlainTextOutput::new(&mut text);
    let parsed = catch_unwind(AssertUnwindSafe(|| output_doc_page(document, &mut output, number)));
    let sound = matches!(parsed, Ok(Ok(())));
    let text = tidy(&text);
    // What it had found by then is worth having.
    if sound || !text.is_empty() { Some(text) } else { None }
}

/// Without the traces of layout: runs of blanks and empty lines, and hyphens at the ends of lines.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut empty = true;
    for line in text.split(['\n', '\r', '\x0c']) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            if !empty {
                out.push('\n');
            }
            empty = true;
            continue;
        }
        let line = words.join(" ");
        let mut ending = out.strip_suffix("-\n").map_or("".chars(), str::chars);
        if ending.next_back().is_some_and(char::is_alphanumeric) && line.starts_with(char::is_lowercase) {
            out.truncate(out.len() - 2);
        }
        out.push_str(&line);
        out.push('\n');
        empty = false;
    }
    out.retain(|c| c == '\n' || !c.is_control());
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PDF of one page for each text, its objects where its table says.
    fn pdf(pages: &[&str]) -> Vec<u8> {
        let mut objects = vec!["<</Type/Catalog/Pages 2 0 R>>".to_owned()];
        let kids: Vec<String> = (0..pages.len()).map(|i| format!("{} 0 R", 5 + 2 * i)).collect();
        objects.push(format!("<</Type/Pages/Kids[{}]/Count {}>>", kids.join(" "), pages.len()));
        objects.push("<</Title(A report)/Author(Ada)>>".to_owned());
        objects.push("<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>".to_owned());
        for (i, text) in pages.iter().enumerate() {
            let font = "/Resources<</Font<</F 4 0 R>>>>";
            objects.push(format!("<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]{font}/Contents {} 0 R>>", 6 + 2 * i));
            let content = format!("BT /F 12 Tf 72 720 Td ({text}) Tj ET");
            objects.push(format!("<</Length {}>>stream\n{content}\nendstream", content.len()));
        }
        let mut file = "%PDF-1.4\n".to_owned();
        let mut places = Vec::new();
        for (i, object) in objects.iter().enumerate() {
            places.push(file.len());
            file.push_str(&format!("{} 0 obj\n{object}\nendobj\n", i + 1));
        }
        let table = file.len();
        file.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1));
        for place in places {
            file.push_str(&format!("{place:010} 00000 n \n"));
        }
        let trailer = format!("trailer<</Size {}/Root 1 0 R/Info 3 0 R>>", objects.len() + 1);
        file.push_str(&format!("{trailer}\nstartxref\n{table}\n%%EOF\n"));
        file.into_bytes()
    }

    #[test]
    fn text_comes_page_by_page_after_what_the_document_says_of_itself() {
        let text = text(&pdf(&["Hello world", "", "The end"])).unwrap();
        assert_eq!(text, "Title: A report\nAuthor: Ada\n\n--- Page 1 ---\nHello world\n\n--- Page 3 ---\nThe end");
    }

    #[test]
    fn what_is_broken_is_refused_or_panics_and_never_answers() {
        let whole = pdf(&["Hello world"]);
        let broken = |bytes: &[u8]| {
            let result = catch_unwind(|| text(bytes));
            assert!(!matches!(result, Ok(Ok(_))), "{result:?}");
        };
        broken(b"");
        broken(b"%PDF-1.7\n");
        broken(&whole[..whole.len() / 2]);
        broken(&[b'x'; 10_000]);
    }

    #[test]
    fn layout_is_tidied() {
        assert_eq!(tidy("  a   b \n\n\n\nc-\nd\ne-\nF \x0c g\u{0}h"), "a b\n\ncd\ne-\nF\ng h".replace("g h", "gh"));
        assert_eq!(tidy(" \n \n"), "");
        assert_eq!(tidy("-\nx"), "-\nx");
    }
}
