//! The rules that select the calls for the audit log.
//!
//! ```text
//! rules       rule (";" rule)*                     the first match decides; a call that matches no rule is logged
//! rule        ("include" | "exclude") condition*   all conditions must match
//! condition   "method=" name ("," name)*           SERVICE or SERVICE/METHOD, the service with or without its package
//!             "key=" prefix ("," prefix)*          %XX for a byte that is a space, comma, semicolon or percent sign
//!             "user=" name ("," name)*             the same escapes; an empty name means no user
//! ```
//!
//! An include rule matches a call if any key of the call may have the prefix. An exclude rule matches only if all keys of
//! the call have the prefix. A transaction therefore cannot hide an operation by adding an excluded key.

use super::line::{Asked, Keys};

/// The reason why rules are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A rule starts with neither `include` nor `exclude`.
    #[error("rule {0:?} must start with include or exclude")]
    Action(String),
    /// A condition is of an unknown kind.
    #[error("condition {0:?} must be method=, key= or user= with comma-separated values")]
    Condition(String),
    /// A percent sign is not followed by two hex digits.
    #[error("{0:?} has a % that is not followed by two hexadecimal digits")]
    Escape(String),
    /// A name is not valid UTF-8.
    #[error("{0:?} is not valid UTF-8")]
    Name(String),
    /// A prefix is empty and would match every key.
    #[error("condition {0:?} has an empty prefix, which matches every key: omit the condition")]
    EmptyPrefix(String),
}

/// The rules, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    includes: bool,
    /// The methods that the rule matches. An empty list matches every method.
    methods: Vec<MethodName>,
    prefixes: Vec<Vec<u8>>,
    users: Vec<String>,
}

/// A service or method named in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodName {
    service: String,
    method: Option<String>,
}

impl MethodName {
    fn read(text: &str) -> Self {
        match text.trim_start_matches('/').split_once('/') {
            None => Self { service: text.to_owned(), method: None },
            Some((service, method)) => {
                Self { service: service.to_owned(), method: Some(method.to_owned()) }
            }
        }
    }

    /// Returns whether this name denotes the method or its service.
    #[must_use]
    pub fn fits(&self, service: &str, method: &str) -> bool {
        let of_service = service == self.service
            || service.rsplit_once('.').is_some_and(|(_, short)| short == self.service);
        of_service && self.method.as_ref().is_none_or(|own| own == method)
    }
}

impl std::fmt::Display for MethodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.method {
            None => f.write_str(&self.service),
            Some(method) => write!(f, "{}/{method}", self.service),
        }
    }
}

impl Rules {
    /// Parses the rules.
    ///
    /// # Errors
    ///
    /// The text does not follow the grammar.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        rules.map(Rule::parse).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the method names in all rules, so that the caller can check that these methods exist.
    pub fn methods(&self) -> impl Iterator<Item = &MethodName> {
        self.0.iter().flat_map(|rule| &rule.methods)
    }

    /// Returns whether a call is logged. `asked` contains the listed operations of the call, and the number of kinds of
    /// operations that are not listed because the limit was reached.
    pub(super) fn take(&self, method: &str, user: &str, asked: (&[Asked], usize)) -> bool {
        let fitting = self.0.iter().find(|rule| rule.fits(method, user, asked));
        fitting.is_none_or(|rule| rule.includes)
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Self, RuleError> {
        let mut words = text.split_whitespace();
        let includes = match words.next() {
            Some("include") => true,
            Some("exclude") => false,
            _ => return Err(RuleError::Action(text.to_owned())),
        };
        let (methods, prefixes, users) = (Vec::new(), Vec::new(), Vec::new());
        let mut rule = Self { includes, methods, prefixes, users };
        for word in words {
            let unknown = || RuleError::Condition(word.to_owned());
            let (name, values) = word.split_once('=').ok_or_else(unknown)?;
            let values = values.split(',').map(unescape).collect::<Result<Vec<_>, _>>()?;
            let texts = || -> Result<Vec<String>, RuleError> {
                let text = |value: &Vec<u8>| String::from_utf8(value.clone());
                let name = |_| RuleError::Name(word.to_owned());
                values.iter().map(|value| text(value).map_err(name)).collect()
            };
            match name {
                "method" => {
                    let texts = texts()?;
                    if texts.iter().any(String::is_empty) {
                        return Err(unknown());
                    }
                    rule.methods.extend(texts.iter().map(|text| MethodName::read(text)));
                }
                "user" => rule.users.extend(texts()?),
                "key" if values.iter().any(Vec::is_empty) => {
                    return Err(RuleError::EmptyPrefix(word.to_owned()));
                }
                "key" => rule.prefixes.extend(values),
                _ => return Err(unknown()),
            }
        }
        Ok(rule)
    }

    fn fits(&self, method: &str, user: &str, (asked, left_out): (&[Asked], usize)) -> bool {
        let (service, method) =
            method.trim_start_matches('/').split_once('/').unwrap_or((method, ""));
        let of_method =
            self.methods.is_empty() || self.methods.iter().any(|name| name.fits(service, method));
        let of_user = self.users.is_empty() || self.users.iter().any(|name| name == user);
        of_method && of_user && self.fits_keys(asked, left_out)
    }

    fn fits_keys(&self, asked: &[Asked], left_out: usize) -> bool {
        if self.prefixes.is_empty() {
            return true;
        }
        let has_unknown = left_out > 0 || asked.iter().any(|asked| asked.concerns_unknown_keys);
        let mut keys = asked.iter().filter_map(|asked| asked.keys.as_ref()).peekable();
        if self.includes {
            let touches = |(key, end): &Keys| {
                self.prefixes.iter().any(|prefix| Span::of(key, end).touches(prefix))
            };
            return has_unknown || keys.any(touches);
        }
        let is_under = |(key, end): &Keys| {
            self.prefixes.iter().any(|prefix| Span::of(key, end).is_under(prefix))
        };
        keys.peek().is_some() && !has_unknown && keys.all(is_under)
    }
}

/// The keys of a request, from `first` up to but excluding `end`. `None` means that there is no end.
struct Span<'a> {
    first: &'a [u8],
    end: Option<Vec<u8>>,
}

impl<'a> Span<'a> {
    fn of(key: &'a [u8], range_end: &[u8]) -> Self {
        let end = match range_end {
            // The span of a single key ends before the key's successor.
            [] => Some([key, &[0]].concat()),
            [0] => None,
            end => Some(end.to_vec()),
        };
        Self { first: key, end }
    }

    /// Returns whether the span and the keys with this prefix overlap.
    fn touches(&self, prefix: &[u8]) -> bool {
        let begins_before_its_end = match after(prefix) {
            None => true,
            Some(end) => self.first < end.as_slice(),
        };
        begins_before_its_end && self.end.as_ref().is_none_or(|end| prefix < end.as_slice())
    }

    /// Returns whether all keys in the span have this prefix.
    fn is_under(&self, prefix: &[u8]) -> bool {
        self.first.starts_with(prefix)
            && match (&self.end, after(prefix)) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(end), Some(last)) => *end <= last,
            }
    }
}

/// Returns the first key after all keys with this prefix, or `None` if no key follows them.
fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=kept].to_vec();
    end[kept] += 1;
    Some(end)
}

fn unescape(text: &str) -> Result<Vec<u8>, RuleError> {
    let malformed = || RuleError::Escape(text.to_owned());
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.as_bytes().split_at_checked(2).ok_or_else(malformed)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let (Some(high), Some(low)) = (digit(digits[0]), digit(digits[1])) else {
            return Err(malformed());
        };
        bytes.push(high << 4 | low);
        bytes.extend_from_slice(rest);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn key(key: &str, end: &str) -> Asked {
        Asked::new("x").of_keys(key.as_bytes(), end.as_bytes())
    }

    #[test]
    fn the_first_matching_audit_rule_applies() {
        let rules = rules(
            "include user=ann method=KV/Range; exclude method=KV/Range,grpc.health.v1.Health; \
             exclude user=bob,; ",
        );
        let takes = |method: &str, user: &str| rules.take(method, user, (&[], 0));
        assert!(takes("/etcdserverpb.KV/Range", "ann"));
        assert!(!takes("/etcdserverpb.KV/Range", "eve"));
        assert!(takes("/etcdserverpb.KV/Put", "eve"));
        assert!(!takes("/grpc.health.v1.Health/Check", "eve"));
        assert!(!takes("/etcdserverpb.KV/Put", "bob"));
        assert!(!takes("/etcdserverpb.KV/Put", ""), "an empty name stands for no user");
        assert!(Rules::default().take("/a.B/C", "", (&[], 0)));
        assert!(!Rules::parse("include user=ann; exclude").unwrap().take("/a.B/C", "", (&[], 0)));
    }

    #[test]
    fn an_include_rule_needs_one_matching_key_and_an_exclude_rule_needs_all_keys_to_match() {
        let only = rules("include key=/secret/; exclude");
        let takes = |rules: &Rules, asked: &[Asked], more| rules.take("/a.B/C", "", (asked, more));
        let cases = [
            (key("/secret/a", ""), true),
            (key("/secret", ""), false),
            (key("/secret0", ""), false),
            (key("/", "0"), true),
            (key("/a", "/secret/"), false),
            (key("/a", "/secret/a"), true),
            (key("/secret0", "/t"), false),
            (key("/a", "\0"), true),
            (key("\0", "\0"), true),
        ];
        for (asked, expected) in cases {
            assert_eq!(takes(&only, std::slice::from_ref(&asked), 0), expected, "{asked:?}");
        }
        assert!(takes(&only, &[key("/a", ""), key("/secret/a", "")], 0));
        assert!(!takes(&only, &[], 0));
        assert!(takes(&only, &[], 1), "operations that were not recorded may match");
        let of_lease = Asked::new("lease_revoke").of_unknown_keys();
        assert!(
            takes(&only, std::slice::from_ref(&of_lease), 0),
            "the keys of the lease may be under the prefix"
        );
        let without = rules("exclude key=/tmp/,/var/");
        assert!(!takes(&without, &[key("/tmp/a", "")], 0));
        assert!(!takes(&without, &[key("/tmp/a", "/tmp/b"), key("/var/", "/var0")], 0));
        assert!(takes(&without, &[key("/tmp/a", ""), key("/etc", "")], 0));
        assert!(takes(&without, &[key("/tmp/a", "")], 1));
        assert!(takes(&without, &[key("/tmp/a", ""), of_lease], 0));
        assert!(takes(&without, &[key("/tmp/a", "/tmp1")], 0));
        assert!(takes(&without, &[key("/tmp/a", "\0")], 0));
        assert!(takes(&without, &[], 0), "a call without keys matches no prefix");
    }

    #[test]
    fn percent_encoded_bytes_in_audit_rules_are_decoded() {
        let odd = rules("exclude key=a%20b%2Cc%ff user=%3b");
        let bytes = [b"a b,c".as_slice(), &[0xff]].concat();
        let asked = Asked::new("x").of_keys(&bytes, b"");
        assert!(!odd.take("/a.B/C", ";", (&[asked], 0)));
    }

    #[test]
    fn an_invalid_rule_is_named_in_the_error() {
        let error = |text: &str| Rules::parse(text).unwrap_err().to_string();
        assert!(
            error("drop user=a").contains("\"drop user=a\" must start with include or exclude")
        );
        assert!(error("exclude user").contains("\"user\" must be method=, key= or user="));
        assert!(error("exclude method=").contains("\"method=\" must be"));
        assert!(error("exclude name=x").contains("\"name=x\""));
        assert!(error("exclude key=").contains("empty prefix"));
        assert!(error("exclude key=a,").contains("empty prefix"));
        assert!(
            error("exclude key=%2").contains("% that is not followed by two hexadecimal digits")
        );
        assert!(
            error("exclude key=%zz").contains("% that is not followed by two hexadecimal digits")
        );
        assert!(error("exclude user=%ff").contains("not valid UTF-8"));
    }
}
