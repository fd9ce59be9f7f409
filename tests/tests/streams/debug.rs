//! `kubectl debug` of a pod, of a copy of it, and of its node.

use anyhow::{Context as _, ensure};
use tests::machine::eventually;

use super::Client;

/// Reads a line before it ends, so that a late attach misses no output from then on.
const SHELL: &str = "read word; echo got $word;";

pub(super) fn look_around(client: &Client<'_>, busybox: &str, number: usize) -> anyhow::Result<()> {
    beside_a_container(client, busybox, number)?;
    in_a_copy(client, busybox, number)?;
    on_the_node(client, busybox)
}

/// An ephemeral container that sees the processes of the one that it is for.
fn beside_a_container(client: &Client<'_>, busybox: &str, number: usize) -> anyhow::Result<()> {
    let (name, image) = (format!("debugger-{number}"), format!("--image={busybox}"));
    let script = format!("{SHELL} tr '\\0' ' ' </proc/1/cmdline; exit 5");
    let words = [
        "debug",
        "-i",
        "two",
        &image,
        "--target=box",
        "-c",
        &name,
        "--",
        "sh",
        "-c",
        &script,
    ];
    let (out, err, _) = client.answers(&words, "hello\n")?;
    ensure!(out.contains("got hello\nsleep 100000"), "{out:?} {err}");
    let path =
        format!("jsonpath={{.status.ephemeralContainerStatuses[?(@.name==\"{name}\")].state.terminated.exitCode}}");
    eventually("the exit code of the ephemeral container", || {
        match client.run(&["get", "pod", "two", "-o", &path]) {
            Ok(code) if code == "5" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    let said = client.run(&["logs", "two", "-c", &name])?;
    ensure!(said.starts_with("got hello\n"), "{said}");
    let (_, err, _) = client.says(&["debug", "two", &image, "-c", "box"], "")?;
    ensure!(
        err.contains("container \"box\" already exists in pod") || err.contains("Duplicate value: \"box\""),
        "{err}"
    );
    Ok(())
}

/// With an additional container, and a shared process namespace.
fn in_a_copy(client: &Client<'_>, busybox: &str, number: usize) -> anyhow::Result<()> {
    let (copy, image) = (format!("copy-{number}"), format!("--image={busybox}"));
    let to = format!("--copy-to={copy}");
    client.run(&[
        "debug",
        "web",
        &to,
        "--share-processes",
        &image,
        "-c",
        "shell",
        "--",
        "sleep",
        "100000",
    ])?;
    client.run(&["wait", "--for=condition=Ready", &format!("pod/{copy}"), "--timeout=60s"])?;
    // nginx gives itself its title a moment after it has started.
    eventually("the programs of both containers are shown", || {
        let programs = client.run(&["exec", &copy, "-c", "shell", "--", "ps"]);
        let programs = programs.map_err(|error| format!("{error:#}"))?;
        let both = programs.contains("nginx: master process") && programs.contains("sleep 100000");
        both.then_some(()).ok_or(programs)
    })?;
    client.run(&["delete", "pod", &copy, "--now"]).map(drop)
}

/// A pod that has the node's processes, and its files below /host.
fn on_the_node(client: &Client<'_>, busybox: &str) -> anyhow::Result<()> {
    let node = client.run(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let (target, image) = (format!("node/{node}"), format!("--image={busybox}"));
    let script = format!("{SHELL} ls -d /host/etc/passwd; ps");
    let words = ["debug", "-i", &target, &image, "--", "sh", "-c", &script];
    let (out, err, code) = client.answers(&words, "hello\n")?;
    ensure!(
        code == Some(0) && out.contains("got hello\n/host/etc/passwd\n") && out.contains("skiff-agent"),
        "{out:?} {err}"
    );
    let said = format!("{out}{err}");
    let name = said.split_whitespace().find(|word| word.starts_with("node-debugger-"));
    client
        .run(&["delete", "pod", name.context("the pod's name")?, "--now"])
        .map(drop)
}
