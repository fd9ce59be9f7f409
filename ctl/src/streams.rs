//! Commands that stream from and to the containers of a pod.

pub(crate) mod copy;
pub(crate) mod forward;
pub(crate) mod logs;
pub(crate) mod session;
