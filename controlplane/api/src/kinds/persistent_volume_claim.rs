//! `PersistentVolumeClaim`: a request for storage.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, TypedLocalObjectReference,
    TypedObjectReference,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::invalid::Invalid;
use crate::kind::{Column, Kind, Subresource};
use crate::names;
use crate::pod::defaults::{amounts, text};
use crate::quantity::Quantity as Amount;
use crate::table::age_column;
use crate::validation::selector::label_selector;
use crate::validation::{IMMUTABLE, each, immutable, one_of_or_none, required};

impl Kind for PersistentVolumeClaim {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["pvc"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Status", "Pending, Bound or Lost.", |claim, _| phase(claim).into()),
        Column::text("Volume", "The volume that it is bound to.", |claim, _| {
            volume(claim).unwrap_or_default().into()
        }),
        Column::text("Capacity", "How much it holds.", |claim, _| {
            let status = bound(claim);
            status
                .map(|status| storage(status.capacity.as_ref()))
                .unwrap_or_default()
                .into()
        }),
        Column::text("Access Modes", "How nodes may mount it.", |claim, _| {
            let status = bound(claim);
            status
                .map(|status| modes(status.access_modes.as_deref()))
                .unwrap_or_default()
                .into()
        }),
        Column::text("StorageClass", "The class that is asked for.", |claim, _| {
            let class = spec(claim).and_then(|spec| spec.storage_class_name.as_deref());
            storage_class(&claim.metadata, class).into()
        }),
        Column::text(
            "VolumeAttributesClass",
            "The class of its changeable attributes.",
            |claim, _| {
                let class = spec(claim).and_then(|spec| spec.volume_attributes_class_name.as_deref());
                class.unwrap_or("<unset>").into()
            },
        ),
        age_column(),
        Column::wide("VolumeMode", "Filesystem or Block.", |claim, _| {
            let mode = spec(claim).and_then(|spec| spec.volume_mode.as_deref());
            mode.unwrap_or("<unset>").into()
        }),
    ];

    fn set_defaults(&mut self) {
        set_spec_defaults(self.spec.get_or_insert_default());
        let status = self.status.get_or_insert_default();
        text(&mut status.phase, "Pending");
        status.capacity.iter_mut().for_each(amounts);
    }

    fn prepare_create(&mut self) {
        self.status = Some(PersistentVolumeClaimStatus {
            phase: Some("Pending".to_owned()),
            ..PersistentVolumeClaimStatus::default()
        });
        if let Some(spec) = &mut self.spec {
            unite_sources(spec);
        }
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
        if let Some(spec) = &mut self.spec {
            unite_sources(spec);
        }
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    fn validate(&self) -> Vec<Invalid> {
        self.spec.as_ref().map_or_else(
            || vec![Invalid::required("spec", "")],
            |spec| validate_spec(spec, "spec"),
        )
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        if let (Some(new), Some(spec)) = (&self.spec, &old.spec) {
            may_differ(&mut errors, (self, new), (old, spec));
        }
        errors
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let capacity = self.status.as_ref().and_then(|status| status.capacity.as_ref());
        for (name, text) in capacity.into_iter().flatten() {
            let amount = Amount::of(text);
            if amount.is_negative() {
                let field = format!("status.capacity[{name}]");
                errors.push(Invalid::value(
                    field,
                    amount.value(),
                    "must be a valid resource quantity",
                ));
            }
        }
        errors
    }
}

type Specified<'a> = (&'a PersistentVolumeClaim, &'a PersistentVolumeClaimSpec);

/// What of a claim may change: the volume and the class, once; how much is asked for, and the class of attributes.
fn may_differ(errors: &mut Vec<Invalid>, (new, spec): Specified<'_>, (old, before): Specified<'_>) {
    let mut fixed = spec.clone();
    if volume(old).is_none() {
        fixed.volume_name.clone_from(&before.volume_name);
    }
    class_may_differ(errors, &mut fixed, (new, spec), (old, before));
    let bound = old.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    if bound {
        let asked = before.resources.as_ref().and_then(|own| own.requests.as_ref());
        let asked = asked.and_then(|requests| requests.get("storage"));
        let requests = fixed.resources.as_mut().and_then(|own| own.requests.as_mut());
        if let (Some(requests), Some(asked)) = (requests, asked) {
            requests.insert("storage".to_owned(), asked.clone());
        }
        if fixed.volume_attributes_class_name.is_some() {
            fixed
                .volume_attributes_class_name
                .clone_from(&before.volume_attributes_class_name);
        }
    }
    if fixed != *before {
        errors.push(Invalid::forbidden("spec", FIXED));
    }
    let status = old.status.as_ref().and_then(|status| status.capacity.as_ref());
    let has = status
        .and_then(|capacity| capacity.get("storage"))
        .map_or(Amount::ZERO, Amount::of);
    if requested(spec) < requested(before) && requested(spec).is_none_or(|wanted| wanted <= has) {
        let detail = "field can not be less than status.capacity";
        errors.push(Invalid::forbidden("spec.resources.requests.storage", detail));
    }
    immutable(errors, "volumeMode", &spec.volume_mode, &before.volume_mode);
    if before.volume_attributes_class_name.is_some() {
        let detail = match spec.volume_attributes_class_name.as_deref() {
            None => "update from non-nil value to nil is forbidden",
            Some("") => "update from non-nil value to an empty string is forbidden",
            Some(_) => return,
        };
        if spec.volume_attributes_class_name != before.volume_attributes_class_name {
            errors.push(Invalid::forbidden("spec.volumeAttributesClassName", detail));
        }
    }
}

/// A claim without a class may get one: the one of its annotation, if it has that.
fn class_may_differ(
    errors: &mut Vec<Invalid>,
    fixed: &mut PersistentVolumeClaimSpec,
    (new, spec): Specified<'_>,
    (old, before): Specified<'_>,
) {
    let (now, then) = (annotated(&new.metadata), annotated(&old.metadata));
    let class = spec.storage_class_name.as_deref();
    let added = before.storage_class_name.is_none() && class.is_some();
    let same = then.is_none_or(|then| class == Some(then));
    if added && same {
        fixed.storage_class_name = None;
    }
    if added && same && then.is_some() && now.is_none() {
        return;
    }
    if now != then {
        let field = format!("metadata.annotations[{ANNOTATION}]");
        errors.push(Invalid::value(field, now.unwrap_or_default(), IMMUTABLE));
    }
}

/// Defaults of a claim's spec, wherever it stands.
pub(crate) fn set_spec_defaults(spec: &mut PersistentVolumeClaimSpec) {
    spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    let resources = spec.resources.get_or_insert_default();
    for list in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        amounts(list);
    }
}

/// The two fields that name a source say the same. The older one knows only claims and snapshots.
fn unite_sources(spec: &mut PersistentVolumeClaimSpec) {
    let known = |source: &TypedLocalObjectReference| {
        let group = source.api_group.as_deref().unwrap_or_default();
        matches!(
            (group, source.kind.as_str()),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    };
    spec.data_source.take_if(|source| !known(source));
    let elsewhere = |other: &TypedObjectReference| other.namespace.as_ref().is_some_and(|own| !own.is_empty());
    match (&spec.data_source, &spec.data_source_ref) {
        (Some(own), None) => {
            spec.data_source_ref = Some(TypedObjectReference {
                api_group: own.api_group.clone(),
                kind: own.kind.clone(),
                name: own.name.clone(),
                namespace: None,
            });
        }
        (None, Some(other)) if !elsewhere(other) => {
            spec.data_source = Some(TypedLocalObjectReference {
                api_group: other.api_group.clone(),
                kind: other.kind.clone(),
                name: other.name.clone(),
            });
        }
        (None, None | Some(_)) | (Some(_), Some(_)) => {}
    }
}

fn spec(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimSpec> {
    claim.spec.as_ref()
}

fn volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = spec(claim)?.volume_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// The status of a claim that has a volume.
fn bound(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimStatus> {
    volume(claim)?;
    claim.status.as_ref()
}

fn phase(claim: &PersistentVolumeClaim) -> &str {
    if claim.metadata.deletion_timestamp.is_some() {
        return "Terminating";
    }
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The amount of storage among others; `0` where there is none.
pub(super) fn storage(amounts: Option<&BTreeMap<String, Quantity>>) -> String {
    let amount = amounts.and_then(|amounts| amounts.get("storage"));
    amount.map_or_else(|| "0".to_owned(), |amount| amount.0.clone())
}

/// `RWO,ROX`: the modes by their short names, in a fixed order.
pub(super) fn modes(modes: Option<&[String]>) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| modes.unwrap_or_default().iter().any(|own| own == mode);
    let short = SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short);
    short.collect::<Vec<_>>().join(",")
}

/// The class by the old annotation, or else by the field.
pub(super) fn storage_class<'a>(metadata: &'a ObjectMeta, class: Option<&'a str>) -> &'a str {
    annotated(metadata).or(class).unwrap_or_default()
}

const ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

fn annotated(metadata: &ObjectMeta) -> Option<&str> {
    metadata.annotations.as_ref()?.get(ANNOTATION).map(String::as_str)
}

const FIXED: &str =
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

pub(super) const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn requested(spec: &PersistentVolumeClaimSpec) -> Option<Amount> {
    let requests = spec.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(Amount::of)
}

/// What is wrong with a claim's spec, wherever it stands.
pub(crate) fn validate_spec(spec: &PersistentVolumeClaimSpec, path: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let modes = spec.access_modes.as_deref();
    let (at_least, mut of_modes) = ("at least 1 access mode is required", Vec::new());
    modes_of(&mut of_modes, modes, path, at_least);
    // What the selector lacks is told between the lack of modes and what is wrong with them.
    let missing = usize::from(modes.unwrap_or_default().is_empty());
    errors.extend(of_modes.drain(..missing.min(of_modes.len())));
    if let Some(selector) = &spec.selector {
        label_selector(&mut errors, selector, &format!("{path}.selector"));
    }
    errors.extend(of_modes);
    let field = format!("{path}.resources[storage]");
    match requested(spec) {
        None => errors.push(Invalid::required(field, "")),
        Some(amount) if amount <= Amount::ZERO => {
            let text = amount.to_string();
            errors.push(Invalid::value(field, text, "must be greater than zero"));
        }
        Some(_) => {}
    }
    let class = |errors: &mut Vec<Invalid>, name: &str, class: Option<&str>| {
        if let Some(class) = class.filter(|class| !class.is_empty()) {
            each(
                errors,
                &format!("{path}.{name}"),
                class,
                names::dns1123_subdomain(class),
            );
        }
    };
    class(&mut errors, "storageClassName", spec.storage_class_name.as_deref());
    let mode = spec.volume_mode.as_deref();
    let field = format!("{path}.volumeMode");
    one_of_or_none(&mut errors, &field, mode, &["Block", "Filesystem"]);
    sources(&mut errors, spec, path);
    class(
        &mut errors,
        "volumeAttributesClassName",
        spec.volume_attributes_class_name.as_deref(),
    );
    errors
}

/// What the volume is to be filled with.
fn sources(errors: &mut Vec<Invalid>, spec: &PersistentVolumeClaimSpec, path: &str) {
    let (own, other) = (&spec.data_source, &spec.data_source_ref);
    if let Some(own) = own {
        let field = format!("{path}.dataSource");
        source(errors, own.api_group.as_deref(), &own.kind, &own.name, &field);
    }
    let Some(other) = other else { return };
    let field = format!("{path}.dataSourceRef");
    source(errors, other.api_group.as_deref(), &other.kind, &other.name, &field);
    let namespace = other.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    if let Some(namespace) = namespace {
        let field = format!("{field}.namespace");
        each(errors, &field, namespace, names::dns1123_label(namespace));
    }
    let Some(own) = own else { return };
    let same = (&own.api_group, &own.kind, &own.name) == (&other.api_group, &other.kind, &other.name);
    let detail = match namespace {
        Some(_) => "may not be specified when dataSourceRef.namespace is specified",
        None if !same => "must match dataSourceRef",
        None => return,
    };
    errors.push(Invalid::value(path, format!("{path}.dataSource"), detail));
}

fn source(errors: &mut Vec<Invalid>, group: Option<&str>, kind: &str, name: &str, path: &str) {
    required(errors, &format!("{path}.name"), Some(name));
    required(errors, &format!("{path}.kind"), Some(kind));
    match group.filter(|group| !group.is_empty()) {
        None if kind != "PersistentVolumeClaim" => {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(Invalid::value(path, kind, detail));
        }
        None => {}
        Some(group) => each(
            errors,
            &format!("{path}.apiGroup"),
            group,
            names::dns1123_subdomain(group),
        ),
    }
}

/// What is wrong with access modes.
pub(super) fn modes_of(errors: &mut Vec<Invalid>, modes: Option<&[String]>, path: &str, missing: &str) {
    let modes = modes.unwrap_or_default();
    let field = format!("{path}.accessModes");
    if modes.is_empty() {
        errors.push(Invalid::required(field.as_str(), missing));
    }
    for mode in modes.iter().filter(|mode| !MODES.contains(&mode.as_str())) {
        errors.push(Invalid::not_supported(field.as_str(), mode, &MODES));
    }
    let known = |mode: &&String| MODES.contains(&mode.as_str());
    let (alone, others): (Vec<&String>, _) = modes
        .iter()
        .filter(known)
        .partition(|mode| mode.as_str() == "ReadWriteOncePod");
    if !alone.is_empty() && !others.is_empty() {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(Invalid::forbidden(field, detail));
    }
}
