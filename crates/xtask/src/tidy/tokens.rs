//! The tokens of a Rust source, without comments, string literals and tests.

use super::source::is_letter;

/// Splits a source into identifiers, `::` and single punctuation marks. The quote of a lifetime is a separate token.
pub(super) fn tokens(text: &str) -> Vec<&str> {
    let pieces = pieces(text).filter(|(kind, _)| *kind == Kind::Token);
    pieces.map(|(_, token)| token).collect()
}

/// Returns the contents of all string literals in a source, with continued lines joined.
pub(super) fn literals(text: &str) -> Vec<String> {
    let contents = |literal: &str| {
        let start = literal.find('"')?;
        let end = literal.rfind('"').filter(|end| *end > start)?;
        let lines = literal[start + 1..end].split("\\\n").map(str::trim_start);
        Some(lines.collect::<String>().replace("\\\"", "\""))
    };
    let pieces = pieces(text).filter(|(kind, _)| *kind == Kind::Literal);
    pieces.filter_map(|(_, literal)| contents(literal)).collect()
}

/// The kind of a piece of source text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Token,
    Literal,
    /// A comment or white space.
    Other,
}

/// Splits a source into tokens, string and character literals, and other text.
fn pieces(text: &str) -> impl Iterator<Item = (Kind, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let (kind, len) = if rest.starts_with("//") {
            (Kind::Other, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (Kind::Other, rest.find("*/").map_or(rest.len(), |at| at + 2))
        } else if let Some(len) = text_len(rest) {
            (Kind::Literal, len)
        } else if first.is_whitespace() {
            (Kind::Other, first.len_utf8())
        } else {
            let len = match first {
                _ if is_letter(first) => rest.find(|letter| !is_letter(letter)),
                ':' if rest.starts_with("::") => Some(2),
                _ => Some(first.len_utf8()),
            };
            (Kind::Token, len.unwrap_or(rest.len()))
        };
        let piece = &rest[..len];
        rest = &rest[len..];
        Some((kind, piece))
    })
}

/// Returns the length of the string or character literal at the beginning of the text, if there is one.
fn text_len(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('b').unwrap_or(rest);
    let prefix = rest.len() - body.len();
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let text = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", &raw[..hashes]);
        let len = text.find(&end).map_or(text.len(), |at| at + end.len());
        return Some(rest.len() - text.len() + len);
    }
    if let Some(text) = body.strip_prefix('"') {
        return Some(prefix + 1 + quoted_len(text, '"'));
    }
    // `'a'` and `'\n'` are character literals, and `'a` is a lifetime.
    let inner = body.strip_prefix('\'')?;
    let mut letters = inner.chars();
    let is_character = letters.next() == Some('\\') || letters.next() == Some('\'');
    is_character.then(|| prefix + 1 + quoted_len(inner, '\''))
}

/// Returns the length of the rest of a literal after its opening quote, including the closing quote.
fn quoted_len(rest: &str, end: char) -> usize {
    let mut is_escaped = false;
    for (at, letter) in rest.char_indices() {
        if !is_escaped && letter == end {
            return at + 1;
        }
        is_escaped = !is_escaped && letter == '\\';
    }
    rest.len()
}

/// Removes items with `#[cfg(test)]`. Also returns the names of removed modules that have their own files.
pub(super) fn without_tests<'a>(tokens: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut modules) = (Vec::with_capacity(tokens.len()), Vec::new());
    let mut rest = tokens;
    while let Some(first) = rest.first() {
        let Some(item) = rest.strip_prefix(&MARK) else {
            kept.push(*first);
            rest = &rest[1..];
            continue;
        };
        let len = item_len(item);
        if let Some(at) = item[..len].iter().position(|token| *token == "mod")
            && item[..len].last() == Some(&";")
        {
            modules.extend(item.get(at + 1));
        }
        rest = &item[len..];
    }
    (kept, modules)
}

/// Returns the number of tokens in the first item, which ends at its `;` or at the end of its block.
fn item_len(tokens: &[&str]) -> usize {
    let is_use = tokens.iter().take_while(|token| **token != ";").any(|token| *token == "use");
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "[" | "(" => depth += 1,
            "}" if depth == 0 => return at,
            "}" | "]" | ")" => {
                depth = depth.saturating_sub(1);
                if *token == "}" && depth == 0 && !is_use {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_tokens() {
        let text = "use a::b; // c::d\n/* e */ let x: &'a u8 = \"f \\\" g\"; r#\"h\"#; b'\\''; 'i'";
        let expected =
            ["use", "a", "::", "b", ";", "let", "x", ":", "&", "'", "a", "u8", "=", ";", ";", ";"];
        assert_eq!(tokens(text), expected);
    }

    #[test]
    fn continued_string_literals_are_joined() {
        let text = "f(\"a \\\n   b\", r#\"c\"#, 'd', \"e \\\"f\\\"\") // \"g\"";
        assert_eq!(literals(text), ["a b", "c", "e \"f\""]);
    }

    #[test]
    fn test_code_is_removed_from_the_tokens() {
        let text = "use a; #[cfg(test)] use b::{c, d}; #[cfg(test)] #[x] mod e { f } \
                    #[cfg(test)] mod g; fn h() {}";
        let tokens = tokens(text);
        let (kept, modules) = without_tests(&tokens);
        assert_eq!(kept, ["use", "a", ";", "fn", "h", "(", ")", "{", "}"]);
        assert_eq!(modules, ["g"]);
    }
}
