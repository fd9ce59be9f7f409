//! controlplane-plan
