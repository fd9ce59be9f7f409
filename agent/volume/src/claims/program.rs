//! Programs of the machine that mount and make file systems
//! (`k8s.io/mount-utils/mount_linux.go`).

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

/// Runs a program; returns its exit code and what it said.
pub(super) fn run(program: &str, arguments: &[OsString]) -> Result<(i32, String), String> {
    // As always, in case of programs with translations.
    let output = Command::new(program).args(arguments).env("LC_ALL", "C").output();
    let output = output.map_err(|error| format!("exec: {program:?}: {error}"))?;
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().unwrap_or(-1);
    Ok((code, String::from_utf8_lossy(&said).into_owned()))
}

/// Mounts by the machine's `mount`; the error is upstream's text.
pub(super) fn mount(kind: &str, options: &BTreeSet<&str>, source: &OsStr, target: &Path) -> Result<(), String> {
    let arguments = arguments(kind, options, source, target);
    let (why, said) = match run("mount", &arguments) {
        // In the background, it may still fail.
        Ok((0, _)) if crate::is_mounted(target).unwrap_or(true) => return Ok(()),
        Ok((code, said)) => (format!("exit status {code}"), said),
        Err(why) => (why, String::new()),
    };
    let shown = arguments.join(" ".as_ref());
    let shown = shown.display();
    Err(format!(
        "mount failed: {why}\nMounting command: mount\nMounting arguments: {shown}\nOutput: {said}"
    ))
}

pub(super) fn arguments(kind: &str, options: &BTreeSet<&str>, source: &OsStr, target: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["-t".into(), kind.into()];
    if !options.is_empty() {
        let options: Vec<&str> = options.iter().copied().collect();
        arguments.extend(["-o".into(), options.join(",").into()]);
    }
    // No option, whatever it begins with.
    arguments.extend(["--".into(), source.to_owned(), target.into()]);
    arguments
}
