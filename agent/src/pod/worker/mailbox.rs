//! Messages to a worker: of each kind only the latest is kept, so that the queue of a busy worker
//! does not grow.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_plan::pod::termination::Termination;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Notify;

use super::Input;
use crate::pod::orders::Question;

/// Maximum number of queued runtime events. Beyond it, the worker compares with the runtime
/// instead.
const EVENTS: usize = 64;
/// Maximum number of queued log requests; further ones fail.
const QUESTIONS: usize = 16;

/// The mailbox of one worker.
#[derive(Default)]
pub(crate) struct Mailbox {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    pod: Option<Arc<Pod>>,
    events: VecDeque<runtime::Event>,
    questions: VecDeque<Question>,
    observed: Option<runtime::Sandbox>,
    missed: bool,
    gone: bool,
    termination: Option<Termination>,
    shed: bool,
}

impl Waiting {
    fn take(&mut self) -> Option<Input> {
        if let Some(pod) = self.pod.take() {
            return Some(Input::Pod(pod));
        }
        if let Some(event) = self.events.pop_front() {
            return Some(Input::Runtime(event));
        }
        if let Some(question) = self.questions.pop_front() {
            return Some(Input::Question(question));
        }
        if let Some(sandbox) = self.observed.take() {
            return Some(Input::Observed(sandbox));
        }
        if std::mem::take(&mut self.missed) {
            return Some(Input::Missed);
        }
        if let Some(termination) = self.termination.take() {
            return Some(Input::End(termination));
        }
        if std::mem::take(&mut self.shed) {
            return Some(Input::Shed);
        }
        std::mem::take(&mut self.gone).then_some(Input::Gone)
    }
}

impl Mailbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message, which replaces older ones of its kind.
    pub(crate) fn put(&self, input: Input) {
        {
            let mut waiting = self.waiting();
            match input {
                Input::Pod(pod) => waiting.pod = Some(pod),
                Input::Observed(sandbox) => waiting.observed = Some(sandbox),
                Input::Missed => waiting.missed = true,
                Input::Gone => waiting.gone = true,
                Input::Question(question) if waiting.questions.len() < QUESTIONS => {
                    waiting.questions.push_back(question);
                }
                Input::Question(_) => {}
                Input::End(termination) => waiting.termination = Some(termination),
                Input::Shed => waiting.shed = true,
                Input::Runtime(event) if waiting.events.len() < EVENTS => waiting.events.push_back(event),
                Input::Runtime(_) => {
                    waiting.events.clear();
                    waiting.missed = true;
                }
            }
        }
        self.arrived.notify_one();
    }

    /// Waits for the next message. Cancel-safe.
    pub(crate) async fn next(&self) -> Input {
        loop {
            let arrived = self.arrived.notified();
            if let Some(input) = self.waiting().take() {
                return input;
            }
            arrived.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn event(number: usize) -> Input {
        Input::Runtime(runtime::Event::SandboxLost {
            sandbox_id: number.to_string(),
        })
    }

    #[tokio::test]
    async fn news_never_pile_up_and_none_is_lost() {
        let mailbox = Mailbox::default();
        for _ in 0..3 {
            mailbox.put(Input::Gone);
            mailbox.put(Input::Pod(Arc::new(Pod::default())));
        }
        mailbox.put(event(0));
        let (answer, mut answered) = oneshot::channel();
        mailbox.put(Input::Question(Question {
            container: "a".to_owned(),
            previous: false,
            answer,
        }));
        assert!(matches!(mailbox.next().await, Input::Pod(_)));
        assert!(matches!(mailbox.next().await, Input::Runtime(_)));
        let Input::Question(question) = mailbox.next().await else {
            panic!("no question")
        };
        question.answer.send(Ok(3)).unwrap();
        assert_eq!(answered.try_recv(), Ok(Ok(3)));
        assert!(matches!(mailbox.next().await, Input::Gone));
        for number in 0..=EVENTS {
            mailbox.put(event(number));
        }
        assert!(
            matches!(mailbox.next().await, Input::Missed),
            "too many: the worker compares"
        );
        assert!(mailbox.waiting().take().is_none());
    }
}
