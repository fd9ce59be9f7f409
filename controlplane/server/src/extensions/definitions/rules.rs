//! Validation of definitions and of new objects besides the rules of their kinds.

use std::collections::BTreeSet;

use api::kinds::custom_resource_definition::{schema_path, selectable_path};
use api::{Invalid, Object};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};
use schema::{Kind, Options, Structural};

use crate::request::context::Context;
use crate::request::failure::Failure;

/// The most fields by which objects may be selected (`MaxSelectableFields` of `pkg/apis/apiextensions/validation/validation.go`).
const MAX_SELECTABLE: usize = 8;

/// Errors of the schemas of a definition; none for other objects. A schema that was accepted once
/// is not validated again while it is unchanged.
pub(crate) fn schemas(new: &dyn Object, old: Option<&dyn Object>) -> Vec<Invalid> {
    let definition = |object: &dyn Object| object.as_any().downcast_ref::<CustomResourceDefinition>().cloned();
    let Some(new) = definition(new) else { return Vec::new() };
    let old = old.and_then(definition);
    let mut errors = Vec::new();
    for (index, version) in new.spec.versions.iter().enumerate() {
        let before = old
            .iter()
            .flat_map(|old| &old.spec.versions)
            .find(|own| own.name == version.name);
        let is_same = before.is_some_and(|before| {
            before.schema == version.schema
                && before.subresources == version.subresources
                && before.selectable_fields == version.selectable_fields
        });
        if !is_same {
            errors.extend(of_version(&new, index, version));
        }
    }
    errors
}

/// Warnings about formats of a definition's schemas that are not checked; none about those that it had before
/// (`WarningsOnUpdate` of `pkg/registry/customresourcedefinition/strategy.go`).
pub(crate) fn format_warnings(new: &dyn Object, old: Option<&dyn Object>) -> Vec<String> {
    let found = |object: &dyn Object| {
        let definition = object.as_any().downcast_ref::<CustomResourceDefinition>();
        let versions = definition.into_iter().flat_map(|own| &own.spec.versions);
        let schemas = versions.filter_map(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref());
        let mut found = BTreeSet::new();
        schemas.for_each(|own| unrecognized(own, &mut found));
        found
    };
    let known = old.map(found).unwrap_or_default();
    found(new)
        .difference(&known)
        .map(|format| format!("unrecognized format {format:?}"))
        .collect()
}

/// Adds the formats of a structural schema that are none of its types'.
fn unrecognized(schema: &JSONSchemaProps, found: &mut BTreeSet<String>) {
    let kind = schema.type_.as_deref().unwrap_or_default();
    if let Some(format) = schema.format.as_ref().filter(|format| !format.is_empty())
        && !schema::is_format(kind, format)
    {
        found.insert(format.clone());
    }
    let items = schema.items.iter().flat_map(|items| match items {
        JSONSchemaPropsOrArray::Schema(own) => std::slice::from_ref(&**own),
        JSONSchemaPropsOrArray::Schemas(all) => all,
    });
    let additional = schema.additional_properties.as_ref().and_then(|own| match own {
        JSONSchemaPropsOrBool::Schema(own) => Some(&**own),
        JSONSchemaPropsOrBool::Bool(_) => None,
    });
    let junctors = [&schema.all_of, &schema.any_of, &schema.one_of];
    let nested = items
        .chain(junctors.into_iter().flatten().flatten())
        .chain(schema.not.as_deref())
        .chain(schema.properties.iter().flat_map(|own| own.values()))
        .chain(additional);
    nested.for_each(|own| unrecognized(own, found));
}

fn of_version(
    definition: &CustomResourceDefinition,
    index: usize,
    version: &CustomResourceDefinitionVersion,
) -> Vec<Invalid> {
    let versions = &definition.spec.versions;
    let own = version.schema.as_ref().and_then(|own| own.open_api_v3_schema.as_ref());
    let Some(own) = own else { return Vec::new() };
    // Schemas serialize.
    let json = serde_json::to_value(own).unwrap_or_default();
    let options = Options {
        status_subresource: version.subresources.as_ref().is_some_and(|own| own.status.is_some()),
    };
    let path = schema_path(versions, index);
    let parsed = Structural::parse(&json, path.as_deref().unwrap_or_default(), options);
    match (parsed, path) {
        (Ok(schema), _) => match selectable_path(versions, index) {
            Some(path) => selectable(&path, version, &schema),
            None => Vec::new(),
        },
        (Err(errors), Some(_)) => errors,
        // The other version reports the error.
        (Err(_), None) => Vec::new(),
    }
}

/// `ValidateCustomResourceSelectableFields`
fn selectable(path: &str, version: &CustomResourceDefinitionVersion, schema: &Structural) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, field) in version.selectable_fields.iter().flatten().enumerate() {
        let (at, own) = (format!("{path}[{index}].jsonPath"), field.json_path.as_str());
        if own.is_empty() {
            errors.push(Invalid::required(at, ""));
            continue;
        }
        let Some(names) = own.strip_prefix('.') else {
            errors.push(Invalid::value(at, own, "is an invalid path: expected leading \".\""));
            continue;
        };
        let mut node = Some(schema.root());
        for name in names.split('.') {
            node = node.and_then(|node| node.property(name));
        }
        if names.split('.').next() == Some("metadata") {
            errors.push(Invalid::value(at.clone(), own, "must not point to fields in metadata"));
        }
        match node.map(schema::Node::kind) {
            None => errors.push(Invalid::value(
                at.clone(),
                own,
                "is an invalid path: does not refer to a valid field",
            )),
            Some(Some(Kind::String | Kind::Boolean | Kind::Integer)) => {}
            Some(_) => {
                let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                              formats are allowed.";
                errors.push(Invalid::value(at.clone(), own, detail));
            }
        }
        if !seen.insert(own) {
            errors.push(Invalid::duplicate(at, own));
        }
    }
    if seen.len() > MAX_SELECTABLE {
        errors.push(Invalid::too_many(path, seen.len(), MAX_SELECTABLE));
    }
    errors
}

/// Rejects the creation of objects whose definition is about to be deleted (`forbidCreateAdmission`
/// of `pkg/apiserver/customresource_handler.go`).
///
/// # Errors
/// 403
pub(crate) fn may_create(context: &Context, object: &dyn Object) -> Result<(), Failure> {
    if !context.registration.is_defined() {
        return Ok(());
    }
    let made = context
        .table
        .made(context.registration.group, context.registration.plural);
    if !made.is_some_and(|made| made.is_terminating) {
        return Ok(());
    }
    let name = object.metadata().name.clone().unwrap_or_default();
    let because = "create not allowed while custom resource definition is terminating";
    Err(context.forbidden(&name, because))
}
