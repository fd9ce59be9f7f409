//! controlplane-controllers
