//! Credentials of a pod for registries, and those of the node for all pods.

use std::path::PathBuf;

use agent_plan::pod::pods;
use image::Credentials;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use tracing::warn;

use crate::client::events::Kind;
use crate::context::Context;
use crate::images::credentials::Key;

/// True if the pod has image pull secrets.
pub(super) fn are_named(pod: &Pod) -> bool {
    references(pod).next().is_some()
}

fn references(pod: &Pod) -> impl Iterator<Item = &str> {
    let secrets = pod
        .spec
        .iter()
        .flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    // Names may be empty: the API admits them, and a kubelet ignores them.
    let names = secrets.map(|reference| reference.name.as_str());
    names.filter(|name| !name.is_empty())
}

/// Returns the pod's pull secrets; missing ones are reported in an event.
pub(in crate::pod::worker) async fn found(context: &Context, pod: &Pod) -> Vec<Secret> {
    let api: Api<Secret> = Api::namespaced(context.parts.client.clone(), pods::namespace(pod));
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for name in references(pod) {
        match api.get_opt(name).await {
            Ok(Some(secret)) => found.push(secret),
            Ok(None) | Err(_) => missing.push(name),
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        let recorder = &context.recorder;
        recorder.pod(pod, None, Kind::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    found
}

/// Returns the pod's credentials that apply to an image.
pub(in crate::pod::worker) async fn keys(context: &Context, pod: &Pod, wanted: &str) -> Vec<(Key, Credentials)> {
    let mut all = Vec::new();
    for secret in found(context, pod).await {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        for key in [".dockerconfigjson", ".dockercfg"] {
            let Some(data) = secret.data.as_ref().and_then(|data| data.get(key)) else {
                continue;
            };
            match Credentials::for_image(&data.0, wanted) {
                Ok(found) => all.extend(found.into_iter().map(|credentials| {
                    let uid = secret.metadata.uid.as_deref().unwrap_or_default();
                    let key = Key::new(pods::namespace(pod), name, uid, &credentials);
                    (key, credentials)
                })),
                Err(error) => warn!(
                    secret = name,
                    error = image::chain(&error),
                    "a pull secret is malformed"
                ),
            }
        }
    }
    all
}

/// Returns the node's own credentials that apply to an image: those of the first Docker configuration
/// that there is (`pkg/credentialprovider/config.go`).
pub(in crate::pod::worker) async fn of_node(context: &Context, wanted: &str) -> Vec<Credentials> {
    let homes = [std::env::var_os("HOME").map(PathBuf::from), Some(PathBuf::from("/"))];
    let homes = homes.into_iter().flatten().map(|home| home.join(".docker/config.json"));
    let places: Vec<PathBuf> = [context.config.state_directory.join("config.json")]
        .into_iter()
        .chain(homes)
        .collect();
    let read = move || places.iter().find_map(|path| std::fs::read(path).ok());
    let Ok(Some(text)) = common::task::spawn_blocking(read).await else {
        return Vec::new();
    };
    let found = Credentials::for_image(&text, wanted);
    found.unwrap_or_else(|error| {
        let error = image::chain(&error);
        warn!(error, "the node's own credentials for registries are malformed");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_secret_without_a_name_is_none() {
        let pod = |secrets: Value| -> Pod {
            from_value(json!({"spec": {"containers": [], "imagePullSecrets": secrets}})).unwrap()
        };
        let some = pod(json!([{}, {"name": "a"}, {"name": ""}]));
        assert_eq!(references(&some).collect::<Vec<_>>(), ["a"]);
        assert!(!are_named(&pod(json!([{}]))));
    }
}
