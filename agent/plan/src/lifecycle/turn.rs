//! When containers that ended run again.

use api::pod::ending::Group;
use k8s_openapi::api::core::v1::Pod;

use super::{Own, has_other_image};
use crate::observed::{Exit, View};
use crate::{Timestamp, pods};

/// When a container that ended runs again.
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
    // Those that another one's rule ended did nothing that they would have to wait for.
    let at_once = renewal || reset && !pods::restarts_all(container, exit.code) || has_other_image(view, container);
    match memory.map(|memory| memory.back_off.due(exit.finished_at)) {
        Some(due) if now < due && !at_once => Turn::Later(due),
        Some(_) | None => Turn::Now,
    }
}
