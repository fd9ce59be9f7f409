//! Expressions in CEL that decide about requests: their variables and the rights that they may ask for
//! (`pkg/admission/plugin/cel/{compile,activation,condition}.go` of `k8s.io/apiserver`).

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use expressions::schema::{Field, Format, ListKind, ObjectSchema, Schema, Shape};
use expressions::{Authorizer, Bindings, Check, Decision, Environment, Error, Question, Type, view};
use serde_json::Value as Json;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use crate::authn::identity::User;
use crate::authz::{Attributes, Resource};
use crate::request::context::Context;

/// Evaluates expressions, which may be slow, without blocking the thread's other tasks.
pub(crate) fn aside<T>(evaluate: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    if matches!(flavor, Ok(RuntimeFlavor::MultiThread)) {
        return block_in_place(evaluate);
    }
    evaluate()
}

/// The type of `authorizer`.
pub(crate) const AUTHORIZER: Type = Type::Opaque("kubernetes.authorization.Authorizer");

/// The variables of conditions of webhooks: `object`, `oldObject`, `request`, `namespaceObject` and `authorizer`.
pub(crate) fn environment() -> &'static Environment {
    static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
        without_authorizer().clone().with("authorizer", AUTHORIZER).with(
            "authorizer.requestResource",
            Type::Opaque("kubernetes.authorization.ResourceCheck"),
        )
    });
    &ENVIRONMENT
}

/// The variables but for the authorizer, which messages of policies do not ask.
pub(crate) fn without_authorizer() -> &'static Environment {
    static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
        Environment::default()
            .with("object", Type::Dyn)
            .with("oldObject", Type::Dyn)
            .with("namespaceObject", namespace().as_type())
            .with("request", request().as_type())
    });
    &ENVIRONMENT
}

fn object(name: &str, fields: &[(&str, Schema)]) -> Schema {
    let fields = fields.iter().map(|(name, schema)| {
        let field = Field {
            json: (*name).to_owned(),
            required: false,
            schema: schema.clone(),
        };
        ((*name).to_owned(), field)
    });
    Schema::new(Shape::Object(Arc::new(ObjectSchema {
        name: name.to_owned(),
        fields: fields.collect::<BTreeMap<_, _>>(),
    })))
}

fn text() -> Schema {
    Schema::new(Shape::String(Format::Text))
}

fn list(items: Schema) -> Schema {
    Schema::new(Shape::List {
        items: Box::new(items),
        kind: ListKind::Atomic,
    })
}

fn map(values: Schema) -> Schema {
    Schema::new(Shape::Map(Box::new(values)))
}

/// `BuildRequestType`
fn request() -> Schema {
    let kind = object(
        "kubernetes.GroupVersionKind",
        &[("group", text()), ("version", text()), ("kind", text())],
    );
    let resource = object(
        "kubernetes.GroupVersionResource",
        &[("group", text()), ("version", text()), ("resource", text())],
    );
    let user = object(
        "kubernetes.UserInfo",
        &[
            ("username", text()),
            ("uid", text()),
            ("groups", list(text())),
            ("extra", map(list(text()))),
        ],
    );
    object(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", text()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", text()),
            ("name", text()),
            ("namespace", text()),
            ("operation", text()),
            ("userInfo", user),
            ("dryRun", Schema::new(Shape::Bool)),
            ("options", Schema::any()),
        ],
    )
}

/// `BuildNamespaceType`
fn namespace() -> Schema {
    let time = || Schema::new(Shape::String(Format::DateTime));
    let condition = object(
        "kubernetes.NamespaceCondition",
        &[
            ("status", text()),
            ("type", text()),
            ("lastTransitionTime", time()),
            ("message", text()),
            ("reason", text()),
        ],
    );
    let metadata = object(
        "kubernetes.NamespaceMetadata",
        &[
            ("name", text()),
            ("generateName", text()),
            ("namespace", text()),
            ("labels", map(text())),
            ("annotations", map(text())),
            ("UID", text()),
            ("creationTimestamp", time()),
            ("deletionGracePeriodSeconds", Schema::new(Shape::Int)),
            ("deletionTimestamp", time()),
            ("generation", Schema::new(Shape::Int)),
            ("resourceVersion", text()),
            ("finalizers", list(text())),
        ],
    );
    object(
        "kubernetes.Namespace",
        &[
            ("metadata", metadata),
            (
                "spec",
                object("kubernetes.NamespaceSpec", &[("finalizers", list(text()))]),
            ),
            (
                "status",
                object(
                    "kubernetes.NamespaceStatus",
                    &[("conditions", list(condition)), ("phase", text())],
                ),
            ),
        ],
    )
}

/// Variables of an expression. As upstream, the values have the types of their JSON.
pub(crate) struct Variables<'a> {
    pub(crate) object: &'a Json,
    pub(crate) old: &'a Json,
    pub(crate) request: &'a Json,
    pub(crate) namespace: &'a Json,
    pub(crate) rights: &'a ContextAuthorizer<'a>,
    /// The resource of the request, as `authorizer.requestResource` asks about it.
    pub(crate) resource: &'a Question,
}

impl<'a> Bindings<'a> for Variables<'a> {
    fn get(&self, name: &str) -> Option<Result<expressions::Value<'a>, Error>> {
        Some(match name {
            "object" => view(self.object, None),
            "oldObject" => view(self.old, None),
            "request" => view(self.request, None),
            "namespaceObject" => view(self.namespace, None),
            "authorizer" => Ok(Check::authorizer(self.rights)),
            "authorizer.requestResource" => Ok(Check::resource(self.rights, self.resource.clone())),
            _ => return None,
        })
    }

    fn is_interrupted(&self) -> bool {
        self.rights.0.in_time().is_err()
    }
}

/// The authorizer of the server, asked for the user of a request.
pub(crate) struct ContextAuthorizer<'a>(pub(crate) &'a Context);

impl Authorizer for ContextAuthorizer<'_> {
    fn authorize(&self, question: &Question) -> Decision {
        let account = question.service_account.as_ref();
        let account = account.map(|(namespace, name)| User::account(namespace, name));
        let user = account.as_ref().unwrap_or(&self.0.user);
        let attributes = match &question.path {
            Some(path) => Attributes::path(&question.verb, path),
            None => Attributes::resource(
                &question.verb,
                Resource {
                    group: &question.group,
                    resource: &question.resource,
                    subresource: &question.subresource,
                    namespace: &question.namespace,
                    name: &question.name,
                    field_selector: &question.field_selector,
                },
            ),
        };
        let decision = self.0.server.authorizer.decide(user, &attributes);
        Decision {
            allowed: decision.is_allowed(),
            reason: decision.to_string(),
            error: None,
        }
    }
}
