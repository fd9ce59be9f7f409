//! Metrics of the controllers and the scheduler, under upstream's names.

pub(crate) mod page;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::page::Page;
use crate::machinery::queue::Measured;
use crate::scheduler::Scheduler;
use crate::workloads::jobs::JobMetrics;

/// Sources of the metrics. All clones are the same; the owner of the controllers keeps one and
/// renders its text.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<Sources>>);

#[derive(Default)]
struct Sources {
    queues: Vec<Arc<dyn Measured>>,
    scheduler: Option<Arc<Scheduler>>,
    jobs: Arc<JobMetrics>,
}

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Sources> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watch(&self, queue: Arc<dyn Measured>) {
        self.lock().queues.push(queue);
    }

    pub(crate) fn watch_scheduler(&self, scheduler: Arc<Scheduler>) {
        self.lock().scheduler = Some(scheduler);
    }

    pub(crate) fn jobs(&self) -> Arc<JobMetrics> {
        self.lock().jobs.clone()
    }

    /// Renders the metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        let (queues, scheduler, jobs) = {
            let sources = self.lock();
            (sources.queues.clone(), sources.scheduler.clone(), sources.jobs.clone())
        };
        let mut page = Page::default();
        of_queues(&queues, &mut page);
        jobs.write(&mut page);
        if let Some(scheduler) = scheduler {
            scheduler.measure(&mut page);
        }
        page.text()
    }
}

fn of_queues(queues: &[Arc<dyn Measured>], page: &mut Page) {
    let measures: Vec<_> = queues.iter().map(|queue| queue.measure()).collect();
    page.gauge("workqueue_depth", "[BETA] Current depth of workqueue");
    for queue in &measures {
        page.sample(&[("name", queue.name)], queue.depth);
    }
    page.counter(
        "workqueue_adds_total",
        "[BETA] Total number of adds handled by workqueue",
    );
    for queue in &measures {
        page.sample(&[("name", queue.name)], queue.adds);
    }
    page.counter(
        "workqueue_retries_total",
        "[BETA] Total number of retries handled by workqueue",
    );
    for queue in &measures {
        page.sample(&[("name", queue.name)], queue.retries);
    }
    page.histogram(
        "workqueue_queue_duration_seconds",
        "[BETA] How long in seconds an item stays in workqueue before being requested.",
    );
    for queue in &measures {
        page.buckets(&[("name", queue.name)], &queue.waited);
    }
    page.histogram(
        "workqueue_work_duration_seconds",
        "[BETA] How long in seconds processing an item from workqueue takes.",
    );
    for queue in &measures {
        page.buckets(&[("name", queue.name)], &queue.worked);
    }
    page.gauge(
        "workqueue_unfinished_work_seconds",
        "[BETA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large \
         values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this \
         increases.",
    );
    for queue in &measures {
        page.sample(&[("name", queue.name)], queue.unfinished);
    }
    page.gauge(
        "workqueue_longest_running_processor_seconds",
        "[BETA] How many seconds has the longest running processor for workqueue been running.",
    );
    for queue in &measures {
        page.sample(&[("name", queue.name)], queue.longest);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machinery::queue::Queue;

    #[tokio::test(start_paused = true)]
    async fn queues_tell_how_long_things_take() {
        let (metrics, queue) = (Metrics::default(), Queue::new("deployment"));
        metrics.watch(queue.clone());
        queue.push("a");
        queue.push("a");
        queue.push("b");
        queue.push_after("c", Duration::from_mins(1));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!((queue.next().await, queue.next().await), ("a", "b"));
        tokio::time::advance(Duration::from_secs(2)).await;
        queue.done(&"a");
        let page = metrics.text();
        for line in [
            "# HELP workqueue_depth [BETA] Current depth of workqueue",
            "# TYPE workqueue_adds_total counter",
            "workqueue_adds_total{name=\"deployment\"} 2",
            "workqueue_depth{name=\"deployment\"} 0",
            "workqueue_retries_total{name=\"deployment\"} 1",
            "# TYPE workqueue_queue_duration_seconds histogram",
            "workqueue_queue_duration_seconds_bucket{name=\"deployment\",le=\"1e-08\"} 0",
            "workqueue_queue_duration_seconds_bucket{name=\"deployment\",le=\"9.999999999999999e-06\"} 0",
            "workqueue_queue_duration_seconds_bucket{name=\"deployment\",le=\"1\"} 2",
            "workqueue_queue_duration_seconds_bucket{name=\"deployment\",le=\"+Inf\"} 2",
            "workqueue_queue_duration_seconds_sum{name=\"deployment\"} 1",
            "workqueue_queue_duration_seconds_count{name=\"deployment\"} 2",
            "workqueue_work_duration_seconds_bucket{name=\"deployment\",le=\"1\"} 0",
            "workqueue_work_duration_seconds_bucket{name=\"deployment\",le=\"10\"} 1",
            "workqueue_unfinished_work_seconds{name=\"deployment\"} 2",
            "workqueue_longest_running_processor_seconds{name=\"deployment\"} 2",
        ] {
            assert!(page.lines().any(|own| own == line), "{line}\n{page}");
        }
    }
}
