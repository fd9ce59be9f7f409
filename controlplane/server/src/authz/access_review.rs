//! Access reviews: whether a user may do a thing, and all rules of a user.

use api::selector::{FieldSelector, LabelSelector};
use api::{Invalid, Object};
use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LocalSubjectAccessReview, NonResourceAttributes, NonResourceRule, ResourceAttributes,
    ResourceRule, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview, SubjectAccessReviewSpec,
    SubjectAccessReviewStatus, SubjectRulesReviewStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::authn::identity::User;
use crate::authz::{self, Attributes, Resource};
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::write::create::set_namespace;

/// Answers a question in its object; whether it is one of these questions.
///
/// # Errors
/// 400, 422
pub(crate) fn review(context: &Context, object: &mut dyn Object) -> Result<bool, Failure> {
    if object.as_any().is::<LocalSubjectAccessReview>() {
        set_namespace(context, object)?;
    }
    let asked = object.as_any_mut();
    if let Some(review) = asked.downcast_mut::<SelfSubjectAccessReview>() {
        let (resource, path) = (&review.spec.resource_attributes, &review.spec.non_resource_attributes);
        refuse(context, &question(resource.as_ref(), path.as_ref()))?;
        review.status = Some(decide(context, &context.user, resource.as_ref(), path.as_ref()));
    } else if let Some(review) = asked.downcast_mut::<SubjectAccessReview>() {
        let mut found = of_subject(&review.spec);
        if !is_bare(&review.metadata, None) {
            found.push(Invalid::rendered("metadata", shown(&review.metadata), "must be empty"));
        }
        refuse(context, &found)?;
        review.status = Some(decide_for(context, &review.spec));
    } else if let Some(review) = asked.downcast_mut::<LocalSubjectAccessReview>() {
        refuse(context, &of_local(review))?;
        review.status = Some(decide_for(context, &review.spec));
    } else if let Some(review) = asked.downcast_mut::<SelfSubjectRulesReview>() {
        let namespace = review
            .spec
            .namespace
            .as_deref()
            .filter(|namespace| !namespace.is_empty());
        let namespace = namespace.ok_or(Failure::bad_request("no namespace on request"))?;
        review.status = Some(rules(context, namespace));
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn refuse(context: &Context, found: &[Invalid]) -> Result<(), Failure> {
    if found.is_empty() {
        return Ok(());
    }
    let row = &context.registration;
    Err(Failure::invalid(row.group, row.kind, "", found))
}

fn shown(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Upstream shows its internal type, which has no names for JSON.
fn internal(path: &NonResourceAttributes) -> String {
    let text = |text: &Option<String>| format!("{:?}", text.as_deref().unwrap_or_default());
    format!("{{\"Path\":{},\"Verb\":{}}}", text(&path.path), text(&path.verb))
}

/// True if the metadata is empty except for the namespace.
fn is_bare(metadata: &ObjectMeta, namespace: Option<&str>) -> bool {
    let bare = ObjectMeta {
        namespace: namespace.map(str::to_owned),
        ..ObjectMeta::default()
    };
    *metadata == bare
}

/// Validation errors of an access review.
fn question(resource: Option<&ResourceAttributes>, path: Option<&NonResourceAttributes>) -> Vec<Invalid> {
    let mut found = Vec::new();
    match (resource, path) {
        (Some(_), Some(path)) => {
            let because = "cannot be specified in combination with resourceAttributes";
            found.push(Invalid::rendered("spec.nonResourceAttributes", internal(path), because));
        }
        (None, None) => {
            let because = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            found.push(Invalid::rendered("spec.resourceAttributes", "null".to_owned(), because));
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
    let Some(resource) = resource else { return found };
    let fields = resource.field_selector.as_ref();
    let fields = fields.map(|own| (own.raw_selector.as_deref(), own.requirements.as_ref().map(Vec::len)));
    let labels = resource.label_selector.as_ref();
    let labels = labels.map(|own| (own.raw_selector.as_deref(), own.requirements.as_ref().map(Vec::len)));
    for (name, selector) in [("fieldSelector", fields), ("labelSelector", labels)] {
        let Some((raw, requirements)) = selector else { continue };
        let at = format!("spec.resourceAttributes.{name}");
        let raw = raw.unwrap_or_default();
        match (raw.is_empty(), requirements.unwrap_or_default() == 0) {
            (false, false) => {
                let because = "may not specified at the same time as requirements";
                found.push(Invalid::value(format!("{at}.rawSelector"), raw, because));
            }
            (true, true) => {
                let because = format!("when {at} is specified, requirements or rawSelector is required");
                found.push(Invalid::required(format!("{at}.requirements"), because));
            }
            (true, false) | (false, true) => {}
        }
    }
    requirements(&mut found, resource);
    found
}

/// Unknown operators are left to the authorizers.
fn requirements(found: &mut Vec<Invalid>, resource: &ResourceAttributes) {
    let mut values = |at: &str, operator: &str, values: Option<&Vec<String>>| {
        let none = values.is_none_or(Vec::is_empty);
        let at = format!("{at}.values");
        match operator {
            "In" | "NotIn" if none => {
                let because = "must be specified when `operator` is 'In' or 'NotIn'";
                found.push(Invalid::required(at, because));
            }
            "Exists" | "DoesNotExist" if !none => {
                let because = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                found.push(Invalid::forbidden(at, because));
            }
            _ => {}
        }
    };
    let fields = resource
        .field_selector
        .iter()
        .flat_map(|own| own.requirements.iter().flatten());
    let mut keys = Vec::new();
    for (index, own) in fields.enumerate() {
        let at = format!("spec.resourceAttributes.fieldSelector.requirements[{index}]");
        if own.key.is_empty() {
            keys.push(Invalid::required(format!("{at}.key"), "must be specified"));
        }
        values(&at, &own.operator, own.values.as_ref());
    }
    let labels = resource
        .label_selector
        .iter()
        .flat_map(|own| own.requirements.iter().flatten());
    for (index, own) in labels.enumerate() {
        let at = format!("spec.resourceAttributes.labelSelector.requirements[{index}]");
        values(&at, &own.operator, own.values.as_ref());
        let wrong = api::names::qualified_name(&own.key);
        let wrong = wrong
            .into_iter()
            .map(|why| Invalid::value(format!("{at}.key"), &own.key, why));
        keys.extend(wrong);
        for (number, value) in own.values.iter().flatten().enumerate() {
            let wrong = api::names::label_value(value).into_iter();
            keys.extend(wrong.map(|why| Invalid::value(format!("{at}.values[{number}]"), value, why)));
        }
    }
    found.extend(keys);
}

fn of_subject(spec: &SubjectAccessReviewSpec) -> Vec<Invalid> {
    let mut found = question(spec.resource_attributes.as_ref(), spec.non_resource_attributes.as_ref());
    let user = spec.user.as_deref().unwrap_or_default();
    if user.is_empty() && spec.groups.as_ref().is_none_or(Vec::is_empty) {
        found.push(Invalid::value(
            "spec.user",
            user,
            "at least one of user or group must be specified",
        ));
    }
    found
}

fn of_local(review: &LocalSubjectAccessReview) -> Vec<Invalid> {
    let mut found = of_subject(&review.spec);
    let namespace = review.metadata.namespace.as_deref().unwrap_or_default();
    if !is_bare(&review.metadata, Some(namespace)) {
        let because = "must be empty except for namespace";
        found.push(Invalid::rendered("metadata", shown(&review.metadata), because));
    }
    if let Some(resource) = &review.spec.resource_attributes {
        let asked = resource.namespace.as_deref().unwrap_or_default();
        if asked != namespace {
            let because = "must match metadata.namespace";
            found.push(Invalid::value("spec.resourceAttributes.namespace", asked, because));
        }
    }
    if let Some(path) = &review.spec.non_resource_attributes {
        let because = "disallowed on this kind of request";
        found.push(Invalid::rendered("spec.nonResourceAttributes", internal(path), because));
    }
    found
}

fn decide_for(context: &Context, spec: &SubjectAccessReviewSpec) -> SubjectAccessReviewStatus {
    let user = User {
        name: spec.user.clone().unwrap_or_default(),
        groups: spec.groups.clone().unwrap_or_default(),
        uid: spec.uid.clone().unwrap_or_default(),
        extra: spec.extra.clone().unwrap_or_default(),
    };
    let (resource, path) = (&spec.resource_attributes, &spec.non_resource_attributes);
    decide(context, &user, resource.as_ref(), path.as_ref())
}

fn decide(
    context: &Context,
    user: &User,
    resource: Option<&ResourceAttributes>,
    path: Option<&NonResourceAttributes>,
) -> SubjectAccessReviewStatus {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut problems: Vec<&str> = Vec::new();
    let decision = if let Some(resource) = resource {
        let selector = resource.field_selector.as_ref().map(field_selector).unwrap_or_default();
        if FieldSelector::parse(&selector).is_err() {
            problems.push("spec.resourceAttributes.fieldSelector ignored due to parse error");
        }
        let labels = resource
            .label_selector
            .as_ref()
            .and_then(|own| own.raw_selector.as_deref());
        if labels.is_some_and(|labels| LabelSelector::parse(labels).is_err()) {
            problems.push("spec.resourceAttributes.labelSelector ignored due to parse error");
        }
        let wanted = Resource {
            group: resource.group.as_deref().unwrap_or_default(),
            resource: resource.resource.as_deref().unwrap_or_default(),
            subresource: resource.subresource.as_deref().unwrap_or_default(),
            namespace: resource.namespace.as_deref().unwrap_or_default(),
            name: resource.name.as_deref().unwrap_or_default(),
            field_selector: &selector,
        };
        let attributes = Attributes::resource(resource.verb.as_deref().unwrap_or_default(), wanted);
        context.server.authorizer.decide(user, &attributes)
    } else {
        let asked = path.cloned().unwrap_or_default();
        let (verb, path) = (text(&asked.verb), text(&asked.path));
        context.server.authorizer.decide(user, &Attributes::path(&verb, &path))
    };
    SubjectAccessReviewStatus {
        allowed: decision.is_allowed(),
        denied: None,
        evaluation_error: (!problems.is_empty()).then(|| problems.join("; ")),
        reason: Some(decision.to_string()).filter(|reason| !reason.is_empty()),
    }
}

/// A selector as text. Requirements that text cannot say only narrow the question: without them the answer is for more.
fn field_selector(selector: &FieldSelectorAttributes) -> String {
    if let Some(raw) = selector.raw_selector.as_ref().filter(|raw| !raw.is_empty()) {
        return raw.clone();
    }
    let mut terms = Vec::new();
    for requirement in selector.requirements.iter().flatten() {
        let sign = match requirement.operator.as_str() {
            "In" => "=",
            "NotIn" => "!=",
            _ => continue,
        };
        if let Some([value]) = requirement.values.as_deref() {
            let value = value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            terms.push(format!("{}{sign}{value}", requirement.key));
        }
    }
    terms.join(",")
}

/// Rules of the caller in a namespace.
fn rules(context: &Context, namespace: &str) -> SubjectRulesReviewStatus {
    let found = context.server.authorizer.rules(&context.user, namespace);
    let mut status = SubjectRulesReviewStatus::default();
    for rule in found.rules {
        if rule.resources.as_ref().is_some_and(|resources| !resources.is_empty()) {
            status.resource_rules.push(ResourceRule {
                verbs: rule.verbs.clone(),
                api_groups: rule.api_groups,
                resources: rule.resources,
                resource_names: rule.resource_names,
            });
        }
        if rule.non_resource_urls.as_ref().is_some_and(|paths| !paths.is_empty()) {
            status.non_resource_rules.push(NonResourceRule {
                verbs: rule.verbs,
                non_resource_urls: rule.non_resource_urls,
            });
        }
    }
    let mut problems = found.problems;
    if authz::node(&context.user).is_some() {
        status.incomplete = true;
        problems.push("node authorizer does not support user rule resolution".to_owned());
    }
    status.evaluation_error = (!problems.is_empty()).then(|| authz::aggregate(&problems));
    status
}
