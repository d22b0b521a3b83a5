//! Sizes in the syntax of `docker run --memory`: `2g`, `512m`, `1.5G`, plain bytes.

use std::fmt;

/// What a size may look like, for error messages.
pub const ALLOWED: &str = "bytes, or a number with k, m, g or t, such as 512m or 2g";

/// A size as it was written and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    text: String,
    bytes: u64,
}

impl Size {
    /// Read a size: a decimal number, optionally a fraction, optionally one of `b k m g t`
    /// in either case (powers of 1024), optionally followed by `b` or `ib`.
    ///
    /// # Errors
    /// [`InvalidSize`] for anything else, for zero, and for what does not fit 63 bits.
    pub fn parse(text: &str) -> Result<Self, InvalidSize> {
        let invalid = || InvalidSize { text: text.chars().take(40).collect() };
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, unit) = trimmed.split_at(digits);
        let factor = factor_of(&unit.to_ascii_lowercase()).ok_or_else(invalid)?;
        let bytes = scale(number, factor).ok_or_else(invalid)?;
        if bytes == 0 || bytes > i64::MAX as u64 {
            return Err(invalid());
        }
        Ok(Self { text: trimmed.to_owned(), bytes })
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// In bytes; 1 or more.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a size; allowed: {ALLOWED}")]
pub struct InvalidSize {
    text: String,
}

fn factor_of(unit: &str) -> Option<u64> {
    let letter = match unit {
        "" | "b" => return Some(1),
        _ => unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(unit),
    };
    match letter {
        "k" => Some(1 << 10),
        "m" => Some(1 << 20),
        "g" => Some(1 << 30),
        "t" => Some(1 << 40),
        _ => None,
    }
}

/// `number * factor` in whole bytes, rounded down; exact where there is no fraction.
fn scale(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.len() > 19 || fraction.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = fraction.parse().ok()?;
    let ten = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let rest = u64::try_from(u128::from(part) * u128::from(factor) / ten).ok()?;
    whole.checked_mul(factor)?.checked_add(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_syntax_of_docker() {
        let cases: [(&str, u64); 11] = [
            ("1", 1),
            ("1024", 1024),
            ("7b", 7),
            ("64k", 65_536),
            ("512m", 536_870_912),
            ("512M", 536_870_912),
            ("2g", 2_147_483_648),
            ("2GB", 2_147_483_648),
            ("2GiB", 2_147_483_648),
            ("1.5g", 1_610_612_736),
            (" 1t ", 1_099_511_627_776),
        ];
        for (text, bytes) in cases {
            assert_eq!(Size::parse(text).unwrap().bytes(), bytes, "{text}");
        }
        assert_eq!(Size::parse(" 2g ").unwrap().text(), "2g");
    }

    #[test]
    fn anything_else_is_refused() {
        let bad = [
            "",
            "0",
            "0m",
            "-1",
            "g",
            "2x",
            "2gg",
            "2 g",
            "1.",
            ".",
            "1.2.3g",
            "1e3",
            "99999999999t",
            "18446744073709551616",
            "２g",
        ];
        for text in bad {
            assert!(Size::parse(text).is_err(), "{text:?}");
        }
    }
}
