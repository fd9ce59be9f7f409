//! `CertificateSigningRequest`: a request for a client's or server's certificate.

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

mod validation;

use crate::kind::{Field, Kind, Subresource};
use crate::table::{Column, age, age_column, or};
use crate::value::invalid::Invalid;
use crate::value::names::Rule;

impl Kind for CertificateSigningRequest {
    const SHORT_NAMES: &'static [&'static str] = &["csr"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Approval, Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        age_column(),
        Column::text(
            "SignerName",
            "certificates.v1.CertificateSigningRequestSpec.signerName",
            |request, _| or(Some(&request.spec.signer_name), "<none>").into(),
        ),
        Column::text(
            "Requestor",
            "certificates.v1.CertificateSigningRequestSpec.request",
            |request, _| request.spec.username.as_deref().unwrap_or_default().into(),
        ),
        Column::text(
            "RequestedDuration",
            "certificates.v1.CertificateSigningRequestSpec.expirationSeconds",
            |request, now| requested_duration(request, now).into(),
        ),
        Column::text(
            "Condition",
            "certificates.v1.CertificateSigningRequestStatus.conditions",
            |request, _| decision(request).into(),
        ),
    ];
    const FIELDS: &'static [Field<Self>] = &[Field::new("spec.signerName", |request| {
        request.spec.signer_name.clone()
    })];

    const NAME: Rule = Rule::PathSegment;

    fn prepare_create(&mut self) {
        self.status = Some(CertificateSigningRequestStatus::default());
    }

    fn prepare_update(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        self.status.clone_from(&old.status);
    }

    /// A signer may not decide: approval conditions stay as they are. Validation rejects changes.
    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        for kind in DECISIONS {
            let mut kept = conditions(old).iter().filter(|condition| condition.type_ == kind);
            let status = self.status.get_or_insert_default();
            let mut own: Vec<_> = status.conditions.iter_mut().flatten().collect();
            own.retain(|condition| condition.type_ == kind);
            if own.len() == kept.clone().count() {
                for condition in own {
                    if let Some(kept) = kept.next() {
                        condition.clone_from(kept);
                    }
                }
            }
        }
    }

    /// An approver only decides: only the conditions are taken from the new object.
    fn prepare_own(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        let decided = self.status.take().and_then(|status| status.conditions);
        self.status.clone_from(&old.status);
        self.status.get_or_insert_default().conditions = decided;
    }

    fn validate(&self) -> Vec<Invalid> {
        validation::create(self)
    }

    /// Only metadata can change.
    fn validate_update(&self, _old: &Self) -> Vec<Invalid> {
        Vec::new()
    }

    fn validate_status(&self, old: &Self) -> Vec<Invalid> {
        validation::status(self, old)
    }

    fn validate_own(&self, old: &Self) -> Vec<Invalid> {
        validation::approval(self, old)
    }
}

const APPROVED: &str = "Approved";
const DENIED: &str = "Denied";
/// Conditions that only an approver may set.
const DECISIONS: [&str; 2] = [APPROVED, DENIED];

/// Conditions of a request.
pub fn conditions(request: &CertificateSigningRequest) -> &[CertificateSigningRequestCondition] {
    let status = request.status.as_ref();
    status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default()
}

fn requested_duration(request: &CertificateSigningRequest, now: Timestamp) -> String {
    let Some(seconds) = request.spec.expiration_seconds else {
        return "<none>".to_owned();
    };
    let end = now.checked_add(SignedDuration::from_secs(i64::from(seconds)));
    end.map_or_else(|_too_late| "<invalid>".to_owned(), |end| age(end, now))
}

/// `Pending`, `Approved` or `Denied`; then `Failed` and `Issued` where they are.
fn decision(request: &CertificateSigningRequest) -> String {
    let has = |kind: &str| conditions(request).iter().any(|condition| condition.type_ == kind);
    let mut text = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        text.push_str(",Failed");
    }
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    if certificate.is_some_and(|certificate| !certificate.0.is_empty()) {
        text.push_str(",Issued");
    }
    text
}
