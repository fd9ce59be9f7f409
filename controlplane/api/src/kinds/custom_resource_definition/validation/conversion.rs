//! Validation of `spec.conversion`.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceConversion, ServiceReference};
use serde_json::json;

use crate::kinds::custom_resource_definition::names::has_bad_bundle;
use crate::value::invalid::Invalid;
use crate::value::names::{dns1035_label, dns1123_subdomain};
use crate::workload::validation::one_of;

/// Validates a conversion. With `keeps_bundle` a CA bundle without a certificate is refused: it
/// would break what is served.
pub(super) fn check(errors: &mut Vec<Invalid>, conversion: &CustomResourceConversion, keeps_bundle: bool) {
    const CLIENT: &str = "spec.conversion.webhookClientConfig";
    const VERSIONS: &str = "spec.conversion.conversionReviewVersions";
    one_of(
        errors,
        "spec.conversion.strategy",
        Some(&conversion.strategy),
        &["None", "Webhook"],
    );
    let webhook = conversion.webhook.as_ref();
    let client = webhook.and_then(|webhook| webhook.client_config.as_ref());
    let versions = webhook.map_or(&[][..], |webhook| &webhook.conversion_review_versions);
    if conversion.strategy != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if client.is_some() {
            errors.push(Invalid::forbidden(CLIENT, detail));
        }
        if !versions.is_empty() {
            errors.push(Invalid::forbidden(VERSIONS, detail));
        }
        return;
    }
    match client.map(|client| (&client.url, &client.service)) {
        None => errors.push(Invalid::required(CLIENT, "required when strategy is set to Webhook")),
        Some((Some(_), Some(_)) | (None, None)) => {
            errors.push(Invalid::required(CLIENT, "exactly one of url or service is required"));
        }
        Some((Some(own), None)) => url(errors, &format!("{CLIENT}.url"), own),
        Some((None, Some(own))) => service(errors, &format!("{CLIENT}.service"), own),
    }
    let bundle = client.and_then(|client| client.ca_bundle.as_ref());
    if let Some(bundle) = bundle.filter(|_| keeps_bundle && has_bad_bundle(conversion)) {
        let shown = format!("{:?}", bundle.0);
        let detail = "unable to load root certificates: unable to parse bytes as PEM block";
        errors.push(Invalid::rendered(format!("{CLIENT}.caBundle"), shown, detail));
    }
    review_versions(errors, VERSIONS, versions);
}

fn review_versions(errors: &mut Vec<Invalid>, path: &str, versions: &[String]) {
    if versions.is_empty() {
        errors.push(Invalid::required(path, ""));
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let field = format!("{path}[{index}]");
        if seen.insert(version) {
            let wrong = dns1035_label(version).into_iter();
            errors.extend(wrong.map(|detail| Invalid::value(field.clone(), version, detail)));
        } else {
            errors.push(Invalid::value(field, version, "duplicate version"));
        }
    }
    if !versions.iter().any(|own| own == "v1" || own == "v1beta1") {
        let detail = "must include at least one of v1, v1beta1";
        errors.push(Invalid::rendered(path, json!(versions).to_string(), detail));
    }
}

/// `ValidateWebhookURL` of `staging/src/k8s.io/apiserver/pkg/util/webhook/validation.go`
fn url(errors: &mut Vec<Invalid>, field: &str, url: &str) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(Invalid::value(field, scheme, detail));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() {
        errors.push(Invalid::value(field, host, format!("host must be specified{FORM}")));
    }
    let mut refuse = |value: &str, detail: &str| {
        if !value.is_empty() {
            errors.push(Invalid::value(field, value, detail));
        }
    };
    refuse(user, "user information is not permitted in the URL");
    refuse(fragment, "fragments are not permitted in the URL");
    refuse(query, "query parameters are not permitted in the URL");
}

/// `ValidateWebhookService` of the same file.
fn service(errors: &mut Vec<Invalid>, path: &str, service: &ServiceReference) {
    for (name, value) in [("name", &service.name), ("namespace", &service.namespace)] {
        if value.is_empty() {
            errors.push(Invalid::required(format!("{path}.{name}"), ""));
        }
    }
    let port = service.port.unwrap_or(443);
    if !(1..=65535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(Invalid::value(format!("{path}.port"), port, detail));
    }
    let Some(own) = service.path.as_deref().filter(|own| !matches!(*own, "" | "/")) else {
        return;
    };
    let mut refuse = |detail: String| errors.push(Invalid::value(format!("{path}.path"), own, detail));
    if !own.starts_with('/') {
        refuse("must start with a '/'".to_owned());
    }
    let steps = own.get(1..).unwrap_or_default();
    for (index, step) in steps.strip_suffix('/').unwrap_or(steps).split('/').enumerate() {
        if step.is_empty() {
            refuse(format!("segment[{index}] may not be empty"));
        } else {
            let wrong = dns1123_subdomain(step).into_iter();
            wrong.for_each(|detail| refuse(format!("segment[{index}]: {detail}")));
        }
    }
}
