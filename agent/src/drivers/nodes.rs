//! What the API says of the node's drivers: its `CSINode`, and the Node's labels, annotation and
//! volumes in use (`pkg/volume/csi/nodeinfomanager/nodeinfomanager.go`).

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::client::sources::told;
use crate::context::Context;

/// Annotation with the node's ID for each driver.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// Attempts at an update, and the pause after the first one, which grows (`updateBackoff`).
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(10);
/// Pause when the attempts at the `CSINode` have failed.
const RETRY: Duration = Duration::from_secs(10);

/// Creates the node's `CSINode`, even before there is a driver, as a kubelet does.
pub(super) async fn begin(context: &Context) {
    while let Err(why) = retried(|| async { own_csi_node(context).await.map(drop) }).await {
        warn!(why, "the CSINode could not be created; it will be tried again");
        tokio::time::sleep(RETRY).await;
    }
}

/// Records a driver that has registered.
pub(super) async fn install(context: &Context, driver: &str, info: &csi::NodeInfo) -> Result<(), String> {
    if info.node_id.is_empty() {
        return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
    }
    let _turn = context.drivers.lock(NODE_IDS).await;
    let topology = info.accessible_topology.clone().unwrap_or_default().segments;
    let labelled = retried(|| update_node(context, driver, Some(&info.node_id), &topology)).await;
    labelled.map_err(|why| format!("error updating Node object with CSI driver node info: {why}"))?;
    let entry = CSINodeDriver {
        name: driver.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: Some(topology.into_keys().collect()),
        allocatable: (info.max_volumes_per_node > 0).then(|| VolumeNodeResources {
            count: Some(i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX)),
        }),
    };
    let listed = retried(|| update_csi_node(context, driver, Some(&entry))).await;
    listed.map_err(|why| format!("error updating CSINode object with CSI driver node info: {why}"))
}

/// Removes a driver that is gone; its topology labels stay.
pub(super) async fn uninstall(context: &Context, driver: &str) -> Result<(), String> {
    let _turn = context.drivers.lock(NODE_IDS).await;
    let removed = retried(|| update_csi_node(context, driver, None)).await;
    removed.map_err(|why| format!("error uninstalling CSI driver from CSINode object {why}"))?;
    let nothing = BTreeMap::new();
    let removed = retried(|| update_node(context, driver, None, &nothing)).await;
    removed.map_err(|why| format!("error removing CSI driver node info from Node object {why}"))
}

/// Stores the Node's `status.volumesInUse` at once: the attach controller must know of a volume
/// before it is mounted.
pub(super) async fn report_in_use(context: &Context) -> Result<(), String> {
    // A later list is not stored before an earlier one.
    let _turn = context.drivers.lock("status").await;
    let api: Api<Node> = Api::all(context.parts.client.clone());
    let change = Patch::Merge(json!({"status": {"volumesInUse": context.drivers.in_use()}}));
    let name = &context.config.node_name;
    let patched = api.patch_status(name, &PatchParams::default(), &change).await;
    patched.map(drop).map_err(|error| told(&error))
}

async fn retried<F>(attempt: impl Fn() -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), String>>,
{
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS {
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(why) => debug!(why, "an update for a storage driver failed"),
        }
        tokio::time::sleep(pause).await;
        pause *= 5;
    }
    attempt().await
}

async fn update_node(
    context: &Context,
    driver: &str,
    id: Option<&str>,
    topology: &BTreeMap<String, String>,
) -> Result<(), String> {
    let api: Api<Node> = Api::all(context.parts.client.clone());
    let name = &context.config.node_name;
    let node = api.get(name).await.map_err(|error| told(&error))?;
    let Some(change) = node_change(&node, driver, id, topology)? else {
        return Ok(());
    };
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
    patched.map(drop).map_err(|error| told(&error))
}

/// Returns the patch of a Node; `None` if it is up to date.
fn node_change(
    node: &Node,
    driver: &str,
    id: Option<&str>,
    topology: &BTreeMap<String, String>,
) -> Result<Option<Value>, String> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let collision = topology
        .iter()
        .find_map(|(key, value)| Some((key, value, labels.get(key).filter(|known| *known != value)?)));
    if let Some((key, value, known)) = collision {
        return Err(format!(
            "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{known:?}"
        ));
    }
    let annotations = node.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(NODE_IDS)).map_or("", String::as_str);
    let parsed = (!text.is_empty()).then(|| serde_json::from_str(text));
    let parsed: Option<Option<BTreeMap<String, String>>> = parsed
        .transpose()
        .map_err(|error| format!("failed to parse node's {NODE_IDS:?} annotation value ({text:?}) err={error}"))?;
    let old = parsed.flatten().unwrap_or_default();
    let mut ids = old.clone();
    match id {
        Some(id) => drop(ids.insert(driver.to_owned(), id.to_owned())),
        None => drop(ids.remove(driver)),
    }
    if ids == old && topology.keys().all(|key| labels.contains_key(key)) {
        return Ok(None);
    }
    let ids = (!ids.is_empty()).then(|| json!(ids).to_string());
    Ok(Some(
        json!({"metadata": {"labels": topology, "annotations": {NODE_IDS: ids}}}),
    ))
}

/// Sets or removes a driver's entry in the `CSINode`.
async fn update_csi_node(context: &Context, driver: &str, entry: Option<&CSINodeDriver>) -> Result<(), String> {
    let mut known = own_csi_node(context).await?;
    let old = known.spec.drivers.clone();
    if entry.is_some_and(|entry| old.contains(entry)) {
        return Ok(());
    }
    known.spec.drivers.retain(|known| known.name != driver);
    known.spec.drivers.extend(entry.cloned());
    if known.spec.drivers == old {
        return Ok(());
    }
    let api: Api<CSINode> = Api::all(context.parts.client.clone());
    let replaced = api
        .replace(&context.config.node_name, &PostParams::default(), &known)
        .await;
    replaced.map(drop).map_err(|error| told(&error))
}

/// Returns the node's `CSINode`, which is created if there is none; that of an earlier Node of this
/// name is deleted.
async fn own_csi_node(context: &Context) -> Result<CSINode, String> {
    let client = context.parts.client.clone();
    let (api, nodes): (Api<CSINode>, Api<Node>) = (Api::all(client.clone()), Api::all(client));
    let name = &context.config.node_name;
    let node = nodes.get(name).await.map_err(|error| told(&error))?;
    let Some(found) = api.get_opt(name).await.map_err(|error| told(&error))? else {
        let new = csi_node(name, node.metadata.uid.unwrap_or_default());
        let created = api.create(&PostParams::default(), &new).await;
        return created.map_err(|error| told(&error));
    };
    let mut owners = found.metadata.owner_references.iter().flatten();
    if owners.any(|owner| owner.kind == "Node" && Some(&owner.uid) == node.metadata.uid.as_ref()) {
        return Ok(found);
    }
    let deleted = api.delete(name, &DeleteParams::default()).await;
    deleted.map(drop).map_err(|error| told(&error))?;
    Err(format!("CSINode {name:?} was owned by different node, deleted it"))
}

fn csi_node(name: &str, uid: String) -> CSINode {
    CSINode {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.to_owned(),
                uid,
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    #[test]
    fn a_driver_is_told_on_the_node_beside_others() {
        let node: Node = from_value(json!({"metadata": {
            "labels": {"zone": "z"}, "annotations": {NODE_IDS: "{\"a\":\"1\"}"},
        }}))
        .unwrap();
        let zone = |value: &str| BTreeMap::from([("zone".to_owned(), value.to_owned())]);
        let change = |driver: &str, id: Option<&str>, topology: &BTreeMap<String, String>| {
            node_change(&node, driver, id, topology)
        };
        assert_eq!(change("a", Some("1"), &zone("z")), Ok(None));
        let both =
            json!({"metadata": {"labels": {"zone": "z"}, "annotations": {NODE_IDS: "{\"a\":\"1\",\"b\":\"2\"}"}}});
        assert_eq!(change("b", Some("2"), &zone("z")), Ok(Some(both)));
        let cleared = json!({"metadata": {"labels": {}, "annotations": {NODE_IDS: null}}});
        assert_eq!(change("a", None, &BTreeMap::new()), Ok(Some(cleared)));
        let why =
            "detected topology value collision: driver reported \"zone\":\"y\" but existing label is \"zone\":\"z\"";
        assert_eq!(change("a", Some("1"), &zone("y")), Err(why.to_owned()));
    }
}
