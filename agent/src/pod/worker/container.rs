//! Containers of a pod, from the configuration to the stop signal.
//!
//! 1. [`draft`] builds the configuration before the sandbox is ready: [`spec`], [`mounts`],
//!    [`image_volumes`]
//! 2. [`start`] decides that a container starts ([`plan`]), [`launch`] creates and starts it
//! 3. [`unstarted`] gives the reason that it does not run
//! 4. [`hook`], [`stop_signal`], [`reset`]: lifecycle hooks, and the end

pub(super) mod draft;
pub(super) mod hook;
mod image_volumes;
mod launch;
pub(super) mod mounts;
pub(super) mod plan;
mod reset;
mod spec;
pub(super) mod start;
mod stop_signal;
pub(super) mod unstarted;
