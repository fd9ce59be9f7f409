//! Reads the ConfigMaps and Secrets that pods refer to.

use agent_plan::environment::Sources;
use api::pod::References;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};

/// Reads what is referred to; what does not exist is left out.
pub(crate) async fn fetch(
    client: &Client,
    namespace: &str,
    references: &References<'_>,
) -> Result<Sources, kube::Error> {
    let mut sources = Sources::default();
    if !references.config_maps.is_empty() {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        for name in &references.config_maps {
            if let Some(object) = api.get_opt(name).await? {
                sources.config_maps.insert((*name).to_owned(), object);
            }
        }
    }
    if !references.secrets.is_empty() {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        for name in &references.secrets {
            if let Some(object) = api.get_opt(name).await? {
                sources.secrets.insert((*name).to_owned(), object);
            }
        }
    }
    Ok(sources)
}
