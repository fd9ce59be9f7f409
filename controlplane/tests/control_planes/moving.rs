//! `move`: a cluster's objects from one store to another, and back.

use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};

use super::config_map;
use super::plane::{Etcd, Plane};

/// Moves the objects of a state directory, or expects a refusal for a reason.
fn moves(state: &Path, (from, to): (&str, &str), refusal: Option<&str>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skiff-controlplane"));
    command.args(["move", from, to, "--state-dir"]).arg(state);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.success(), refusal.is_none(), "{from} to {to}: {said}");
    assert!(said.contains(refusal.unwrap_or_default()), "{from} to {to}: {said}");
}

/// Uid and revision of the object that is moved.
async fn identity(maps: &Api<ConfigMap>) -> (Option<String>, Option<String>) {
    let metadata = maps.get("kept").await.unwrap().metadata;
    (metadata.uid, metadata.resource_version)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_move_between_stores_as_they_are() {
    let etcd = Etcd::start();
    let mut plane = Plane::on(None, None);
    let state = plane.home.path().to_owned();
    let (there, back) = (("sqlite", &*etcd.url), (&*etcd.url, "sqlite"));
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await, "default");
    let parameters = PostParams::default();
    maps.create(&parameters, &config_map("kept", 1)).await.unwrap();
    let before = identity(&maps).await;
    moves(&state, there, Some("is in use by process"));
    plane.finish();
    moves(&state, back, Some("holds no ledger"));
    moves(&state, there, None);
    moves(&state, there, Some("does not exist"));

    // Without the store that it has now, it does not start, and not on what it had before.
    plane.again();
    let (status, log) = (plane.end(), plane.log());
    assert!(
        !status.success() && log.contains("there was a cluster"),
        "{status}: {log}"
    );
    plane.url = Some(etcd.url.clone());
    plane.again();
    plane.client().await;
    assert_eq!(identity(&maps).await, before);
    maps.create(&parameters, &config_map("later", 1)).await.unwrap();
    moves(&state, back, Some("is written to"));
    plane.finish();
    moves(&state, back, None);
    moves(&state, back, Some("holds no ledger"));

    plane.again();
    let (status, log) = (plane.end(), plane.log());
    assert!(
        !status.success() && log.contains("does not hold what this cluster had there"),
        "{status}: {log}"
    );
    plane.url = None;
    plane.again();
    plane.client().await;
    assert_eq!(identity(&maps).await, before);
    maps.get("later").await.unwrap();
    plane.finish();
    moves(&state, there, None);
    plane.url = Some(etcd.url.clone());
    plane.again();
    plane.client().await;
    assert_eq!(identity(&maps).await, before);
    plane.finish();
}
