//! Documents of the discovery paths above the group versions, and of the server's version.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIGroupList, APIVersions};
use k8s_openapi::apimachinery::pkg::version::Info;
use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::operation::{ANSWERS, Operation, Type};
use super::{components, paths};
use crate::registration::Registration;

/// The version is served only as JSON.
const PLAIN: [&str; 1] = ["application/json"];

/// The document of one path, which has one operation.
pub(super) struct Root {
    path: String,
    id: String,
    tag: String,
    description: &'static str,
    types: &'static [&'static str],
    /// Kind of the response, if it has one.
    kind: Option<&'static str>,
    definition: String,
    define: fn(&mut SchemaGenerator),
}

impl Root {
    /// The paths of all such documents: `api`, `apis`, `apis/apps`, `version`.
    pub(super) fn all(kinds: &[Registration]) -> BTreeSet<String> {
        let groups = kinds.iter().map(|row| match row.group {
            "" => "api".to_owned(),
            group => format!("apis/{group}"),
        });
        groups.chain(["apis", "version"].map(str::to_owned)).collect()
    }

    /// The document at a path.
    pub(super) fn find(kinds: &[Registration], path: &str) -> Option<Self> {
        let of_kind = |kind: &'static str, id: &str, tag: &str, define| Self {
            path: format!("/{path}/"),
            id: id.to_owned(),
            tag: tag.to_owned(),
            description: "get available API versions",
            types: &ANSWERS,
            kind: Some(kind),
            definition: components::of_meta(kind),
            define,
        };
        match path {
            "api" => Some(of_kind("APIVersions", "getCoreAPIVersions", "core", |generator| {
                generator.subschema_for::<APIVersions>();
            })),
            "apis" => Some(of_kind("APIGroupList", "getAPIVersions", "apis", |generator| {
                generator.subschema_for::<APIGroupList>();
            })),
            "version" => Some(Self {
                path: "/version/".to_owned(),
                id: "getCodeVersion".to_owned(),
                tag: "version".to_owned(),
                description: "get the version information for this server",
                types: &PLAIN,
                kind: None,
                definition: "io.k8s.apimachinery.pkg.version.Info".to_owned(),
                define: |generator| {
                    generator.subschema_for::<Info>();
                },
            }),
            _ => {
                let group = path.strip_prefix("apis/")?;
                let row = kinds.iter().find(|row| row.group == group)?;
                let group = paths::group_of(row);
                let id = format!("get{}APIGroup", paths::capital(&group));
                let root = of_kind("APIGroup", &id, &group, |generator| {
                    generator.subschema_for::<APIGroup>();
                });
                Some(Self {
                    description: "get information of a group",
                    ..root
                })
            }
        }
    }

    pub(super) fn paths(&self) -> Map<String, Value> {
        let operation = Operation(json!({
            "description": self.description,
            "operationId": self.id,
            "tags": [self.tag],
        }));
        let of = Type::new(&self.definition, "", "v1", self.kind.unwrap_or_default());
        let item = json!({ "get": operation.answers_in(self.types, &["200"], &of) });
        Map::from_iter([(self.path.clone(), item)])
    }

    pub(super) fn schemas(&self) -> Map<String, Value> {
        let mut definitions = components::defined(self.define);
        for kind in ["APIGroup", "APIGroupList", "APIVersions"] {
            components::mark_meta(&mut definitions, kind);
        }
        definitions
    }
}
