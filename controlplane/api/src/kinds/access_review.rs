//! Access reviews: questions about what a user may do. Answered, never stored.

use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};

use crate::kind::{Kind, Verbs};

impl Kind for LocalSubjectAccessReview {
    const VERBS: Verbs = Verbs::CreateOnly;
}

impl Kind for SelfSubjectAccessReview {
    const VERBS: Verbs = Verbs::CreateOnly;
}

impl Kind for SelfSubjectRulesReview {
    const VERBS: Verbs = Verbs::CreateOnly;
}

impl Kind for SubjectAccessReview {
    const VERBS: Verbs = Verbs::CreateOnly;
}
