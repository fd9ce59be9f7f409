//! The paths of a document: what may be done with each kind, and with which parameters.

use serde_json::{Map, Value, json};

use super::components;
use super::operation::{BODIES, LISTS, Operation, PATCHES, Type};
use super::{parameters, path_of};
use crate::kind::{Scope, Subresource, Verbs};
use crate::registration::Registration;

/// All paths of the rows of one group version.
pub(super) fn of(rows: &[&Registration]) -> Map<String, Value> {
    let mut paths = Map::new();
    if let Some(first) = rows.first() {
        let (path, item) = Resource::new(first).resources();
        paths.insert(path, item);
    }
    for row in rows {
        let resource = Resource::new(row);
        resource.collection(&mut paths);
        match row.verbs {
            Verbs::All | Verbs::OneByOne => resource.object(&mut paths),
            Verbs::ReadOnly | Verbs::Measured => resource.readable(&mut paths),
            Verbs::CreateOnly => {}
        }
        for subresource in row.subresources {
            resource.subresource(&mut paths, *subresource);
        }
    }
    paths
}

struct Resource<'r> {
    row: &'r Registration,
    /// `/apis/apps/v1/namespaces/{namespace}/deployments`.
    base: String,
    /// The end of operation ids: `AppsV1`.
    group: String,
    /// `Namespaced` or nothing.
    scope: &'static str,
    tag: String,
    own: Type,
}

impl<'r> Resource<'r> {
    fn new(row: &'r Registration) -> Self {
        let camel = group_of(row);
        let (scope, place) = match row.scope {
            Scope::Namespaced => ("Namespaced", "namespaces/{namespace}/"),
            Scope::Cluster => ("", ""),
        };
        Self {
            row,
            base: format!("/{}/{place}{}", path_of(row), row.plural),
            group: format!("{}{}", capital(&camel), capital(row.version)),
            scope,
            tag: format!("{camel}_{}", row.version),
            own: Type::new(&components::name_of(row), row.group, row.version, row.kind),
        }
    }

    /// What the group version has, at its own path.
    fn resources(&self) -> (String, Value) {
        let of = Type::new(components::RESOURCES, "", "v1", "APIResourceList");
        let operation = Operation(json!({
            "description": "get available resources",
            "operationId": format!("get{}APIResources", self.group),
            "tags": [self.tag],
        }));
        let item = json!({ "get": operation.answers(&["200"], &of) });
        (format!("/{}/", path_of(self.row)), item)
    }

    /// Parameters of the path itself.
    fn common(&self, named: bool) -> Vec<Value> {
        let name = named.then(|| parameters::in_path("name", &format!("name of the {}", self.row.kind)));
        let namespace = (self.row.scope == Scope::Namespaced).then(|| {
            parameters::in_path(
                "namespace",
                "object name and auth scope, such as for teams and projects",
            )
        });
        name.into_iter()
            .chain(namespace)
            .chain([parameters::pretty()])
            .collect()
    }

    fn id(&self, verb: &str, suffix: &str) -> String {
        format!("{verb}{}{}{}{suffix}", self.group, self.scope, self.row.kind)
    }

    fn collection(&self, paths: &mut Map<String, Value>) {
        let Self { row, own, .. } = self;
        let kind = row.kind;
        let mut item = Map::new();
        item.insert("parameters".to_owned(), Value::from(self.common(false)));
        if !row.verbs.only_read() {
            let create = self.operation("post", &format!("create a {kind}"), &self.id("create", ""), own);
            item.insert(
                "post".to_owned(),
                create
                    .takes(&BODIES, &own.definition)
                    .with(parameters::write())
                    .answers(&["200", "201", "202"], own),
            );
        }
        if row.verbs != Verbs::CreateOnly {
            item.insert("get".to_owned(), self.list(&self.id("list", ""), parameters::list()));
        }
        if row.verbs == Verbs::All {
            let id = format!("delete{}Collection{}{kind}", self.group, self.scope);
            let delete = self.operation("deletecollection", &format!("delete collection of {kind}"), &id, own);
            item.insert(
                "delete".to_owned(),
                delete.deletes(parameters::delete_collection(), None),
            );
            if row.scope == Scope::Namespaced {
                let id = format!("list{}{kind}ForAllNamespaces", self.group);
                let mut all = parameters::list();
                all.push(parameters::pretty());
                paths.insert(
                    format!("/{}/{}", path_of(row), row.plural),
                    json!({"get": self.list(&id, Vec::new()), "parameters": all}),
                );
            }
        }
        paths.insert(self.base.clone(), Value::Object(item));
    }

    fn list(&self, id: &str, parameters: Vec<Value>) -> Value {
        let Self { row, own, .. } = self;
        let list = Type::new(&format!("{}List", own.definition), row.group, row.version, row.kind);
        let description = format!("list or watch objects of kind {}", row.kind);
        let read = self.operation("list", &description, id, own);
        let read = if parameters.is_empty() {
            read
        } else {
            read.with(parameters)
        };
        read.answers_in(&LISTS, &["200"], &list)
    }

    fn object(&self, paths: &mut Map<String, Value>) {
        let delete = self.operation(
            "delete",
            &format!("delete a {}", self.row.kind),
            &self.id("delete", ""),
            &self.own,
        );
        let mut item = self.readable_and_writable(&self.own, "");
        let answer = self.row.answers_deleted.then_some(&self.own);
        item.insert("delete".to_owned(), delete.deletes(parameters::delete(), answer));
        paths.insert(format!("{}/{{name}}", self.base), Value::Object(item));
    }

    fn readable(&self, paths: &mut Map<String, Value>) {
        let mut item = self.readable_and_writable(&self.own, "");
        item.retain(|method, _| method == "parameters" || method == "get");
        paths.insert(format!("{}/{{name}}", self.base), Value::Object(item));
    }

    /// get, patch and put of an object or a part of it.
    fn readable_and_writable(&self, of: &Type, suffix: &str) -> Map<String, Value> {
        let kind = self.row.kind;
        let what = if suffix.is_empty() {
            format!("the specified {kind}")
        } else {
            format!("{} of the specified {kind}", suffix.to_lowercase())
        };
        let read = self.operation("get", &format!("read {what}"), &self.id("read", suffix), of);
        let patch = self.operation(
            "patch",
            &format!("partially update {what}"),
            &self.id("patch", suffix),
            of,
        );
        let replace = self.operation("put", &format!("replace {what}"), &self.id("replace", suffix), of);
        let mut item = Map::new();
        item.insert("parameters".to_owned(), Value::from(self.common(true)));
        item.insert("get".to_owned(), read.answers(&["200"], of));
        item.insert(
            "patch".to_owned(),
            patch
                .takes(&PATCHES, components::PATCH)
                .with(parameters::patch())
                .answers(&["200", "201"], of),
        );
        item.insert(
            "put".to_owned(),
            replace
                .takes(&BODIES, &of.definition)
                .with(parameters::write())
                .answers(&["200", "201"], of),
        );
        item
    }

    fn subresource(&self, paths: &mut Map<String, Value>, subresource: Subresource) {
        let suffix = capital(subresource.name());
        let kind = self.row.kind;
        let item = match subresource {
            Subresource::Status | Subresource::EphemeralContainers | Subresource::Resize | Subresource::Approval => {
                self.readable_and_writable(&self.own, &suffix)
            }
            Subresource::Scale => {
                self.readable_and_writable(&Type::new(components::SCALE, "autoscaling", "v1", "Scale"), &suffix)
            }
            Subresource::Log => {
                let read = self.operation(
                    "get",
                    &format!("read log of the specified {kind}"),
                    &self.id("read", &suffix),
                    &self.own,
                );
                let mut item = Map::from_iter([("get".to_owned(), read.with(parameters::log()).answers_text())]);
                item.insert("parameters".to_owned(), Value::from(self.common(true)));
                item
            }
            Subresource::Exec => self.connected("Exec", &["get", "post"], parameters::exec()),
            Subresource::Attach => self.connected("Attach", &["get", "post"], parameters::attach()),
            Subresource::PortForward => self.connected("Portforward", &["get", "post"], parameters::port_forward()),
            Subresource::Proxy => {
                let methods = ["delete", "get", "head", "options", "patch", "post", "put"];
                self.connected("Proxy", &methods, parameters::proxy())
            }
            Subresource::Binding => self.writable(
                "post",
                &suffix,
                &Type::new("io.k8s.api.core.v1.Binding", "", "v1", "Binding"),
            ),
            Subresource::Eviction => self.writable(
                "post",
                &suffix,
                &Type::new(components::EVICTION, "policy", "v1", "Eviction"),
            ),
            Subresource::Finalize => self.writable("put", &suffix, &self.own),
            Subresource::Token => self.writable(
                "post",
                &suffix,
                &Type::new(components::TOKEN_REQUEST, "authentication.k8s.io", "v1", "TokenRequest"),
            ),
        };
        paths.insert(
            format!("{}/{{name}}/{}", self.base, subresource.name()),
            Value::Object(item),
        );
    }

    /// A subresource that is a connection.
    fn connected(&self, suffix: &str, methods: &[&str], parameters: Vec<Value>) -> Map<String, Value> {
        let kind = format!(
            "{}{}",
            self.row.kind,
            if suffix == "Portforward" { "PortForward" } else { suffix }
        );
        let of = Type::new(
            &self.own.definition,
            self.row.group,
            self.row.version,
            &format!("{kind}Options"),
        );
        let mut item = Map::new();
        for method in methods {
            let name = format!("connect{}{}", self.group, capital(method));
            let id = format!("{name}{}{}{suffix}", self.scope, self.row.kind);
            let description = format!(
                "connect {} requests to {} of {}",
                method.to_uppercase(),
                suffix.to_lowercase(),
                self.row.kind
            );
            let operation = self.operation("connect", &description, &id, &of).answers_text();
            item.insert((*method).to_owned(), operation);
        }
        let mut all = self.common(true);
        all.retain(|parameter| parameter.get("name") != Some(&json!("pretty")));
        all.extend(parameters);
        item.insert("parameters".to_owned(), Value::from(all));
        item
    }

    /// A subresource that is only written.
    fn writable(&self, method: &'static str, suffix: &str, of: &Type) -> Map<String, Value> {
        let verb = if method == "post" { "create" } else { "replace" };
        let description = format!("{verb} {} of a {}", suffix.to_lowercase(), self.row.kind);
        let operation = self.operation(method, &description, &self.id(verb, suffix), of);
        let operation = operation
            .takes(&BODIES, &of.definition)
            .with(parameters::write())
            .answers(&["200", "201", "202"], of);
        let mut item = Map::from_iter([(method.to_owned(), operation)]);
        item.insert("parameters".to_owned(), Value::from(self.common(true)));
        item
    }

    fn operation(&self, action: &str, description: &str, id: &str, of: &Type) -> Operation {
        let operation = json!({
            "description": description,
            "operationId": id,
            "tags": [self.tag],
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": of.group_version_kind,
        });
        Operation(operation)
    }
}

/// The group of a row as one word: `core`, `rbacAuthorization`.
pub(super) fn group_of(row: &Registration) -> String {
    let group = if row.group.is_empty() {
        "core"
    } else {
        row.group.strip_suffix(".k8s.io").unwrap_or(row.group)
    };
    let mut words = group.split('.');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| text + &capital(word))
}

pub(super) fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}
