//! Fuzz target: splits request bodies into JSON values, and converts the values to messages and back.

use crate::schema::{METHODS, message};
use crate::{Values, read, write};

/// Processes arbitrary bytes as a request. The first byte selects the method, and the second byte selects the length of
/// the pieces in which the body arrives. The values found in the body must not depend on this length. Each value must
/// be converted or refused. A converted message must be the same after it is written as JSON and read again.
pub fn body(data: &[u8]) {
    let [method, piece, body @ ..] = data else { return };
    let of = message(METHODS[usize::from(*method) % METHODS.len()].input);
    let whole = values(body, body.len().max(1));
    assert_eq!(
        values(body, usize::from(*piece).max(1)),
        whole,
        "the values depend on how the body is split"
    );
    for json in whole.0 {
        let mut wire = Vec::new();
        if read::message(of, &json, &mut wire).is_err() {
            continue;
        }
        let (mut written, mut again, mut rewritten) = (Vec::new(), Vec::new(), Vec::new());
        write::message(of, &wire, &mut written).expect("the converted message is valid");
        assert_eq!(values(&written, 1).0, [written.clone()], "the written JSON is one value");
        read::message(of, &written, &mut again).expect("the written JSON can be read");
        write::message(of, &again, &mut rewritten).expect("the converted message is valid");
        assert_eq!(rewritten, written);
    }
}

/// Returns the values of a body that arrives in pieces, and the error after the last value, if there is one.
fn values(body: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<String>) {
    let (mut values, mut found) = (Values::default(), Vec::new());
    for bytes in body.chunks(piece) {
        values.push(bytes);
        loop {
            match values.next_value() {
                Ok(Some(value)) => found.push(value.to_vec()),
                Ok(None) => break,
                Err(error) => return (found, Some(error.to_string())),
            }
        }
    }
    match values.finish() {
        Ok(last) => found.extend(last.map(|value| value.to_vec())),
        Err(error) => return (found, Some(error.to_string())),
    }
    (found, None)
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    use crate::schema::METHODS;

    /// Returns the fuzz input for a method and a body that arrives in pieces of three bytes.
    fn sample(method: &str, body: &str) -> Vec<u8> {
        let position = METHODS.iter().position(|one| one.name == method).unwrap();
        [&[u8::try_from(position).unwrap(), 3], body.as_bytes()].concat()
    }

    #[test]
    fn any_body_is_converted_or_refused() {
        let samples = [
            ("range", sample("Range", r#"{"key":"aw==","limit":"5","sort_order":"DESCEND"} {}"#)),
            (
                "txn",
                sample(
                    "Txn",
                    r#"{"compare":[{"key":"YQ","value":"Yg-_","target":3}],"success":[{"request_txn":{"failure":[{"request_put":{"key":"YQ=="}}]}}]}"#,
                ),
            ),
            (
                "watch",
                sample(
                    "Watch",
                    "{\"create_request\":{\"filters\":[\"NOPUT\",1]}}\n{\"x\":[1e3,-0.5]}",
                ),
            ),
            (
                "user",
                sample(
                    "UserAdd",
                    r#"{"name":"\u00e4\ud83d\ude00\n","options":{"noPassword":true}}"#,
                ),
            ),
            (
                "member",
                sample(
                    "MemberAdd",
                    r#"{"peerURLs":["http://a:1","http://b:2"],"isLearner":false}"#,
                ),
            ),
        ];
        bounded("json_body", &samples, 20_000, super::body);
    }
}
