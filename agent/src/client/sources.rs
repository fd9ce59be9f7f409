//! Reads the ConfigMaps and Secrets that pods refer to.

use agent_plan::container::environment::Sources;
use api::pod::References;
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec, Secret, Volume};
use kube::{Api, Client};

use crate::client::objects::{Kind, Objects, Seen};

/// Failure to read an object.
pub(crate) struct Unread {
    kind: Kind,
    name: String,
    error: kube::Error,
}

impl Unread {
    /// Returns the error as text for users.
    pub(crate) fn told(&self) -> String {
        told(&self.error)
    }

    /// Returns the error as text for users, for the volume that shows the object.
    pub(crate) fn of_volume(&self, spec: &PodSpec) -> String {
        let shows = |volume: &&Volume| {
            let own = PodSpec {
                volumes: Some(vec![(*volume).clone()]),
                ..PodSpec::default()
            };
            let references = References::of_volumes(&own);
            let of_kind = match self.kind {
                Kind::ConfigMap => &references.config_maps,
                Kind::Secret => &references.secrets,
            };
            of_kind.iter().any(|name| *name == self.name)
        };
        let volume = spec.volumes.iter().flatten().find(shows);
        let volume = volume.map_or("", |volume| volume.name.as_str());
        format!("MountVolume.SetUp failed for volume {volume:?} : {}", self.told())
    }
}

/// Reads the objects that are referred to; those that do not exist are left out. Watched objects of
/// volumes are not requested again.
pub(crate) async fn fetch(
    client: &Client,
    objects: &Objects,
    namespace: &str,
    references: &References<'_>,
) -> Result<Sources, Unread> {
    let unread = |kind, name: &str| {
        let name = name.to_owned();
        move |error| Unread { kind, name, error }
    };
    let mut sources = Sources::default();
    for name in &references.config_maps {
        let found = match seen(objects, Kind::ConfigMap, namespace, name).await {
            Seen::ConfigMap(object) => Some(ConfigMap::clone(&object)),
            // The watch may lag: an absent object is requested again.
            Seen::Unknown | Seen::Absent | Seen::Secret(_) => {
                let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
                api.get_opt(name).await.map_err(unread(Kind::ConfigMap, name))?
            }
        };
        sources
            .config_maps
            .extend(found.map(|object| ((*name).to_owned(), object)));
    }
    for name in &references.secrets {
        let found = match seen(objects, Kind::Secret, namespace, name).await {
            Seen::Secret(object) => Some(Secret::clone(&object)),
            Seen::Unknown | Seen::Absent | Seen::ConfigMap(_) => {
                let api = Api::<Secret>::namespaced(client.clone(), namespace);
                api.get_opt(name).await.map_err(unread(Kind::Secret, name))?
            }
        };
        sources.secrets.extend(found.map(|object| ((*name).to_owned(), object)));
    }
    Ok(sources)
}

/// Returns the API server's message, or the reason that there is no answer, for users.
pub(crate) fn told(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    image::chain(error)
}

async fn seen(objects: &Objects, kind: Kind, namespace: &str, name: &str) -> Seen {
    match objects.known(kind, namespace, name) {
        Some(object) => object.look().await,
        None => Seen::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_may_not_be_read_is_told_of_the_volume_that_shows_it() {
        let spec = json!({"containers": [], "volumes": [
            {"name": "empty", "emptyDir": {}},
            {"name": "map", "configMap": {"name": "x"}},
            {"name": "all", "projected": {"sources": [{"secret": {"name": "x"}}]}},
        ]});
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let told = |kind| {
            let status =
                json!({"status": "Failure", "code": 403, "reason": "Forbidden", "message": "\"x\" is forbidden"});
            let error = kube::Error::Api(serde_json::from_value(status).unwrap());
            let name = "x".to_owned();
            Unread { kind, name, error }.of_volume(&spec)
        };
        let wanted = |volume: &str| format!("MountVolume.SetUp failed for volume \"{volume}\" : \"x\" is forbidden");
        assert_eq!(told(Kind::ConfigMap), wanted("map"));
        assert_eq!(told(Kind::Secret), wanted("all"));
    }
}
