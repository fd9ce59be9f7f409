//! Kinds that users define, as they use them: with kubectl, beside the controllers.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use anyhow::{Context as _, ensure};
use tests::machine::{Machine, eventually};

const DEFINITION: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, shortNames: [bt, po]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Masts, type: integer, jsonPath: .spec.masts}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {masts: {type: integer, minimum: 1, default: 2}}
";

fn apply(machine: &Machine, text: &str) -> anyhow::Result<String> {
    let file = machine.state().join("object.yaml");
    std::fs::write(&file, text)?;
    machine.kubectl(["apply", "-f", file.to_str().context("a path")?])
}

/// A boat, and a `ConfigMap` that it owns.
fn crew(machine: &Machine, name: &str) -> anyhow::Result<()> {
    apply(
        machine,
        &format!("{{apiVersion: example.com/v1, kind: Boat, metadata: {{name: {name}}}, spec: {{}}}}"),
    )?;
    let uid = machine.kubectl(["get", "boat", name, "-o", "jsonpath={.metadata.uid}"])?;
    let owner =
        format!("{{apiVersion: example.com/v1, kind: Boat, name: {name}, uid: {uid}, blockOwnerDeletion: true}}");
    apply(
        machine,
        &format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: of-{name}, ownerReferences: [{owner}]}}}}"),
    )?;
    Ok(())
}

fn gone(machine: &Machine, what: &str) -> anyhow::Result<()> {
    eventually(&format!("{what} is gone"), || {
        let left = machine.kubectl(["get", what, "--ignore-not-found", "-o", "name"]);
        let left = left.map_err(|error| format!("{error:#}"))?;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
}

#[test]
fn objects_of_a_defined_kind_own_others_and_go_with_their_definition() -> anyhow::Result<()> {
    let machine = Machine::start("definitions")?;
    apply(&machine, DEFINITION)?;
    crew(&machine, "one")?;
    crew(&machine, "two")?;
    crew(&machine, "three")?;
    let table = machine.kubectl(["get", "bt"])?;
    ensure!(table.contains("MASTS") && table.contains("one"), "{table}");
    // A short name of the program's own kinds means these still.
    let pods = machine.kubectl(["get", "po", "-o", "name"])?;
    ensure!(pods.is_empty(), "{pods}");
    let wrong = apply(
        &machine,
        "{apiVersion: example.com/v1, kind: Boat, metadata: {name: wrong}, spec: {masts: 0}}",
    );
    let told = wrong.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(
        told.contains("spec.masts in body should be greater than or equal to 1"),
        "{told}"
    );

    machine.kubectl(["delete", "boat", "one"])?;
    gone(&machine, "configmap/of-one")?;
    // A foreground deletion waits for the dependents, and finishes.
    machine.kubectl(["delete", "boat", "two", "--cascade=foreground", "--timeout=60s"])?;
    gone(&machine, "configmap/of-two")?;
    machine.kubectl(["delete", "boat", "three", "--cascade=orphan", "--timeout=60s"])?;
    let left = machine.kubectl([
        "get",
        "configmap",
        "of-three",
        "-o",
        "jsonpath={.metadata.ownerReferences}",
    ])?;
    ensure!(left.is_empty(), "{left}");

    crew(&machine, "last")?;
    machine.kubectl(["delete", "crd", "boats.example.com", "--timeout=60s"])?;
    let unknown = machine.kubectl(["get", "boats"]);
    let told = unknown.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(told.contains("(NotFound)"), "{told}");
    gone(&machine, "configmap/of-last")?;
    machine.finish()
}
