//! Names that clients send: digests and tenants, checked once.

use std::{fmt, str::FromStr};

use crate::error::ServiceError;

/// A BLAKE3-256 digest; as text, 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Parses a digest that a client sent; `path` is where it stood in the request.
    pub fn parse(text: &str, path: &str) -> Result<Self, ServiceError> {
        text.parse().map_err(|()| {
            let shown: String = text.chars().take(80).collect();
            ServiceError::invalid(
                "request.bad_digest",
                path,
                format!("`{shown}` is not a digest"),
            )
            .hint("a digest is 64 lower-case hexadecimal digits")
        })
    }

    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl FromStr for Digest {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let ok = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !ok {
            return Err(());
        }
        blake3::Hash::from_hex(text)
            .map(|h| Self(*h.as_bytes()))
            .map_err(|_| ())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Whose data a request may see. Every key of the store and of the result cache carries one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(String);

impl Tenant {
    /// Checks a tenant name. It becomes a folder name, so nothing but `a-z 0-9 - _` is let in.
    pub fn parse(text: &str) -> Result<Self, ServiceError> {
        let ok = (1..=64).contains(&text.len())
            && text
                .bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'));
        if ok {
            Ok(Self(text.to_owned()))
        } else {
            let shown: String = text.chars().take(80).collect();
            Err(ServiceError::invalid(
                "request.bad_tenant",
                "metadata.x-tilesim-tenant",
                format!("`{shown}` is not a tenant name"),
            )
            .hint("use 1 to 64 characters out of a-z, 0-9, `-` and `_`"))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_round_trip_and_are_strict() {
        let digest = Digest::of(b"x");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["", "00", &"g".repeat(64), &"A".repeat(64), &"0".repeat(65)] {
            assert!(Digest::parse(bad, "d").is_err(), "{bad}");
        }
    }

    #[test]
    fn tenants_cannot_leave_their_folder() {
        for bad in ["", ".", "..", "a/b", "A", "a b", "a\0", &"a".repeat(65)] {
            assert!(Tenant::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Tenant::parse("team-1_x").is_ok());
    }
}
