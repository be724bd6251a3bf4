//! Authentication as operators configure and use it with both command-line tools, following etcd's guide.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use quorate_tests::{
    Ctl, Finished, Kind, Options, Server, Tool, eventually, on_quorate, with_both_tools,
};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

with_both_tools! {
    ctl_commands_enable_authentication_and_grant_permissions,
    every_ctl_command_can_log_in,
    ctl_changes_passwords,
}

on_quorate! {
    alone:
    a_command_logs_in_again_when_its_token_is_invalid,
    passwords_are_not_echoed_on_a_terminal,
}

const DENIED: &str = "etcdserver: permission denied";
const NOBODY: &str = "etcdserver: user name is empty";
const ROOT: &str = "--user=root:r00t";

async fn start(kind: Kind) -> Server {
    Options::new(kind).flag("--bcrypt-cost=4").start().await
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Runs a command that must succeed, and returns its output.
#[track_caller]
fn output_of(ctl: &Ctl, line: &str) -> String {
    ctl.run(&words(line)).success()
}

/// Runs a command that must fail, and returns its error.
#[track_caller]
fn fail(ctl: &Ctl, line: &str) -> String {
    let Finished { code, stderr, stdout } = ctl.run(&words(line));
    assert!(code != Some(0), "{line}: {stdout}");
    let said = stderr.lines().rev().find_map(|line| line.strip_prefix("Error: "));
    said.unwrap_or_else(|| panic!("{line}: {stderr}")).to_owned()
}

/// Creates root, and ann with permission to read and write the prefix `app/`.
fn secure(ctl: &Ctl) {
    for (line, expected) in [
        ("user add root:r00t", "User root created\n"),
        ("user add ann:s3cret", "User ann created\n"),
        ("role add app", "Role app created\n"),
        ("role grant-permission app --prefix=true readwrite app/", "Role app updated\n"),
        ("user grant-role ann app", "Role app is granted to user ann\n"),
        ("auth enable", "Authentication Enabled\n"),
    ] {
        assert_eq!(output_of(ctl, line), expected, "{line}");
    }
}

async fn ctl_commands_enable_authentication_and_grant_permissions(kind: Kind, tool: Tool) {
    let server = start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    assert!(
        output_of(&ctl, "auth status").starts_with("Authentication Status: false\nAuthRevision: 1")
    );
    secure(&ctl);
    // The root role was created implicitly.
    assert_eq!(output_of(&ctl, &format!("{ROOT} user list")), "ann\nroot\n");
    assert_eq!(output_of(&ctl, &format!("{ROOT} role list")), "app\nroot\n");
    assert_eq!(output_of(&ctl, &format!("{ROOT} user get root")), "User: root\nRoles: root\n");
    let shown = output_of(&ctl, &format!("{ROOT} role get app"));
    let range = "[app/, app0) (prefix app/)";
    assert_eq!(shown, format!("Role app\nKV Read:\n\t{range}\nKV Write:\n\t{range}\n"));
    assert_eq!(fail(&ctl, "get app/1"), NOBODY);
    assert_eq!(fail(&ctl, "put app/1 v"), NOBODY);
    assert_eq!(output_of(&ctl, "--user=ann:s3cret put app/1 v"), "OK\n");
    assert_eq!(output_of(&ctl, "--user=ann --password=s3cret get app/1"), "app/1\nv\n");
    assert_eq!(fail(&ctl, "--user=ann:s3cret get other"), DENIED);
    assert_eq!(fail(&ctl, "--user=ann:s3cret user list"), DENIED);
    let wrong = "etcdserver: authentication failed, invalid user ID or password";
    for line in ["--user=ann:wrong get app/1", "--user=eve:s3cret get app/1"] {
        assert_eq!(fail(&ctl, line), wrong);
        assert_eq!(ctl.run(&words(line)).code, Some(2));
    }
    for (line, expected) in [
        ("role revoke-permission app --prefix=true app/", "Permission of range [app/, app0) is"),
        ("role grant-permission app read app/1", "Role app updated"),
        ("user revoke-role ann app", "Role app is revoked from user ann"),
        ("user grant-role ann app", "Role app is granted to user ann"),
    ] {
        let shown = output_of(&ctl, &format!("{ROOT} {line}"));
        assert!(shown.starts_with(expected), "{line}: {shown}");
    }
    assert_eq!(output_of(&ctl, "--user=ann:s3cret get app/1"), "app/1\nv\n");
    assert_eq!(fail(&ctl, "--user=ann:s3cret put app/1 w"), DENIED);
    assert_eq!(fail(&ctl, "--user=ann:s3cret get app/ --prefix"), DENIED);
    assert_eq!(output_of(&ctl, &format!("{ROOT} role delete app")), "Role app deleted\n");
    assert_eq!(fail(&ctl, "--user=ann:s3cret get app/1"), DENIED);
    assert_eq!(output_of(&ctl, &format!("{ROOT} user delete ann")), "User ann deleted\n");
    assert_eq!(fail(&ctl, "--user=ann:s3cret get app/1"), wrong);
    assert_eq!(
        fail(&ctl, &format!("{ROOT} user delete root")),
        "etcdserver: invalid auth management"
    );
    assert_eq!(output_of(&ctl, &format!("{ROOT} auth disable")), "Authentication Disabled\n");
    assert_eq!(output_of(&ctl, "get app/1"), "app/1\nv\n");
}

async fn every_ctl_command_can_log_in(kind: Kind, tool: Tool) {
    let server = start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    secure(&ctl);
    let as_root = |line: &str| output_of(&ctl, &format!("{ROOT} {line}"));
    as_root("put k v");
    assert_eq!(as_root("get k"), "k\nv\n");
    let granted = as_root("lease grant 600");
    let lease = granted.split(' ').nth(1).unwrap();
    as_root(&format!("put l v --lease={lease}"));
    assert!(as_root(&format!("lease timetolive {lease} --keys")).contains("attached keys([l])"));
    assert!(as_root(&format!("lease keep-alive --once {lease}")).contains("keepalived"));
    assert!(as_root("lease list").contains(lease));
    assert!(as_root(&format!("lease revoke {lease}")).ends_with("revoked\n"));
    let past = as_root("get k -w json");
    let revision = past.split("\"mod_revision\":").nth(1).unwrap().split(',').next().unwrap();
    // The watch ends because its command, `false`, fails.
    let watch = format!("{ROOT} watch k --rev={revision} -- false");
    let Finished { stdout, .. } = ctl.run(&words(&watch));
    assert_eq!(stdout, "PUT\nk\nv\n");
    assert!(as_root("member list").contains("started"));
    assert!(as_root("endpoint status").contains(&server.front_port().to_string()));
    let Finished { code, stdout, stderr } = ctl.run(&words(&format!("{ROOT} endpoint health")));
    assert!(code == Some(0) && (stdout + &stderr).contains("is healthy"), "{code:?}");
    assert!(!as_root("endpoint hashkv").is_empty());
    assert!(as_root("defrag").starts_with("Finished defragmenting"));
    assert_eq!(as_root("alarm list"), "");
    let file = server.scratch().join("saved.db").display().to_string();
    assert!(as_root(&format!("snapshot save {file}")).contains("Snapshot saved"));
    assert!(as_root(&format!("compaction {revision}")).contains("compacted revision"));
    assert_eq!(ctl.run_with_input(&[ROOT, "txn"], "\nput t v\n\n\n").success(), "SUCCESS\n\nOK\n");
    assert_eq!(as_root("del t"), "1\n");
    // etcd 3.5 returns a different error text.
    assert!(fail(&ctl, "snapshot save /never").ends_with("user name is empty"));
    for line in ["compaction 1", "defrag", "del k"] {
        assert_ne!(ctl.run(&words(&format!("--user=ann:s3cret {line}"))).code, Some(0), "{line}");
    }
}

async fn ctl_changes_passwords(kind: Kind, tool: Tool) {
    let server = start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    secure(&ctl);
    let changed =
        ctl.run_with_input(&[ROOT, "user", "passwd", "ann", "--interactive=false"], "0ther\n");
    assert_eq!(changed.success(), "Password updated\n");
    assert_ne!(ctl.run(&words("--user=ann:s3cret get app/1")).code, Some(0));
    assert_eq!(output_of(&ctl, "--user=ann:0ther get app/1"), "");
    let add = || ctl.run_with_input(&[ROOT, "user", "add", "bob"], "w0rd\nw0rd\n");
    let added = match kind {
        Kind::Quorate => add().success(),
        // etcd 3.5 may refuse root's requests just after root was granted its role.
        Kind::Etcd => {
            let added = async || Some(add()).filter(|done| done.code == Some(0));
            eventually("root has been added", added).await.stdout
        }
    };
    let prompts = "Password of bob: \nType password of bob again for confirmation: \n";
    assert_eq!(added, format!("{prompts}User bob created\n"));
    assert_eq!(fail(&ctl, "--user=bob:w0rd get app/1"), DENIED);
    let asked = ctl.run_with_input(&["--user=ann", "put", "app/1", "v"], "0ther\n").success();
    assert_eq!(asked, "Password: \nOK\n");
}

/// Starts a command whose standard input is `input`.
fn begin(ctl: &Ctl, line: &str, input: Stdio) -> Child {
    let mut command: Command = ctl.command(&words(line));
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Reads until the text appears.
fn read_until(from: &mut impl std::io::Read, text: &str) -> String {
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !String::from_utf8_lossy(&read).contains(text) {
        let count = from.read(&mut byte).unwrap();
        assert!(count > 0, "no {text:?} in {:?}", String::from_utf8_lossy(&read));
        read.push(byte[0]);
    }
    String::from_utf8_lossy(&read).into_owned()
}

async fn a_command_logs_in_again_when_its_token_is_invalid(kind: Kind) {
    let server = start(kind).await;
    let Some(ctl) = Ctl::of(Tool::QuorateCtl, &server) else { return };
    secure(&ctl);
    let mut txn = begin(&ctl, "--debug --user=ann:s3cret txn", Stdio::piped());
    let mut errors = txn.stderr.take().unwrap();
    let said = read_until(&mut errors, "logged in");
    assert!(!said.contains("s3cret"), "{said}");
    // After a password change, even to the same password, the user must log in again.
    let changing = [ROOT, "user", "passwd", "ann", "--interactive=false"];
    drop(ctl.run_with_input(&changing, "s3cret\n").success());
    let mut input = txn.stdin.take().unwrap();
    input.write_all(b"\nput app/1 v\n\n\n").unwrap();
    drop(input);
    let said = read_until(&mut errors, "logged in");
    assert!(!said.contains("s3cret"), "{said}");
    let done = txn.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "SUCCESS\n\nOK\n");
}

async fn passwords_are_not_echoed_on_a_terminal(kind: Kind) {
    let server = start(kind).await;
    let Some(ctl) = Ctl::of(Tool::QuorateCtl, &server) else { return };
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let path = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let inside = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut keyboard = std::fs::File::from(terminal);
    let mut adding = begin(&ctl, "user add bob", inside.try_clone().unwrap().into());
    let mut output = adding.stdout.take().unwrap();
    read_until(&mut output, "Password of bob: ");
    keyboard.write_all(b"w0rd\n").unwrap();
    read_until(&mut output, "again for confirmation: ");
    keyboard.write_all(b"w0rd\n").unwrap();
    read_until(&mut output, "User bob created\n");
    assert!(adding.wait().unwrap().success());
    // The interrupt key ends the command, and echo is restored.
    let mut adding = begin(&ctl, "user add eve", inside.try_clone().unwrap().into());
    let mut output = adding.stdout.take().unwrap();
    read_until(&mut output, "Password of eve: ");
    keyboard.write_all(b"n0\x03").unwrap();
    assert!(!adding.wait().unwrap().success());
    keyboard.write_all(b"seen\n").unwrap();
    let mut shown = [0; 4];
    keyboard.read_exact(&mut shown).unwrap();
    assert_eq!(&shown, b"seen", "the passwords were not echoed");
    assert_eq!(output_of(&ctl, "user list"), "bob\n");
}
