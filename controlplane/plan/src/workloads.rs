//! Workloads: controllers that create and delete pods, their autoscaler and their disruption budgets.
//!
//! * [`rollout`]: the Deployment controller
//! * [`replicas`]: ReplicaSets and replication controllers
//! * [`stateful_sets`], [`daemon_sets`], [`job`], [`cron_job`]: one controller each
//! * [`autoscaling`], [`disruption`]: horizontal pod autoscaling, pod disruption budgets
//! * [`pod_template`], [`claim`], `history`, `backoff`: what they share: pods from a template,
//!   adoption and release, controller revisions, delays of failed pods

pub mod autoscaling;
pub(crate) mod backoff;
pub mod claim;
pub mod cron_job;
pub mod daemon_sets;
pub mod disruption;
pub(crate) mod history;
pub mod job;
pub mod pod_template;
pub mod replicas;
pub mod rollout;
pub mod stateful_sets;
