//! A pod's life: desired and observed state, the next actions, and the status.
//!
//! * [`pods`]: accessors of the specification
//! * [`observed`]: everything else that the agent knows about the pod
//! * [`termination`]: ends of the pod that the agent decides
//! * [`lifecycle`], [`action`]: the next actions
//! * [`restart`], [`probe`], [`resize`]: back-off of restarts, times of probes, in-place resizes
//! * [`status`], [`patch`]: the status as the API shows it, and the change to send
//! * [`shift`]: adjustment of points in time after the clock was set

pub mod action;
pub mod lifecycle;
pub mod observed;
pub mod patch;
pub mod pods;
pub mod probe;
pub mod resize;
pub mod restart;
pub mod shift;
pub mod status;
pub mod termination;
