//! The ConfigMaps and Secrets that pods refer to.

use std::collections::BTreeSet;

use agent_plan::environment::Sources;
use agent_plan::pods;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{Api, Client};

/// Names in the pod's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct References {
    pub(crate) config_maps: BTreeSet<String>,
    pub(crate) secrets: BTreeSet<String>,
}

impl References {
    /// What the pod's volumes refer to.
    pub(crate) fn of_volumes(pod: &Pod) -> Self {
        let mut references = Self::default();
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            references
                .config_maps
                .extend(volume.config_map.as_ref().map(|source| source.name.clone()));
            references
                .secrets
                .extend(volume.secret.as_ref().and_then(|source| source.secret_name.clone()));
            for projection in volume
                .projected
                .iter()
                .flat_map(|projected| projected.sources.iter().flatten())
            {
                references
                    .config_maps
                    .extend(projection.config_map.as_ref().map(|source| source.name.clone()));
                references
                    .secrets
                    .extend(projection.secret.as_ref().map(|source| source.name.clone()));
            }
        }
        references
    }

    /// What a container's environment refers to.
    pub(crate) fn of_environment(pod: &Pod, container: &str) -> Self {
        let mut references = Self::default();
        let Some(container) = pods::container(pod, container) else {
            return references;
        };
        for from in container.env_from.iter().flatten() {
            references
                .config_maps
                .extend(from.config_map_ref.as_ref().map(|source| source.name.clone()));
            references
                .secrets
                .extend(from.secret_ref.as_ref().map(|source| source.name.clone()));
        }
        for source in container
            .env
            .iter()
            .flatten()
            .filter_map(|variable| variable.value_from.as_ref())
        {
            references
                .config_maps
                .extend(source.config_map_key_ref.as_ref().map(|source| source.name.clone()));
            references
                .secrets
                .extend(source.secret_key_ref.as_ref().map(|source| source.name.clone()));
        }
        references
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.config_maps.is_empty() && self.secrets.is_empty()
    }
}

/// Reads what is referred to; what does not exist is left out.
pub(crate) async fn fetch(client: &Client, namespace: &str, references: &References) -> Result<Sources, kube::Error> {
    let mut sources = Sources::default();
    if !references.config_maps.is_empty() {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        for name in &references.config_maps {
            if let Some(object) = api.get_opt(name).await? {
                sources.config_maps.insert(name.clone(), object);
            }
        }
    }
    if !references.secrets.is_empty() {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        for name in &references.secrets {
            if let Some(object) = api.get_opt(name).await? {
                sources.secrets.insert(name.clone(), object);
            }
        }
    }
    Ok(sources)
}
