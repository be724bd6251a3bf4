//! The `watch` command of the command-line tools: the commands that it runs for events, and interactive mode.

use quorate_tests::{Ctl, Kind, Server, Tool, eventually, with_both_tools};

use super::tool_faults::Running;

with_both_tools! {
    the_command_of_a_watch_has_no_input,
    interactive_watches_run_their_commands_independently,
    an_interactive_watch_with_two_kinds_of_range_is_refused,
}

async fn the_command_of_a_watch_has_no_input(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    server.client().write("k", "v").await;
    let script = "read line; echo \"[$line] $?\"";
    let mut watch = Running::start(&ctl, &["watch", "k", "--rev=1", "--", "sh", "-c", script]);
    watch.say("a line for the tool");
    assert_eq!(watch.prints(4).await, ["PUT", "k", "v", "[] 1"]);
}

async fn interactive_watches_run_their_commands_independently(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let [script, started, released] =
        ["script", "started", "released"].map(|name| server.scratch().join(name));
    // The command reads its input to the end, and then runs until the test releases it.
    let text = format!(
        "cat; touch {}; while ! test -e {}; do sleep 0.05; done; echo finished",
        started.display(),
        released.display()
    );
    std::fs::write(&script, text).unwrap();
    let mut watch = Running::start(&ctl, &["watch", "-i"]);
    watch.say(&format!("watch a --rev=1 -- sh {}", script.display()));
    server.client().write("a", "1").await;
    eventually("the command runs", async || started.exists().then_some(())).await;
    watch.say("watch b --rev=1");
    server.client().write("b", "1").await;
    assert_eq!(watch.prints(6).await, ["PUT", "a", "1", "PUT", "b", "1"]);
    std::fs::write(&released, "").unwrap();
    assert_eq!(watch.prints(7).await[6], "finished");
}

async fn an_interactive_watch_with_two_kinds_of_range_is_refused(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let mut watch = Running::start(&ctl, &["watch", "-i"]);
    watch.say("watch a b --prefix");
    watch.say("watch a --rev=1");
    server.client().write("a", "1").await;
    assert_eq!(watch.prints(3).await, ["PUT", "a", "1"]);
    let text =
        "Invalid command watch a b --prefix (`range_end` and `--prefix` are mutually exclusive)";
    assert_eq!(watch.errors(), [text]);
}
