//! Kinds that aggregated API servers serve, by discovery.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::intern;
use controlplane_plan::step::Resource;
use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use serde::Deserialize;
use tracing::debug;

use crate::machinery::driver::Context;
use crate::machinery::request::{self, Error, JSON, escape};

#[derive(Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    versions: Vec<GroupVersion>,
    preferred_version: GroupVersion,
}

#[derive(Deserialize, PartialEq)]
struct GroupVersion {
    version: String,
}

impl Group {
    /// Versions of the group, the preferred one first.
    fn in_order(&self) -> impl Iterator<Item = &str> {
        let preferred = &self.preferred_version;
        let others = self.versions.iter().filter(move |version| *version != preferred);
        std::iter::once(preferred).chain(others).map(|own| own.version.as_str())
    }
}

/// Kind of an aggregated API server, which has chosen the names.
pub(crate) struct Elsewhere {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    pub(crate) namespaced: bool,
    verbs: Vec<String>,
}

impl Elsewhere {
    /// True if its server supports all of the verbs.
    pub(crate) fn supports(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|own| own == verb))
    }

    /// Path of its objects in a namespace.
    pub(crate) fn collection(&self, namespace: &str) -> String {
        let [group, version, plural] = [&self.group, &self.version, &self.plural].map(|part| escape(part));
        format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}")
    }

    /// The resource, for controllers; `None` if its names are no parts of a path.
    pub(crate) fn resource(&self) -> Option<Resource> {
        let names = [&self.group, &self.version, &self.kind, &self.plural];
        if names.iter().any(|name| name.is_empty() || **name != *escape(name)) {
            return None;
        }
        let [group, version, kind, plural] = names.map(|name| intern::text(name));
        Some(Resource {
            group,
            version,
            kind,
            plural,
            namespaced: self.namespaced,
        })
    }
}

/// Kinds of aggregated API servers, each in the preferred version of its group or else in
/// the first one that has it (`ServerPreferredResources` of
/// `staging/src/k8s.io/client-go/discovery/discovery_client.go`); and the group versions whose
/// servers do not answer.
pub(crate) async fn kinds(context: &Context) -> Result<(Vec<Elsewhere>, Vec<String>), Error> {
    let groups: Groups = request::send(&context.client, Method::GET, "/apis".to_owned(), JSON, Vec::new()).await?;
    let definitions = context.caches.definitions.all();
    let is_own = |group: &str, version: &str| {
        let mut defined = definitions.iter().filter(|own| own.spec.group == group);
        let is_served = |own: &Arc<CustomResourceDefinition>| own.spec.versions.iter().any(|own| own.name == version);
        api::KINDS
            .iter()
            .any(|row| (row.group, row.version) == (group, version))
            || defined.any(is_served)
    };
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for group in &groups.groups {
        let mut known = BTreeSet::new();
        for version in group.in_order().filter(|version| !is_own(&group.name, version)) {
            let path = format!("/apis/{}/{}", escape(&group.name), escape(version));
            let listed = request::send::<APIResourceList>(&context.client, Method::GET, path, JSON, Vec::new()).await;
            let resources = match listed {
                Ok(list) => list.resources,
                Err(error) => {
                    let own = format!("{}/{version}", group.name);
                    debug!(group_version = own, %error, "not discovered");
                    unknown.push(own);
                    continue;
                }
            };
            let whole = resources.into_iter().filter(|resource| !resource.name.contains('/'));
            let new = whole.filter(|resource| known.insert(resource.name.clone()));
            found.extend(new.map(|resource| Elsewhere {
                group: group.name.clone(),
                version: version.to_owned(),
                kind: resource.kind,
                plural: resource.name,
                namespaced: resource.namespaced,
                verbs: resource.verbs,
            }));
        }
    }
    Ok((found, unknown))
}
