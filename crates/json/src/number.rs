//! Integers in JSON, which may be written with a fraction and an exponent if their value is a whole number.

/// Maximum number of digits. The largest 64-bit number has this many digits.
const DIGITS_MAX: usize = 20;

/// Returns the number in `text`, if it is a whole number with at most [`DIGITS_MAX`] digits.
pub(super) fn whole(text: &[u8]) -> Option<i128> {
    let (is_negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        text => (false, text),
    };
    let (mantissa, exponent) = match text.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&text[..at], exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let (integer, fraction) = match mantissa.iter().position(|byte| *byte == b'.') {
        Some(at) => (&mantissa[..at], Some(&mantissa[at + 1..])),
        None => (mantissa, None),
    };
    let has_form = match integer {
        [] | [b'0', _, ..] => false,
        digits => are_digits(digits),
    } && fraction.is_none_or(|digits| !digits.is_empty() && are_digits(digits));
    if !has_form {
        return None;
    }
    let fraction = fraction.unwrap_or_default();
    let digits = integer.iter().chain(fraction).skip_while(|digit| **digit == b'0');
    let mut digits: Vec<u8> = digits.copied().collect();
    let mut shift = exponent - i64::try_from(fraction.len()).ok()?;
    while digits.last() == Some(&b'0') {
        digits.pop();
        shift += 1;
    }
    if digits.is_empty() {
        return Some(0);
    }
    let shift = u32::try_from(shift).ok()?;
    if digits.len() + shift as usize > DIGITS_MAX {
        return None;
    }
    let number = digits.iter().fold(0_i128, |number, digit| number * 10 + i128::from(digit - b'0'));
    let number = number * 10_i128.pow(shift);
    Some(if is_negative { -number } else { number })
}

fn are_digits(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_digit)
}

/// Parses an exponent. All exponents out of range have the same effect, so they are clamped.
fn exponent(text: &[u8]) -> Option<i64> {
    const BEYOND: i64 = 1 << 40;
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        text => (false, text),
    };
    if digits.is_empty() || !are_digits(digits) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0_i64, |number, digit| (number * 10 + i64::from(digit - b'0')).min(BEYOND));
    Some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_may_be_written_with_a_zero_fraction_or_an_exponent() {
        for (text, number) in [
            ("0", 0),
            ("-0", 0),
            ("0.000", 0),
            ("0e999999999999999999999", 0),
            ("12", 12),
            ("-12.00", -12),
            ("1.2e1", 12),
            ("1200E-2", 12),
            ("1e+19", 10_i128.pow(19)),
            ("18446744073709551615", i128::from(u64::MAX)),
            ("-9223372036854775808", i128::from(i64::MIN)),
        ] {
            assert_eq!(whole(text.as_bytes()), Some(number), "{text}");
        }
        for text in [
            "",
            "-",
            "+1",
            " 1",
            "1 ",
            "01",
            "1.",
            ".5",
            "1.5",
            "1e",
            "1e+",
            "1e-1",
            "0x1",
            "NaN",
            "Infinity",
            "1e20",
            "1e99999999999999999999",
            "123456789012345678901",
            "--1",
            "1e1.0",
        ] {
            assert_eq!(whole(text.as_bytes()), None, "{text}");
        }
    }
}
