//! Controllers of workloads: they create, replace and delete pods.

pub(crate) mod autoscaling;
pub(crate) mod cron_jobs;
pub(crate) mod daemon_sets;
pub(crate) mod deployments;
pub(crate) mod disruption;
pub(crate) mod jobs;
pub(crate) mod replica_sets;
pub(crate) mod stateful_sets;
