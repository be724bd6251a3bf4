//! Parses numbers and booleans as Go's `strconv` and `flag` packages do, with the same error texts.

/// Parses a boolean as Go does.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Why a string is not a valid number of the requested type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberError {
    /// The syntax is invalid.
    Syntax,
    /// The number is out of range.
    Range,
}

impl NumberError {
    /// Returns the error text of Go's `flag` package.
    pub fn flag_reason(self) -> &'static str {
        match self {
            Self::Syntax => "parse error",
            Self::Range => "value out of range",
        }
    }

    /// Returns the error text of Go's `strconv` package.
    pub fn strconv_reason(self) -> &'static str {
        match self {
            Self::Syntax => "invalid syntax",
            Self::Range => "value out of range",
        }
    }
}

/// Parses an unsigned number. With base 0, the prefix of the string selects the base: `0x`, `0o`, `0b`, or `0` for
/// octal. Without a prefix, the base is 10.
pub fn parse_uint(text: &str, base: u32, max: u64) -> Result<u64, NumberError> {
    let lower = text.to_ascii_lowercase();
    let (radix, digits, prefixed) = match (base, lower.as_bytes()) {
        (0, [b'0', b'x', ..]) => (16, &lower[2..], true),
        (0, [b'0', b'o', ..]) => (8, &lower[2..], true),
        (0, [b'0', b'b', ..]) => (2, &lower[2..], true),
        (0, [b'0', _, ..]) => (8, &lower[1..], true),
        (0, _) => (10, lower.as_str(), false),
        (base, _) => (base, lower.as_str(), false),
    };
    let may_be_separated = base == 0 && underscores_separate(digits, prefixed);
    if digits.is_empty() || digits.contains('_') && !may_be_separated {
        return Err(NumberError::Syntax);
    }
    let mut value: u64 = 0;
    let mut fits = true;
    for c in digits.chars().filter(|c| *c != '_') {
        let digit = c.to_digit(radix).ok_or(NumberError::Syntax)?;
        match value.checked_mul(u64::from(radix)).and_then(|v| v.checked_add(u64::from(digit))) {
            Some(next) => value = next,
            None => fits = false,
        }
    }
    if fits && value <= max { Ok(value) } else { Err(NumberError::Range) }
}

/// Parses a number with an optional sign.
pub fn parse_int(text: &str, base: u32) -> Result<i64, NumberError> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = parse_uint(digits, base, u64::MAX)?;
    let value =
        if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() };
    value.ok_or(NumberError::Range)
}

/// Returns whether every underscore separates two digits, or a prefix and the first digit, as in Go's integer literals.
/// The caller allows underscores only with base 0.
fn underscores_separate(digits: &str, prefixed: bool) -> bool {
    let leads = digits.starts_with('_');
    !(leads && !prefixed || digits.ends_with('_') || digits.contains("__"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_parsed_as_in_go() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("17", Ok(17)),
            ("0x1F", Ok(31)),
            ("0b101", Ok(5)),
            ("0o17", Ok(15)),
            ("017", Ok(15)),
            ("1_000", Ok(1000)),
            ("0x_ff", Ok(255)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("18446744073709551616", Err(NumberError::Range)),
            ("99999999999999999999x", Err(NumberError::Syntax)),
            ("09", Err(NumberError::Syntax)),
            ("1__0", Err(NumberError::Syntax)),
            ("_1", Err(NumberError::Syntax)),
            ("", Err(NumberError::Syntax)),
            ("0x", Err(NumberError::Syntax)),
            ("-1", Err(NumberError::Syntax)),
            ("1.0", Err(NumberError::Syntax)),
        ] {
            assert_eq!(parse_uint(text, 0, u64::MAX), expected, "{text}");
        }
        assert_eq!(parse_uint("4294967296", 0, u64::from(u32::MAX)), Err(NumberError::Range));
        assert_eq!(parse_int("-9223372036854775808", 0), Ok(i64::MIN));
        assert_eq!(parse_int("9223372036854775808", 0), Err(NumberError::Range));
        assert_eq!(parse_int("+0x10", 0), Ok(16));
        assert_eq!(parse_int("--1", 0), Err(NumberError::Syntax));
        assert_eq!(parse_int("-017", 10), Ok(-17));
        assert_eq!(parse_int("7B", 16), Ok(123));
        for other_base in ["0x10", "1_000"] {
            assert_eq!(parse_int(other_base, 10), Err(NumberError::Syntax), "{other_base}");
        }
    }

    proptest! {
        #[test]
        fn decimal_numbers_round_trip(value in any::<i64>()) {
            prop_assert_eq!(parse_int(&value.to_string(), 10), Ok(value));
        }

        #[test]
        fn parsing_any_text_as_a_number_never_panics(text in "\\PC{0,12}") {
            let _outcome = parse_int(&text, 0);
        }
    }
}
