//! Tests walks through keyspaces that are stored in a map, and rates computed from watch events.

use super::*;

fn shape(base: &str, depth: usize) -> Shape {
    Shape { base: base.into(), separator: b"/".to_vec(), depth }
}

/// Lets a catalog count a keyspace once, and returns the number of requests that this takes.
fn walk(catalog: &mut Catalog, keys: &BTreeMap<Vec<u8>, usize>) -> usize {
    for asked in 0.. {
        let in_range = |range: &KeyRange| {
            let range = range.clone();
            keys.iter()
                .filter(move |(key, _)| {
                    **key >= range.key && (range.end == [0] || **key < range.end)
                })
                .map(|(key, bytes)| (key.clone(), *bytes))
        };
        match catalog.step() {
            Step::Over => return asked,
            Step::Page(range, limit) => {
                let page: Vec<_> = in_range(&range).take(limit).collect();
                catalog.page(&page, in_range(&range).count() > limit);
            }
            Step::Count(range) => catalog.counted(in_range(&range).count() as u64),
        }
    }
    unreachable!("the loop ends only by returning")
}

fn space(keys: impl IntoIterator<Item = String>) -> BTreeMap<Vec<u8>, usize> {
    keys.into_iter().map(|key| (key.into_bytes(), 100)).collect()
}

fn check(shape: Shape, keys: &BTreeMap<Vec<u8>, usize>, expected: &[(&str, u64)]) -> usize {
    let mut catalog = Catalog::new(shape);
    let asked = walk(&mut catalog, keys);
    let rows = catalog.rows();
    let found: Vec<_> = rows.iter().map(|row| (row.group.label(), row.keys.unwrap())).collect();
    let found: Vec<_> = found.iter().map(|(label, keys)| (label.as_str(), *keys)).collect();
    assert_eq!(found, expected);
    for row in rows {
        assert_eq!(row.bytes, Some(row.keys.unwrap() as f64 * 100.0));
    }
    asked
}

#[test]
fn prefixes_are_counted_without_reading_their_keys() {
    let of = |kind: &'static str, count: usize| {
        (0..count).map(move |number| format!("/registry/{kind}/ns/{number:05}"))
    };
    let all = of("pods", 10_000).chain(of("leases", 5_000)).chain(of("nodes", 3));
    let keys = space(all.chain(["/registry/health".to_owned(), "compact_rev_key".to_owned()]));
    let expected = [
        ("(keys)", 1),
        ("/registry/(keys)", 1),
        ("/registry/leases/", 5_000),
        ("/registry/nodes/", 3),
        ("/registry/pods/", 10_000),
    ];
    let asked = check(shape("", 2), &keys, &expected);
    assert!(asked < 12, "{asked} requests were sent");
    check(shape("/registry/", 1), &keys, &expected[1..]);
    check(shape("/nothing", 1), &keys, &[]);
}

#[test]
fn keys_without_separators_are_grouped_by_their_common_prefix() {
    let named = (0..2_000).map(|number| format!("key-{number:06}"));
    let keys = space(named.chain((0..500).map(|number| format!("user{number:04}"))));
    let mut catalog = Catalog::new(shape("", 2));
    let asked = walk(&mut catalog, &keys);
    assert!(asked < 20, "{asked} requests were sent");
    let rows = catalog.rows();
    let labels: Vec<_> = rows.iter().map(|row| row.group.label()).collect();
    assert_eq!(labels, ["(keys)", "key-*", "user*"]);
    assert_eq!(rows.iter().map(|row| row.keys.unwrap()).sum::<u64>(), 2_500);
    catalog.changed(b"key-000001", 10, true);
    catalog.end_window(Duration::from_secs(1));
    assert_eq!(catalog.rows()[1].puts_per_sec, Some(1.0));
}

#[test]
fn each_random_key_is_counted_once() {
    let mut state = 7_u64;
    let mut draw = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..200 {
        let mut keys = BTreeMap::new();
        for _ in 0..draw(400) {
            let len = 1 + draw(7);
            let letters = [b'/', b'a', b'b', 0xff, 0x00, b'1'];
            let key: Vec<u8> =
                (0..len).map(|_| letters[usize::try_from(draw(6)).unwrap()]).collect();
            keys.insert(key, 1 + usize::try_from(draw(20_000)).unwrap());
        }
        // An empty base selects all keys. Their range starts at the key `\0`, because an empty key cannot exist.
        let mut catalog = Catalog::new(shape("", 1 + usize::try_from(draw(3)).unwrap()));
        walk(&mut catalog, &keys);
        let counted: u64 = catalog.rows().iter().map(|row| row.keys.unwrap()).sum();
        assert_eq!(counted, keys.len() as u64, "{keys:?}");
    }
}

#[test]
fn pages_do_not_grow_beyond_one_key_when_values_are_large() {
    let keys = (0..100).map(|number| (format!("{number:03}").into_bytes(), 1 << 20)).collect();
    let mut catalog = Catalog::new(shape("", 2));
    for _ in 0..20 {
        let Step::Page(_, limit) = catalog.step() else { panic!("{:?}", catalog.step()) };
        assert_eq!(limit, 1);
        let all: &BTreeMap<Vec<u8>, usize> = &keys;
        let Step::Page(range, _) = catalog.step() else {
            unreachable!("the loop ends only by returning")
        };
        let next = all.range(range.key..).next().unwrap();
        catalog.page(&[(next.0.clone(), *next.1)], true);
    }
}

#[test]
fn a_walk_stops_at_the_maximum_number_of_prefixes() {
    let keys = space((0..2 * PREFIXES_MAX).map(|number| format!("{number:06}/x/y")));
    let mut catalog = Catalog::new(shape("", 2));
    walk(&mut catalog, &keys);
    assert!(catalog.rows().len() < PREFIXES_MAX + PAGE_KEYS_MAX);
    assert!(catalog.progress().contains("--prefix-depth"), "{}", catalog.progress());
}

#[test]
fn deleted_prefixes_disappear_at_the_end_of_the_next_walk() {
    let mut catalog = Catalog::new(shape("", 1));
    walk(&mut catalog, &space(["/a/1".to_owned(), "/b/1".to_owned()]));
    catalog.begin();
    assert_eq!(catalog.rows().len(), 2);
    walk(&mut catalog, &space(["/b/1".to_owned(), "/b/2".to_owned()]));
    catalog.begin();
    let rows = catalog.rows();
    assert_eq!((rows.len(), rows[0].keys), (1, Some(2)));
}

#[test]
fn rates_cover_only_the_time_with_an_active_watch() {
    let mut catalog = Catalog::new(shape("", 1));
    assert_eq!(catalog.rows(), []);
    catalog.changed(b"/a/1", 50, true);
    catalog.changed(b"/a/2", 0, false);
    assert_eq!(catalog.received(), (2, 50));
    catalog.end_window(Duration::from_millis(500));
    let row = &catalog.rows()[0];
    assert_eq!((row.puts_per_sec, row.deletes_per_sec), (Some(2.0), Some(2.0)));
    assert_eq!((row.keys, row.bytes_per_sec), (None, Some(100.0)));
    catalog.end_window(Duration::ZERO);
    assert_eq!(catalog.rows().len(), 1);
    catalog.end_window(Duration::from_secs(1));
    assert_eq!(catalog.rows(), []);
}
