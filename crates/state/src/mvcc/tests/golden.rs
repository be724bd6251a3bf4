//! Files written by etcd, and what etcd itself said of them.
