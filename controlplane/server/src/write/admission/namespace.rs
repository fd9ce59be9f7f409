//! The life of namespaces: nothing is created in one that does not exist or is going away. Claims
//! of devices with `adminAccess` need a label of their namespace.

use api::Object;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use store::{Key, Seen};

use super::{Review, shown_name};
use crate::request::context::Context;
use crate::request::failure::{Cause, Failure, GroupResource, Target};
use crate::server::bootstrap;

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];
/// Label of namespaces in which claims may ask for devices that others use.
const ADMIN_ACCESS: &str = "resource.kubernetes.io/admin-access";

fn resource() -> GroupResource {
    GroupResource::new("", "namespaces")
}

fn key(name: &str) -> Option<Key> {
    Key::new("", "namespaces", "", name).ok()
}

/// The request's namespace must exist; requests outside namespaces pass.
pub(super) fn exists(context: &Context) -> Result<(), Failure> {
    find(context).map(|_bytes| ())
}

/// Stored namespace; `None` for requests outside namespaces.
fn find(context: &Context) -> Result<Option<store::Entry>, Failure> {
    let name = &context.info.namespace;
    if name.is_empty() || context.registration.scope == api::kind::Scope::Cluster {
        return Ok(None);
    }
    let missing = || Failure::NotFound {
        target: Target {
            resource: resource(),
            name: name.clone(),
        },
    };
    let entry = key(name)
        .and_then(|key| context.store().get(&key))
        .ok_or_else(missing)?;
    Ok(Some(entry))
}

/// Rejects creations in a namespace that does not exist or is terminating.
pub(super) fn check(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if review.is_new() {
        review.terms.within = may_create(review.context, shown_name(object))?;
    }
    Ok(())
}

/// Checks that the request's namespace exists and is not terminating; the commit verifies that it
/// is unchanged.
fn may_create(context: &Context, name: &str) -> Result<Option<Seen>, Failure> {
    let Some(entry) = find(context)? else { return Ok(None) };
    let seen = Some(Seen::of(&entry));
    // A terminating namespace is rare: only bytes that mention a deletion are decoded.
    let mentions = memmem(&entry.bytes, b"\"deletionTimestamp\"") || memmem(&entry.bytes, b"\"Terminating\"");
    if !mentions {
        return Ok(seen);
    }
    let namespace: Namespace = serde_json::from_slice(&entry.bytes).map_err(Failure::internal)?;
    let phase = namespace.status.and_then(|status| status.phase);
    if namespace.metadata.deletion_timestamp.is_none() && phase.as_deref() != Some("Terminating") {
        return Ok(seen);
    }
    let place = &context.info.namespace;
    Err(Failure::Forbidden {
        target: Some(context.target(name)),
        because: format!("unable to create new content in namespace {place} because it is being terminated"),
        causes: vec![Cause {
            reason: "NamespaceTerminating".into(),
            field: "metadata.namespace".to_owned(),
            message: format!("namespace {place} is being terminated"),
            text: String::new(),
        }],
    })
}

/// Rejects new claims of devices with `adminAccess` where the namespace lacks the label
/// (`AuthorizedForAdmin` of `pkg/registry/resource/utils.go`).
pub(super) fn check_admin_access(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    let any = object.as_any();
    let (kind, spec) = if let Some(claim) = any.downcast_ref::<ResourceClaim>() {
        ("ResourceClaim", &claim.spec)
    } else if let Some(template) = any.downcast_ref::<ResourceClaimTemplate>() {
        ("ResourceClaimTemplate", &template.spec.spec)
    } else {
        return Ok(());
    };
    let requests = spec.devices.iter().filter_map(|devices| devices.requests.as_ref());
    let mut asked = requests.flatten().map(|request| request.exactly.as_ref()?.admin_access);
    let Some(index) = asked
        .position(|asked| asked == Some(true))
        .filter(|_index| review.is_new())
    else {
        return Ok(());
    };
    if let Some(entry) = find(review.context)? {
        let namespace: Namespace = serde_json::from_slice(&entry.bytes).map_err(Failure::internal)?;
        let labels = namespace.metadata.labels.unwrap_or_default();
        if labels.get(ADMIN_ACCESS).is_some_and(|label| label == "true") {
            return Ok(());
        }
    }
    let field = format!("spec.devices.requests[{index}].adminAccess");
    let detail =
        format!("admin access to devices requires the `{ADMIN_ACCESS}: true` label on the containing namespace");
    let found = api::Invalid::forbidden(field, detail);
    let name = object.metadata().name.as_deref().unwrap_or_default();
    Err(Failure::invalid("resource.k8s.io", kind, name, &[found]))
}

fn memmem(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Rejects the deletion of system namespaces and system priority classes.
///
/// # Errors
/// 403
pub(crate) fn may_delete(context: &Context, name: &str) -> Result<(), Failure> {
    let registration = &context.registration;
    if registration.group.is_empty() && registration.plural == "namespaces" && IMMORTAL.contains(&name) {
        return Err(Failure::Forbidden {
            target: Some(Target {
                resource: resource(),
                name: name.to_owned(),
            }),
            because: "this namespace may not be deleted".to_owned(),
            causes: Vec::new(),
        });
    }
    let of_classes = registration.group == "scheduling.k8s.io" && registration.plural == "priorityclasses";
    if of_classes && bootstrap::PRIORITY_CLASSES.iter().any(|(own, _, _)| *own == name) {
        return Err(context.forbidden(name, "this is a system priority class and cannot be deleted"));
    }
    Ok(())
}
