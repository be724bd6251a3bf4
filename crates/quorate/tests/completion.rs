//! Loads the completion scripts into the real shells, if they are installed, and completes command lines.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step fails the test")]

use std::os::unix::fs::symlink;
use std::process::Command;

/// Runs a script in a shell in which the tools are available under their names. Returns `None` if the shell is not
/// installed.
fn shell(program: &str, args: &[&str], script: &str) -> Option<String> {
    if Command::new(program).arg("--version").output().is_err() {
        println!("skipped: {program} is not installed, so its completion script is not tested");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["etcdctl", "etcdutl", "quorate"] {
        symlink(env!("CARGO_BIN_EXE_quorate"), dir.path().join(name)).unwrap();
    }
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(program);
    command.args(args).arg(script).env("PATH", path).env("HOME", dir.path());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{program}: {errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn bash_completes_command_lines() {
    // bash passes `=` and `:` as separate words.
    let script = r#"
        set -u
        eval "$(etcdctl completion bash)"
        eval "$(etcdutl completion bash)"
        eval "$(quorate utl completion bash)"
        complete() { echo "not here"; }
        try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); "_$1_complete"; echo "${COMPREPLY[*]}"; }
        try etcdctl mem
        try etcdctl --endpoints = a : 1 get --or
        try etcdctl get k --order =
        try etcdctl get k --order = D
        try etcdutl snapshot r
        try quorate ''
        try quorate ctl member li
        try quorate bench ''
        try etcdctl get ''
    "#;
    let Some(seen) = shell("bash", &["-c"], script) else { return };
    let expected =
        ["member", "--order", "ASCEND DESCEND", "DESCEND", "restore", "ctl utl", "list", "", ""];
    assert_eq!(seen.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn zsh_loads_the_scripts() {
    let script = "
        autoload -U compinit && compinit -u -D
        source <(etcdctl completion zsh); source <(quorate ctl completion zsh)
        print $_comps[etcdctl] $_comps[quorate]
        whence -w _etcdctl
    ";
    let Some(seen) = shell("zsh", &["-f", "-c"], script) else { return };
    assert_eq!(seen, "_etcdctl _quorate\n_etcdctl: function\n");
}

#[test]
fn fish_completes_command_lines() {
    let script = "
        etcdctl completion fish | source; quorate utl completion fish | source
        complete -C'etcdctl get k --order=D'; complete -C'quorate '; complete -C'quorate utl snapshot st'
    ";
    let Some(seen) = shell("fish", &["-N", "-c"], script) else { return };
    let names: Vec<_> = seen.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(names, ["--order=DESCEND", "ctl", "utl", "status"]);
}

#[test]
fn unknown_shells_are_refused_with_a_list_of_known_shells() {
    for tool in ["ctl", "utl"] {
        let output = Command::new(env!("CARGO_BIN_EXE_quorate"))
            .args([tool, "completion", "csh"])
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("\"csh\"") && errors.contains("powershell"), "{errors}");
    }
}
