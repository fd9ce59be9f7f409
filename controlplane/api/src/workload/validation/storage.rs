//! Validation that storage kinds share, with upstream's words (`pkg/apis/storage/validation`).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::TopologySelectorTerm;

use super::{each, required};
use crate::value::invalid::Invalid;
use crate::value::names;

/// Maximum size of all parameters, in bytes.
const SIZE: usize = 256 << 10;
/// Maximum number of parameters.
const COUNT: usize = 512;

/// Validates the name of a volume driver, which may have a domain.
pub(crate) fn driver(errors: &mut Vec<Invalid>, field: &str, name: &str) {
    if required(errors, field, Some(name)) {
        let lower = name.to_lowercase();
        each(errors, field, &lower, names::qualified_name(&lower));
    }
}

/// Validates the name of a CSI driver.
pub(crate) fn csi_driver(errors: &mut Vec<Invalid>, field: &str, name: &str) {
    const LONGEST: usize = 63;
    required(errors, field, Some(name));
    if name.len() > LONGEST {
        errors.push(Invalid::too_long(field, LONGEST));
    }
    each(errors, field, name, names::dns1123_subdomain(&name.to_lowercase()));
}

/// Validates the parameters for a driver.
pub(crate) fn parameters(errors: &mut Vec<Invalid>, parameters: Option<&BTreeMap<String, String>>) {
    const FIELD: &str = "parameters";
    let count = parameters.map_or(0, BTreeMap::len);
    if count > COUNT {
        return errors.push(Invalid::too_long(FIELD, COUNT));
    }
    if parameters.is_some_and(|parameters| parameters.contains_key("")) {
        errors.push(Invalid::value(FIELD, "", "field can not be empty."));
    }
    let sizes = parameters
        .into_iter()
        .flatten()
        .map(|(key, value)| key.len() + value.len());
    if sizes.sum::<usize>() > SIZE {
        errors.push(Invalid::too_long(FIELD, SIZE));
    }
}

/// Validates the allowed topologies of volumes.
pub(crate) fn topologies(errors: &mut Vec<Invalid>, terms: &[TopologySelectorTerm]) {
    for (index, term) in terms.iter().enumerate() {
        let path = format!("allowedTopologies[{index}].matchLabelExpressions");
        let demands = term.match_label_expressions.as_deref().unwrap_or_default();
        let mut keys = BTreeSet::new();
        for (index, demand) in demands.iter().enumerate() {
            let (key, values) = (format!("{path}[{index}].key"), format!("{path}[{index}].values"));
            if demand.values.is_empty() {
                errors.push(Invalid::required(values.as_str(), ""));
            }
            let mut seen = BTreeSet::new();
            for (place, value) in demand.values.iter().enumerate() {
                if !seen.insert(value) {
                    errors.push(Invalid::duplicate(format!("{values}[{place}]"), value));
                }
            }
            each(errors, &key, &demand.key, names::qualified_name(&demand.key));
            if !keys.insert(&demand.key) {
                errors.push(Invalid::duplicate(key, &demand.key));
            }
        }
        if terms.iter().take(index).any(|earlier| earlier == term) {
            errors.push(Invalid::duplicate(path, ""));
        }
    }
}
