//! Notifies the init system over systemd's notify protocol (sd_notify(3)).
//!
//! With a unit of type `notify`, systemd waits for the notification that the program is ready. If no socket name is
//! set, no notification is sent, and this is not an error.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::log;

/// Notifies the init system that the program is ready, if the init system expects this notification.
pub fn notify_ready() {
    log::info!("notifying init daemon");
    match send(b"READY=1", std::env::var_os("NOTIFY_SOCKET").as_deref()) {
        Ok(()) => log::info!("successfully notified init daemon"),
        Err(error) => {
            log::error!("failed to notify systemd for readiness", "error" = log::Shown(error));
        }
    }
}

/// Sends a message to the socket with this name. Does nothing without a name. A name that starts with `@` denotes an
/// abstract socket.
///
/// # Errors
///
/// No process is listening on the named socket, or the name is invalid.
pub fn send(message: &[u8], socket_name: Option<&OsStr>) -> io::Result<()> {
    let Some(name) = socket_name.filter(|name| !name.is_empty()) else { return Ok(()) };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notification_socket_receives_the_message() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(b"READY=1", Some(path.as_os_str())).unwrap();
        let mut message = [0; 16];
        let count = socket.recv(&mut message).unwrap();
        assert_eq!(&message[..count], b"READY=1");
    }

    #[test]
    fn a_missing_socket_is_an_error_only_if_its_name_is_set() {
        assert!(send(b"READY=1", None).is_ok());
        assert!(send(b"READY=1", Some(OsStr::new(""))).is_ok());
        assert!(send(b"READY=1", Some(OsStr::new("/nonexistent/notify"))).is_err());
    }
}
