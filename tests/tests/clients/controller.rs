//! A controller written with `kube::runtime`: it keeps copies of `ConfigMaps` as `Secrets`, holds on to its objects by a
//! finalizer and tells what it does in events; a reflector follows the copies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Error as ControllerError};
use kube::runtime::events::{Event as News, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Error as FinalizerError, Event as Turn, finalizer};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{Controller, WatchStreamExt, watcher};
use kube::{Client, Resource as _, ResourceExt as _};

use crate::config_map;

const FINALIZER: &str = "tests.example.com/copied";

struct Copier {
    client: Client,
    recorder: Recorder,
}

#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("write the copy of a ConfigMap")]
    Write(#[source] kube::Error),
    #[error("tell of it")]
    Tell(#[source] kube::Error),
}

async fn follow(map: Arc<ConfigMap>, copier: Arc<Copier>) -> Result<Action, FinalizerError<CopyError>> {
    let maps: Api<ConfigMap> = Api::default_namespaced(copier.client.clone());
    finalizer(&maps, FINALIZER, map, |turn| async {
        match turn {
            Turn::Apply(map) => copy(&map, &copier).await,
            Turn::Cleanup(map) => tell(&map, &copier, "Forgotten").await,
        }
        .map(|()| Action::await_change())
    })
    .await
}

/// A Secret of the same name, owned by the `ConfigMap`, with the same value.
async fn copy(map: &ConfigMap, copier: &Copier) -> Result<(), CopyError> {
    let mut secret = Secret {
        string_data: map.data.clone(),
        ..Secret::default()
    };
    secret.metadata.name = Some(map.name_any());
    secret.metadata.owner_references = map.controller_owner_ref(&()).map(|owner| vec![owner]);
    let secrets: Api<Secret> = Api::default_namespaced(copier.client.clone());
    let forced = PatchParams::apply("copier").force();
    secrets
        .patch(&map.name_any(), &forced, &Patch::Apply(secret))
        .await
        .map_err(CopyError::Write)?;
    tell(map, copier, "Copied").await
}

/// Equal news become one event with a count.
async fn tell(map: &ConfigMap, copier: &Copier, reason: &str) -> Result<(), CopyError> {
    let news = News {
        type_: EventType::Normal,
        reason: reason.to_owned(),
        note: Some(format!("{reason}: {}", map.name_any())),
        action: "Copy".to_owned(),
        secondary: None,
    };
    let mut about = map.object_ref(&());
    about.resource_version = None;
    copier.recorder.publish(&news, &about).await.map_err(CopyError::Tell)
}

/// Runs the controller while its objects are modified.
pub(crate) async fn reconcile(client: Client) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let selected = watcher::Config::default().labels("copied=yes");
    let failed = Arc::new(Mutex::new(Vec::new()));
    let failures = Arc::clone(&failed);
    let copier = Copier {
        client: client.clone(),
        recorder: Recorder::new(client.clone(), Reporter::from("tests.example.com/copier".to_owned())),
    };
    let controller = Controller::new(maps, selected)
        .owns(secrets, watcher::Config::default())
        .run(
            follow,
            |_, _, _| Action::requeue(Duration::from_millis(100)),
            Arc::new(copier),
        )
        .for_each(move |outcome| {
            if let Err(error) = outcome
                && counts(&error)
            {
                failures
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(format!("{error:?}"));
            }
            std::future::ready(())
        });
    tokio::select! {
        () = controller => anyhow::bail!("the controller ended"),
        played = play(client) => played?,
    }
    let failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
    anyhow::ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

/// An event may come later than the deletion, and a finalizer be gone already; all else is wrong.
fn counts(error: &ControllerError<FinalizerError<CopyError>, watcher::Error>) -> bool {
    !matches!(
        error,
        ControllerError::ObjectNotFound(_)
            | ControllerError::ReconcilerFailed(
                FinalizerError::AddFinalizer(_) | FinalizerError::RemoveFinalizer(_),
                _
            )
    )
}

/// Reads the reflector's events until a copy is as wanted.
async fn copy_of(
    informer: &mut (impl StreamExt<Item = Result<Secret, watcher::Error>> + Unpin),
    name: &str,
    wanted: impl Fn(&Secret) -> bool,
) -> anyhow::Result<Secret> {
    loop {
        let secret = informer.next().await.context("the informer ended")??;
        if secret.name_any() == name && wanted(&secret) {
            return Ok(secret);
        }
    }
}

fn value(secret: &Secret) -> Option<&[u8]> {
    Some(&secret.data.as_ref()?.get("value")?.0)
}

async fn play(client: Client) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let (known, writer) = reflector::store();
    let informer = watcher(secrets.clone(), watcher::Config::default().streaming_lists())
        .default_backoff()
        .reflect(writer)
        .touched_objects();
    let mut informer = std::pin::pin!(informer);
    maps.create(&PostParams::default(), &config_map("one", "first")).await?;
    let first = copy_of(&mut informer, "one", |secret| value(secret) == Some(b"first")).await?;
    let held = maps.get("one").await?;
    anyhow::ensure!(held.finalizers() == [FINALIZER], "{held:?}");
    let change = Patch::Merge(serde_json::json!({"data": {"value": "second"}}));
    maps.patch("one", &PatchParams::default(), &change).await?;
    copy_of(&mut informer, "one", |secret| value(secret) == Some(b"second")).await?;
    // A deleted object with an owner is created again.
    secrets.delete("one", &DeleteParams::default()).await?;
    let is_new = |secret: &Secret| value(secret) == Some(b"second") && secret.uid() != first.uid();
    let second = copy_of(&mut informer, "one", is_new).await?;
    let kept = known.get(&reflector::ObjectRef::from_obj(&second));
    anyhow::ensure!(kept.as_deref() == Some(&second), "{kept:?} instead of {second:?}");
    // And goes with its owner, which waits for its finalizer.
    maps.delete("one", &DeleteParams::default()).await?;
    while secrets.get_opt("one").await?.is_some() || maps.get_opt("one").await?.is_some() {
        tokio::task::yield_now().await;
    }
    while holds(&known, "one") {
        informer.next().await.context("the informer ended")??;
    }
    told(client).await
}

fn holds(known: &Store<Secret>, name: &str) -> bool {
    known.state().iter().any(|secret| secret.name_any() == name)
}

/// The events of the copier: one of each reason, the first with how often it happened.
async fn told(client: Client) -> anyhow::Result<()> {
    let events: Api<Event> = Api::default_namespaced(client);
    let of_reason = async |reason: &str| -> anyhow::Result<Event> {
        let list = ListParams::default().fields(&format!("reason={reason}"));
        let mut found = events.list(&list).await?.items;
        anyhow::ensure!(found.len() == 1, "{found:#?}");
        found.pop().context("one")
    };
    let copied = of_reason("Copied").await?;
    let times = copied.series.as_ref().map_or(1, |series| series.count);
    anyhow::ensure!(times >= 3, "{copied:#?}");
    let forgotten = of_reason("Forgotten").await?;
    anyhow::ensure!(forgotten.note.as_deref() == Some("Forgotten: one"), "{forgotten:#?}");
    Ok(())
}
