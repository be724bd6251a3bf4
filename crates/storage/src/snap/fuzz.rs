//! Fuzz target: a `.snap` file with arbitrary bytes, with a correct or an incorrect checksum.

use std::path::Path;

use super::*;
use crate::disk::RealDisk;

/// Asserts that a snapshot that can be read is unchanged after it is written and read again. The first byte selects
/// whether the remaining bytes are the whole file or only the part that the checksum covers.
pub fn file(folder: &Path, data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let path = folder.join("0000000000000001-0000000000000001.snap");
    let sealed = || {
        let head = Head::new().number(1, u64::from(crc32c(rest))).bytes(2, rest.len());
        [head.as_slice(), rest].concat()
    };
    let bytes = if first % 2 == 0 { rest.to_vec() } else { sealed() };
    std::fs::write(&path, bytes).expect("the fuzzer's folder is writable");
    if let Ok(snapshot) = read(&RealDisk, &path) {
        let saved =
            save(&RealDisk, folder, &snapshot).expect("a snapshot that was read can be written");
        let again = read(&RealDisk, &saved).expect("a snapshot that was written can be read");
        assert_eq!(again, snapshot);
        RealDisk.remove_file(&saved).expect("a file that was written can be removed");
    }
    let newest = load_newest(&RealDisk, folder, None);
    drop(newest.expect("an invalid file can be renamed"));
    for name in RealDisk.read_dir(folder).expect("the folder can be read") {
        RealDisk.remove_file(&folder.join(name)).expect("a file can be removed");
    }
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    use super::*;

    #[test]
    fn any_snapshot_file_is_read_or_refused_without_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = Snapshot {
            index: 300,
            term: 2,
            conf_state: Bytes::from_static(b"\x08\x2a\x08\x2b\x10\x2c\x28\x00"),
            data: Bytes::from_static(b"{\"Root\":{\"Path\":\"/\"}}"),
        };
        let saved = save(&RealDisk, folder.path(), &snapshot).unwrap();
        let file = [b"\x00".to_vec(), std::fs::read(&saved).unwrap()].concat();
        let message = [b"\x01".to_vec(), snapshot.encode()].concat();
        let samples = [("file", file), ("message", message)];
        bounded("snap_file", &samples, 500, |data| super::file(folder.path(), data));
    }
}
