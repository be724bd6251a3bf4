//! The command-line tools on a terminal: prompts, input without echo, and interruption by a key.
//!
//! Both tools receive the same input and connect to the same kind of server. The test specifies the expected screen, so
//! the screens of both tools must be equal.

use quorate_api::etcdserverpb::AuthUserListRequest;
use quorate_tests::{Ctl, Kind, Server, Terminal, Tool, eventually, with_both_tools};

with_both_tools! {
    alone:
    a_transaction_can_be_entered_interactively,
    interactive_watches_can_be_created_cancelled_and_interrupted,
    a_new_password_is_requested_twice_without_echo,
    a_new_password_is_refused_if_its_confirmation_differs,
}

const CONTROL_C: &str = "\x03";

async fn a_transaction_can_be_entered_interactively(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    server.client().write("k", "1").await;
    let Some(mut terminal) = Terminal::start(&ctl.command(&["txn", "-i"])) else { return };
    terminal.shows("compares:\n").await;
    terminal.types("value(\"k\") = \"1\"\n");
    terminal.types("\n");
    terminal.shows("success requests (get, put, del):\n").await;
    terminal.types("get k\nput k 2\n\n");
    terminal.shows("failure requests (get, put, del):\n").await;
    terminal.types("get other\n\n");
    let (code, screen) = terminal.ends().await;
    let expected = "compares:\nvalue(\"k\") = \"1\"\n\nsuccess requests (get, put, del):\nget k\nput k 2\n\n\
                    failure requests (get, put, del):\nget other\n\nSUCCESS\n\nk\n1\n\nOK\n";
    assert_eq!((code, screen.as_str()), (Some(0), expected));
    assert_eq!(server.client().read("k").await.as_deref(), Some(&b"2"[..]));
}

async fn interactive_watches_can_be_created_cancelled_and_interrupted(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let Some(mut terminal) = Terminal::start(&ctl.command(&["watch", "-i"])) else { return };
    terminal.types("watch a\n");
    // The tool confirms a watch only by printing its events.
    eventually("the tool prints an event", async || {
        server.client().write("a", "1").await;
        terminal.screen().contains("PUT\na\n1\n").then_some(())
    })
    .await;
    terminal.types("nonsense\n");
    eventually("a complaint", async || {
        terminal.screen().contains("Invalid command nonsense").then_some(())
    })
    .await;
    server.client().write("a", "last").await;
    terminal.shows("PUT\na\nlast\n").await;
    terminal.types(CONTROL_C);
    let (code, screen) = terminal.ends().await;
    assert_eq!(code, Some(130), "{screen}");
}

async fn a_new_password_is_requested_twice_without_echo(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let Some(mut terminal) = Terminal::start(&ctl.command(&["user", "add", "ann"])) else { return };
    terminal.prompts_without_echo("Password of ann: ").await;
    terminal.types("SECRET\n");
    terminal.prompts_without_echo("Type password of ann again for confirmation: ").await;
    terminal.types("SECRET\n");
    let (code, screen) = terminal.ends().await;
    let expected =
        "Password of ann: \nType password of ann again for confirmation: \nUser ann created\n";
    assert_eq!((code, screen.as_str()), (Some(0), expected));
}

async fn a_new_password_is_refused_if_its_confirmation_differs(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let Some(mut terminal) = Terminal::start(&ctl.command(&["user", "add", "ann"])) else { return };
    terminal.prompts_without_echo("Password of ann: ").await;
    terminal.types("SECRET\n");
    terminal.prompts_without_echo("Type password of ann again for confirmation: ").await;
    terminal.types("other\n");
    let (code, screen) = terminal.ends().await;
    let expected = "Password of ann: \nType password of ann again for confirmation: \n\
                    Error: given passwords are different\n";
    assert_eq!((code, screen.as_str()), (Some(128), expected));
    let users = server.client().user_list(AuthUserListRequest::default()).await.unwrap().users;
    assert!(users.is_empty(), "{users:?}");
}
