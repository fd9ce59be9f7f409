//! `TokenReview` and `SelfSubjectReview`: questions about a user's identity. Answered, never
//! stored.

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};

use crate::kind::{Kind, Verbs};

impl Kind for TokenReview {
    const VERBS: Verbs = Verbs::CreateOnly;
}

impl Kind for SelfSubjectReview {
    const VERBS: Verbs = Verbs::CreateOnly;
}
