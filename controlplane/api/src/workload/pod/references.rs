//! References of a pod: objects that its node must, and may, read.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVar, PodSpec, Volume};

/// Names in the pod's namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct References<'a> {
    /// `ConfigMap`s.
    pub config_maps: BTreeSet<&'a str>,
    /// Secrets, including image pull secrets.
    pub secrets: BTreeSet<&'a str>,
}

impl<'a> References<'a> {
    /// All references of a pod.
    pub fn of(spec: &'a PodSpec) -> Self {
        let mut references = Self::default();
        let pull = spec.image_pull_secrets.iter().flatten();
        references.secrets.extend(pull.map(|secret| secret.name.as_str()));
        for volume in spec.volumes.iter().flatten() {
            references.add_volume(volume);
            references.secrets.extend(of_driver(volume));
        }
        for container in spec.ephemeral_containers.iter().flatten() {
            references.add_environment(container.env_from.as_deref(), container.env.as_deref());
        }
        let init = spec.init_containers.iter().flatten();
        for container in spec.containers.iter().chain(init) {
            references.add_container(container);
        }
        references
    }

    /// ConfigMaps and Secrets that a pod's volumes refer to.
    pub fn of_volumes(spec: &'a PodSpec) -> Self {
        let mut references = Self::default();
        for volume in spec.volumes.iter().flatten() {
            references.add_volume(volume);
        }
        references
    }

    /// ConfigMaps and Secrets that a container's environment refers to.
    pub fn of_container(container: &'a Container) -> Self {
        let mut references = Self::default();
        references.add_container(container);
        references
    }

    /// True if there are no references.
    pub fn is_empty(&self) -> bool {
        self.config_maps.is_empty() && self.secrets.is_empty()
    }

    fn add_volume(&mut self, volume: &'a Volume) {
        let config_map = volume.config_map.iter().map(|source| source.name.as_str());
        self.config_maps.extend(config_map);
        let secret = volume.secret.iter().filter_map(|source| source.secret_name.as_deref());
        self.secrets.extend(secret);
        let projected = volume.projected.iter().flat_map(|projected| &projected.sources);
        for projection in projected.flatten() {
            let config_map = projection.config_map.iter().map(|source| source.name.as_str());
            self.config_maps.extend(config_map);
            self.secrets
                .extend(projection.secret.iter().map(|source| source.name.as_str()));
        }
    }

    fn add_container(&mut self, container: &'a Container) {
        self.add_environment(container.env_from.as_deref(), container.env.as_deref());
    }

    fn add_environment(&mut self, from: Option<&'a [EnvFromSource]>, own: Option<&'a [EnvVar]>) {
        for from in from.into_iter().flatten() {
            let config_map = from.config_map_ref.iter().map(|source| source.name.as_str());
            self.config_maps.extend(config_map);
            self.secrets
                .extend(from.secret_ref.iter().map(|source| source.name.as_str()));
        }
        let variables = own.into_iter().flatten();
        for source in variables.filter_map(|variable| variable.value_from.as_ref()) {
            let config_map = source.config_map_key_ref.iter().map(|source| source.name.as_str());
            self.config_maps.extend(config_map);
            self.secrets
                .extend(source.secret_key_ref.iter().map(|source| source.name.as_str()));
        }
    }
}

/// Secrets for the driver of a volume (`VisitPodSecretNames` of `pkg/api/v1/pod/util.go`).
fn of_driver(volume: &Volume) -> impl Iterator<Item = &str> {
    let secrets = [
        volume.cephfs.as_ref().and_then(|source| source.secret_ref.as_ref()),
        volume.cinder.as_ref().and_then(|source| source.secret_ref.as_ref()),
        volume
            .csi
            .as_ref()
            .and_then(|source| source.node_publish_secret_ref.as_ref()),
        volume
            .flex_volume
            .as_ref()
            .and_then(|source| source.secret_ref.as_ref()),
        volume.iscsi.as_ref().and_then(|source| source.secret_ref.as_ref()),
        volume.rbd.as_ref().and_then(|source| source.secret_ref.as_ref()),
        volume.scale_io.as_ref().map(|source| &source.secret_ref),
        volume.storageos.as_ref().and_then(|source| source.secret_ref.as_ref()),
    ];
    let azure = volume.azure_file.as_ref().map(|source| source.secret_name.as_str());
    secrets
        .into_iter()
        .flatten()
        .map(|secret| secret.name.as_str())
        .chain(azure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_name_one_is_found() {
        let variable =
            |kind: &str, name: &str| serde_json::json!({"name": "A", "valueFrom": {kind: {"name": name, "key": "k"}}});
        let spec: PodSpec = serde_json::from_value(serde_json::json!({
            "imagePullSecrets": [{"name": "s1"}],
            "volumes": [
                {"name": "a", "configMap": {"name": "c1"}}, {"name": "b", "secret": {"secretName": "s2"}},
                {"name": "c", "projected": {"sources": [{"configMap": {"name": "c2"}}, {"secret": {"name": "s3"}}]}},
                {"name": "d", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s7"}}},
                {"name": "e", "azureFile": {"secretName": "s8", "shareName": "s"}},
            ],
            "initContainers": [{"name": "i", "env": [variable("secretKeyRef", "s4"), variable("configMapKeyRef", "c3")]}],
            "containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s5"}}, {"configMapRef": {"name": "c4"}}]}],
            "ephemeralContainers": [{"name": "e", "env": [variable("secretKeyRef", "s6")]}],
        }))
        .unwrap();
        let references = References::of(&spec);
        assert_eq!(references.config_maps, BTreeSet::from(["c1", "c2", "c3", "c4"]));
        let secrets = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"];
        assert_eq!(references.secrets, BTreeSet::from(secrets));
        assert_eq!(References::of_volumes(&spec).secrets, BTreeSet::from(["s2", "s3"]));
    }
}
