//! controlplane-store
