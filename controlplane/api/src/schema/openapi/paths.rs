//! Paths of a document: operations of each kind and their parameters.

use serde_json::{Map, Value, json};

use super::components;
use super::operation::{BODIES, LISTS, LOGS, Operation, PATCHES, Type};
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
    paths.values_mut().for_each(parameters::hoist);
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

    /// Path of the group version, which lists its resources.
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
        self.common_of(self.row.kind, named)
    }

    /// The same for a path whose body is another type than the kind.
    fn common_of(&self, kind: &str, named: bool) -> Vec<Value> {
        let name = named.then(|| parameters::name(kind));
        let namespaced = self.row.scope == Scope::Namespaced;
        let namespace = namespaced.then(|| parameters::of("namespace"));
        name.into_iter()
            .chain(namespace.into_iter().flatten())
            .chain(parameters::of("pretty"))
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
            let description = format!("create {}", with_article(kind));
            let create = self.operation("post", &description, &self.id("create", ""), own);
            item.insert(
                "post".to_owned(),
                create
                    .takes(&BODIES, &own.definition)
                    .with(parameters::of("write"))
                    .answers(&["200", "201", "202"], own),
            );
        }
        if row.verbs != Verbs::CreateOnly {
            item.insert("get".to_owned(), self.list(&self.id("list", "")));
        }
        if row.verbs == Verbs::All {
            let id = format!("delete{}Collection{}{kind}", self.group, self.scope);
            let delete = self.operation("deletecollection", &format!("delete collection of {kind}"), &id, own);
            item.insert(
                "delete".to_owned(),
                delete.deletes(parameters::of_collections(), &["200"], None),
            );
            if row.scope == Scope::Namespaced {
                let id = format!("list{}{kind}ForAllNamespaces", self.group);
                paths.insert(
                    format!("/{}/{}", path_of(row), row.plural),
                    json!({"get": self.list(&id), "parameters": parameters::of("pretty")}),
                );
            }
        }
        if matches!(row.verbs, Verbs::All | Verbs::OneByOne) {
            self.watches(paths);
        }
        paths.insert(self.base.clone(), Value::Object(item));
    }

    fn list(&self, id: &str) -> Value {
        let Self { row, own, .. } = self;
        let list = Type::new(&format!("{}List", own.definition), row.group, row.version, row.kind);
        let verbs = match row.verbs {
            Verbs::All | Verbs::OneByOne => "list or watch",
            Verbs::ReadOnly | Verbs::Measured | Verbs::CreateOnly => "list",
        };
        let description = format!("{verbs} objects of kind {}", row.kind);
        let read = self.operation("list", &description, id, own);
        read.with(parameters::of("list")).answers_in(&LISTS, &["200"], &list)
    }

    /// Deprecated paths of watches, from before lists took `watch`.
    fn watches(&self, paths: &mut Map<String, Value>) {
        const INSTEAD: &str = "deprecated: use the 'watch' parameter with a list operation instead";
        let Self { row, own, .. } = self;
        let kind = row.kind;
        let event = Type::new(&components::of_meta("WatchEvent"), row.group, row.version, kind);
        let mut add = |path: String, action: &str, id: &str, description: &str, common: Vec<Value>| {
            let watch = self
                .operation(action, description, id, own)
                .with(parameters::of("list"));
            let item = json!({"get": watch.answers_in(&LISTS, &["200"], &event), "parameters": common});
            let prefix = path_of(row);
            let rest = path.strip_prefix(&format!("/{prefix}/")).unwrap_or_default();
            paths.insert(format!("/{prefix}/watch/{rest}"), item);
        };
        let one = format!(
            "watch changes to an object of kind {kind}. {INSTEAD}, filtered to a single item with the 'fieldSelector' parameter."
        );
        let named = format!("{}/{{name}}", self.base);
        add(named, "watch", &self.id("watch", ""), &one, self.common(true));
        let many = format!("watch individual changes to a list of {kind}. {INSTEAD}.");
        let id = self.id("watch", "List");
        add(self.base.clone(), "watchlist", &id, &many, self.common(false));
        if row.scope == Scope::Namespaced {
            let id = format!("watch{}{kind}ListForAllNamespaces", self.group);
            let path = format!("/{}/{}", path_of(row), row.plural);
            add(path, "watchlist", &id, &many, parameters::of("pretty"));
        }
    }

    fn object(&self, paths: &mut Map<String, Value>) {
        let delete = self.operation(
            "delete",
            &format!("delete {}", with_article(self.row.kind)),
            &self.id("delete", ""),
            &self.own,
        );
        let mut item = self.readable_and_writable(&self.own, "");
        let answer = self.row.answers_deleted.then_some(&self.own);
        item.insert(
            "delete".to_owned(),
            delete.deletes(parameters::of("delete"), &["200", "202"], answer),
        );
        paths.insert(format!("{}/{{name}}", self.base), Value::Object(item));
    }

    fn readable(&self, paths: &mut Map<String, Value>) {
        let mut item = self.readable_and_writable(&self.own, "");
        item.retain(|method, _| method == "parameters" || method == "get");
        paths.insert(format!("{}/{{name}}", self.base), Value::Object(item));
    }

    /// get, patch and put of an object or a subresource.
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
        item.insert("parameters".to_owned(), Value::from(self.common_of(&of.kind, true)));
        item.insert("get".to_owned(), read.answers(&["200"], of));
        item.insert(
            "patch".to_owned(),
            patch
                .takes(&PATCHES, components::PATCH)
                .with(parameters::of("patch"))
                .answers(&["200", "201"], of),
        );
        item.insert(
            "put".to_owned(),
            replace
                .takes(&BODIES, &of.definition)
                .with(parameters::of("write"))
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
                let mut item =
                    Map::from_iter([("get".to_owned(), read.with(parameters::of("log")).answers_text(&LOGS))]);
                item.insert("parameters".to_owned(), Value::from(self.common(true)));
                item
            }
            Subresource::Exec => self.connected("Exec", "", &["get", "post"], parameters::of("exec")),
            Subresource::Attach => self.connected("Attach", "", &["get", "post"], parameters::of("attach")),
            Subresource::PortForward => {
                self.connected("Portforward", "", &["get", "post"], parameters::of("portforward"))
            }
            Subresource::Proxy => {
                let methods = ["delete", "get", "head", "options", "patch", "post", "put"];
                let mut all = parameters::of(&format!("{}/proxy", self.row.plural));
                let within = self.connected("Proxy", "WithPath", &methods, all.clone());
                paths.insert(format!("{}/{{name}}/proxy/{{path}}", self.base), Value::Object(within));
                all.retain(|parameter| parameter.get("in") != Some(&json!("path")));
                self.connected("Proxy", "", &methods, all)
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

    /// Subresource that is a connection.
    fn connected(&self, suffix: &str, end: &str, methods: &[&str], parameters: Vec<Value>) -> Map<String, Value> {
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
            let id = format!("{name}{}{}{suffix}{end}", self.scope, self.row.kind);
            let description = format!(
                "connect {} requests to {} of {}",
                method.to_uppercase(),
                suffix.to_lowercase(),
                self.row.kind
            );
            let operation = self.operation("connect", &description, &id, &of).answers_text(&BODIES);
            item.insert((*method).to_owned(), operation);
        }
        let mut all = self.common_of(&format!("{kind}Options"), true);
        all.retain(|parameter| parameter.get("name") != Some(&json!("pretty")));
        all.extend(parameters);
        item.insert("parameters".to_owned(), Value::from(all));
        item
    }

    /// Subresource that can only be written.
    fn writable(&self, method: &'static str, suffix: &str, of: &Type) -> Map<String, Value> {
        let (verb, article, codes) = match method {
            "post" => ("create", article(self.row.kind), &["200", "201", "202"][..]),
            _ => ("replace", "the specified ", &["200", "201"][..]),
        };
        let description = format!("{verb} {} of {article}{}", suffix.to_lowercase(), self.row.kind);
        let operation = self.operation(method, &description, &self.id(verb, suffix), of);
        let operation = operation
            .takes(&BODIES, &of.definition)
            .with(parameters::of("write"))
            .answers(codes, of);
        let mut item = Map::from_iter([(method.to_owned(), operation)]);
        item.insert("parameters".to_owned(), Value::from(self.common_of(&of.kind, true)));
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

/// `a `, `an ` or nothing before a plural (`GetArticleForNoun` in
/// `staging/src/k8s.io/apiserver/pkg/endpoints/installer.go`).
fn article(noun: &str) -> &'static str {
    if noun.ends_with('s') && !noun.ends_with("ss") {
        ""
    } else if noun.starts_with(['A', 'E', 'I', 'O', 'U']) {
        "an "
    } else {
        "a "
    }
}

fn with_article(noun: &str) -> String {
    format!("{}{noun}", article(noun))
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
