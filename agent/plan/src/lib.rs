//! Decisions of the node agent, free of side effects: no I/O, no clock, no randomness.
//!
//! [`pod::lifecycle::decide`] compares a desired pod with its observed state and returns actions,
//! [`pod::status::build`] returns the API's status, [`container::oci::build`] turns a container into
//! an OCI runtime specification.
//!
//! | Room | Content |
//! |---|---|
//! | [`pod`] | a pod's life: observed state, next actions, probes, restarts, resizes, status |
//! | [`container`] | environment, files, user, OCI runtime specification, log lines |
//! | [`node`] | admission, allocatable resources, evictions, image garbage collection, shutdown |
//! | [`network`] | Services, DNS, network policies, routes to other nodes |
//! | [`volume`] | claims, tokens, huge pages |
//! | [`resources`] | quantities in the kernel's units |

pub mod container;
pub mod network;
pub mod node;
pub mod pod;
pub mod resources;
pub mod volume;

use k8s_openapi::jiff::SignedDuration;

/// A point in time, as everywhere in the API.
pub type Timestamp = k8s_openapi::jiff::Timestamp;

/// `time` plus a number of milliseconds, saturating.
pub fn later(time: Timestamp, milliseconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_millis(milliseconds))
        .unwrap_or(Timestamp::MAX)
}

/// `time` plus a number of seconds, saturating.
pub fn after(time: Timestamp, seconds: i64) -> Timestamp {
    later(time, seconds.saturating_mul(1000))
}

/// Returns `time` on the clock after it was set forward by `step`. The maximum time stays the same.
pub fn shifted(time: Timestamp, step: SignedDuration) -> Timestamp {
    if time == Timestamp::MAX {
        return time;
    }
    let end = if step.is_negative() {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    time.checked_add(step).unwrap_or(end)
}

/// In-place variant of [`shifted`].
pub fn shift<'a>(times: impl IntoIterator<Item = &'a mut Timestamp>, step: SignedDuration) {
    for time in times {
        *time = shifted(*time, step);
    }
}
