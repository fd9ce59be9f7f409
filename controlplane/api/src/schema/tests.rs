use super::{Form, ListType, Schema, Shape, table};

fn schema(name: &str) -> Schema {
    Schema::named(name).unwrap_or_else(|| panic!("{name} is not in the table"))
}

#[test]
fn the_table_is_sorted_and_complete() {
    let names: Vec<_> = table::names().collect();
    assert!(names.is_sorted(), "binary search needs sorted names");
    assert!(names.len() > 500);
    for name in names {
        for field in schema(name).fields() {
            assert!(field.number > 0, "{name}.{} has no number", field.json);
            if let Form::Message(other) = field.form {
                assert!(
                    field.message().is_some(),
                    "{name}.{} is of an unknown type {other}",
                    field.json
                );
            }
            if field.shape == Shape::Inline {
                assert!(field.message().is_some(), "{name}.{} cannot be inlined", field.json);
            }
        }
    }
}

#[test]
fn patch_keys_are_upstreams() {
    let pod = schema("core.v1.PodSpec");
    let ports = schema("core.v1.Container").field("ports").unwrap();
    assert_eq!(ports.patch.merge_key, "containerPort");
    assert_eq!(
        ports.list_type,
        Some(ListType::Map(["containerPort", "protocol"].into()))
    );
    assert!(pod.field("volumes").unwrap().patch.retain_keys);
    assert_eq!(pod.field("containers").unwrap().patch.merge_key, "name");
    assert!(!pod.field("tolerations").unwrap().patch.merge);
    let finalizers = schema("meta.v1.ObjectMeta").field("finalizers").unwrap();
    assert!(finalizers.patch.merge && finalizers.patch.merge_key.is_empty());
    assert_eq!(
        schema("core.v1.ServiceSpec").field("ports").unwrap().patch.merge_key,
        "port"
    );
    assert!(
        schema("apps.v1.DeploymentSpec")
            .field("strategy")
            .unwrap()
            .patch
            .retain_keys
    );
}

#[test]
fn inlined_structs_are_looked_through() {
    let volume = schema("core.v1.Volume");
    assert_eq!(
        volume.field("configMap").unwrap().form,
        Form::Message("core.v1.ConfigMapVolumeSource")
    );
    assert!(volume.field("volumeSource").is_none());
    assert_eq!(schema("core.v1.Probe").field("httpGet").unwrap().number, 2);
}

#[test]
fn kinds_are_found_by_group_version() {
    assert_eq!(
        Schema::of_kind("apps/v1", "Deployment"),
        Schema::named("apps.v1.Deployment")
    );
    assert_eq!(Schema::of_kind("v1", "Pod"), Schema::named("core.v1.Pod"));
    assert_eq!(
        Schema::of_kind("rbac.authorization.k8s.io/v1", "Role"),
        Schema::named("rbac.v1.Role")
    );
    assert_eq!(
        Schema::of_kind("events.k8s.io/v1", "Event"),
        Schema::named("events.v1.Event")
    );
    assert_eq!(
        Schema::of_kind("apps/v1", "DeleteOptions"),
        Schema::named("meta.v1.DeleteOptions")
    );
    assert_eq!(
        Schema::of_kind("storage.k8s.io/v1", "CSIDriver").unwrap().name(),
        "storage.v1.CSIDriver"
    );
    assert_eq!(Schema::of_kind("apps.example.com/v1", "Deployment"), None);
    assert_eq!(Schema::of_kind("nowhere/v1", "Thing"), None);
}

#[test]
fn ownership_follows_upstreams_types() {
    for atomic in [
        "core.v1.LocalObjectReference",
        "core.v1.ObjectReference",
        "core.v1.SecretKeySelector",
        "meta.v1.LabelSelector",
        "meta.v1.OwnerReference",
        "rbac.v1.RoleRef",
    ] {
        assert!(schema(atomic).is_atomic(), "{atomic}");
    }
    assert!(!schema("core.v1.Container").is_atomic());
    let claim = schema("core.v1.PersistentVolumeSpec").field("claimRef").unwrap();
    assert_eq!(claim.list_type, Some(ListType::Granular));
    for port in ["core.v1.ContainerPort", "core.v1.ServicePort"] {
        let protocol = schema(port).field("protocol").unwrap();
        assert_eq!(protocol.key_default, Some("TCP"), "{port}");
    }
    let selector = schema("core.v1.PodSpec").field("nodeSelector").unwrap();
    assert_eq!(selector.list_type, Some(ListType::Atomic));
    let written = |message: &str, field: &str| schema(message).field(field).unwrap().always_written;
    assert!(written("apps.v1.Deployment", "status") && written("apps.v1.DeploymentSpec", "strategy"));
    assert!(written("core.v1.PodSpec", "containers") && written("core.v1.Pod", "metadata"));
    assert!(!written("core.v1.PodSpec", "securityContext") && !written("core.v1.PodSpec", "volumes"));
    assert!(!written("core.v1.ReplicationControllerSpec", "template"));
}
