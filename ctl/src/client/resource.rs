//! Resources by their names, from the server's discovery.

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::api::{Api, text_at};

const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// API resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    singular: String,
    short_names: Vec<String>,
    categories: Vec<String>,
    pub(crate) namespaced: bool,
    verbs: Vec<String>,
}

/// Resource and, optionally, the name of an object.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) resource: Resource,
    pub(crate) name: Option<String>,
}

/// All resources of the server.
pub(crate) struct Resources(Vec<Resource>);

impl Resources {
    /// Reads the discovery documents: two requests.
    pub(crate) async fn discover(api: &Api) -> anyhow::Result<Self> {
        let mut resources = Vec::new();
        for path in ["/api", "/apis"] {
            let groups = api
                .accepting(path, DISCOVERY)
                .await
                .context("ask the server what it serves")?;
            for group in groups.get("items").and_then(Value::as_array).into_iter().flatten() {
                read_group(group, &mut resources);
            }
        }
        Ok(Self(resources))
    }

    /// Finds a resource by plural, singular, short name or kind, with `.group` or `.version.group`
    /// if it is ambiguous.
    pub(crate) fn find(&self, word: &str) -> anyhow::Result<Resource> {
        let lower = word.to_lowercase();
        let (name, group) = lower
            .split_once('.')
            .map_or((lower.as_str(), None), |(name, group)| (name, Some(group)));
        let named = |resource: &&Resource| {
            resource.plural == name
                || resource.singular == name
                || resource.kind.to_lowercase() == name
                || resource.short_names.iter().any(|short| short == name)
        };
        let grouped = |resource: &&Resource| {
            group.is_none_or(|group| {
                resource.group == group || format!("{}.{}", resource.version, resource.group) == group
            })
        };
        self.0
            .iter()
            .find(|resource| named(resource) && grouped(resource))
            .cloned()
            .with_context(|| format!("the server doesn't have a resource type {word:?}"))
    }

    /// Finds a resource by `apiVersion` and `kind` of an object.
    pub(crate) fn of_object(&self, object: &Value) -> anyhow::Result<Resource> {
        let (api_version, kind) = (text_at(object, "/apiVersion"), text_at(object, "/kind"));
        if kind.is_empty() || api_version.is_empty() {
            bail!("an object has no apiVersion or no kind");
        }
        self.0
            .iter()
            .find(|resource| resource.kind == kind && resource.api_version() == api_version)
            .cloned()
            .with_context(|| format!("no matches for kind {kind:?} in version {api_version:?}"))
    }

    /// Parses `TYPE[,TYPE] [NAME…]` and `TYPE/NAME…`. `all` is a category.
    pub(crate) fn targets(&self, words: &[String]) -> anyhow::Result<Vec<Target>> {
        let Some((first, names)) = words.split_first() else {
            bail!("no resource type given")
        };
        if words.iter().any(|word| word.contains('/')) {
            return words
                .iter()
                .map(|word| {
                    let (kind, name) = word.split_once('/').context("there is no need to specify a resource type as a separate argument when passing arguments in resource/name form")?;
                    Ok(Target { resource: self.find(kind)?, name: Some(name.to_owned()) })
                })
                .collect();
        }
        let mut targets = Vec::new();
        for word in first.split(',') {
            let category = self
                .0
                .iter()
                .filter(|resource| resource.categories.iter().any(|category| category == word));
            let mut resources: Vec<Resource> = category
                .filter(|resource| resource.verbs.iter().any(|verb| verb == "list"))
                .cloned()
                .collect();
            if resources.is_empty() {
                resources.push(self.find(word)?);
            }
            for resource in resources {
                if names.is_empty() {
                    targets.push(Target { resource, name: None });
                } else {
                    targets.extend(names.iter().map(|name| Target {
                        resource: resource.clone(),
                        name: Some(name.clone()),
                    }));
                }
            }
        }
        Ok(targets)
    }

    /// Parses exactly one object.
    pub(crate) fn one(&self, words: &[String]) -> anyhow::Result<(Resource, String)> {
        let targets = self.targets(words)?;
        match targets.into_iter().next() {
            Some(Target {
                resource,
                name: Some(name),
            }) => Ok((resource, name)),
            Some(_) | None => bail!("one object is needed: TYPE/NAME"),
        }
    }
}

fn read_group(group: &Value, resources: &mut Vec<Resource>) {
    let words = |resource: &Value, key: &str| -> Vec<String> {
        let list = resource.get(key).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for version in group.get("versions").and_then(Value::as_array).into_iter().flatten() {
        for resource in version.get("resources").and_then(Value::as_array).into_iter().flatten() {
            let kind = text_at(resource, "/responseKind/kind").to_owned();
            resources.push(Resource {
                group: text_at(group, "/metadata/name").to_owned(),
                version: text_at(version, "/version").to_owned(),
                plural: text_at(resource, "/resource").to_owned(),
                singular: text_at(resource, "/singularResource").to_owned(),
                short_names: words(resource, "shortNames"),
                categories: words(resource, "categories"),
                namespaced: text_at(resource, "/scope") == "Namespaced",
                verbs: words(resource, "verbs"),
                kind,
            });
        }
    }
}

impl Resource {
    /// Returns `v1` or `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Returns `deployment.apps` or `pod`, as kubectl prints a resource before an object's name.
    pub(crate) fn display(&self) -> String {
        let singular = if self.singular.is_empty() {
            self.kind.to_lowercase()
        } else {
            self.singular.clone()
        };
        if self.group.is_empty() {
            singular
        } else {
            format!("{singular}.{}", self.group)
        }
    }

    /// Returns the path of the collection; of all namespaces for `None`.
    pub(crate) fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let space = match namespace {
            Some(namespace) if self.namespaced => format!("/namespaces/{namespace}"),
            Some(_) | None => String::new(),
        };
        format!("{root}/{}{space}/{}", self.api_version(), self.plural)
    }

    /// Returns the path of one object.
    pub(crate) fn object(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        let safe =
            |text: &str| !text.is_empty() && !text.contains(['/', '%', '?', '#', ' ']) && text != "." && text != "..";
        if !safe(name) || !safe(namespace) {
            bail!("{name:?} in {namespace:?} cannot be a name");
        }
        Ok(format!("{}/{name}", self.collection(Some(namespace))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resources() -> Resources {
        let group = json!({"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [{
            "resource": "deployments", "responseKind": {"kind": "Deployment"}, "scope": "Namespaced",
            "singularResource": "deployment", "shortNames": ["deploy"], "categories": ["all"], "verbs": ["list"]}]}]});
        let mut found = Vec::new();
        read_group(&group, &mut found);
        Resources(found)
    }

    #[test]
    fn finds_resources_by_every_name() {
        let resources = resources();
        for word in [
            "deployments",
            "deployment",
            "deploy",
            "Deployment",
            "deployments.apps",
            "deployment.v1.apps",
        ] {
            assert_eq!(resources.find(word).unwrap().plural, "deployments", "{word}");
        }
        resources.find("deployments.batch").unwrap_err();
    }

    #[test]
    fn reads_types_and_names() {
        let resources = resources();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let named = |text: &str| {
            let targets = resources.targets(&words(text)).unwrap();
            targets
                .into_iter()
                .map(|target| target.name.unwrap_or_default())
                .collect::<Vec<_>>()
        };
        assert_eq!(named("deploy a b"), ["a", "b"]);
        assert_eq!(named("deploy/a deploy/b"), ["a", "b"]);
        assert_eq!(named("all"), [""]);
        resources.targets(&words("deploy/a b")).unwrap_err();
        let deployment = resources.find("deploy").unwrap();
        assert_eq!(
            deployment.object("default", "web").unwrap(),
            "/apis/apps/v1/namespaces/default/deployments/web"
        );
        deployment.object("default", "../x").unwrap_err();
    }
}
