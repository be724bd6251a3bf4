//! The secret in the address of a console whose listener does not restrict access.
//!
//! A console on loopback can be reached by every user of the machine and, through a proxy, from other machines. If the
//! console has access to the cluster that these users lack, and authentication is off, the page must send this secret.
//! Only the user who started the console sees the secret.

use std::fmt;

/// The secret of a console, which is a random string.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random)?;
        Ok(Self(random.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Returns whether `given` is this secret. The duration of the comparison does not depend on how many bytes match.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        let differences = self.0.bytes().zip(given).map(|(own, given)| own ^ given);
        given.len() == self.0.len() && differences.fold(0, |all, one| all | one) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_is_accepted() {
        let (one, other) = (Secret::new().unwrap(), Secret::new().unwrap());
        assert_eq!(one.text().len(), 32);
        assert!(one.is(one.text().as_bytes()));
        for wrong in [other.text(), &one.text()[..31], "", &format!("{}0", one.text())] {
            assert!(!one.is(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{one:?}"), "Secret");
    }
}
