//! Expressions in CEL that decide about requests: the types of their variables, and their [`variables`]
//! (`pkg/admission/plugin/cel/{compile,activation,condition}.go` of `k8s.io/apiserver`).

pub(crate) mod variables;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use expressions::schema::{Field, Format, ListKind, ObjectSchema, Schema, Shape};
use expressions::{Environment, Type};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

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

/// A user, for policies and for rules of authenticators
/// (`buildUserType` of `k8s.io/apiserver/pkg/authentication/cel/compile.go`).
pub(crate) fn user() -> Schema {
    object(
        "kubernetes.UserInfo",
        &[
            ("username", text()),
            ("uid", text()),
            ("groups", list(text())),
            ("extra", map(list(text()))),
        ],
    )
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
            ("userInfo", user()),
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
