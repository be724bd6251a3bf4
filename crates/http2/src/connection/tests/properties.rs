//! Tests properties of a connection that hold for any input.

use proptest::prelude::*;

use super::*;
use crate::fuzz;

/// Generates frames that a client may send, most of them valid.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let stream = prop_oneof![4 => (0..4_u32).prop_map(|half| 2 * half + 1), 1 => 0..9_u32];
    let flags = prop_oneof![Just(END_HEADERS), Just(END_HEADERS | END_STREAM), any::<u8>()];
    let block = prop_oneof![
        4 => Just(POST.to_vec()),
        1 => Just([POST, b"\x40\x01a\x01b"].concat()),
        1 => Just([POST, b"\xbe"].concat()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        6 => (flags.clone(), stream.clone(), block).prop_map(|(f, s, b)| frame(HEADERS, f, s, &b)),
        4 => (flags.clone(), stream.clone(), bytes.clone()).prop_map(|(f, s, b)| frame(DATA, f, s, &b)),
        2 => (stream.clone(), any::<u16>())
            .prop_map(|(s, more)| frame(WINDOW_UPDATE, 0, s, &u32::from(more).to_be_bytes())),
        1 => (1..7_u16, any::<u32>()).prop_map(|(id, value)| settings(&[(id, value)])),
        1 => any::<[u8; 8]>().prop_map(|payload| frame(PING, 0, 0, &payload)),
        1 => stream.clone().prop_map(|s| frame(RST_STREAM, 0, s, &[0, 0, 0, 8])),
        1 => (0..12_u8, flags, stream, bytes).prop_map(|(k, f, s, b)| frame(k, f, s, &b)),
    ]
}

proptest! {
    #[test]
    fn the_events_do_not_depend_on_how_frames_are_split(
        frames in prop::collection::vec(any_frame(), 0..30),
        pieces in prop::collection::vec(1..50_u8, 1..10),
    ) {
        fuzz::check(&pieces, &[PREFACE, &settings(&[]), &frames.concat()].concat());
    }

    #[test]
    fn the_events_do_not_depend_on_how_random_bytes_are_split(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        pieces in prop::collection::vec(1..50_u8, 1..10),
    ) {
        fuzz::check(&pieces, &[PREFACE, &settings(&[]), &bytes].concat());
        fuzz::check(&pieces, &bytes);
    }
}
