//! Text that is not valid UTF-8, in text fields of messages.
//!
//! etcd 3.5 and 3.6 accept and store any bytes in a text field, such as the name of a role. The generated code has
//! strings for these fields, and refuses a message with other bytes. This module represents such bytes in a string:
//! each byte that is not a part of valid UTF-8 becomes the character U+10FF00 + byte, which is for private use, and
//! [`to_bytes`] restores the bytes. Different bytes become different strings, except that valid text with such a
//! character equals the bytes that the character represents.
//!
//! # Bound
//!
//! The text of a message becomes at most four times as long.

use std::borrow::Cow;

use prost::Name;

use crate::shape;

/// The code point that represents byte 0. Only the bytes from 0x80 on are ever represented.
const FIRST: u32 = 0x10_FF00;

/// Returns a string that represents these bytes. Valid UTF-8 is unchanged.
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let stand_in = |byte: &u8| {
            char::from_u32(FIRST + u32::from(*byte)).expect("the last plane has no surrogates")
        };
        text.extend(chunk.invalid().iter().map(stand_in));
    }
    text
}

/// Returns the bytes that a string represents.
#[must_use]
pub fn to_bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match u32::from(character).checked_sub(FIRST).map(u8::try_from) {
            Some(Ok(byte)) if !byte.is_ascii() => bytes.push(byte),
            _ => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// Copies an encoded message, and represents the bytes of each text field as valid UTF-8, so that the generated code can
/// decode the copy. Returns `None` if the bytes are not a message.
#[must_use]
pub fn make_valid<M: Name>(encoded: &[u8]) -> Option<Vec<u8>> {
    shape::map_text(&M::full_name(), encoded, |text| match std::str::from_utf8(text) {
        Ok(_) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(from_bytes(text).into_bytes()),
    })
}

/// Copies a message that the generated code has encoded, and restores the bytes of its text fields.
#[must_use]
pub fn make_exact<M: Name>(encoded: &[u8]) -> Option<Vec<u8>> {
    shape::map_text(&M::full_name(), encoded, |text| match std::str::from_utf8(text) {
        Ok(text) => Cow::Owned(to_bytes(text)),
        Err(_) => Cow::Borrowed(text),
    })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::authpb::{User, UserAddOptions};
    use crate::etcdserverpb::InternalRaftRequest;

    #[test]
    fn the_names_of_roles_may_contain_any_bytes() {
        let user = User {
            name: b"\xff".as_slice().into(),
            roles: vec![from_bytes(b"a\xfe"), "\u{e9}".to_owned()],
            options: Some(UserAddOptions { no_password: true }),
            ..User::default()
        };
        let exact = make_exact::<User>(&user.encode_to_vec()).unwrap();
        assert_eq!(exact, b"\x0a\x01\xff\x1a\x02a\xfe\x1a\x02\xc3\xa9\x22\x02\x08\x01");
        assert!(User::decode(&exact[..]).is_err());
        assert_eq!(User::decode(&make_valid::<User>(&exact).unwrap()[..]).unwrap(), user);
    }

    #[test]
    fn other_faults_of_a_message_remain() {
        // A number instead of the name of a role.
        let mistyped = b"\x82\x4b\x02\x08\x01";
        let valid = make_valid::<InternalRaftRequest>(mistyped).unwrap();
        assert_eq!(valid, mistyped);
        assert!(InternalRaftRequest::decode(&valid[..]).is_err());
        assert_eq!(make_valid::<InternalRaftRequest>(b"\x0a\x7f"), None);
    }

    #[test]
    fn all_bytes_survive() {
        for pair in 0..=u16::MAX {
            let bytes = pair.to_be_bytes();
            assert_eq!(to_bytes(&from_bytes(&bytes)), bytes);
        }
        let valid = "\u{7f}\u{e9}\u{10fe00}\u{10ff7f}";
        assert_eq!(from_bytes(valid.as_bytes()), valid);
        assert_eq!(to_bytes(valid), valid.as_bytes());
    }
}
