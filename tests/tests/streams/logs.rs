//! `kubectl logs` with each of its flags.

use anyhow::ensure;
use tests::machine::{Machine, eventually};

use super::Client;

const LINES: &str = "line 1\nline 2\nline 3\n";

/// Creates pods with output: one with two containers, of which the first is restarted once, and one
/// with one.
pub(super) fn begin(machine: &Machine, busybox: &str) -> anyhow::Result<()> {
    let first = "if [ ! -e /s/been ]; then touch /s/been; echo first life; exit 1; fi; \
                 for n in 1 2 3; do echo line $n; done; exec sleep 100000";
    let file = machine.state().join("speakers.yaml");
    let pods = format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: speaker, labels: {{app: speaker}}}}
spec:
  volumes: [{{name: s, emptyDir: {{}}}}]
  containers:
  - {{name: first, image: "{busybox}", command: [sh, -c, "{first}"], volumeMounts: [{{name: s, mountPath: /s}}]}}
  - {{name: second, image: "{busybox}", command: [sh, -c, "echo other >&2; exec sleep 100000"]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: whisperer, labels: {{app: speaker, single: "yes"}}}}
spec:
  containers:
  - {{name: only, image: "{busybox}", command: [sh, -c, "echo whisper; exec sleep 100000"]}}
"#
    );
    std::fs::write(&file, pods)?;
    machine.kubectl(["apply", "-f", &file.display().to_string()]).map(drop)
}

fn logs(client: &Client<'_>, flags: &[&str]) -> anyhow::Result<String> {
    client.run(&[&["logs"], flags].concat())
}

pub(super) fn tell(client: &Client<'_>) -> anyhow::Result<()> {
    eventually("what the second life and the other pod say", || {
        let said = ["speaker", "whisperer"].map(|pod| logs(client, &[pod]).unwrap_or_else(|error| error.to_string()));
        if said == [LINES, "whisper\n"] {
            Ok(())
        } else {
            Err(said.concat())
        }
    })?;
    for (flags, wanted) in [
        (&["speaker", "-c", "first"][..], LINES),
        (&["speaker", "-c", "first", "--previous"], "first life\n"),
        (&["speaker", "--tail=2"], "line 2\nline 3\n"),
        (&["speaker", "--tail=0"], ""),
        (&["speaker", "--limit-bytes=9"], "line 1\nli"),
        (&["speaker", "--since=1h"], LINES),
        (&["speaker", "--since-time=2000-01-01T00:00:00Z"], LINES),
        (&["speaker", "--since-time=2100-01-01T00:00:00Z"], ""),
        (
            &[
                "speaker",
                "--insecure-skip-tls-verify-backend",
                "--pod-running-timeout=5s",
            ],
            LINES,
        ),
        (&["pod/whisperer", "--prefix"], "[pod/whisperer/only] whisper\n"),
        (&["-l", "single=yes", "-c", "only", "--ignore-errors"], "whisper\n"),
    ] {
        let said = logs(client, flags)?;
        ensure!(said == wanted, "{flags:?} said {said:?}, expected {wanted:?}");
    }
    in_time(client)?;
    together(client)?;
    refused(client)
}

fn in_time(client: &Client<'_>) -> anyhow::Result<()> {
    eventually("all is older than a second", || {
        match logs(client, &["speaker", "--since=1s"]) {
            Ok(said) if said.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    let stamped = logs(client, &["speaker", "--timestamps"])?;
    let stamps = |line: &str| {
        line.split_once(' ')
            .is_some_and(|(stamp, _)| stamp.len() == 30 && stamp.ends_with('Z'))
    };
    ensure!(stamped.lines().count() == 3 && stamped.lines().all(stamps), "{stamped}");
    Ok(())
}

fn together(client: &Client<'_>) -> anyhow::Result<()> {
    let together = logs(client, &["-l", "app=speaker", "--all-containers", "--prefix"])?;
    let mut lines: Vec<&str> = together.lines().collect();
    lines.sort_unstable();
    ensure!(
        lines
            == [
                "[pod/speaker/first] line 1",
                "[pod/speaker/first] line 2",
                "[pod/speaker/first] line 3",
                "[pod/speaker/second] other",
                "[pod/whisperer/only] whisper"
            ],
        "{together}"
    );
    Ok(())
}

fn refused(client: &Client<'_>) -> anyhow::Result<()> {
    for (flags, wanted) in [
        (&["nobody"][..], "(NotFound): pods \"nobody\" not found"),
        (
            &["speaker", "-c", "none"],
            "container none is not valid for pod speaker",
        ),
        (
            &["speaker", "-c", "second", "--previous"],
            "previous terminated container \"second\" in pod \"speaker\" not found",
        ),
        (
            &[
                "-l",
                "app=speaker",
                "--all-containers",
                "--follow",
                "--max-log-requests=2",
            ],
            "you are attempting to follow 3 log streams, but maximum allowed concurrency is 2",
        ),
    ] {
        let (_, err, code) = client.says(&[&["logs"], flags].concat(), "")?;
        ensure!(
            err.contains(wanted) && code == Some(1),
            "{flags:?} said {err:?}, expected {wanted:?}"
        );
    }
    Ok(())
}
