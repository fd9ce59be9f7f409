//! controlplane-api
