//! Tests of discovery with a registry in memory.

use std::cell::RefCell;
use std::rc::Rc;

use tonic::Status;

use super::*;

/// A registry in memory that fails a given number of times.
#[derive(Clone, Default)]
struct Fake {
    rows: Rc<RefCell<Vec<Registered>>>,
    failures: Rc<RefCell<u32>>,
    /// Founders that register while another founder is waiting.
    late: Rc<RefCell<Vec<&'static str>>>,
}

impl Fake {
    fn with_size(size: &str) -> Self {
        let fake = Self::default();
        fake.write("/_etcd/registry/t/_config/size", size);
        fake
    }

    fn write(&self, key: &str, value: &str) {
        let mut rows = self.rows.borrow_mut();
        let create_revision = rows.len() as i64 + 1;
        match rows.iter_mut().find(|row| row.key == key) {
            Some(row) => row.urls = value.to_owned(),
            None => rows.push(Registered {
                create_revision,
                key: Bytes::copy_from_slice(key.as_bytes()),
                urls: value.to_owned(),
            }),
        }
    }

    fn register(&self, id: u64, urls: &str) {
        self.write(&format!("/_etcd/registry/t/members/{id:x}"), urls);
    }

    fn fail(&self) -> Result<(), RegistryError> {
        let mut failures = self.failures.borrow_mut();
        if *failures == 0 {
            return Ok(());
        }
        *failures -= 1;
        Err(Status::unavailable("not now").into())
    }

    /// Runs the discovery of member 10, which registers `m=http://m:1`.
    fn join(&self) -> Result<String, DiscoveryError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let pause = Duration::from_micros(1);
        let mut meeting = Meeting::new(self.clone(), "t", MemberId(10), pause);
        runtime.block_on(meeting.join("m=http://m:1")).map(|members| members.to_string())
    }
}

impl Registry for Fake {
    async fn get(&mut self, key: &str) -> Result<Option<Bytes>, RegistryError> {
        self.fail()?;
        let rows = self.rows.borrow();
        Ok(rows.iter().find(|row| row.key == key).map(|row| row.urls.clone().into()))
    }

    async fn list(&mut self, prefix: &str) -> Result<(Vec<Registered>, i64), RegistryError> {
        self.fail()?;
        let rows = self.rows.borrow();
        let found = rows.iter().filter(|row| row.key.starts_with(prefix.as_bytes()));
        // The founders are listed in key order, as etcd returns them.
        let mut found: Vec<Registered> = found.cloned().collect();
        found.sort_by_key(|row| row.key.clone());
        Ok((found, rows.len() as i64))
    }

    async fn put(&mut self, key: &str, value: &str) -> Result<(), RegistryError> {
        self.fail()?;
        self.write(key, value);
        Ok(())
    }

    async fn wait_for_change(&mut self, _prefix: &str, revision: i64) -> Result<(), RegistryError> {
        self.fail()?;
        assert_eq!(revision, self.rows.borrow().len() as i64 + 1);
        let next = self.late.borrow_mut().pop().expect("another founder has yet to register");
        self.register(1, next);
        Ok(())
    }
}

#[test]
fn the_members_that_registered_first_are_the_founders() {
    for failures in 0..9 {
        let fake = Fake::with_size("3");
        *fake.failures.borrow_mut() = failures;
        fake.register(0xff, "z=http://z:1,z=http://z:2");
        fake.register(2, "no URL at all");
        fake.late.borrow_mut().push("a=http://a:1");
        let expected = Ok("a=http://a:1,m=http://m:1,z=http://z:1,z=http://z:2".to_owned());
        assert_eq!(fake.join(), expected);
        // Another founder registers too late, and this member registers a second time.
        fake.register(0, "late=http://late:1");
        assert_eq!(fake.join(), expected);
    }
}

#[test]
fn discovery_errors_have_the_messages_of_etcd() {
    let refused = |fake: &Fake| fake.join().unwrap_err().to_string();
    assert_eq!(refused(&Fake::default()), "discovery: size key not found");
    for size in ["", "0", "-1", "x"] {
        assert_eq!(refused(&Fake::with_size(size)), "discovery: size key is bad");
    }
    let full = Fake::with_size("1");
    full.register(1, "a=http://a:1");
    assert_eq!(refused(&full), "discovery: cluster is full");
    // The registry had space when this member looked, but other founders registered first.
    let overtaken = Fake::with_size("1");
    overtaken.register(1, "a=http://a:1");
    overtaken.register(10, "m=http://m:1");
    assert_eq!(refused(&overtaken), "discovery: cluster is full");
    let nonsense = Fake::with_size("2");
    nonsense.register(1, "a=nonsense");
    assert_eq!(refused(&nonsense), "discovery: invalid peer URL");
    let error = crate::bootstrap::BootError::Discovery(DiscoveryError::Full);
    assert_eq!(error.to_string(), "failed to join discovery cluster (discovery: cluster is full)");
}
