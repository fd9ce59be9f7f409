//! `scale` and `log`, and their audit records.

use std::sync::Arc;

use crate::support::{Api, Kept, config_map, deployment, pod};
use axum::body::Body;
use controlplane_server::ops::audit::{Sink, Stage};
use http::{Method, Request};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test]
async fn scale_is_shown_as_a_table() {
    let api = Api::start_at_rest().await;
    api.post(DEPLOYMENTS, &deployment("web")).await;
    let path = format!("{DEPLOYMENTS}/web/scale");
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = api.request(Method::GET, &path, &accept, "").await.json();
    let columns: Vec<&Value> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(columns, ["Name", "Desired", "Available", "Age"]);
    assert_eq!(table["columnDefinitions"][0]["format"], "");
    assert_eq!(table["rows"][0]["cells"], json!(["web", 3, 0, "0s"]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
}

#[tokio::test]
async fn scale_changes_replicas_alone() {
    let api = Api::start().await;
    api.post(DEPLOYMENTS, &deployment("web")).await;
    let path = format!("{DEPLOYMENTS}/web/scale");
    let mut scale = api.get(&path).await.json();
    assert_eq!(
        (
            &scale["kind"],
            &scale["apiVersion"],
            &scale["spec"]["replicas"],
            &scale["status"]["selector"]
        ),
        (&json!("Scale"), &json!("autoscaling/v1"), &json!(3), &json!("app=web"))
    );
    scale["spec"]["replicas"] = json!(5);
    assert_eq!(api.put(&path, &scale).await.json()["spec"]["replicas"], 5);
    let late = api.put(&path, &scale).await;
    assert_eq!(late.code, 409, "{}", late.text());
    let patched = api
        .patch(&path, "merge-patch+json", &json!({"spec": {"replicas": 2}}))
        .await
        .json();
    assert_eq!(patched["spec"]["replicas"], 2);
    let negative = api
        .patch(&path, "merge-patch+json", &json!({"spec": {"replicas": -2}}))
        .await;
    assert_eq!(negative.code, 422);
    assert_eq!(
        negative.message(),
        "Scale.autoscaling \"web\" is invalid: spec.replicas: Invalid value: -2: must be greater than or equal to 0"
    );
    let stored = api.get(&format!("{DEPLOYMENTS}/web")).await.json();
    assert_eq!(
        (&stored["spec"]["replicas"], &stored["metadata"]["generation"]),
        (&json!(2), &json!(3))
    );
}

#[tokio::test]
async fn every_request_is_recorded() {
    let kept = Arc::new(Kept::default());
    let sink: Arc<dyn Sink> = Arc::<Kept>::clone(&kept);
    let api = Api::start_with(|mut options| {
        options.audit = Some(sink);
        options
    })
    .await;
    kept.0.lock().unwrap().clear();
    api.post(&format!("{DEPLOYMENTS}?fieldManager=me"), &deployment("web"))
        .await;
    let mut generated = pod("");
    generated["metadata"] = json!({"generateName": "web-"});
    api.post(PODS, &generated).await;
    api.get(&format!("{PODS}/none")).await;
    api.get("/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=1")
        .await;
    api.post("/api/v1/namespaces/default/configmaps", &config_map("Bad"))
        .await;
    let brief = kept.brief();
    assert_eq!(
        brief,
        [
            "create deployments/web 201 ResponseComplete",
            "create pods/ 201 ResponseComplete",
            "get pods/none 404 ResponseComplete",
            "watch configmaps/ 200 ResponseStarted",
            "watch configmaps/ 200 ResponseComplete",
            "create configmaps/Bad 422 ResponseComplete",
        ]
    );
    let records = kept.0.lock().unwrap();
    assert_eq!(records[3].id, records[4].id, "one request");
    let first = &records[0];
    assert_eq!(first.uri, format!("{DEPLOYMENTS}?fieldManager=me"));
    assert_eq!(
        (first.user.name.as_str(), first.stage),
        ("kubernetes-admin", Stage::ResponseComplete)
    );
    let sent: Value = serde_json::from_slice(first.request_object.as_ref().unwrap()).unwrap();
    assert_eq!(sent["kind"], "Deployment");
    let answered: Value = serde_json::from_slice(records[1].response_object.as_ref().unwrap()).unwrap();
    assert!(answered["metadata"]["name"].as_str().unwrap().starts_with("web-"));
    assert_eq!(records[2].failure.as_ref().unwrap().reason.as_deref(), Some("NotFound"));
    let refusal: Value = serde_json::from_slice(records[2].response_object.as_ref().unwrap()).unwrap();
    assert_eq!(refusal["reason"], "NotFound");
}

#[tokio::test]
async fn a_client_that_goes_away_is_recorded() {
    let kept = Arc::new(Kept::default());
    let sink: Arc<dyn Sink> = kept.clone();
    let api = Api::start_with(|options| controlplane_server::Options {
        audit: Some(sink),
        ..options
    })
    .await;
    let endless = Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
    let request = Request::builder()
        .method("PUT")
        .uri(format!("{PODS}/a"))
        .body(endless)
        .unwrap();
    let sent = api.send(request);
    assert!(
        tokio::time::timeout(std::time::Duration::from_secs(1), sent)
            .await
            .is_err()
    );
    let records = kept.0.lock().unwrap();
    let last = records.last().unwrap();
    assert_eq!((last.verb.as_str(), last.code), ("update", 499));
    assert_eq!(last.object.as_ref().map(|object| object.name.as_str()), Some("a"));
}

#[tokio::test]
async fn ephemeral_containers_can_only_be_added() {
    let api = Api::start().await;
    let debugger = |image: &str| json!({"name": "debugger", "image": image, "targetContainerName": "a"});
    let mut early = pod("early");
    early["spec"]["ephemeralContainers"] = json!([{"name": "debugger", "image": "busybox:1"}]);
    let refused = api.post(PODS, &early).await;
    assert_eq!(
        refused.message(),
        "Pod \"early\" is invalid: spec.ephemeralContainers: Forbidden: cannot be set on create"
    );
    let mut plain = pod("p");
    plain["spec"]["containers"] = json!([{"name": "a", "image": "i:1"}, {"name": "d", "image": "i:1"}]);
    api.post(PODS, &plain).await;
    let path = format!("{PODS}/p/ephemeralcontainers");
    let add = json!({"metadata": {"labels": {"x": "y"}}, "spec": {"ephemeralContainers": [debugger("busybox:1")]}});
    let added = api.patch(&path, "strategic-merge-patch+json", &add).await.json();
    let own = &added["spec"]["ephemeralContainers"][0];
    assert_eq!(own["imagePullPolicy"], "IfNotPresent", "{own}");
    assert_eq!(own["terminationMessagePath"], "/dev/termination-log", "{own}");
    assert_eq!(
        (&added["metadata"]["labels"]["x"], &added["metadata"]["generation"]),
        (&json!(null), &json!(2))
    );
    let mut changed = api.get(&path).await.json();
    changed["spec"]["ephemeralContainers"] = json!([debugger("other:1")]);
    let wanted = "Pod \"p\" is invalid: spec.ephemeralContainers: Forbidden: existing ephemeral containers \"debugger\" may not be ";
    let differs = "changed\n- image: \"busybox:1\"\n+ image: \"other:1\"";
    assert_eq!(api.put(&path, &changed).await.message(), format!("{wanted}{differs}"));
    changed["spec"]["ephemeralContainers"] = json!([]);
    assert_eq!(api.put(&path, &changed).await.message(), format!("{wanted}removed\n"));
    let bad = json!({"spec": {"ephemeralContainers": [
        {"name": "d", "image": "i:1", "ports": [{"containerPort": 1}], "targetContainerName": "nobody"},
    ]}});
    let refused = api.patch(&path, "strategic-merge-patch+json", &bad).await;
    assert_eq!(refused.code, 422);
    for text in [
        "spec.ephemeralContainers[0].name: Duplicate value: \"d\"",
        "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
        "spec.ephemeralContainers[0].targetContainerName: Not found: \"nobody\"",
    ] {
        assert!(refused.message().contains(text), "{}", refused.message());
    }
    let main = api.put(&format!("{PODS}/p"), &changed).await;
    assert!(
        main.message().contains("pod updates may not change fields other than"),
        "{}",
        main.message()
    );
}

#[tokio::test]
async fn processor_and_memory_of_a_pod_can_change() {
    let api = Api::start().await;
    let mut wanted = pod("p");
    let resources =
        |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": "1Gi"}});
    wanted["spec"]["containers"] = json!([
        {"name": "a", "image": "i:1", "resources": resources("100m", "64Mi")},
        {"name": "b", "image": "i:1"},
    ]);
    api.post(PODS, &wanted).await;
    let path = format!("{PODS}/p/resize");
    let change = |containers: Value| json!({"metadata": {"labels": {"x": "y"}}, "spec": {"containers": containers}});
    let larger = change(json!([{"name": "a", "image": "other:1", "resources": resources("200m", "128Mi")}]));
    let changed = api.patch(&path, "strategic-merge-patch+json", &larger).await.json();
    let own = &changed["spec"]["containers"][0];
    assert_eq!(own["resources"], resources("200m", "128Mi"), "{changed}");
    assert_eq!(own["image"], "i:1", "nothing else changes");
    assert_eq!(
        (&changed["metadata"]["labels"]["x"], &changed["metadata"]["generation"]),
        (&json!(null), &json!(2))
    );
    assert_eq!(api.get(&path).await.json()["metadata"]["name"], "p");
    let same = api.patch(&path, "strategic-merge-patch+json", &larger).await.json();
    assert_eq!(same["metadata"]["generation"], 2);
}

#[tokio::test]
async fn nothing_but_processor_and_memory_of_a_pod_can_change() {
    let api = Api::start().await;
    let mut wanted = pod("p");
    let resources =
        |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": "1Gi"}});
    wanted["spec"]["containers"] = json!([
        {"name": "a", "image": "i:1", "resources": resources("200m", "128Mi")},
        {"name": "b", "image": "i:1"},
    ]);
    api.post(PODS, &wanted).await;
    let path = format!("{PODS}/p/resize");
    let merge = |containers: Value| json!({"spec": {"containers": containers}});
    let b = json!({"name": "b", "image": "i:1"});
    for (containers, expected) in [
        (
            json!([{"name": "a", "image": "i:1", "resources": {"requests": {"memory": "1Mi"}, "limits": {"memory": "1Gi"}}}, b]),
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
        ),
        (
            json!([{"name": "a", "image": "i:1", "resources": {"requests": {"cpu": "1", "memory": "1Mi"}}}, b]),
            "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
        ),
        (
            json!([{"name": "a", "image": "i:1", "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "1Gi"}}}, b]),
            "spec.containers[0].resources.requests: Invalid value: \"2Gi\": must be less than or equal to memory limit of 1Gi",
        ),
        (
            json!([{"name": "a", "image": "i:1", "resources": {
                "requests": {"cpu": "1", "memory": "1Mi", "ephemeral-storage": "1Gi"}, "limits": {"memory": "1Gi"}}}, b]),
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
        (
            json!([b, {"name": "a", "image": "i:1"}]),
            "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize, \
             spec.containers[1].name: Forbidden: containers may not be renamed or reordered on resize",
        ),
        (
            json!([b]),
            "spec.containers: Forbidden: containers may not be added or removed on resize",
        ),
    ] {
        let refused = api.patch(&path, "merge-patch+json", &merge(containers)).await;
        assert_eq!(refused.code, 422, "{expected}");
        assert!(refused.message().contains(expected), "{}", refused.message());
    }
    api.post(PODS, &pod("plain")).await;
    let spec =
        json!([{"name": pod("plain")["spec"]["containers"][0]["name"], "resources": {"requests": {"cpu": "1"}}}]);
    let refused = api
        .patch(
            &format!("{PODS}/plain/resize"),
            "strategic-merge-patch+json",
            &merge(spec),
        )
        .await;
    assert_eq!(
        refused.message(),
        "Pod \"plain\" is invalid: spec: Invalid value: \"BestEffort\": Pod QOS Class may not change as a result of resizing"
    );
    let direct = json!({"spec": {"containers": [{"name": "a", "resources": resources("300m", "128Mi")}]}});
    let refused = api
        .patch(&format!("{PODS}/p"), "strategic-merge-patch+json", &direct)
        .await;
    assert!(
        refused.message().contains("pod updates may not change fields"),
        "{}",
        refused.message()
    );
}

#[tokio::test]
async fn init_containers_are_resized_like_others_unless_they_would_restart() {
    let api = Api::start().await;
    let mut wanted = pod("p");
    let resources = json!({"requests": {"cpu": "200m"}});
    wanted["spec"]["initContainers"] = json!([{"name": "i", "image": "i:1", "resources": resources}]);
    api.post(PODS, &wanted).await;
    for (own, expected) in [
        (json!({"resources": {"requests": {"cpu": "300m"}}}), ""),
        (
            json!({"resources": {"requests": {"ephemeral-storage": "1Gi"}}}),
            "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable",
        ),
        (
            json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}),
            "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized",
        ),
    ] {
        let mut own = own;
        own["name"] = json!("i");
        let body = json!({"spec": {"initContainers": [own]}});
        let path = format!("{PODS}/p/resize");
        let answer = api.patch(&path, "strategic-merge-patch+json", &body).await;
        let code = if expected.is_empty() { 200 } else { 422 };
        assert_eq!(answer.code, code, "{expected}");
        assert!(answer.message().contains(expected), "{}", answer.message());
    }
}

#[tokio::test]
async fn a_pod_on_a_node_is_not_given_more_than_the_node_has() {
    let api = Api::start().await;
    let asks = |cpu: &str, memory: &str| {
        let resources = json!({"requests": {"cpu": cpu, "memory": memory}});
        json!({"spec": {"containers": [{"name": "a", "image": "i:1", "resources": resources}]}})
    };
    for (name, node) in [("bound", "n"), ("lost", "none"), ("foreign", "w")] {
        let mut wanted = pod(name);
        wanted["spec"]["containers"] = asks("1", "1Gi")["spec"]["containers"].clone();
        wanted["spec"]["nodeName"] = json!(node);
        api.post(PODS, &wanted).await;
    }
    for (name, system) in [("n", "linux"), ("w", "windows")] {
        let node = json!({"kind": "Node", "apiVersion": "v1",
            "metadata": {"name": name, "labels": {"kubernetes.io/os": system}}});
        api.post("/api/v1/nodes", &node).await;
        let has = json!({"status": {"allocatable": {"cpu": "2", "memory": "4Gi"}}});
        let path = format!("/api/v1/nodes/{name}/status");
        assert_eq!(api.patch(&path, "merge-patch+json", &has).await.code, 200);
    }
    let resize = async |name: &str, cpu: &str, memory: &str| {
        let path = format!("{PODS}/{name}/resize");
        api.patch(&path, "strategic-merge-patch+json", &asks(cpu, memory)).await
    };
    assert_eq!(resize("bound", "2", "4Gi").await.code, 200);
    let begin = "pods \"bound\" is forbidden: node didn't have enough allocatable resources: ";
    for (cpu, memory, end) in [
        ("2001m", "4Gi", "cpu, requested: 2001, allocatable: 2000"),
        (
            "3",
            "5Gi",
            "cpu, requested: 3000, allocatable: 2000; memory, requested: 5368709120, allocatable: 4294967296",
        ),
    ] {
        let refused = resize("bound", cpu, memory).await;
        assert_eq!(refused.code, 403);
        assert_eq!(refused.message(), format!("{begin}{end}"));
        assert_eq!(refused.json()["details"]["causes"], json!([{"reason": "NodeCapacity"}]));
    }
    let initial = json!({"name": "i", "image": "i:1", "resources": {"requests": {"cpu": "1m"}}});
    let mut wanted = pod("initial");
    wanted["spec"]["nodeName"] = json!("n");
    wanted["spec"]["initContainers"] = json!([initial]);
    wanted["spec"]["resources"] = json!({"requests": {"cpu": "1"}});
    api.post(PODS, &wanted).await;
    let more = json!({"spec": {"resources": {"requests": {"cpu": "2"}},
        "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "2m"}}}]}});
    let path = format!("{PODS}/initial/resize");
    let refused = api.patch(&path, "strategic-merge-patch+json", &more).await;
    assert_eq!(
        refused.message(),
        "pods \"initial\" is forbidden: pod update requires features InPlacePodLevelResourcesVerticalScaling, \
         InPlacePodVerticalScalingInitContainers which are not available on node \"n\""
    );
    let refused = resize("lost", "2", "2Gi").await;
    assert_eq!(refused.message(), "pods \"lost\" is forbidden: node \"none\" not found");
    assert_eq!(resize("lost", "1000m", "1024Mi").await.code, 200, "nothing changes");
    let refused = resize("foreign", "2", "2Gi").await;
    assert_eq!(
        refused.message(),
        "pods \"foreign\" is forbidden: pod resize is only supported on linux nodes, node \"w\" is \"windows\""
    );
    assert_eq!(
        refused.json()["details"]["causes"],
        json!([{"reason": "UnsupportedPlatform"}])
    );
}

#[tokio::test]
async fn nothing_but_processor_and_memory_of_a_whole_pod_can_change() {
    let api = Api::start().await;
    let mut whole = pod("whole");
    whole["spec"]["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    api.post(PODS, &whole).await;
    let path = format!("{PODS}/whole/resize");
    let give = |resources: Value| json!({"spec": {"resources": resources}});
    let larger = give(json!({"limits": {"cpu": "3"}}));
    let given = api.patch(&path, "strategic-merge-patch+json", &larger).await.json();
    assert_eq!(given["spec"]["resources"]["limits"]["cpu"], "3", "{given}");
    for (resources, expected) in [
        (
            json!({"limits": {"memory": null}}),
            "spec.resources.limits: Forbidden: resource limits cannot be removed",
        ),
        (
            json!({"limits": {"hugepages-2Mi": "2Mi"}}),
            "spec.resources: Forbidden: only cpu and memory resources are mutable",
        ),
    ] {
        let refused = api.patch(&path, "merge-patch+json", &give(resources)).await;
        assert!(refused.message().contains(expected), "{}", refused.message());
    }
}

#[tokio::test]
async fn a_request_is_recorded_under_its_own_name_and_way() {
    let kept = Arc::new(Kept::default());
    let sink: Arc<dyn Sink> = Arc::<Kept>::clone(&kept);
    let api = Api::start_with(|mut options| {
        options.audit = Some(sink);
        options
    })
    .await;
    let headers = [("audit-id", "mine"), ("x-forwarded-for", "9.9.9.9, fd00::1")];
    let answer = api.request(Method::GET, PODS, &headers, "").await;
    assert_eq!(answer.headers["audit-id"], "mine");
    let records = kept.0.lock().unwrap();
    let last = records.last().unwrap();
    let sources: Vec<String> = last.sources.iter().map(ToString::to_string).collect();
    assert_eq!(
        (last.id.as_str(), sources.join(" ").as_str()),
        ("mine", "9.9.9.9 fd00::1")
    );
}
