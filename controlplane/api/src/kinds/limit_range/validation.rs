//! Validation of limit ranges, with upstream's messages (`pkg/apis/core/validation`).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::value::quantity::Quantity;
use crate::workload::validation::{each, resources};

const TYPES: [&str; 3] = ["Container", "PersistentVolumeClaim", "Pod"];

/// Validates a limit range.
pub(super) fn validate(range: &LimitRange) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let items = range
        .spec
        .as_ref()
        .map(|spec| spec.limits.as_slice())
        .unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, own) in items.iter().enumerate() {
        let path = format!("spec.limits[{index}]");
        let field = format!("{path}.type");
        each(&mut errors, &field, &own.type_, names::qualified_name(&own.type_));
        if !own.type_.contains('/') && !TYPES.contains(&own.type_.as_str()) {
            let detail = "must be a standard limit type or fully qualified";
            errors.push(Invalid::value(field.as_str(), &own.type_, detail));
        }
        if !seen.insert(&own.type_) {
            errors.push(Invalid::duplicate(field, &own.type_));
        }
        item(&mut errors, own, &path);
    }
    errors
}

fn item(errors: &mut Vec<Invalid>, item: &LimitRangeItem, path: &str) {
    let is_pod = item.type_ == "Pod";
    let check: fn(&mut Vec<Invalid>, &str, &str) = if is_pod || item.type_ == "Container" {
        resources::container_resource_name
    } else {
        resources::resource_name
    };
    for (list, field) in [
        (&item.max, "max"),
        (&item.min, "min"),
        (&item.default, "default"),
        (&item.default_request, "defaultRequest"),
        (&item.max_limit_request_ratio, "maxLimitRequestRatio"),
    ] {
        let field = format!("{path}.{field}");
        if is_pod && field.contains("default") {
            if list.as_ref().is_some_and(|list| !list.is_empty()) {
                let detail = "may not be specified when `type` is 'Pod'";
                errors.push(Invalid::forbidden(field, detail));
            }
            continue;
        }
        for name in list.iter().flatten().map(|(name, _)| name) {
            check(errors, name, &format!("{field}[{name}]"));
        }
    }
    let has = |list: &Option<BTreeMap<String, Text>>| list.as_ref().is_some_and(|list| list.contains_key("storage"));
    if item.type_ == "PersistentVolumeClaim" && !has(&item.min) && !has(&item.max) {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(Invalid::required(format!("{path}.limits"), detail));
    }
    let lists = [
        &item.max,
        &item.min,
        &item.default,
        &item.default_request,
        &item.max_limit_request_ratio,
    ];
    let names: BTreeSet<&String> = lists.into_iter().flatten().flat_map(BTreeMap::keys).collect();
    for name in names {
        Bounds::of(item, name).check(errors, name, path);
    }
}

/// Limits for one resource.
struct Bounds {
    min: Option<Quantity>,
    max: Option<Quantity>,
    default: Option<Quantity>,
    request: Option<Quantity>,
    ratio: Option<Quantity>,
}

impl Bounds {
    fn of(item: &LimitRangeItem, name: &str) -> Self {
        let find = |list: &Option<BTreeMap<String, Text>>| list.as_ref()?.get(name).map(Quantity::of);
        let is_pod = item.type_ == "Pod";
        Self {
            min: find(&item.min),
            max: find(&item.max),
            default: find(&item.default).filter(|_| !is_pod),
            request: find(&item.default_request).filter(|_| !is_pod),
            ratio: find(&item.max_limit_request_ratio),
        }
    }

    fn check(&self, errors: &mut Vec<Invalid>, name: &str, path: &str) {
        let (min, max, default, request) = (self.min, self.max, self.default, self.request);
        // Smaller value, greater value, text, field, and the value that the error shows.
        for (low, high, text, field, shown) in [
            (min, max, ("min", "max"), "min", min),
            (min, request, ("min", "default request"), "defaultRequest", request),
            (request, max, ("default request", "max"), "defaultRequest", request),
            (
                request,
                default,
                ("default request", "default limit"),
                "defaultRequest",
                request,
            ),
            (min, default, ("min", "default"), "default", min),
            (default, max, ("default", "max"), "default", max),
        ] {
            let (Some(low), Some(high), Some(shown)) = (low, high, shown) else {
                continue;
            };
            if low > high {
                let (low_name, high_name) = text;
                let begins = if low_name == "default request" || low_name == "default" {
                    low_name
                } else {
                    "min"
                };
                let detail = format!("{begins} value {low} is greater than {high_name} value {high}");
                errors.push(Invalid::value(
                    format!("{path}.{field}[{name}]"),
                    shown.to_string(),
                    detail,
                ));
            }
        }
        self.check_ratio(errors, name, path);
        if let (Some(default), Some(request)) = (default, request)
            && !resources::may_differ(name)
            && default != request
        {
            let field = format!("{path}.defaultRequest[{name}]");
            let detail = format!("default value {default} must equal to defaultRequest value {request} in {name}");
            errors.push(Invalid::value(field, request.to_string(), detail));
        }
    }

    fn check_ratio(&self, errors: &mut Vec<Invalid>, name: &str, path: &str) {
        let Some(ratio) = self.ratio else { return };
        let field = format!("{path}.maxLimitRequestRatio[{name}]");
        if ratio < Quantity::units(1) {
            let detail = format!("ratio {ratio} is less than 1");
            errors.push(Invalid::value(field.as_str(), ratio.to_string(), detail));
        }
        if let (Some(min), Some(max)) = (self.min, self.max) {
            let limit = max.per(min);
            if ratio.per(Quantity::units(1)) > limit {
                let detail = format!("ratio {ratio} is greater than max/min = {limit:.6}");
                errors.push(Invalid::value(field, ratio.to_string(), detail));
            }
        }
    }
}
