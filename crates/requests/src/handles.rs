//! The handles that the services of the client ports use.

use std::sync::Arc;

use crate::access::AccessControl;
use crate::accounts::Accounts;
use crate::data_store::DataStore;
use crate::server_info::ServerInfo;
use crate::stream_ends::StreamEnds;
use crate::writer::Writer;

/// The handles of one server. A service takes only the handles that it needs.
#[derive(Clone, Debug)]
pub struct ServerHandles {
    /// The identity, limits and status of the server.
    pub info: Arc<ServerInfo>,
    /// Permission checks for clients' requests.
    pub access_control: Arc<AccessControl>,
    /// The data store, which executes requests.
    pub store: Arc<dyn DataStore>,
    /// Checks writes before they are executed.
    pub writer: Arc<Writer>,
    /// Logins and changes to users.
    pub accounts: Arc<Accounts>,
    /// Notifies the streams that must end.
    pub streams: Arc<StreamEnds>,
}

impl ServerHandles {
    /// Creates the handles for a data store.
    pub fn new(
        info: Arc<ServerInfo>,
        access_control: Arc<AccessControl>,
        store: Arc<dyn DataStore>,
        streams: Arc<StreamEnds>,
    ) -> Self {
        let writer = Arc::new(Writer::new(&info, &access_control, &store));
        let accounts = Arc::new(Accounts::new(&info, &access_control, &store, &writer));
        Self { info, access_control, store, writer, accounts, streams }
    }
}
