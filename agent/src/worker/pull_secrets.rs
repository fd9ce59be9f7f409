//! What a pod shows registries.

use agent_plan::pods;
use image::Credentials;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use tracing::warn;

use crate::context::Context;
use crate::events::Kind;
use crate::rights::Key;

/// The pod's secrets that apply to an image.
pub(super) async fn keys(context: &Context, pod: &Pod, name: &str) -> Vec<(Key, Credentials)> {
    let mut all = Vec::new();
    let references = pod
        .spec
        .iter()
        .flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    let api: Api<Secret> = Api::namespaced(context.parts.client.clone(), pods::namespace(pod));
    for reference in references {
        let Ok(Some(secret)) = api.get_opt(&reference.name).await else {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                reference.name
            );
            context
                .recorder
                .pod(pod, None, Kind::Warning, "FailedToRetrieveImagePullSecret", message);
            continue;
        };
        for key in [".dockerconfigjson", ".dockercfg"] {
            let Some(data) = secret.data.as_ref().and_then(|data| data.get(key)) else {
                continue;
            };
            match Credentials::for_image(&data.0, name) {
                Ok(found) => all.extend(found.into_iter().map(|credentials| {
                    let uid = secret.metadata.uid.as_deref().unwrap_or_default();
                    let key = Key::new(pods::namespace(pod), &reference.name, uid, &credentials);
                    (key, credentials)
                })),
                Err(error) => warn!(
                    secret = reference.name,
                    error = image::chain(&error),
                    "a pull secret is malformed"
                ),
            }
        }
    }
    all
}
