//! Adjustment of noted points in time after the clock was set: they move with it, so that what was
//! due in ten seconds is still due in ten seconds.

use k8s_openapi::jiff::SignedDuration;

use crate::pod::observed::{Image, Memory, Sandbox, State, View};
use crate::{Timestamp, shift};

impl View {
    /// Moves points in time to come. Past ones stay as reported, unless they would be in the
    /// future: `now` is the time after the step.
    pub fn shift(&mut self, step: SignedDuration, now: Timestamp) {
        shift(&mut self.winding_down, step);
        if let Sandbox::Failed { until, .. } = &mut self.sandbox {
            shift([until], step);
        }
        for instance in self.instances.values_mut().flatten() {
            match &mut instance.state {
                State::Created => {}
                State::Running { since } => *since = now.min(*since),
                State::Exited(exit) => {
                    exit.started_at = exit.started_at.map(|time| time.min(now));
                    exit.finished_at = exit.finished_at.min(now);
                }
            }
        }
        for memory in self.memory.values_mut() {
            memory.shift(step);
        }
    }
}

impl Memory {
    fn shift(&mut self, step: SignedDuration) {
        if let Image::Failed { until, .. } = &mut self.image {
            shift([until], step);
        }
        shift(self.failure.as_mut().map(|failure| &mut failure.until), step);
        shift(self.stopping.as_mut().map(|stopping| &mut stopping.deadline), step);
        self.back_off.shift(step);
        let probes = [&mut self.startup, &mut self.readiness, &mut self.liveness];
        for probe in probes.into_iter().flatten() {
            probe.shift(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::Probe as Specification;
    use k8s_openapi::jiff::SignedDuration;

    use crate::pod::observed::{Exit, Image, Instance, Memory, Sandbox, Stage, State, Stopping, View};
    use crate::pod::probe::{Kind, Probe};
    use crate::pod::restart::BackOff;
    use crate::{Timestamp, after};

    #[test]
    fn what_is_awaited_stays_as_far_away() {
        let at = |second| after(Timestamp::UNIX_EPOCH, second);
        let mut view = View::new(at(1), Vec::new());
        view.sandbox = Sandbox::Failed {
            until: at(1_010),
            failures: 1,
        };
        let exit = Exit {
            code: 1,
            reason: "Error".to_owned(),
            message: String::new(),
            started_at: Some(at(900)),
            finished_at: at(1_000),
        };
        let instance = Instance {
            id: "a".to_owned(),
            attempt: 1,
            image: String::new(),
            image_id: String::new(),
            state: State::Exited(exit),
            lost: false,
            reset: false,
        };
        view.instances = BTreeMap::from([("a".to_owned(), vec![instance])]);
        let memory = Memory {
            image: Image::Failed {
                until: at(1_020),
                delay: 10,
                reason: String::new(),
                message: String::new(),
                name: String::new(),
                waiting: false,
            },
            back_off: BackOff::after_restarts(1, at(950)),
            stopping: Some(Stopping {
                deadline: at(1_030),
                stage: Stage::Signalled,
            }),
            liveness: Some(Probe::new(Kind::Liveness, &Specification::default(), at(1_000))),
            ..Memory::default()
        };
        view.memory = BTreeMap::from([("a".to_owned(), Box::new(memory))]);

        view.shift(SignedDuration::from_secs(-600), at(405));
        assert_eq!(view.start_time, at(1));
        assert_eq!(
            view.sandbox,
            Sandbox::Failed {
                until: at(410),
                failures: 1
            }
        );
        let exit = view.latest("a").and_then(Instance::exit).unwrap();
        assert_eq!((exit.started_at, exit.finished_at), (Some(at(405)), at(405)));
        let memory = &view.memory["a"];
        assert!(matches!(memory.image, Image::Failed { until, .. } if until == at(420)));
        assert_eq!(memory.back_off.due(exit.finished_at), at(415));
        assert_eq!(memory.stopping.as_ref().unwrap().deadline, at(430));
        assert_eq!(memory.liveness.as_ref().unwrap().due(), Some(at(410)));
    }
}
