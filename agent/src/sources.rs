//! Reads the ConfigMaps and Secrets that pods refer to.

use agent_plan::environment::Sources;
use api::pod::References;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;

use crate::context::Context;
use crate::objects::{Kind, Seen};

/// Reads what is referred to; what does not exist is left out. What volumes show is watched already: only the rest is
/// asked for.
pub(crate) async fn fetch(
    context: &Context,
    namespace: &str,
    references: &References<'_>,
) -> Result<Sources, kube::Error> {
    let mut sources = Sources::default();
    let client = &context.parts.client;
    for name in &references.config_maps {
        let found = match seen(context, Kind::ConfigMap, namespace, name).await {
            Seen::ConfigMap(object) => Some(ConfigMap::clone(&object)),
            // A watch may be a moment behind: that something is not there is asked again.
            Seen::Unknown | Seen::Absent | Seen::Secret(_) => {
                Api::<ConfigMap>::namespaced(client.clone(), namespace)
                    .get_opt(name)
                    .await?
            }
        };
        sources
            .config_maps
            .extend(found.map(|object| ((*name).to_owned(), object)));
    }
    for name in &references.secrets {
        let found = match seen(context, Kind::Secret, namespace, name).await {
            Seen::Secret(object) => Some(Secret::clone(&object)),
            Seen::Unknown | Seen::Absent | Seen::ConfigMap(_) => {
                Api::<Secret>::namespaced(client.clone(), namespace)
                    .get_opt(name)
                    .await?
            }
        };
        sources.secrets.extend(found.map(|object| ((*name).to_owned(), object)));
    }
    Ok(sources)
}

/// What the API said, or why it did not, as people are told.
pub(crate) fn told(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    image::chain(error)
}

async fn seen(context: &Context, kind: Kind, namespace: &str, name: &str) -> Seen {
    match context.objects.known(kind, namespace, name) {
        Some(object) => object.look().await,
        None => Seen::Unknown,
    }
}
