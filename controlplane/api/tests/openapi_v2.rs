//! The v2 document in its two forms: the parts that old clients use.

use controlplane_api::{KINDS, openapi};
use prost::Message;
use serde_json::{Value, json};

fn document() -> Value {
    let mut bytes = Vec::new();
    openapi::v2_json(KINDS, &[], Vec::new(), &mut bytes).expect("memory takes everything");
    serde_json::from_slice(&bytes).expect("the document is JSON")
}

fn references<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str));
            members.values().for_each(|member| references(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn the_whole_api_is_in_one_document() {
    let document = document();
    assert_eq!(document["swagger"], "2.0");
    let mut found = Vec::new();
    references(&document, &mut found);
    for reference in found {
        let place = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference}"));
        assert!(
            document.pointer(place).is_some_and(Value::is_object),
            "{reference} is missing"
        );
    }
    for path in openapi::documents(KINDS) {
        let v3 = openapi::v3_document(KINDS, &path).expect("the group version is served");
        for (path, item) in v3["paths"].as_object().expect("paths are a map") {
            for (method, operation) in item.as_object().expect("a path has operations") {
                let ours = &document["paths"][path][method];
                assert_eq!(ours["operationId"], operation["operationId"], "{path} {method}");
            }
        }
    }
    let mut document = document;
    // Schemas of kinds have members of these names.
    let schemas = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    document["definitions"][schemas].take();
    let text = document.to_string();
    for newer in [
        "\"allOf\"",
        "\"oneOf\"",
        "\"anyOf\"",
        "\"requestBody\"",
        "\"content\"",
        "#/components",
    ] {
        assert!(!text.contains(newer), "{newer} is v3's");
    }
}

#[test]
fn what_stands_above_the_groups_is_there() {
    let document = document();
    for (path, id) in [
        ("/api/", "getCoreAPIVersions"),
        ("/apis/", "getAPIVersions"),
        ("/apis/apps/", "getAppsAPIGroup"),
        ("/version/", "getCodeVersion"),
    ] {
        assert_eq!(document["paths"][path]["get"]["operationId"], id);
    }
    for name in [
        "apis.meta.v1.APIGroup",
        "apis.meta.v1.APIGroupList",
        "apis.meta.v1.APIResource",
        "apis.meta.v1.APIResourceList",
        "apis.meta.v1.APIVersions",
        "apis.meta.v1.GroupVersionForDiscovery",
        "apis.meta.v1.ServerAddressByClientCIDR",
        "apis.meta.v1.WatchEvent",
        "version.Info",
    ] {
        let name = format!("io.k8s.apimachinery.pkg.{name}");
        assert!(document["definitions"][&name].is_object(), "{name}");
    }
    let event = &document["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"];
    let kinds = event["x-kubernetes-group-version-kind"].as_array().expect("kinds");
    assert!(kinds.contains(&json!({"group": "batch", "version": "v1", "kind": "WatchEvent"})));
}

#[test]
fn parameters_stand_there_once_under_upstreams_names() {
    let document = document();
    let pods = &document["paths"]["/api/v1/namespaces/{namespace}/pods"];
    let names = |parameters: &Value| -> Vec<String> {
        let all = parameters.as_array().expect("parameters are a list").iter();
        let name = |one: &Value| {
            one["$ref"]
                .as_str()
                .or(one["name"].as_str())
                .unwrap_or_default()
                .to_owned()
        };
        all.map(name).map(|name| name.replace("#/parameters/", "")).collect()
    };
    assert_eq!(
        names(&pods["get"]["parameters"]),
        [
            "allowWatchBookmarks-HC2hJt-J",
            "continue-QfD61s0i",
            "fieldSelector-xIcQKXFG",
            "labelSelector-5Zw57w4C",
            "limit-1NfNmdNH",
            "resourceVersion-5WAnf1kx",
            "resourceVersionMatch-t8XhRHeC",
            "sendInitialEvents-rLXlEK_k",
            "shardSelector-Kgyki_3_",
            "timeoutSeconds-yvYezaOC",
            "watch-XNNPZGbK"
        ]
    );
    assert_eq!(names(&pods["parameters"]), ["namespace-vgWSWtn3", "pretty-tJGM1-ng"]);
    // Old kubectls look for two of them in the operation itself.
    let write = ["body", "dryRun", "fieldManager-Qy4HdaTW", "fieldValidation"];
    assert_eq!(names(&pods["post"]["parameters"]), write);
    // Parameters of a path's only operation belong to the path.
    let watch = &document["paths"]["/api/v1/watch/namespaces/{namespace}/pods/{name}"];
    assert_eq!(watch["get"]["operationId"], "watchCoreV1NamespacedPod");
    assert_eq!(
        watch["get"]["description"],
        "watch changes to an object of kind Pod. deprecated: use the 'watch' parameter with a list operation instead, \
         filtered to a single item with the 'fieldSelector' parameter."
    );
    assert_eq!(watch["get"]["parameters"], Value::Null);
    assert_eq!(names(&watch["parameters"]).len(), 14);
    let all = &document["paths"]["/api/v1/watch/pods"]["get"];
    assert_eq!(all["operationId"], "watchCoreV1PodListForAllNamespaces");
}

#[test]
fn operations_have_the_older_form() {
    let document = document();
    let item = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"];
    let patch = &item["patch"];
    assert_eq!(
        patch["consumes"],
        json!([
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml"
        ])
    );
    assert_eq!(
        patch["produces"],
        json!([
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf"
        ])
    );
    assert_eq!(patch["parameters"][0], json!({"$ref": "#/parameters/body-78PwaGsr"}));
    assert_eq!(patch["parameters"][1]["name"], "dryRun");
    assert_eq!(patch["parameters"][1]["type"], "string");
    assert_eq!(
        patch["responses"]["200"]["schema"],
        json!({"$ref": "#/definitions/io.k8s.api.apps.v1.Deployment"})
    );
    assert_eq!(item["parameters"][0]["name"], "name");
    assert_eq!(item["parameters"][0]["type"], "string");
    let pod = &document["definitions"]["io.k8s.api.core.v1.Pod"]["properties"]["spec"];
    assert_eq!(pod["$ref"], "#/definitions/io.k8s.api.core.v1.PodSpec");
    let either = &document["definitions"]["io.k8s.apimachinery.pkg.util.intstr.IntOrString"];
    assert_eq!(
        (&either["type"], &either["format"]),
        (&json!("string"), &json!("int-or-string"))
    );
    let options = &document["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"];
    let kinds = options["x-kubernetes-group-version-kind"].as_array().expect("kinds");
    assert!(kinds.contains(&json!({"group": "apps", "version": "v1", "kind": "DeleteOptions"})));
}

/// Parts of gnostic's messages, as far as kubectl reads them.
mod gnostic {
    macro_rules! message {
        ($name:ident { $($field:ident: $kind:ty = $tag:literal $($form:ident)+;)* }) => {
            #[derive(Clone, PartialEq, prost::Message)]
            pub(super) struct $name { $(#[prost($($form,)+ tag = $tag)] pub(super) $field: $kind,)* }
        };
    }
    message!(Document {
        swagger: String = "1" string;
        paths: Option<Paths> = "8" message optional;
        definitions: Option<Definitions> = "9" message optional;
        parameters: Option<Parameters> = "10" message optional;
    });
    message!(Parameters { additional_properties: Vec<NamedParameter> = "1" message repeated; });
    message!(NamedParameter { name: String = "1" string; value: Option<Parameter> = "2" message optional; });
    message!(Paths { path: Vec<NamedPathItem> = "2" message repeated; });
    message!(NamedPathItem { name: String = "1" string; value: Option<PathItem> = "2" message optional; });
    message!(PathItem {
        patch: Option<Operation> = "8" message optional;
        parameters: Vec<ParametersItem> = "9" message repeated;
    });
    message!(Operation {
        id: String = "5" string;
        parameters: Vec<ParametersItem> = "8" message repeated;
        vendor_extension: Vec<NamedAny> = "13" message repeated;
    });
    message!(ParametersItem {
        parameter: Option<Parameter> = "1" message optional;
        reference: Option<Reference> = "2" message optional;
    });
    message!(Reference { to: String = "1" string; });
    message!(Parameter {
        body: Option<BodyParameter> = "1" message optional;
        non_body: Option<NonBodyParameter> = "2" message optional;
    });
    message!(BodyParameter { schema: Option<Schema> = "5" message optional; });
    message!(NonBodyParameter {
        query: Option<QueryParameter> = "3" message optional;
        path: Option<PathParameter> = "4" message optional;
    });
    message!(QueryParameter { name: String = "4" string; kind: String = "6" string; });
    message!(PathParameter { name: String = "4" string; kind: String = "5" string; });
    message!(NamedAny { name: String = "1" string; value: Option<Any> = "2" message optional; });
    message!(Any { yaml: String = "2" string; });
    message!(Definitions { additional_properties: Vec<NamedSchema> = "1" message repeated; });
    message!(Properties { additional_properties: Vec<NamedSchema> = "1" message repeated; });
    message!(NamedSchema { name: String = "1" string; value: Option<Schema> = "2" message optional; });
    message!(Schema {
        reference: String = "1" string;
        description: String = "4" string;
        required: Vec<String> = "19" string repeated;
        kind: Option<TypeItem> = "22" message optional;
        items: Option<ItemsItem> = "23" message optional;
        properties: Option<Properties> = "25" message optional;
        vendor_extension: Vec<NamedAny> = "31" message repeated;
    });
    message!(TypeItem { value: Vec<String> = "1" string repeated; });
    message!(ItemsItem { schema: Vec<Schema> = "1" message repeated; });
}

/// The value of an extension.
fn extension(all: &[gnostic::NamedAny], name: &str) -> Value {
    let named = all
        .iter()
        .find(|entry| entry.name == name)
        .expect("the extension is there");
    let yaml = &named.value.as_ref().expect("it has a value").yaml;
    serde_yaml::from_str(yaml).expect("it is YAML")
}

fn decoded() -> gnostic::Document {
    let mut bytes = Vec::new();
    openapi::v2_protobuf(KINDS, &[], Vec::new(), &mut bytes).expect("memory takes everything");
    gnostic::Document::decode(&bytes[..]).expect("the document is gnostic's")
}

#[test]
fn an_independent_decoder_reads_the_paths() {
    let read = decoded();
    assert_eq!(read.swagger, "2.0");
    let paths = read.paths.expect("there are paths").path;
    assert_eq!(paths.len(), document()["paths"].as_object().expect("paths").len());
    let wanted = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}";
    let item = paths.iter().find(|item| item.name == wanted).expect("deployments");
    let item = item.value.as_ref().expect("a path has operations");
    let first = item.parameters[0]
        .parameter
        .as_ref()
        .and_then(|one| one.non_body.as_ref());
    let first = first
        .and_then(|one| one.path.as_ref())
        .expect("the first is of the path");
    assert_eq!((first.name.as_str(), first.kind.as_str()), ("name", "string"));
    let patch = item.patch.as_ref().expect("deployments are patched");
    assert_eq!(patch.id, "patchAppsV1NamespacedDeployment");
    assert_eq!(
        extension(&patch.vendor_extension, "x-kubernetes-group-version-kind"),
        json!({"group": "apps", "version": "v1", "kind": "Deployment"})
    );
    let mut all = patch.parameters.iter().filter_map(|one| one.parameter.as_ref());
    let names: Vec<_> = all
        .clone()
        .filter_map(|one| Some(one.non_body.as_ref()?.query.as_ref()?.name.as_str()))
        .collect();
    assert_eq!(names, ["dryRun", "fieldValidation"]);
    assert!(
        all.all(|one| one.body.is_none()),
        "a patch's body is none of the kind's own"
    );
    let shared = read.parameters.expect("there are parameters").additional_properties;
    let references: Vec<_> = patch
        .parameters
        .iter()
        .filter_map(|one| one.reference.as_ref())
        .collect();
    let shared: Vec<_> = references
        .iter()
        .filter_map(|one| {
            shared
                .iter()
                .find(|named| format!("#/parameters/{}", named.name) == one.to)
        })
        .filter_map(|named| named.value.as_ref())
        .collect();
    assert_eq!((references.len(), shared.len()), (3, 3));
    let body = shared
        .iter()
        .find_map(|one| one.body.as_ref())
        .expect("a patch has a body");
    let schema = body.schema.as_ref().expect("a schema");
    assert!(schema.reference.starts_with("#/definitions/"));
}

#[test]
fn an_independent_decoder_reads_the_definitions() {
    let definitions = decoded().definitions.expect("definitions").additional_properties;
    assert_eq!(
        definitions.len(),
        document()["definitions"].as_object().expect("definitions").len()
    );
    let definition = |name: &str| {
        let found = definitions.iter().find(|named| named.name == name);
        let found = found.expect("the definition is there");
        found.value.clone().expect("it has a value")
    };
    let pod = definition("io.k8s.api.core.v1.PodSpec");
    let properties = pod.properties.expect("it has properties").additional_properties;
    let containers = properties
        .iter()
        .find(|one| one.name == "containers")
        .expect("containers");
    let containers = containers.value.as_ref().expect("a schema");
    assert_eq!(containers.kind.as_ref().expect("a type").value, ["array"]);
    assert_eq!(
        containers.items.as_ref().expect("items").schema[0].reference,
        "#/definitions/io.k8s.api.core.v1.Container"
    );
    assert_eq!(
        extension(&containers.vendor_extension, "x-kubernetes-patch-merge-key"),
        "name"
    );
    assert_eq!(pod.required, ["containers"]);
    let deployment = definition("io.k8s.api.apps.v1.Deployment");
    assert_eq!(
        extension(&deployment.vendor_extension, "x-kubernetes-group-version-kind"),
        json!([{"group": "apps", "version": "v1", "kind": "Deployment"}])
    );
}
