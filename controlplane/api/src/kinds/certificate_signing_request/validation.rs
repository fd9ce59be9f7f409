//! Validation of signing requests, with upstream's messages (`pkg/apis/certificates/validation`).

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};

use super::{APPROVED, DECISIONS, DENIED, conditions};
use crate::value::certificate::{Request, check_chain};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{ENOUGH, each};

const CONDITIONS: &str = "status.conditions";
const CERTIFICATE: &str = "status.certificate";
/// Condition that a signer sets when it does not sign.
const FAILED: &str = "Failed";
const LEGACY: &str = "kubernetes.io/legacy-unknown";
/// Shortest expiration, in seconds.
const SHORTEST: i32 = 600;
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Validates a new request.
pub(super) fn create(request: &CertificateSigningRequest) -> Vec<Invalid> {
    let spec = &request.spec;
    let mut errors = Vec::new();
    if let Err(malformed) = Request::parse(&spec.request.0) {
        let shown = format!("{:?}", STANDARD.encode(&spec.request.0));
        errors.push(Invalid::rendered("spec.request", shown, malformed.to_string()));
    }
    let usages = spec.usages.as_deref().unwrap_or_default();
    if usages.is_empty() {
        errors.push(Invalid::required("spec.usages", ""));
    }
    let field = |index: usize| format!("spec.usages[{index}]");
    for (index, usage) in usages.iter().enumerate() {
        if errors.len() < ENOUGH && !USAGES.contains(&usage.as_str()) {
            errors.push(Invalid::not_supported(field(index), usage, &USAGES));
        }
    }
    let mut seen = BTreeSet::new();
    for (index, usage) in usages.iter().enumerate() {
        if !seen.insert(usage) && errors.len() < ENOUGH {
            errors.push(Invalid::duplicate(field(index), usage));
        }
    }
    signer_name(&mut errors, &spec.signer_name);
    if let Some(seconds) = spec.expiration_seconds.filter(|seconds| *seconds < SHORTEST) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(Invalid::value("spec.expirationSeconds", seconds, detail));
    }
    errors
}

fn signer_name(errors: &mut Vec<Invalid>, name: &str) {
    const FIELD: &str = "spec.signerName";
    if name.is_empty() {
        return errors.push(Invalid::required(FIELD, ""));
    }
    if name == LEGACY {
        let detail = "the legacy signerName is not allowed via this API version";
        return errors.push(Invalid::value(FIELD, name, detail));
    }
    let segments: Vec<&str> = name.split('/').collect();
    let &[domain, path] = segments.as_slice() else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return errors.push(Invalid::value(FIELD, name, detail));
    };
    if domain.len() > 253 {
        errors.push(Invalid::too_long(FIELD, 253));
    }
    each(errors, FIELD, domain, first_wrong(domain, names::dns1123_label));
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(Invalid::value(FIELD, domain, detail));
    }
    each(errors, FIELD, path, first_wrong(path, names::dns1123_subdomain));
    if name.len() > 253 + 1 + 253 + 63 + 1 {
        errors.push(Invalid::too_long(FIELD, 571));
    }
}

/// Problems of the first label that breaks the rule. More labels would repeat the same messages.
fn first_wrong(labels: &str, rule: fn(&str) -> Vec<String>) -> Vec<String> {
    let wrong = labels.split('.').find_map(|label| {
        let details = rule(label).into_iter();
        let details: Vec<_> = details
            .map(|wrong| format!("validating label {label:?}: {wrong}"))
            .collect();
        Some(details).filter(|details| !details.is_empty())
    });
    wrong.unwrap_or_default()
}

/// Validates a signer's update of the status.
pub(super) fn status(new: &CertificateSigningRequest, old: &CertificateSigningRequest) -> Vec<Invalid> {
    let mut errors = both(new, old);
    for kind in DECISIONS {
        if count(new, kind) > count(old, kind) {
            let detail = format!("updates may not add a condition of type {kind:?}");
            errors.push(Invalid::forbidden(CONDITIONS, detail));
        }
    }
    let (set, had) = (certificate(new), certificate(old));
    if set != had && !had.is_empty() {
        let detail = "updates may not modify existing certificate content";
        errors.push(Invalid::forbidden(CERTIFICATE, detail));
    }
    errors
}

/// Validates an approver's update.
pub(super) fn approval(new: &CertificateSigningRequest, old: &CertificateSigningRequest) -> Vec<Invalid> {
    both(new, old)
}

/// Validates rules that hold for signers and approvers. Errors that the old object already has are
/// ignored.
fn both(new: &CertificateSigningRequest, old: &CertificateSigningRequest) -> Vec<Invalid> {
    let mut errors = Vec::new();
    check_conditions(&mut errors, new, old);
    let (set, had) = (certificate(new), certificate(old));
    if set != had
        && !set.is_empty()
        && (had.is_empty() || check_chain(had).is_ok())
        && let Err(wrong) = check_chain(set)
    {
        errors.push(Invalid::value(CERTIFICATE, "<certificate data>", wrong.to_string()));
    }
    for kind in [APPROVED, DENIED, FAILED] {
        if count(new, kind) < count(old, kind) {
            let detail = format!("updates may not remove a condition of type {kind:?}");
            errors.push(Invalid::forbidden(CONDITIONS, detail));
        }
    }
    errors
}

fn check_conditions(errors: &mut Vec<Invalid>, new: &CertificateSigningRequest, old: &CertificateSigningRequest) {
    let (all, before) = (conditions(new), conditions(old));
    let may_be_nameless = before.iter().any(|condition| condition.type_.is_empty());
    let may_contradict = count(old, APPROVED) > 0 && count(old, DENIED) > 0;
    let may_repeat = (0..before.len()).any(|index| is_repeated(before, index));
    for (index, condition) in all.iter().enumerate() {
        let (kind, status) = (condition.type_.as_str(), condition.status.as_str());
        let field = |name: &str| format!("{CONDITIONS}[{index}].{name}");
        if kind.is_empty() && !may_be_nameless {
            errors.push(Invalid::required(field("type"), ""));
        }
        let only_true = [APPROVED, DENIED, FAILED].contains(&kind);
        let allowed: &[&str] = if only_true {
            &["True"]
        } else {
            &["False", "True", "Unknown"]
        };
        if status.is_empty() {
            errors.push(Invalid::required(field("status"), ""));
        } else if !allowed.contains(&status) {
            errors.push(Invalid::not_supported(field("status"), status, allowed));
        }
        let contrary = match kind {
            APPROVED => Some(DENIED),
            DENIED => Some(APPROVED),
            _ => None,
        };
        let contradicts =
            contrary.is_some_and(|contrary| all.iter().take(index).any(|earlier| earlier.type_ == contrary));
        if contradicts && !may_contradict {
            let detail = "Approved and Denied conditions are mutually exclusive";
            errors.push(Invalid::value(CONDITIONS, kind, detail));
        }
        if is_repeated(all, index) && !may_repeat {
            errors.push(Invalid::duplicate(field("type"), kind));
        }
    }
}

/// True if an earlier condition has the same type.
fn is_repeated(conditions: &[CertificateSigningRequestCondition], index: usize) -> bool {
    let own = conditions.get(index).map(|condition| &condition.type_);
    conditions.iter().take(index).any(|earlier| Some(&earlier.type_) == own)
}

fn count(request: &CertificateSigningRequest, kind: &str) -> usize {
    conditions(request)
        .iter()
        .filter(|condition| condition.type_ == kind)
        .count()
}

fn certificate(request: &CertificateSigningRequest) -> &[u8] {
    let status = request.status.as_ref();
    let certificate = status.and_then(|status| status.certificate.as_ref());
    certificate
        .map(|certificate| certificate.0.as_slice())
        .unwrap_or_default()
}
