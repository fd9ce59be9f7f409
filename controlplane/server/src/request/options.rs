//! Options of writes: dry run, field validation, and deletion options.

use bytes::Bytes;
use http::HeaderMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use serde_json::Value;

use crate::request::failure::{Failure, GroupResource};
use crate::request::query::Query;
use crate::transport::body;

/// Treatment of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// Refuse the request.
    Strict,
    /// Answer with warnings.
    Warn,
    /// Say nothing.
    Ignore,
}

/// Options of create, update and patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) field_validation: FieldValidation,
}

impl WriteOptions {
    /// Reads `dryRun` and `fieldValidation`; `kind` names the options in messages.
    pub(crate) fn read(query: &Query, kind: &'static str) -> Result<Self, Failure> {
        let dry_run = dry_run(query.all("dryRun"), kind)?;
        let field_validation = match query.text("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                let found = api::Invalid::not_supported("fieldValidation", other, &["", "Ignore", "Strict", "Warn"]);
                return Err(Failure::invalid("meta.k8s.io", kind, "", &[found]));
            }
        };
        let found = check_manager("fieldManager", query.text("fieldManager").unwrap_or_default());
        if !found.is_empty() {
            return Err(Failure::invalid("meta.k8s.io", kind, "", &found));
        }
        Ok(Self {
            dry_run,
            field_validation,
        })
    }

    /// Reads the options of a patch: an apply must name its manager, and only an apply may be forced.
    pub(crate) fn of_patch(query: &Query, is_apply: bool) -> Result<Self, Failure> {
        let found = if is_apply && query.text("fieldManager").is_none() {
            api::Invalid::required("fieldManager", "is required for apply patch")
        } else if !is_apply && query.text("force").is_some() {
            api::Invalid::forbidden("force", "may not be specified for non-apply patch")
        } else {
            return Self::read(query, "PatchOptions");
        };
        Err(Failure::invalid("meta.k8s.io", "PatchOptions", "", &[found]))
    }
}

/// The most bytes of a manager's name.
pub(crate) const MAX_NAME: usize = 128;

/// A manager's name is short and printable.
pub(crate) fn check_manager(field: &str, manager: &str) -> Vec<api::Invalid> {
    let mut found = Vec::new();
    if manager.len() > MAX_NAME {
        found.push(api::Invalid::too_long(field, MAX_NAME));
    }
    let hidden = manager.char_indices().find(|(_, character)| character.is_control());
    if let Some((at, character)) = hidden {
        let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(character));
        found.push(api::Invalid::value(field, manager, detail));
    }
    found
}

fn dry_run<'a>(values: impl Iterator<Item = &'a str>, kind: &'static str) -> Result<bool, Failure> {
    let mut set = false;
    for value in values.filter(|value| !value.is_empty()) {
        if value != "All" {
            let found = api::Invalid::not_supported("dryRun", value, &["All"]);
            return Err(Failure::invalid("meta.k8s.io", kind, "", &[found]));
        }
        set = true;
    }
    Ok(set)
}

/// Deletion propagation policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// The owned objects stay, without their owner.
    Orphan,
    /// Dependents are collected after the owner is removed.
    Background,
    /// Dependents are removed before the owner.
    Foreground,
}

/// Options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Deletion {
    pub(crate) dry_run: bool,
    /// Seconds, as requested.
    pub(crate) grace: Option<i64>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) orphan_dependents: Option<bool>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

impl Deletion {
    /// Reads options from the body, or from the query without one.
    ///
    /// # Errors
    /// 400 for a body that is not `DeleteOptions`, 422 for values that contradict each other.
    pub(crate) fn read(headers: &HeaderMap, query: &Query, body: Bytes) -> Result<Self, Failure> {
        let options = if body.is_empty() {
            from_query(query)?
        } else {
            from_body(headers, body)?
        };
        let dry_run_values = options.dry_run.iter().flatten().map(String::as_str);
        let dry_run = dry_run(dry_run_values, "DeleteOptions")?;
        if options.propagation_policy.is_some() && options.orphan_dependents.is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            let found = api::Invalid::value(
                "propagationPolicy",
                options.propagation_policy.unwrap_or_default(),
                detail,
            );
            return Err(Failure::invalid("meta.k8s.io", "DeleteOptions", "", &[found]));
        }
        let propagation = match options.propagation_policy.as_deref() {
            None | Some("") => None,
            Some("Orphan") => Some(Propagation::Orphan),
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some(other) => {
                let policies = ["Foreground", "Background", "Orphan", "nil"];
                let found = api::Invalid::not_supported("propagationPolicy", other, &policies);
                return Err(Failure::invalid("meta.k8s.io", "DeleteOptions", "", &[found]));
            }
        };
        let Preconditions { uid, resource_version } = options.preconditions.unwrap_or_default();
        Ok(Self {
            dry_run,
            grace: options.grace_period_seconds,
            propagation,
            orphan_dependents: options.orphan_dependents,
            uid,
            resource_version,
        })
    }

    /// Propagation policy to which `propagationPolicy` and `orphanDependents` amount; `None` for
    /// the default.
    pub(crate) fn propagation(&self) -> Option<Propagation> {
        match (self.propagation, self.orphan_dependents) {
            (None, Some(true)) => Some(Propagation::Orphan),
            (None, Some(false)) => Some(Propagation::Background),
            (propagation, _) => propagation,
        }
    }

    /// Checks the preconditions on an object's uid and revision.
    pub(crate) fn check(&self, kind: &GroupResource, name: &str, uid: &str, revision: u64) -> Result<(), Failure> {
        let conflict = |because: String| Failure::Conflict {
            target: crate::request::failure::Target {
                resource: kind.clone(),
                name: name.to_owned(),
            },
            because: because.into(),
        };
        if let Some(wanted) = self.uid.as_deref().filter(|wanted| *wanted != uid) {
            return Err(conflict(format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). \
                 The object might have been deleted and then recreated"
            )));
        }
        if let Some(wanted) = self
            .resource_version
            .as_deref()
            .filter(|wanted| *wanted != revision.to_string())
        {
            return Err(conflict(format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
                 ({revision}). The object might have been modified"
            )));
        }
        Ok(())
    }
}

fn from_query(query: &Query) -> Result<DeleteOptions, Failure> {
    Ok(DeleteOptions {
        dry_run: Some(query.all("dryRun").map(str::to_owned).collect()),
        grace_period_seconds: query.number("gracePeriodSeconds")?,
        propagation_policy: query.text("propagationPolicy").map(str::to_owned),
        orphan_dependents: query.optional_flag("orphanDependents"),
        ..DeleteOptions::default()
    })
}

fn from_body(headers: &HeaderMap, body: Bytes) -> Result<DeleteOptions, Failure> {
    let decoded = body::to_json(headers, body, "DeleteOptions", false)?;
    let value: Value =
        serde_json::from_slice(&decoded.json).map_err(|error| Failure::bad_request(error.to_string()))?;
    if let Some(kind) = value.get("kind").and_then(Value::as_str)
        && kind != "DeleteOptions"
    {
        return Err(Failure::bad_request(format!(
            "decoded object cannot be converted to DeleteOptions: {kind}"
        )));
    }
    // Clients may say `v1`, `meta.k8s.io/v1` or the resource's own group: the shape is the same.
    api::decode::delete_options(&decoded.json).map_err(|error| Failure::bad_request(error.to_string()))
}
