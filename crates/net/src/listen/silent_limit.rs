//! A limit on streams that is enforced without being announced.
//!
//! By default etcd announces no limit on concurrent streams, and its clients open as many streams as they need. The
//! HTTP/2 library only enforces a limit that it announces. Therefore the limit is removed from the announcement before
//! it is sent. Clients receive etcd's settings, and a client that exceeds the limit, which no real client does,
//! receives REFUSED_STREAM, after which clients retry.

const HEAD_BYTES: usize = 9;
const SETTINGS: u8 = 4;
const SETTING_BYTES: usize = 6;
const MAX_CONCURRENT_STREAMS: [u8; 2] = [0, 3];

/// Removes the limit from the SETTINGS frame at the start of the server's data.
pub(super) fn take_out(first: &mut Vec<u8>) {
    let Some((head, _)) = first.split_first_chunk::<HEAD_BYTES>() else { return };
    let [high, middle, low, kind, ..] = *head;
    let payload_bytes = u32::from_be_bytes([0, high, middle, low]) as usize;
    let end = HEAD_BYTES + payload_bytes;
    if kind != SETTINGS || first.len() < end {
        return;
    }
    let settings: Vec<u8> = first[HEAD_BYTES..end]
        .chunks(SETTING_BYTES)
        .filter(|setting| !setting.starts_with(&MAX_CONCURRENT_STREAMS))
        .flatten()
        .copied()
        .collect();
    let length = u32::try_from(settings.len()).expect("the length of a frame has 24 bits");
    let [_, high, middle, low] = length.to_be_bytes();
    first[..3].copy_from_slice(&[high, middle, low]);
    first.splice(HEAD_BYTES..end, settings);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(entries: &[(u8, u32)]) -> Vec<u8> {
        let mut frame = vec![0, 0, entries.len() as u8 * 6, SETTINGS, 0, 0, 0, 0, 0];
        for (id, value) in entries {
            frame.extend([0, *id]);
            frame.extend(value.to_be_bytes());
        }
        frame
    }

    #[test]
    fn only_the_stream_limit_is_removed_from_the_settings() {
        let behind = b"what follows";
        let mut first = settings(&[(4, 1 << 20), (3, 100), (5, 16384)]);
        first.extend(behind);
        take_out(&mut first);
        let mut expected = settings(&[(4, 1 << 20), (5, 16384)]);
        expected.extend(behind);
        assert_eq!(first, expected);
    }

    #[test]
    fn bytes_without_a_complete_settings_frame_are_unchanged() {
        for bytes in
            [&b""[..], b"\0\0\x06\x04\0", b"\0\0\x06\x04\0\0\0\0\0\0\x03", b"\0\0\0\x06\0\0\0\0\0"]
        {
            let mut first = bytes.to_vec();
            take_out(&mut first);
            assert_eq!(first, bytes);
        }
    }
}
