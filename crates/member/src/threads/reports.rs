//! Reports from the transport, which become inputs of the driver.

use quorate_peer::{Consensus, OtherOrigin, Received};
use quorate_raft::{MemberId, SnapshotOutcome};

use crate::threads::channels::{DriverHandle, Input};
use crate::threads::fatal::FaultReports;

/// Converts the transport's reports to inputs of the driver.
#[derive(Debug)]
pub struct Reports {
    pub(crate) driver: DriverHandle,
    pub(crate) faults: FaultReports,
}

impl Consensus for Reports {
    fn receive(&self, received: Received) {
        self.driver.report_inline(Input::Received(received));
    }

    fn report_unreachable(&self, peer: MemberId) {
        self.driver.report(Input::Unreachable(peer));
    }

    fn report_gone(&self, peer: MemberId) {
        self.driver.report(Input::Gone(peer));
    }

    fn report_snapshot(&self, to: MemberId, outcome: SnapshotOutcome) {
        self.driver.report(Input::SnapshotSent { to, outcome });
    }

    fn report_other_origin(&self, conflict: OtherOrigin) {
        self.faults.report("taking part in the cluster", conflict);
    }

    fn report_removal(&self) {
        self.faults.report_removal();
    }
}
