//! Delay before exited containers are restarted.

use api::pod::ending::Group;
use k8s_openapi::api::core::v1::Pod;

use super::{Own, has_other_image};
use crate::Timestamp;
use crate::pod::observed::{Exit, View};
use crate::pod::pods;

/// Time at which an exited container is restarted.
#[derive(PartialEq, Eq)]
pub(super) enum Turn {
    Never,
    Later(Timestamp),
    Now,
}

pub(super) fn turn(pod: &Pod, view: &View, (group, container): Own<'_>, exit: &Exit, now: Timestamp) -> Turn {
    let name = &container.name;
    let memory = view.memory.get(name);
    let renewal = memory.is_some_and(|memory| memory.renewal);
    let reset = view.is_reset(name);
    let revival = memory.is_some_and(|memory| memory.revival);
    let again = renewal || revival || reset || group == Group::Init && view.current(name).is_none();
    if !again && !pods::restarts_in(pod, group, container, exit.code) {
        return Turn::Never;
    }
    // Containers that were stopped by another one's rule are restarted without a back-off.
    let at_once = renewal || reset && !pods::restarts_all(container, exit.code) || has_other_image(view, container);
    match memory.map(|memory| memory.back_off.due(exit.finished_at)) {
        Some(due) if now < due && !at_once => Turn::Later(due),
        Some(_) | None => Turn::Now,
    }
}
