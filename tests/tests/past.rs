//! The past of a real cluster through `skiff`.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::process::{Output, Stdio};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tests::machine::{Machine, eventually};
use tests::process;

fn skiff(machine: &Machine, words: &[&str]) -> anyhow::Result<Output> {
    let mut command = machine.namespace().command(process::programs()?.join("skiff"));
    command.arg("--state-dir").arg(machine.state()).args(words);
    Ok(command.stdin(Stdio::null()).output()?)
}

/// Returns the output of a command that succeeds.
fn says(machine: &Machine, words: &[&str]) -> anyhow::Result<String> {
    let output = skiff(machine, words)?;
    let said = process::both(&output);
    assert!(output.status.success(), "skiff {words:?}: {said}");
    Ok(said)
}

fn refused(machine: &Machine, words: &[&str]) -> anyhow::Result<String> {
    let output = skiff(machine, words)?;
    let said = process::both(&output);
    assert!(!output.status.success(), "skiff {words:?}: {said}");
    Ok(said)
}

fn now() -> String {
    format!("{:.3}", Timestamp::now())
}

#[test]
fn what_was_is_shown_compared_told_and_made_anew() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("past")?;
    machine.kubectl(["create", "configmap", "settings", "--from-literal=mode=slow"])?;
    let then = now();
    let change = r#"{"data":{"mode":"fast"}}"#;
    machine.kubectl(["patch", "configmap", "settings", "--type=merge", "-p", change])?;
    let json = says(&machine, &["get", "cm/settings", "--at", &then, "-o", "json"])?;
    let object: Value = serde_json::from_str(&json)?;
    assert_eq!(object.pointer("/data/mode"), Some(&"slow".into()), "{json}");
    let revision = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    let by_revision = says(
        &machine,
        &[
            "get",
            "cm",
            "settings",
            "--at",
            revision.unwrap_or_default(),
            "-o",
            "yaml",
        ],
    )?;
    assert!(by_revision.contains("mode: slow"), "{by_revision}");
    let table = says(&machine, &["get", "cm", "-A", "--at", &then])?;
    assert!(table.contains("settings"), "{table}");
    let diff = says(&machine, &["diff", "cm/settings", "--from", &then])?;
    assert!(diff.contains("data.mode\n- slow\n+ fast\n"), "{diff}");
    assert_history(&machine)?;

    machine.kubectl(["delete", "configmap", "settings"])?;
    let said = refused(&machine, &["get", "cm/settings", "--at", &now()])?;
    assert!(said.contains("NotFound"), "{said}");
    let said = says(&machine, &["undelete", "cm/settings"])?;
    assert!(said.contains("configmap/settings undeleted as of revision"), "{said}");
    assert_eq!(
        machine.kubectl(["get", "configmap", "settings", "-o", "jsonpath={.data.mode}"])?,
        "fast"
    );
    let said = refused(&machine, &["undelete", "cm/settings"])?;
    assert!(said.contains("configmap/settings is there"), "{said}");
    machine.kubectl(["delete", "configmap", "settings"])?;
    says(&machine, &["undelete", "cm/settings", "--at", &then])?;
    assert_eq!(
        machine.kubectl(["get", "configmap", "settings", "-o", "jsonpath={.data.mode}"])?,
        "slow"
    );
    assert_owners(&machine)?;
    assert_limits(&machine)?;
    assert_sql(&machine)?;
    assert_events(&machine)?;
    machine.finish()
}

fn assert_history(machine: &Machine) -> anyhow::Result<()> {
    let history = eventually("the audit log tells who it was", || {
        let history = says(machine, &["history", "cm/settings"]).map_err(|error| error.to_string())?;
        let told = history
            .lines()
            .filter(|line| line.contains("kubernetes-admin") && line.contains("kubectl"));
        if told.count() == 2 { Ok(history) } else { Err(history) }
    })?;
    let lines: Vec<&str> = history.lines().collect();
    assert!(
        lines.first().is_some_and(|line| line.starts_with("REVISION")),
        "{history}"
    );
    assert!(
        lines
            .get(1)
            .is_some_and(|line| line.ends_with("created") && line.contains("create")),
        "{history}"
    );
    let patched = lines
        .get(2)
        .is_some_and(|line| line.ends_with("data.mode: slow -> fast") && line.contains("patch"));
    assert!(patched, "{history}");
    Ok(())
}

/// An object that went with its owner comes back without it.
fn assert_owners(machine: &Machine) -> anyhow::Result<()> {
    machine.kubectl(["create", "configmap", "owner"])?;
    let uid = machine.kubectl(["get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}"])?;
    machine.kubectl(["create", "configmap", "owned"])?;
    let reference = format!(
        r#"{{"metadata":{{"ownerReferences":[{{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"{uid}"}}]}}}}"#
    );
    machine.kubectl(["patch", "configmap", "owned", "--type=merge", "-p", &reference])?;
    machine.kubectl(["delete", "configmap", "owner"])?;
    eventually("the owned one is collected", || {
        match machine.kubectl(["get", "configmap", "owned"]) {
            Ok(found) => Err(found),
            Err(_gone) => Ok(()),
        }
    })?;
    let said = says(machine, &["undelete", "cm/owned"])?;
    assert!(said.contains("its owner ConfigMap/owner is gone"), "{said}");
    eventually("the audit log tells who deleted it", || {
        let history = says(machine, &["history", "cm/owned"]).map_err(|error| error.to_string())?;
        let deleted = history.lines().find(|line| line.ends_with("deleted"));
        if deleted.is_some_and(|line| line.contains("generic-garbage-collector")) {
            Ok(())
        } else {
            Err(history)
        }
    })
}

/// The audit log and the past are joined by a query.
fn assert_sql(machine: &Machine) -> anyhow::Result<()> {
    let query = "SELECT a.user, a.verb, v.json ->> '$.data.mode' AS mode FROM audit a JOIN versions v
        ON v.name = a.name AND v.revision = a.json ->> '$.responseObject.metadata.resourceVersion'
        WHERE a.name = 'settings' AND a.verb = 'patch'";
    eventually("the audit log tells who it was", || {
        let said = says(machine, &["sql", query]).map_err(|error| error.to_string())?;
        let words: Vec<&str> = said.split_whitespace().collect();
        let wanted = ["user", "verb", "mode", "kubernetes-admin", "patch", "fast"];
        if words == wanted { Ok(()) } else { Err(said) }
    })?;
    let said = says(
        machine,
        &[
            "sql",
            "--json",
            "SELECT name FROM objects WHERE resource = 'namespaces' ORDER BY name",
        ],
    )?;
    assert!(said.starts_with("{\"name\":\"default\"}\n"), "{said}");
    let said = refused(machine, &["sql", "DELETE FROM audit"])?;
    assert!(said.contains("only queries that read are allowed"), "{said}");
    assert_no_reader(machine)
}

/// `skiff sql … | head` ends without a message.
fn assert_no_reader(machine: &Machine) -> anyhow::Result<()> {
    let mut command = machine.namespace().command(process::programs()?.join("skiff"));
    command.arg("--state-dir").arg(machine.state());
    command.args(["sql", "SELECT name FROM objects"]).stdin(Stdio::null());
    let mut query = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(query.stdout.take());
    let output = query.wait_with_output()?;
    let said = process::both(&output);
    assert!(output.status.success() && said.is_empty(), "{said}");
    Ok(())
}

/// A rollout that fails is told while it is watched, though no Event says so.
fn assert_events(machine: &Machine) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let told = folder.path().join("told");
    let mut command = machine.namespace().command(process::programs()?.join("skiff"));
    command
        .arg("--state-dir")
        .arg(machine.state())
        .args(["events", "--watch", "--types=Warning"]);
    command.stdin(Stdio::null()).stdout(std::fs::File::create(&told)?);
    let mut watching = command.spawn()?;
    let manifest = folder.path().join("late.yaml");
    std::fs::write(
        &manifest,
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: late}, spec: {progressDeadlineSeconds: 1,
          selector: {matchLabels: {app: late}}, template: {metadata: {labels: {app: late}},
          spec: {containers: [{name: c, image: 'localhost:1/none:1'}]}}}}",
    )?;
    machine.kubectl(["apply", "-f", &manifest.display().to_string()])?;
    let seen = eventually("the rollout is told to have failed", || {
        let told = std::fs::read_to_string(&told).map_err(|error| error.to_string())?;
        let late = told.contains("ProgressDeadlineExceeded   deployment/late") && told.contains("pod/late-");
        if late { Ok(()) } else { Err(told) }
    });
    watching.kill()?;
    watching.wait()?;
    seen?;
    let listed = says(machine, &["events"])?;
    assert!(listed.starts_with("TIME") && listed.contains("Normal"), "{listed}");
    machine.kubectl(["delete", "deployment", "late"])?;
    Ok(())
}

fn assert_limits(machine: &Machine) -> anyhow::Result<()> {
    for (words, wanted) in [
        (&["get", "cm", "--at", "1999-01-01T00:00:00Z"][..], "No resources found"),
        (&["get", "cm", "--at", "36500d"], "No resources found"),
    ] {
        let said = says(machine, words)?;
        assert!(said.contains(wanted), "{words:?}: {said}");
    }
    for (words, wanted) in [
        (&["get", "cm", "--at", "tomorrow"][..], "at must be a revision, a time"),
        (
            &["get", "leases", "-A", "--at", "1s"],
            "the past of leases.coordination.k8s.io is not kept",
        ),
        (&["history", "cm/never"], "NotFound"),
        (&["undelete", "cm/never"], "NotFound"),
        (&["get", "cm", "-w", "--at", "1s"], "cannot be used with"),
    ] {
        let said = refused(machine, words)?;
        assert!(said.contains(wanted), "{words:?}: {said}");
    }
    Ok(())
}
