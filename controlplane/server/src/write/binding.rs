//! POST of a Binding: assigns a pod to a node, once.

use api::{Object, Row};
use axum::body::Body;
use http::StatusCode;
use k8s_openapi::api::core::v1::{Binding, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::request::context::Context;
use crate::request::failure::{Failure, GroupResource, Target};
use crate::request::options::{FieldValidation, WriteOptions};
use crate::transport::body;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::{self, Response};
use crate::write::admission::pods::topology;
use crate::write::admission::{Part, webhooks};
use crate::write::amend::{Amendment, amend};
use crate::write::create::check_namespace;

/// `POST pods/NAME/binding`
pub(crate) async fn create(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let name = context.info.name.clone();
    bind(context, Some(name), body).await
}

/// `POST bindings`: the body names the pod.
pub(crate) async fn create_by_body(context: &mut Context, body: Body) -> Result<Response, Failure> {
    context.registration = api::find("", "v1", "pods")
        .map(Row::Program)
        .ok_or(Failure::NoSuchResource)?;
    bind(context, None, body).await
}

async fn bind(context: &mut Context, name: Option<String>, body: Body) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let options = WriteOptions::read(&context.query, "CreateOptions")?;
    let body = body::read(body).await?;
    let kind = api::find_kind("", "v1", "Binding").ok_or(Failure::NoSuchResource)?;
    let decoded = body::to_json(
        &context.headers,
        body,
        kind.kind,
        options.field_validation != FieldValidation::Ignore,
    )?;
    let mut binding: Binding = context.read_part(kind, decoded, options.field_validation)?;
    let own = binding.metadata.name.clone().unwrap_or_default();
    let name = match name {
        Some(name) if own.is_empty() || own == name => name,
        Some(_) => {
            return Err(Failure::bad_request(
                "name in URL does not match name in Binding object",
            ));
        }
        None => own,
    };
    check_namespace(context, binding.metadata.namespace.as_deref())?;
    binding = webhooks::admit_part(context, kind, binding).await?;
    check(&binding, &name)?;
    if binding.target.kind.as_deref() == Some("Node") {
        let node = binding.target.name.as_deref().unwrap_or_default();
        topology::add(&mut binding.metadata.labels, topology::of_node(context, node));
    }
    let now = context.now();
    let amendment = Amendment {
        name: &name,
        part: Part::Decided,
        dry_run: options.dry_run,
    };
    amend(context, amendment, &mut |live, old| {
        let mut new = old.clone_box();
        let wanted = binding.metadata.resource_version.as_deref().unwrap_or_default();
        let own = live.entry().revision.to_string();
        if !wanted.is_empty() && wanted != own {
            let because = format!(
                "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {own}"
            );
            return Err(refused(&name, because));
        }
        assign(&mut *new, &binding, now).map_err(|because| refused(&name, because))?;
        Ok(new.into())
    })
    .await?;
    let answer = respond::success(201, None);
    context.notes.response = Some(answer.clone());
    respond::status(representation.encoding, StatusCode::CREATED, &answer)
}

fn refused(name: &str, because: String) -> Failure {
    let resource = GroupResource::new("", "pods/binding");
    Failure::Conflict {
        target: Target {
            resource,
            name: name.to_owned(),
        },
        because: because.into(),
    }
}

fn check(binding: &Binding, name: &str) -> Result<(), Failure> {
    let mut found = Vec::new();
    if let Some(kind) = binding
        .target
        .kind
        .as_deref()
        .filter(|kind| !kind.is_empty() && *kind != "Node")
    {
        found.push(api::Invalid::not_supported("target.kind", kind, &["Node", "<empty>"]));
    }
    if binding.target.name.as_deref().unwrap_or_default().is_empty() {
        found.push(api::Invalid::required("target.name", ""));
    }
    if found.is_empty() {
        Ok(())
    } else {
        Err(Failure::invalid("", "Binding", name, &found))
    }
}

/// Assigns the pod; the text says why it cannot be.
fn assign(object: &mut dyn Object, binding: &Binding, now: Timestamp) -> Result<(), String> {
    let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() else {
        return Err("the object is not a pod".to_owned());
    };
    let name = pod.metadata.name.clone().unwrap_or_default();
    let wanted = binding.metadata.uid.as_deref().unwrap_or_default();
    let own = pod.metadata.uid.as_deref().unwrap_or_default();
    if !wanted.is_empty() && wanted != own {
        return Err(format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {own}"
        ));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let spec = pod.spec.get_or_insert_default();
    if let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) {
        return Err(format!("pod {name} is already assigned to node {node:?}"));
    }
    if spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    spec.node_name.clone_from(&binding.target.name);
    if let Some(annotations) = binding.metadata.annotations.clone().filter(|own| !own.is_empty()) {
        pod.metadata.annotations.get_or_insert_default().extend(annotations);
    }
    topology::add(
        &mut pod.metadata.labels,
        binding.metadata.labels.clone().into_iter().flatten(),
    );
    set_condition(pod, scheduled(now));
    // The promise is kept, or there is a better node.
    pod.status.get_or_insert_default().nominated_node_name = None;
    Ok(())
}

fn scheduled(now: Timestamp) -> PodCondition {
    PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    }
}

/// Sets a condition; the transition time moves only with the status.
pub(crate) fn set_condition(pod: &mut Pod, mut condition: PodCondition) {
    let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
    match conditions.iter_mut().find(|own| own.type_ == condition.type_) {
        Some(own) => {
            if own.status == condition.status {
                condition.last_transition_time.clone_from(&own.last_transition_time);
            }
            *own = condition;
        }
        None => conditions.push(condition),
    }
}
