//! The settings of a console.

use crate::access::Exposure;
use crate::cluster::Cluster;

/// The settings of a console.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to reach the cluster.
    pub cluster: Cluster,
    /// Whether the page may change the cluster.
    pub allows_writes: bool,
    /// The name of the member that runs the console, if one does.
    pub member: Option<String>,
    /// The listeners.
    pub exposure: Exposure,
    /// Further names under which browsers may open the console.
    pub allowed_hosts: Vec<String>,
}
