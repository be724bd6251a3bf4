//! Clusters under load whose members and links fail, and that must not lose or mix up anything.
//!
//! One module per kind of fault. See the library beside this for how a test is run.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod harness;

/// Makes a test of each function named, `name::etcd`. The one place where clusters of Quorate are
/// switched on: add `fn quorate`, as `on_both_servers` has it.
#[macro_export]
macro_rules! on_clusters {
    ($($name:ident),* $(,)?) => {
        $(mod $name {
            #[test]
            fn etcd() {
                quorate_tests::run(quorate_tests::Kind::Etcd, super::$name);
            }
        })*
    };
}
