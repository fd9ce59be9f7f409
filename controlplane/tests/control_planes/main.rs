//! Several control planes, as real processes, on one etcd of three members: each serves, one leads, and what one has
//! acknowledged outlives it.
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod moving;
mod plane;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::plane::{Etcd, Plane};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Waits until a question has an answer that does; how long that took.
async fn until<T, F>(what: &str, mut ask: impl FnMut() -> F) -> (T, Duration)
where
    F: Future<Output = Result<T, String>>,
{
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(found) => return (found, began.elapsed()),
            Err(last) => assert!(began.elapsed() < TIMEOUT, "{what}: {last}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The holder of a Lease, when it is another one than that.
async fn holder(client: &Client, lease: &str, not: &str) -> Result<String, String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let lease = leases.get(lease).await.map_err(|error| error.to_string())?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    if holder.is_empty() || holder == not {
        return Err(format!("held by {holder:?}"));
    }
    Ok(holder)
}

const MANAGER: &str = "kube-controller-manager";

/// Makes a Deployment and waits until somebody has made its ReplicaSet.
async fn deploys(client: &Client, name: &str) -> Duration {
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]},
        }},
    }))
    .unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
    let selector = ListParams::default().labels(&format!("app={name}"));
    let made = until("a ReplicaSet", || async {
        let found = sets.list(&selector).await.map_err(|error| error.to_string())?;
        (!found.items.is_empty()).then_some(()).ok_or_else(|| "none".to_owned())
    });
    made.await.1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_one_leads_when_the_leader_is_killed_or_ends() {
    let etcd = Etcd::start();
    let mut first = Plane::start(&etcd, None);
    let one = first.client().await;
    let (leader, _) = until("a leader", || holder(&one, MANAGER, "")).await;
    let mut second = Plane::start(&etcd, Some(&first));
    let other = second.client().await;
    deploys(&other, "before").await;
    let one_leads = until("one holder of both leases", || async {
        let manager = holder(&other, MANAGER, "").await?;
        let scheduler = holder(&other, "kube-scheduler", "").await?;
        (manager == scheduler)
            .then_some(manager.clone())
            .ok_or_else(|| format!("{manager} and {scheduler}"))
    });
    let (leading, _) = one_leads.await;
    assert!(leading == leader || first.lost(), "{leading}: {}", first.log());

    first.kill();
    let (next, took) = until("another leader", || holder(&other, MANAGER, &leader)).await;
    let led = deploys(&other, "after").await;
    println!("another one led {took:?} after the kill, and had made a ReplicaSet {led:?} later");
    assert!(
        took < Duration::from_secs(25),
        "{took:?}, on a machine that others use too"
    );

    first.again();
    let one = first.client().await;
    // It takes the lease only from one that a busy machine has kept from renewing it.
    let held = holder(&one, MANAGER, "").await;
    assert!(held == Ok(next.clone()) || second.lost(), "{held:?}: {}", second.log());
    second.finish();
    let (_, took) = until("the first one again", || holder(&one, MANAGER, &next)).await;
    println!("after an orderly end: {took:?}");
    deploys(&one, "again").await;
    first.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_without_the_clusters_keys_does_not_start() {
    let etcd = Etcd::start();
    let first = Plane::start(&etcd, None);
    first.client().await;
    let mut stranger = Plane::start(&etcd, None);
    let (status, log) = (stranger.end(), stranger.log());
    assert!(
        !status.success() && log.contains("holds a cluster whose keys are not in"),
        "{status}: {log}"
    );
}

/// Creates a definition; whether it was given its names.
async fn defines(client: &Client, plural: &str, kind: &str) -> bool {
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
        ]},
    }))
    .unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let made = definitions.create(&PostParams::default(), &definition).await.unwrap();
    let conditions = made.status.and_then(|status| status.conditions).unwrap_or_default();
    conditions
        .iter()
        .any(|own| own.type_ == "NamesAccepted" && own.status == "True")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_given_to_one_definition_whichever_control_plane_is_asked() {
    let etcd = Etcd::start();
    let first = Plane::start(&etcd, None);
    let one = first.client().await;
    let second = Plane::start(&etcd, Some(&first));
    let other = second.client().await;
    for round in 0..20 {
        let (plurals, kind) = ([format!("as{round}"), format!("bs{round}")], format!("Thing{round}"));
        let both = tokio::join!(defines(&one, &plurals[0], &kind), defines(&other, &plurals[1], &kind));
        assert_ne!(both.0, both.1, "{kind}: {both:?}");
    }
}

fn config_map(name: &str, count: u64) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([("test".to_owned(), "yes".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some([("count".to_owned(), count.to_string())].into()),
        ..ConfigMap::default()
    }
}

fn count(object: &ConfigMap) -> u64 {
    object.data.as_ref().unwrap()["count"].parse().unwrap()
}

/// Creates objects and counts one up that all share, through servers that may be killed; the names of those objects, and
/// the counts, that were acknowledged.
async fn write(clients: Vec<Client>, writer: usize, stop: Arc<AtomicBool>) -> (BTreeSet<String>, u64) {
    let (mut names, mut counts) = (BTreeSet::new(), 0);
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let maps: Api<ConfigMap> = Api::namespaced(clients[(writer + round / 8) % clients.len()].clone(), "default");
        let name = format!("w{writer}-{round}");
        if maps.create(&PostParams::default(), &config_map(&name, 0)).await.is_ok() {
            // Whoever asks the other server next finds it there.
            let other: Api<ConfigMap> =
                Api::namespaced(clients[(writer + round / 8 + 1) % clients.len()].clone(), "default");
            // Unless it is down.
            if let Ok(found) = other.get_opt(&name).await {
                assert!(found.is_some(), "{name} was acknowledged and is not there");
            }
            names.insert(name);
        }
        let Ok(mut shared) = maps.get("shared").await else {
            continue;
        };
        let next = count(&shared) + 1;
        shared.data = config_map("", next).data;
        if maps.replace("shared", &PostParams::default(), &shared).await.is_ok() {
            counts += 1;
        }
    }
    (names, counts)
}

/// Changes that a watcher has seen: revisions and names, in order, until the object that ends it.
async fn watch(plane: Client) -> Vec<(u64, String, bool)> {
    let maps: Api<ConfigMap> = Api::namespaced(plane, "default");
    let parameters = WatchParams::default().labels("test=yes").timeout(290);
    let mut seen: Vec<(u64, String, bool)> = Vec::new();
    let mut from = "1".to_owned();
    loop {
        let Ok(events) = maps.watch(&parameters, &from).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let mut events = events.boxed();
        while let Ok(Some(event)) = events.try_next().await {
            let (object, is_new) = match event.clone() {
                WatchEvent::Added(object) => (object, true),
                WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) | WatchEvent::Error(_) => {
                    panic!("{event:?} after {from}")
                }
            };
            from = object.metadata.resource_version.clone().unwrap();
            let name = object.metadata.name.clone().unwrap();
            let ends = name == "end";
            seen.push((from.parse().unwrap(), name, is_new));
            if ends {
                return seen;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_control_planes_are_killed() {
    let etcd = Etcd::start();
    let first = Plane::start(&etcd, None);
    let one = first.client().await;
    let second = Plane::start(&etcd, Some(&first));
    let clients = vec![one.clone(), second.client().await];
    let maps: Api<ConfigMap> = Api::namespaced(one, "default");
    maps.create(&PostParams::default(), &config_map("shared", 0))
        .await
        .unwrap();
    let mut watchers = JoinSet::new();
    for client in clients.iter().cycle().take(4) {
        watchers.spawn(watch(client.clone()));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..16 {
        writers.spawn(write(clients.clone(), writer, Arc::clone(&stop)));
    }
    let mut planes = [first, second];
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        planes[round % 2].kill();
        tokio::time::sleep(Duration::from_secs(1)).await;
        planes[round % 2].again();
        planes[round % 2].client().await;
    }
    stop.store(true, Ordering::Relaxed);
    let written = writers.join_all().await;
    maps.create(&PostParams::default(), &config_map("end", 0))
        .await
        .unwrap();
    let seen = watchers.join_all().await;
    let mut made = BTreeMap::new();
    for (revision, name, is_new) in &seen[0] {
        assert_eq!(made.insert(name, *revision).is_none(), *is_new, "{name} at {revision}");
    }
    assert!(
        seen[0].is_sorted_by(|one, next| one.0 < next.0),
        "in order and each once"
    );
    assert!(seen.iter().all(|other| other == &seen[0]), "all see the same");
    let names: BTreeSet<&String> = written.iter().flat_map(|(names, _)| names).collect();
    let lost: Vec<_> = names.iter().filter(|name| !made.contains_key(**name)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let counted: u64 = written.iter().map(|(_, counts)| counts).sum();
    let there = count(&maps.get("shared").await.unwrap());
    println!(
        "{} objects and {counted} counts were acknowledged, {there} counted",
        names.len()
    );
    assert!(there >= counted, "{counted} were acknowledged, {there} are there");
    for plane in &planes {
        let client = plane.client().await;
        let maps: Api<ConfigMap> = Api::namespaced(client, "default");
        let found = maps.list(&ListParams::default().labels("test=yes")).await.unwrap();
        assert_eq!(found.items.len(), made.len());
    }
}
