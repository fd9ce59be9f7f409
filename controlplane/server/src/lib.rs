//! controlplane-server
