//! Validation of `AppArmor` profiles.

use k8s_openapi::api::core::v1::AppArmorProfile;

use crate::value::invalid::Invalid;

/// Longest path in the kernel.
const LONGEST: usize = 4095;

/// Validates the `AppArmor` profile of a pod or container at `path`.
pub(crate) fn profile(errors: &mut Vec<Invalid>, own: Option<&AppArmorProfile>, path: &str) {
    let Some(own) = own else { return };
    let (kind, kinds) = (format!("{path}.type"), ["Localhost", "RuntimeDefault", "Unconfined"]);
    let field = format!("{path}.localhostProfile");
    match (own.type_.as_str(), own.localhost_profile.as_deref()) {
        ("Localhost", None | Some("")) => {
            errors.push(Invalid::required(field, "must be set when AppArmor type is Localhost"));
        }
        ("Localhost", Some(file)) => {
            if file.trim() != file {
                let detail = "must not be padded with whitespace";
                errors.push(Invalid::value(field.as_str(), file, detail));
            }
            if file.len() > LONGEST {
                errors.push(Invalid::too_long(field, LONGEST));
            }
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("RuntimeDefault" | "Unconfined", Some(file)) => {
            let detail = "can only be set when AppArmor type is Localhost";
            errors.push(Invalid::value(field, file, detail));
        }
        ("", _) => {
            let detail = "type is required when appArmorProfile is set";
            errors.push(Invalid::required(kind, detail));
        }
        (other, _) => errors.push(Invalid::not_supported(kind, other, &kinds)),
    }
}
