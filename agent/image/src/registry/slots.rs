//! Limits on parallel layer downloads over all pulls. Slots are granted in the order of requests,
//! but one pull and one registry get only a part of them, so that a slow one does not block the
//! others.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Download slots of all pulls.
pub(crate) struct Slots {
    count: usize,
    all: Semaphore,
    /// Slots of the registries that are being pulled from.
    registries: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        let count = count.max(1);
        Self {
            count,
            all: Semaphore::new(count),
            registries: Mutex::default(),
        }
    }

    /// Slots of one pull: fewer than one registry may have, so that another image of the registry
    /// makes progress.
    pub(crate) fn of_pull(&self) -> usize {
        (self.count / 2).max(1)
    }

    /// Slots of one registry: never all, so that images of other registries make progress.
    fn of_registry(&self) -> usize {
        let others = self.count.saturating_sub(1);
        self.of_pull().saturating_add(1).min(others).max(1)
    }

    /// Queue of a pull from `registry`.
    pub(crate) fn queue(&self, registry: &str, waits: &Arc<Waits>) -> Queue {
        let mut registries = self.registries.lock().unwrap_or_else(PoisonError::into_inner);
        registries.retain(|_, part| part.strong_count() > 0);
        let known = registries.get(registry).and_then(Weak::upgrade);
        let part = known.unwrap_or_else(|| {
            let part = Arc::new(Semaphore::new(self.of_registry()));
            registries.insert(registry.to_owned(), Arc::downgrade(&part));
            part
        });
        Queue {
            part,
            waits: Arc::clone(waits),
        }
    }

    /// Waits for a slot. A holder of a slot must not ask for another one (deadlock).
    pub(crate) async fn acquire<'a>(&'a self, queue: &'a Queue) -> Slot<'a> {
        let mut counted = Counted::new(&queue.waits);
        // The registry's slot first: a waiter for it holds no shared slot. Neither semaphore is
        // ever closed.
        let of_registry = queue.part.acquire().await.ok();
        let of_all = self.all.acquire().await.ok();
        counted.begin();
        Slot {
            _of_all: of_all,
            _of_registry: of_registry,
            _counted: counted,
        }
    }
}

/// Queue in which the layers of one pull wait for slots.
pub(crate) struct Queue {
    part: Arc<Semaphore>,
    waits: Arc<Waits>,
}

/// Permit to download and unpack one layer, released when dropped.
pub(crate) struct Slot<'a> {
    _of_all: Option<SemaphorePermit<'a>>,
    _of_registry: Option<SemaphorePermit<'a>>,
    _counted: Counted<'a>,
}

/// Time in which a pull only waits for slots, which does not count against its timeout.
#[derive(Default)]
pub(crate) struct Waits(Mutex<Waited>);

#[derive(Default)]
struct Waited {
    /// Layers that wait for a slot or hold one.
    layers: usize,
    /// Layers that hold one.
    slots: usize,
    /// Start of the current period in which layers wait and none holds a slot.
    since: Option<Instant>,
    /// Sum of the past periods.
    before: Duration,
}

impl Waits {
    /// Output of `work`; `None` if it takes longer than `bound` plus the time that it waited for
    /// slots.
    pub(crate) async fn bounded<T>(&self, bound: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let (mut left, mut known) = (bound, Duration::ZERO);
        loop {
            if let Ok(done) = tokio::time::timeout(left, work.as_mut()).await {
                return Some(done);
            }
            // Extends the timeout by the time waited meanwhile.
            let waited = self.total();
            left = waited.saturating_sub(known);
            known = waited;
            if left.is_zero() {
                return None;
            }
        }
    }

    fn total(&self) -> Duration {
        let waited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = waited.since.map(|since| since.elapsed());
        waited.before.saturating_add(now.unwrap_or_default())
    }

    fn change(&self, change: impl FnOnce(&mut Waited)) {
        let mut waited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut waited);
        let waits = waited.layers > 0 && waited.slots == 0;
        match (waited.since, waits) {
            (None, true) => waited.since = Some(Instant::now()),
            (Some(since), false) => {
                waited.since = None;
                waited.before = waited.before.saturating_add(since.elapsed());
            }
            (None, false) | (Some(_), true) => {}
        }
    }
}

/// Layer that waits for a slot or holds one.
struct Counted<'a> {
    waits: &'a Waits,
    has_slot: bool,
}

impl<'a> Counted<'a> {
    fn new(waits: &'a Waits) -> Self {
        waits.change(|waited| waited.layers += 1);
        Self { waits, has_slot: false }
    }

    fn begin(&mut self) {
        self.has_slot = true;
        self.waits.change(|waited| waited.slots += 1);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.waits.change(|waited| {
            waited.layers -= 1;
            waited.slots -= usize::from(self.has_slot);
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn a_part_is_never_all_where_there_are_enough() {
        for (count, of_pull, of_registry) in [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 3), (6, 3, 4)] {
            let slots = Slots::new(count);
            let parts = (slots.of_pull(), slots.of_registry());
            assert_eq!(parts, (of_pull, of_registry), "{count}");
        }
    }

    #[test]
    fn a_registry_never_has_all_slots_and_leaves_nothing_behind() {
        let slots = Slots::new(6);
        let waits: Arc<Waits> = Arc::default();
        let pulls = [slots.queue("slow", &waits), slots.queue("slow", &waits)];
        let mut of_slow: Vec<Slot<'_>> = (0..3)
            .map(|_| slots.acquire(&pulls[0]).now_or_never().unwrap())
            .collect();
        of_slow.push(slots.acquire(&pulls[1]).now_or_never().unwrap());
        assert!(slots.acquire(&pulls[1]).now_or_never().is_none());
        let other = slots.queue("other", &waits);
        let of_other: Vec<Slot<'_>> = (0..2).map(|_| slots.acquire(&other).now_or_never().unwrap()).collect();
        assert!(slots.acquire(&other).now_or_never().is_none(), "more than all");
        of_slow.pop();
        assert!(slots.acquire(&other).now_or_never().is_some());
        drop((of_slow, of_other));
        drop((pulls, other));
        let _last = slots.queue("last", &waits);
        let known = slots.registries.lock().unwrap();
        assert_eq!(known.keys().collect::<Vec<_>>(), ["last"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_that_a_pull_only_waits_is_not_its_own() {
        let seconds = Duration::from_secs;
        // A pull holds the slot for 100 s, and another one takes as long once it gets it.
        let pulled = async |taken: Duration| {
            let slots = Slots::new(1);
            let before = slots.queue("slow", &Arc::default());
            let waits: Arc<Waits> = Arc::default();
            let queue = slots.queue("slow", &waits);
            let slow = async {
                let _slot = slots.acquire(&before).await;
                sleep(seconds(100)).await;
            };
            let pull = waits.bounded(seconds(10), async {
                sleep(seconds(3)).await;
                let _slot = slots.acquire(&queue).await;
                sleep(taken).await;
            });
            futures::future::join(slow, pull).await.1
        };
        assert_eq!(pulled(seconds(6)).await, Some(()));
        assert_eq!(pulled(seconds(8)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_that_has_a_slot_gains_nothing_by_asking_for_more() {
        let slots = Slots::new(1);
        let waits: Arc<Waits> = Arc::default();
        let queue = slots.queue("slow", &waits);
        let begun = Instant::now();
        let first = async {
            let _slot = slots.acquire(&queue).await;
            sleep(Duration::from_secs(100)).await;
        };
        let second = async {
            let _slot = slots.acquire(&queue).await;
        };
        let pull = waits.bounded(Duration::from_secs(10), futures::future::join(first, second));
        assert_eq!(pull.await, None);
        assert!(begun.elapsed() < Duration::from_secs(11), "{:?}", begun.elapsed());
    }
}
