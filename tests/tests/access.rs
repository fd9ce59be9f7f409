//! Roles and bindings as people make and check them with stock kubectl, every version on this machine.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use anyhow::Context as _;
use tests::machine::{Machine, eventually};
use tests::process;

/// A stock kubectl; returns both output streams.
struct Kubectl<'a>(&'a Machine, &'a Path);

impl Kubectl<'_> {
    fn run(&self, words: &str) -> anyhow::Result<(bool, String)> {
        let mut command = self.0.kubectl_command(self.1);
        command.args(words.split_whitespace());
        let output = command.output().with_context(|| format!("{command:?}"))?;
        Ok((output.status.success(), process::both(&output)))
    }

    #[track_caller]
    fn says(&self, words: &str, expected: &str) -> anyhow::Result<()> {
        let (success, said) = self.run(words)?;
        let kubectl = self.1.display();
        anyhow::ensure!(success, "{kubectl} {words}: {said}");
        anyhow::ensure!(
            said.contains(expected),
            "{kubectl} {words} said {said:?}, not {expected:?}"
        );
        Ok(())
    }

    #[track_caller]
    fn is_refused(&self, words: &str, expected: &str) -> anyhow::Result<()> {
        let (success, said) = self.run(words)?;
        let kubectl = self.1.display();
        anyhow::ensure!(!success, "{kubectl} {words} succeeded: {said}");
        anyhow::ensure!(
            said.contains(expected),
            "{kubectl} {words} said {said:?}, not {expected:?}"
        );
        Ok(())
    }
}

#[test]
fn every_stock_kubectl_gives_and_asks_for_access() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("access")?;
    for (number, kubectl) in process::kubectls()?.iter().enumerate() {
        let kubectl = Kubectl(&machine, kubectl);
        give(&kubectl, &format!("n{number}"))?;
        reconcile(&kubectl, &format!("n{number}"))?;
    }
    aggregate(&machine)?;
    machine.finish()
}

fn give(kubectl: &Kubectl<'_>, place: &str) -> anyhow::Result<()> {
    let jane = format!("-n {place} --as jane-{place}");
    kubectl.says(&format!("create namespace {place}"), "created")?;
    kubectl.says(&format!("auth can-i create deployments -n {place}"), "yes")?;
    kubectl.is_refused(&format!("auth can-i list pods {jane}"), "no")?;
    kubectl.is_refused(
        &format!("get pods {jane}"),
        &format!(
            "pods is forbidden: User \"jane-{place}\" cannot list resource \"pods\" in API group \"\" in the namespace \"{place}\""
        ),
    )?;
    kubectl.says(
        &format!("create role reader -n {place} --verb=get,list --resource=pods,pods/log"),
        "created",
    )?;
    kubectl.says(
        &format!(
            "create rolebinding readers -n {place} --role=reader --user=jane-{place} --serviceaccount={place}:robot"
        ),
        "created",
    )?;
    kubectl.says(&format!("auth can-i list pods {jane}"), "yes")?;
    kubectl.says(&format!("auth can-i get pods/x --subresource=log {jane}"), "yes")?;
    kubectl.says(&format!("get pods {jane}"), "No resources found")?;
    kubectl.says(
        &format!("auth can-i list pods -n {place} --as system:serviceaccount:{place}:robot"),
        "yes",
    )?;
    kubectl.is_refused(&format!("auth can-i delete pods {jane}"), "no")?;
    kubectl.says(&format!("auth can-i --list {jane}"), "pods/log")?;
    kubectl.says(&format!("auth can-i get /healthz {jane}"), "yes")?;
    kubectl.is_refused(&format!("auth can-i get /metrics {jane}"), "no")?;
    kubectl.says("auth can-i * *", "yes")?;
    kubectl.says(
        &format!("create clusterrole nodes-{place} --verb=list --resource=nodes"),
        "created",
    )?;
    kubectl.says(
        &format!("create clusterrolebinding nodes-{place} --clusterrole=nodes-{place} --group=team-{place}"),
        "created",
    )?;
    kubectl.says(&format!("get nodes {jane} --as-group team-{place}"), "Ready")?;
    kubectl.is_refused(&format!("get nodes {jane}"), "at the cluster scope")?;
    kubectl.says(&format!("get rolebindings -n {place} -o wide"), "Role/reader")?;
    kubectl.says(&format!("describe role reader -n {place}"), "pods/log")
}

fn reconcile(kubectl: &Kubectl<'_>, place: &str) -> anyhow::Result<()> {
    let file = kubectl.0.state().join("reader.yaml");
    let text = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: reader, namespace: {place}}}\nrules:\n\
         - {{apiGroups: [\"\"], resources: [configmaps], verbs: [get]}}\n"
    );
    std::fs::write(&file, text)?;
    let file = file.display();
    kubectl.says(&format!("auth reconcile -f {file}"), "reconciled")?;
    for pods in ["get configmaps", "list pods"] {
        kubectl.says(&format!("auth can-i {pods} -n {place} --as jane-{place}"), "yes")?;
    }
    kubectl.says(
        &format!("auth reconcile -f {file} --remove-extra-permissions"),
        "reconciled",
    )?;
    kubectl.is_refused(&format!("auth can-i list pods -n {place} --as jane-{place}"), "no")
}

/// Aggregated `ClusterRoles` follow their parts.
fn aggregate(machine: &Machine) -> anyhow::Result<()> {
    machine.kubectl(["create", "clusterrole", "crons", "--verb=get", "--resource=configmaps"])?;
    machine.kubectl([
        "label",
        "clusterrole",
        "crons",
        "rbac.authorization.k8s.io/aggregate-to-view=true",
    ])?;
    machine.kubectl(["create", "rolebinding", "viewers", "--clusterrole=view", "--user=joe"])?;
    eventually("a viewer may read pods", || {
        let said = machine.kubectl(["auth", "can-i", "get", "pods", "--as", "joe"]);
        said.map(|_yes| ()).map_err(|error| error.to_string())
    })?;
    eventually("admin has what view has", || {
        let rules = machine.kubectl(["get", "clusterrole", "admin", "-o", "json"]);
        let rules = rules.map_err(|error| error.to_string())?;
        let whole = ["\"rolebindings\"", "\"pods/exec\"", "\"pods/log\""];
        if whole.iter().all(|resource| rules.contains(resource)) {
            Ok(())
        } else {
            Err(rules)
        }
    })
}
