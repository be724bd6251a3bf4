//! The checksums of etcd's files: CRC-32C for the log and snapshots, FNV-1a for the backend's meta
//! pages.

/// Extends a running CRC-32C (Castagnoli, usual initial and final inversion) over `bytes`.
///
/// `crc32c_extend(crc32c(a), b)` equals `crc32c` of `a` followed by `b`. The CRC of an empty slice is 0.
#[must_use]
pub fn crc32c_extend(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// Returns the CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Returns the 64-bit FNV-1a hash of `bytes`. This hash protects the backend's meta pages.
#[must_use]
pub const fn fnv1a_64(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut hash = OFFSET_BASIS;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(PRIME);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_known_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_extend(crc32c(b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        assert_eq!(fnv1a_64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a_64(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
