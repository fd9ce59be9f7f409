//! An operator written with `kube::runtime`: a `CustomResourceDefinition` defines its kind, each
//! object owns a `Deployment`, has a finalizer and is reported in its status and in events.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event as News, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Error as FinalizerError, Event as Turn, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{Controller, watcher};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};

const FINALIZER: &str = "tests.example.com/slept";

struct Operator {
    client: Client,
    recorder: Recorder,
    image: String,
}

fn kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("tests.example.com", "v1", "Nap"))
}

fn definition() -> anyhow::Result<CustomResourceDefinition> {
    let replicas = json!({"type": "integer", "default": 1, "maximum": 3});
    let spec = json!({
        "type": "object", "properties": {"replicas": replicas},
        "x-kubernetes-validations": [{"rule": "self.replicas >= oldSelf.replicas", "message": "naps do not shrink"}],
    });
    let status = json!({"type": "object", "properties": {"ready": {"type": "integer"}}});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
    });
    Ok(serde_json::from_value(json!({
        "metadata": {"name": "naps.tests.example.com"},
        "spec": {
            "group": "tests.example.com", "scope": "Namespaced", "versions": [version],
            "names": {"plural": "naps", "singular": "nap", "kind": "Nap"},
        },
    }))?)
}

async fn follow(nap: Arc<DynamicObject>, operator: Arc<Operator>) -> Result<Action, FinalizerError<kube::Error>> {
    let naps: Api<DynamicObject> = Api::default_namespaced_with(operator.client.clone(), &kind());
    finalizer(&naps, FINALIZER, nap, |turn| async {
        match turn {
            Turn::Apply(nap) => keep(&naps, &nap, &operator).await,
            Turn::Cleanup(nap) => tell(&nap, &operator, "Woken").await,
        }
        .map(|()| Action::await_change())
    })
    .await
}

/// Applies the Deployment and tells how much of it is ready.
async fn keep(naps: &Api<DynamicObject>, nap: &DynamicObject, operator: &Operator) -> Result<(), kube::Error> {
    let name = nap.name_any();
    let labels = json!({"nap": name});
    let container = json!({"name": "nap", "image": operator.image, "command": ["sleep", "100000"]});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "ownerReferences": nap.controller_owner_ref(&kind()).map(|owner| vec![owner])},
        "spec": {
            "replicas": nap.data.pointer("/spec/replicas"), "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
            },
        },
    });
    let deployments: Api<Deployment> = Api::default_namespaced(operator.client.clone());
    let forced = PatchParams::apply("naps").force();
    let kept = deployments.patch(&name, &forced, &Patch::Apply(deployment)).await?;
    let ready = kept.status.and_then(|status| status.ready_replicas).unwrap_or(0);
    let status = json!({"apiVersion": "tests.example.com/v1", "kind": "Nap", "status": {"ready": ready}});
    naps.patch_status(&name, &forced, &Patch::Apply(status)).await?;
    tell(nap, operator, "Kept").await
}

async fn tell(nap: &DynamicObject, operator: &Operator, reason: &str) -> Result<(), kube::Error> {
    let news = News {
        type_: EventType::Normal,
        reason: reason.to_owned(),
        note: None,
        action: "Sleep".to_owned(),
        secondary: None,
    };
    let mut about = nap.object_ref(&kind());
    about.resource_version = None;
    operator.recorder.publish(&news, &about).await
}

/// Runs the operator while its objects are modified.
pub(crate) async fn operate(client: Client, image: String) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &definition()?).await?;
    let established = conditions::is_crd_established();
    await_condition(definitions.clone(), "naps.tests.example.com", established).await?;
    let naps: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind());
    let operator = Operator {
        client: client.clone(),
        recorder: Recorder::new(client.clone(), Reporter::from("tests.example.com/naps".to_owned())),
        image,
    };
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let controller = Controller::new_with(naps.clone(), watcher::Config::default(), kind())
        .owns(deployments.clone(), watcher::Config::default())
        .run(
            follow,
            |_, _, _| Action::requeue(Duration::from_millis(100)),
            Arc::new(operator),
        )
        .for_each(|_outcome| std::future::ready(()));
    tokio::select! {
        () = controller => anyhow::bail!("the operator ended"),
        played = play(&naps, &deployments) => played?,
    }
    let list = ListParams::default().fields("reason=Woken");
    let woken = Api::<Event>::default_namespaced(client).list(&list).await?.items;
    anyhow::ensure!(woken.len() == 1, "{woken:#?}");
    definitions
        .delete("naps.tests.example.com", &DeleteParams::default())
        .await?;
    Ok(())
}

fn has_ready(wanted: i64) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |nap| nap.and_then(|nap| nap.data.pointer("/status/ready")?.as_i64()) == Some(wanted)
}

async fn play(naps: &Api<DynamicObject>, deployments: &Api<Deployment>) -> anyhow::Result<()> {
    let nap = DynamicObject::new("long", &kind()).data(json!({"spec": {}}));
    let made = naps.create(&PostParams::default(), &nap).await?;
    anyhow::ensure!(
        made.data.pointer("/spec/replicas") == Some(&Value::from(1)),
        "no default: {made:?}"
    );
    await_condition(naps.clone(), "long", has_ready(1)).await?;
    let more = |replicas: u32| Patch::Merge(json!({"spec": {"replicas": replicas}}));
    naps.patch("long", &PatchParams::default(), &more(2)).await?;
    let held = await_condition(naps.clone(), "long", has_ready(2)).await?;
    let held = held.context("the object")?;
    anyhow::ensure!(held.finalizers() == [FINALIZER], "{held:?}");
    for (replicas, expected) in [(1, "naps do not shrink"), (4, "should be less than or equal to 3")] {
        let refused = naps.patch("long", &PatchParams::default(), &more(replicas)).await;
        let Err(kube::Error::Api(status)) = &refused else {
            anyhow::bail!("{replicas} is not refused: {refused:?}");
        };
        anyhow::ensure!(status.code == 422 && status.message.contains(expected), "{status:?}");
    }
    naps.delete("long", &DeleteParams::default()).await?;
    let uid = held.uid().context("a uid")?;
    await_condition(naps.clone(), "long", conditions::is_deleted(&uid)).await?;
    while deployments.get_opt("long").await?.is_some() {
        tokio::task::yield_now().await;
    }
    Ok(())
}
