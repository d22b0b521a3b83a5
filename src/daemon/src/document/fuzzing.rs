//! What the fuzz targets call of this room; see [`crate::fuzzing`].
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a target reports by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use super::{PICTURE_MAX, pdf, picture};

/// A document, as a child gets it: its parser may panic, which the child answers for; what it answers is bounded.
pub fn documents(data: &[u8]) {
    let Some((task, document)) = data.split_first() else { return };
    // The child's own hook: whoever watches this process does not end it for a parser's panic.
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let answer = catch_unwind(AssertUnwindSafe(|| match task % 2 {
        0 => picture::thumbnail(document),
        _ => pdf::text(document).map(String::into_bytes),
    }));
    set_hook(hook);
    let Ok(answer) = answer else { return };
    match (task % 2, answer) {
        (0, Ok(small)) => {
            assert!(small.len() <= PICTURE_MAX);
            assert!(small.starts_with(b"\x89PNG") || small.starts_with(b"\xff\xd8\xff"));
            let again = image::load_from_memory(&small).unwrap();
            assert!(again.width() <= 256 && again.height() <= 256);
        }
        (_, Ok(text)) => assert!(!text.is_empty()),
        (_, Err(reason)) => assert!(!reason.is_empty()),
    }
}
