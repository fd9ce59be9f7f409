//! Events of a pod with missing objects.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::{ConfigMap, World, is_ready};

#[tokio::test(start_paused = true)]
async fn each_volume_that_cannot_be_made_is_told_with_its_cause() {
    let world = World::start().await;
    let file = world.directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let file = file.display().to_string();
    let map: ConfigMap = serde_json::from_str(r#"{"metadata":{"name":"map"},"data":{"k":"v"}}"#).unwrap();
    let api: Api<ConfigMap> = Api::default_namespaced(world.admin());
    api.create(&PostParams::default(), &map).await.unwrap();
    let volumes = format!(
        r#"[
            {{"name":"empty","emptyDir":{{}}}},
            {{"name":"map","configMap":{{"name":"nomap"}}}},
            {{"name":"secret","secret":{{"secretName":"nosecret"}}}},
            {{"name":"key","configMap":{{"name":"map","items":[{{"key":"nokey","path":"p"}}]}}}},
            {{"name":"all","projected":{{"sources":[{{"configMap":{{"name":"nomap"}}}},{{"secret":{{"name":"nosecret"}}}}]}}}},
            {{"name":"folder","hostPath":{{"path":"{file}","type":"Directory"}}}},
            {{"name":"socket","hostPath":{{"path":"{file}","type":"Socket"}}}},
            {{"name":"below","hostPath":{{"path":"{file}/x","type":"DirectoryOrCreate"}}}}
        ]"#
    );
    let spec = format!(r#"{{"volumes":{volumes},"containers":[{{"name":"a","image":"i"}}]}}"#);
    world.create("web", &spec).await;
    world
        .until("web", |pod| {
            pod.status.as_ref().is_some_and(|status| status.start_time.is_some())
        })
        .await;
    let events = world.events("web").await;
    for (volume, cause) in [
        ("map", "configmap \"nomap\" not found".to_owned()),
        ("secret", "secret \"nosecret\" not found".to_owned()),
        ("key", "configmap references non-existent config key: nokey".to_owned()),
        (
            "all",
            "[configmap \"nomap\" not found, secret \"nosecret\" not found]".to_owned(),
        ),
        (
            "folder",
            format!("hostPath type check failed: {file} is not a directory"),
        ),
        (
            "socket",
            format!("hostPath type check failed: {file} is not a socket file"),
        ),
        ("below", format!("create {file}/x: Not a directory (os error 20)")),
    ] {
        let wanted = format!("FailedMount: MountVolume.SetUp failed for volume \"{volume}\" : {cause}");
        assert!(events.contains(&wanted), "{wanted}: {events:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_of_a_running_pod_that_cannot_be_updated_are_told() {
    let world = World::start().await;
    let map: ConfigMap = serde_json::from_str(r#"{"metadata":{"name":"map"},"data":{"k":"v"}}"#).unwrap();
    let api: Api<ConfigMap> = Api::default_namespaced(world.admin());
    api.create(&PostParams::default(), &map).await.unwrap();
    let spec = r#"{"volumes":[{"name":"v","configMap":{"name":"map"}}],"containers":[{"name":"a","image":"i"}]}"#;
    world.create("web", spec).await;
    world.until("web", is_ready).await;
    api.delete("map", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(25)).await;
    let events = world.events("web").await;
    let wanted = "FailedMount: MountVolume.SetUp failed for volume \"v\" : configmap \"map\" not found";
    assert!(events.iter().any(|event| event == wanted), "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn name_servers_that_are_left_out_are_told() {
    let world = World::start().await;
    let spec =
        r#"{"dnsConfig":{"nameservers":["1.1.1.1","2.2.2.2","3.3.3.3"]},"containers":[{"name":"a","image":"i"}]}"#;
    world.create("web", spec).await;
    let pod = world.until("web", is_ready).await;
    let events = world.events("web").await;
    let wanted = "DNSConfigForming: Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line \
                  is: 10.96.0.10 1.1.1.1 2.2.2.2";
    assert!(events.iter().any(|event| event == wanted), "{events:?}");
    let path = format!("pods/{}/etc/resolv.conf", pod.metadata.uid.unwrap());
    let text = std::fs::read_to_string(world.directory.path().join(path)).unwrap();
    let servers = "nameserver 10.96.0.10\nnameserver 1.1.1.1\nnameserver 2.2.2.2\noptions";
    assert!(text.contains(servers), "{text}");
}

#[tokio::test(start_paused = true)]
async fn pull_secrets_that_are_missing_are_told_at_once_also_where_nothing_is_pulled() {
    let world = World::start().await;
    let spec = r#"{"imagePullSecrets":[{"name":"one"},{"name":"two"}],"containers":[{"name":"a","image":"i"}]}"#;
    world.create("web", spec).await;
    world.until("web", is_ready).await;
    let events = world.events("web").await;
    let told: Vec<&String> = events
        .iter()
        .filter(|event| event.starts_with("FailedToRetrieve"))
        .collect();
    assert_eq!(
        told,
        [
            "FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (one, two); attempting to pull the image \
          may not succeed."
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_tells_when_new_pods_are_kept_away() {
    let world = World::start().await;
    let api: Api<Node> = Api::all(world.admin());
    for (wanted, reason) in [(true, "NodeNotSchedulable"), (false, "NodeSchedulable")] {
        let change = Patch::Merge(json!({"spec": {"unschedulable": wanted}}));
        api.patch("n1", &PatchParams::default(), &change).await.unwrap();
        tokio::time::sleep(Duration::from_secs(25)).await;
        let events = world.events("n1").await;
        let wanted = format!("{reason}: Node n1 status is now: {reason}");
        assert_eq!(
            events.iter().filter(|event| **event == wanted).count(),
            1,
            "{events:#?}"
        );
    }
}

/// A restarted agent on a node with a pod CIDR never reports that it has none: all its pods would
/// become unready.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_ready_stays_so_while_its_agent_begins_anew() {
    use futures::StreamExt as _;
    use kube::api::{WatchEvent, WatchParams};

    let mut world = World::start().await;
    let nodes = Api::<Node>::all(world.admin());
    world.stop_agent().await;
    let seen = nodes.get("n1").await.unwrap().metadata.resource_version.unwrap();
    world.ranges = "";
    world.start_agent().await;
    let parameters = WatchParams::default().timeout(5);
    let mut changes = Box::pin(nodes.watch(&parameters, &seen).await.unwrap());
    let mut ready = Vec::new();
    while let Some(Ok(change)) = changes.next().await {
        let WatchEvent::Modified(node) = change else { continue };
        let conditions = node.status.unwrap().conditions.unwrap();
        let own = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        ready.push(own.unwrap().status);
    }
    assert!(ready.iter().all(|status| status == "True"), "{ready:?}");
}
