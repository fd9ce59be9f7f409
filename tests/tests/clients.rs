//! The clients that programs use: Python's, JavaScript's and Rust's, against a real cluster.

#![allow(clippy::panic, reason = "a test fails by panicking")]

#[path = "clients/controller.rs"]
mod controller;
#[path = "clients/lease.rs"]
mod lease;
#[path = "clients/operator.rs"]
mod operator;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt as _};
use tests::machine::{Machine, TIMEOUT};
use tests::{images, process};

/// Path at which `.ci/prerequisites --tools` installs the clients.
fn installed(path: &str) -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("SKIFF_CACHE").unwrap_or_else(|| "/var/cache/skiff".into());
    let found = Path::new(&cache).join("clients").join(path);
    anyhow::ensure!(
        found.exists(),
        "there is no {}: please run .ci/prerequisites --tools",
        found.display()
    );
    Ok(found)
}

fn script(name: &str) -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the tests are"))
        .join("clients")
        .join(name)
}

#[test]
fn clients_of_other_languages_work() -> anyhow::Result<()> {
    tests::logging();
    let python = installed("python/bin/python")?;
    let module = installed("node/node_modules/@kubernetes/client-node")?;
    let machine = Machine::start("clients")?;
    let image = images::busybox(&machine)?;
    let mut command = machine.namespace().command("timeout");
    command.arg("400").arg(python).arg("-I").arg(script("python.py"));
    process::run(command.arg(machine.kubeconfig()).arg(&image))?;
    let mut command = machine.namespace().command("timeout");
    command.args(["400", "node"]).arg(script("node.mjs")).arg(module);
    process::run(command.arg(machine.kubeconfig()).arg(&image))?;
    machine.finish()
}

#[test]
fn an_operator_on_kopf_works() -> anyhow::Result<()> {
    tests::logging();
    let python = installed("python/bin/python")?;
    let machine = Machine::start("operator")?;
    let image = images::busybox(&machine)?;
    let mut command = machine.namespace().command("timeout");
    command.arg("400").arg(python).arg("-I").arg(script("operator.py"));
    command.args([&image, "127.0.0.1"]);
    process::run(command.env("KUBECONFIG", machine.kubeconfig()))?;
    machine.finish()
}

#[test]
fn helm_and_ansible_work() -> anyhow::Result<()> {
    tests::logging();
    let python = installed("python/bin/python")?;
    let playbook = installed("python/bin/ansible-playbook")?;
    let (collections, helm) = (installed("collections")?, installed("helm")?);
    let machine = Machine::start("helm")?;
    let image = images::nginx(&machine)?;
    let home = tempfile::tempdir()?;
    let mut command = machine.namespace().command("timeout");
    command
        .arg("400")
        .arg(python)
        .arg("-I")
        .arg(script("helm.py"))
        .arg(helm);
    command.arg(machine.kubeconfig()).arg(script("chart")).arg(&image);
    process::run(command.env("HOME", home.path()))?;
    let mut command = machine.namespace().command("timeout");
    command.arg("400").arg(playbook).arg(script("playbook.yaml"));
    command.arg("--extra-vars").arg(format!("image={image}"));
    command
        .env("HOME", home.path())
        .env("ANSIBLE_COLLECTIONS_PATH", collections);
    process::run(command.env("K8S_AUTH_KUBECONFIG", machine.kubeconfig()))?;
    machine.finish()
}

#[test]
fn a_rust_controller_follows_its_objects() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("controller")?;
    let image = images::busybox(&machine)?;
    let worked = std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            machine.namespace().enter()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let kubeconfig = Kubeconfig::read_from(machine.kubeconfig())?;
                let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
                let client = Client::try_from(config)?;
                tokio::time::timeout(TIMEOUT, call(client.clone())).await??;
                tokio::time::timeout(TIMEOUT, controller::reconcile(client.clone())).await??;
                tokio::time::timeout(TIMEOUT, operator::operate(client.clone(), image)).await??;
                tokio::time::timeout(TIMEOUT, lease::lead(client)).await?
            })
        });
        work.join().unwrap_or_else(|_| anyhow::bail!("the client panicked"))
    });
    worked?;
    machine.finish()
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    let mut map = ConfigMap {
        data: Some(BTreeMap::from([("value".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    };
    map.metadata.name = Some(name.to_owned());
    map.metadata.labels = Some(BTreeMap::from([("copied".to_owned(), "yes".to_owned())]));
    map
}

/// Every kind of call once.
async fn call(client: Client) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let first = config_map("called", "first");
    let mut changed = maps.create(&PostParams::default(), &first).await?;
    let again = maps.create(&PostParams::default(), &first).await;
    anyhow::ensure!(
        matches!(&again, Err(kube::Error::Api(status)) if status.is_already_exists()),
        "{again:?}"
    );
    changed.data = None;
    let replaced = maps.replace("called", &PostParams::default(), &changed).await?;
    anyhow::ensure!(replaced.data.is_none(), "{replaced:?}");
    let late = maps.replace("called", &PostParams::default(), &changed).await;
    anyhow::ensure!(
        matches!(&late, Err(kube::Error::Api(status)) if status.is_conflict()),
        "{late:?}"
    );
    let apply = Patch::Apply(config_map("called", "second"));
    let applied = maps.patch("called", &PatchParams::apply("tests"), &apply).await?;
    anyhow::ensure!(
        applied
            .managed_fields()
            .iter()
            .any(|entry| entry.manager.as_deref() == Some("tests")),
        "{applied:?}"
    );
    let listed = maps.list(&ListParams::default().labels("copied=yes")).await?;
    anyhow::ensure!(listed.items == [applied], "{listed:?}");
    let partly = maps.get_metadata("called").await?;
    anyhow::ensure!(partly.name_any() == "called", "{partly:?}");
    maps.delete("called", &DeleteParams::default()).await?;
    anyhow::ensure!(maps.get_opt("called").await?.is_none(), "still there");
    Ok(())
}
