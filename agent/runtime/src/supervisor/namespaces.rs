//! Namespaces of a pod.
//!
//! * [`ready`]: namespaces that a supervisor has before it knows its pod
//! * [`users`]: the user namespace
//! * [`sysctls`]: sysctls of the namespaces
//! * [`pause`]: init process of a shared PID namespace

pub(super) mod pause;
pub(super) mod ready;
pub(super) mod sysctls;
pub(super) mod users;
