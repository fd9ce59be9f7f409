//! Validation of a pod's DNS settings.

use k8s_openapi::api::core::v1::PodSpec;

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{address, each, non_empty};

/// Validates a pod's DNS configuration, at `path`.
pub(super) fn config(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    let alone = spec.dns_policy.as_deref() == Some("None");
    let Some(config) = &spec.dns_config else {
        if alone {
            let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(Invalid::required(path, detail));
        }
        return;
    };
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if alone && servers.is_empty() {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return errors.push(Invalid::required(format!("{path}.nameservers"), detail));
    }
    if servers.len() > 3 {
        let value = serde_json::to_string(&servers).unwrap_or_default();
        let detail = "must not have more than 3 nameservers";
        errors.push(Invalid::rendered(format!("{path}.nameservers"), value, detail));
    }
    for (index, server) in servers.iter().enumerate() {
        address(errors, &format!("{path}.nameservers[{index}]"), server);
    }
    searches(
        errors,
        config.searches.as_deref().unwrap_or_default(),
        &format!("{path}.searches"),
    );
    for (index, option) in config.options.iter().flatten().enumerate() {
        if non_empty(option.name.as_deref()).is_none() {
            errors.push(Invalid::required(
                format!("{path}.options[{index}]"),
                "must not be empty",
            ));
        }
    }
}

/// Validates search domains.
fn searches(errors: &mut Vec<Invalid>, searches: &[String], path: &str) {
    let value = || serde_json::to_string(searches).unwrap_or_default();
    if searches.len() > 32 {
        let detail = "must not have more than 32 search paths";
        errors.push(Invalid::rendered(path, value(), detail));
    }
    if searches.join(" ").len() > 2048 {
        let detail = "must not have more than 2048 characters (including spaces) in the search list";
        errors.push(Invalid::rendered(path, value(), detail));
    }
    for (index, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        // A trailing dot marks an absolute name.
        let name = search.strip_suffix('.').unwrap_or(search);
        each(errors, &format!("{path}[{index}]"), name, names::loose_subdomain(name));
    }
}

/// Validates the host aliases of a pod.
pub(super) fn host_aliases(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = format!("{path}.hostAliases[{index}]");
        address(errors, &format!("{path}.ip"), &alias.ip);
        for (index, name) in alias.hostnames.iter().flatten().enumerate() {
            each(
                errors,
                &format!("{path}.hostnames[{index}]"),
                name,
                names::dns1123_subdomain(name),
            );
        }
    }
}
