//! OpenAPI documents: the parts that stock clients use.

use controlplane_api::schema::{Form, Schema};
use controlplane_api::{KINDS, openapi};
use serde_json::{Value, json};

fn document(path: &str) -> Value {
    openapi::v3_document(KINDS, path).expect("the group version is served")
}

/// Index of the built-in kinds.
fn index() -> Value {
    let hashes: Vec<_> = openapi::documents(KINDS)
        .into_iter()
        .map(|path| (openapi::hash(KINDS, &path), path))
        .collect();
    openapi::v3_index(hashes.iter().map(|(hash, path)| (path.as_str(), hash.as_str())))
}

#[test]
fn the_index_names_every_document_with_a_hash() {
    let index = index();
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap();
    assert!(url.starts_with("/openapi/v3/apis/apps/v1?hash="), "{url}");
    assert!(index["paths"]["api/v1"].is_object());
    assert_ne!(openapi::hash(KINDS, "api/v1"), openapi::hash(KINDS, "apis/apps/v1"));
    assert_eq!(openapi::v3_document(KINDS, "apis/nowhere/v1"), None);
}

#[test]
fn every_reference_leads_somewhere() {
    for path in openapi::documents(KINDS) {
        let document = document(&path);
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(!references.is_empty());
        for reference in references {
            let name = reference
                .strip_prefix("#/components/schemas/")
                .unwrap_or_else(|| panic!("{reference}"));
            assert!(
                document["components"]["schemas"][name].is_object(),
                "{path}: {name} is missing"
            );
        }
    }
}

fn collect<'v>(value: &'v Value, references: &mut Vec<&'v str>) {
    match value {
        Value::Object(members) => {
            references.extend(members.get("$ref").and_then(Value::as_str));
            members.values().for_each(|member| collect(member, references));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_kind_is_marked_and_can_be_created_with_field_validation() {
    for row in KINDS {
        let path = if row.group.is_empty() {
            "api/v1".to_owned()
        } else {
            format!("apis/{}/{}", row.group, row.version)
        };
        let document = document(&path);
        let mark = json!({"group": row.group, "version": row.version, "kind": row.kind});
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let marked = schemas.values().filter(|schema| {
            schema["x-kubernetes-group-version-kind"]
                .as_array()
                .is_some_and(|kinds| kinds.contains(&mark))
        });
        assert_eq!(marked.count(), 1, "{}", row.kind);
        let items = document["paths"].as_object().unwrap().values();
        let create = items
            .filter(|item| item["post"]["x-kubernetes-group-version-kind"] == mark)
            .collect::<Vec<_>>();
        assert_eq!(create.is_empty(), row.verbs.only_read(), "{}", row.kind);
        for item in create {
            // Parameters that all operations of a path share belong to the path.
            let all = [&item["post"]["parameters"], &item["parameters"]];
            let all = all.into_iter().filter_map(Value::as_array).flatten();
            let names: Vec<_> = all.filter_map(|parameter| parameter["name"].as_str()).collect();
            for name in ["dryRun", "fieldManager", "fieldValidation", "pretty"] {
                assert!(names.contains(&name), "{} {name}", row.kind);
            }
        }
    }
}

#[test]
fn patches_say_what_they_take() {
    let document = document("apis/apps/v1");
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(patch["operationId"], "patchAppsV1NamespacedDeployment");
    let types: Vec<_> = patch["requestBody"]["content"].as_object().unwrap().keys().collect();
    assert_eq!(
        types,
        [
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json"
        ]
    );
    let scale = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]["get"];
    assert_eq!(scale["operationId"], "readAppsV1NamespacedDeploymentScale");
    assert_eq!(
        scale["x-kubernetes-group-version-kind"],
        json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})
    );
}

#[test]
fn defaults_and_values_are_upstreams() {
    let document = document("api/v1");
    let schemas = &document["components"]["schemas"];
    let property =
        |message: &str, field: &str| schemas[format!("io.k8s.api.core.v1.{message}")]["properties"][field].clone();
    assert_eq!(property("Container", "name")["default"], "");
    assert_eq!(property("Container", "image")["default"], json!(null));
    assert_eq!(property("ContainerPort", "containerPort")["default"], 0);
    assert_eq!(property("ContainerPort", "protocol")["default"], "TCP");
    assert_eq!(property("Pod", "spec")["default"], json!({}));
    assert_eq!(property("Container", "securityContext")["default"], json!(null));
    assert_eq!(property("ContainerStatus", "state")["default"], json!({}));
    assert_eq!(property("Event", "reportingInstance")["default"], "");
    assert_eq!(property("FileKeySelector", "optional")["default"], false);
    assert_eq!(property("ImageVolumeStatus", "imageRef").get("default"), None);
    assert_eq!(property("RBDVolumeSource", "pool")["default"], "rbd");
    assert_eq!(property("ReplicationControllerSpec", "replicas")["default"], 1);
    assert_eq!(property("ScaleIOVolumeSource", "secretRef").get("default"), None);
    assert_eq!(
        property("WeightedPodAffinityTerm", "podAffinityTerm")["default"],
        json!({})
    );
    assert_eq!(property("Container", "args")["items"], json!({"type": "string"}));
    assert_eq!(
        property("PodSpec", "containers")["items"],
        json!({"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"})
    );
    let policy = property("PodSpec", "restartPolicy");
    assert_eq!(policy["enum"], json!(["Always", "Never", "OnFailure"]));
    let description = policy["description"].as_str().unwrap();
    assert!(description.ends_with("\n\nPossible enum values:\n - `\"Always\"`\n - `\"Never\"`\n - `\"OnFailure\"`"));
    let policy = property("Container", "imagePullPolicy");
    let description = policy["description"].as_str().unwrap();
    assert!(description.contains("\n - `\"Always\"` means that kubelet always attempts to pull the latest image."));
    let families = property("ServiceSpec", "ipFamilies");
    assert_eq!(families["items"]["enum"], json!(["", "IPv4", "IPv6"]));
    assert_eq!(families.get("enum"), None);
    assert!(!families["description"].as_str().unwrap().contains("enum"));
    let resizes = property("PersistentVolumeClaimStatus", "allocatedResourceStatuses");
    assert_eq!(resizes["additionalProperties"]["enum"][4], "NodeResizePending");
    assert_eq!(property("PodSecurityContext", "seLinuxChangePolicy").get("enum"), None);
}

#[test]
fn every_enumeration_belongs_to_a_field() {
    let text = include_str!("../schema/enums.txt");
    let names = text.lines().filter_map(|line| line.strip_prefix("# "));
    for name in names {
        let (message, field) = name.rsplit_once('.').unwrap();
        let schema = Schema::named(message).unwrap_or_else(|| panic!("{message}"));
        let field = schema.field(field).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(field.form, Form::String, "{name}");
    }
    let values = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in values.filter(|line| *line != "Possible enum values:") {
        assert!(line.starts_with(" - `\""), "{line}");
    }
}

#[test]
fn every_default_belongs_to_a_field() {
    let text = include_str!("../schema/defaults.txt");
    assert!(text.lines().is_sorted());
    for line in text.lines() {
        let (name, default) = line.split_once(' ').unwrap();
        let (message, field) = name.rsplit_once('.').unwrap();
        let schema = Schema::named(message).unwrap_or_else(|| panic!("{message}"));
        assert!(schema.field(field).is_some(), "{name}");
        assert!(serde_json::from_str::<Value>(default).is_ok(), "{line}");
    }
}

#[test]
fn patch_keys_and_special_types_are_upstreams() {
    let document = document("api/v1");
    let schemas = &document["components"]["schemas"];
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    let volumes = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"];
    assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
    let owners = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]["ownerReferences"];
    assert_eq!(owners["x-kubernetes-patch-merge-key"], "uid");
    let spec = &schemas["io.k8s.api.core.v1.Pod"]["properties"]["spec"];
    assert_eq!(
        spec["allOf"],
        json!([{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}])
    );
    assert!(spec["description"].is_string());
    assert_eq!(
        schemas["io.k8s.api.core.v1.SeccompProfile"]["x-kubernetes-unions"],
        json!([{"discriminator": "type", "fields-to-discriminateBy": {"localhostProfile": "LocalhostProfile"}}])
    );
    let quantity = &schemas["io.k8s.apimachinery.pkg.api.resource.Quantity"];
    assert_eq!(quantity["oneOf"], json!([{"type": "string"}, {"type": "number"}]));
    let either = &schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"];
    assert_eq!(either["format"], "int-or-string");
    assert_eq!(either["oneOf"], json!([{"type": "integer"}, {"type": "string"}]));
    assert_eq!(
        schemas["io.k8s.apimachinery.pkg.apis.meta.v1.Time"]["format"],
        "date-time"
    );
}

#[test]
fn groups_and_the_version_have_documents() {
    let index = index();
    for (path, url, id, definition) in [
        ("api", "/api/", "getCoreAPIVersions", "apis.meta.v1.APIVersions"),
        ("apis", "/apis/", "getAPIVersions", "apis.meta.v1.APIGroupList"),
        ("apis/apps", "/apis/apps/", "getAppsAPIGroup", "apis.meta.v1.APIGroup"),
        (
            "apis/rbac.authorization.k8s.io",
            "/apis/rbac.authorization.k8s.io/",
            "getRbacAuthorizationAPIGroup",
            "apis.meta.v1.APIGroup",
        ),
        ("version", "/version/", "getCodeVersion", "version.Info"),
    ] {
        assert!(index["paths"][path].is_object(), "{path}");
        let document = document(path);
        let operation = &document["paths"][url]["get"];
        assert_eq!(operation["operationId"], id);
        let reference = &operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
        let name = format!("io.k8s.apimachinery.pkg.{definition}");
        assert_eq!(*reference, format!("#/components/schemas/{name}"));
        let schema = &document["components"]["schemas"][&name];
        let kind = definition.strip_prefix("apis.meta.v1.");
        let mark = kind.map(|kind| json!([{"group": "", "version": "v1", "kind": kind}]));
        assert_eq!(schema.get("x-kubernetes-group-version-kind"), mark.as_ref(), "{name}");
    }
    let schemas = &document("apis/apps")["components"]["schemas"];
    let group = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"];
    assert_eq!(group["required"], json!(["name", "versions"]));
    assert_eq!(group["properties"]["versions"]["x-kubernetes-list-type"], "atomic");
    assert_eq!(group["properties"]["name"]["default"], "");
    let version = &document("version")["components"]["schemas"]["io.k8s.apimachinery.pkg.version.Info"];
    assert_eq!(version["properties"]["gitVersion"]["default"], "");
    assert_eq!(version["properties"]["emulationMajor"].get("default"), None);
}

#[test]
fn watches_and_lists_are_described() {
    let schemas = &document("apis/apps/v1")["components"]["schemas"];
    let event = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"];
    assert_eq!(
        event["description"],
        "Event represents a single event to a watched resource."
    );
    let object = &event["properties"]["object"];
    assert!(
        object["description"]
            .as_str()
            .unwrap()
            .starts_with("Object is:\n * If Type is Added")
    );
    assert_eq!(
        object["allOf"],
        json!([{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.runtime.RawExtension"}])
    );
    let kinds = &event["x-kubernetes-group-version-kind"];
    assert!(
        kinds
            .as_array()
            .unwrap()
            .contains(&json!({"group": "apps", "version": "v1", "kind": "WatchEvent"}))
    );
    let (list, one) = (
        &schemas["io.k8s.api.apps.v1.DeploymentList"],
        &schemas["io.k8s.api.apps.v1.Deployment"],
    );
    let definitions = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionList";
    assert_eq!(
        document("apis/apiextensions.k8s.io/v1")["components"]["schemas"][definitions]["description"],
        "CustomResourceDefinitionList is a list of CustomResourceDefinition objects."
    );
    for field in ["apiVersion", "kind"] {
        assert_eq!(list["properties"][field], one["properties"][field]);
    }
    let embedded = &schemas["io.k8s.api.core.v1.PersistentVolumeClaim"];
    assert_eq!(embedded.get("required"), None);
    assert_eq!(
        embedded["x-kubernetes-group-version-kind"],
        json!([{"group": "", "version": "v1", "kind": "PersistentVolumeClaim"}])
    );
}

/// A name may be empty where Go has no pointer, for older clients.
#[test]
fn what_is_required_is_what_upstream_requires() {
    let schemas = &document("api/v1")["components"]["schemas"];
    let required = |name: &str| schemas[format!("io.k8s.api.core.v1.{name}")].get("required").cloned();
    for name in [
        "ConfigMapEnvSource",
        "ConfigMapProjection",
        "ConfigMapVolumeSource",
        "LocalObjectReference",
        "SecretEnvSource",
        "SecretProjection",
    ] {
        assert_eq!(required(name), None, "{name}");
    }
    assert_eq!(required("SecretKeySelector"), Some(json!(["key"])));
    assert_eq!(required("Event"), Some(json!(["metadata", "involvedObject"])));
}
