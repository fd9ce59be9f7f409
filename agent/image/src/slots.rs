//! Who may download a layer now. So many have a slot at a time, over all pulls, in the order in which they came; but one pull, and
//! one registry, only a part of the slots: what is slow keeps others waiting no longer than it must.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// The slots of all pulls.
pub(crate) struct Slots {
    count: usize,
    all: Semaphore,
    /// The parts of the registries that are being pulled from.
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

    /// How many one pull may have: never all that its registry may have, so that another image of that gets on.
    pub(crate) fn of_pull(&self) -> usize {
        (self.count / 2).max(1)
    }

    /// How many one registry may have: never all, so that another registry's images get on.
    fn of_registry(&self) -> usize {
        let others = self.count.saturating_sub(1);
        self.of_pull().saturating_add(1).min(others).max(1)
    }

    /// Where a pull from `registry` waits.
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

    /// Waits for a slot. Nobody who has one may ask for another.
    pub(crate) async fn acquire<'a>(&'a self, queue: &'a Queue) -> Slot<'a> {
        let mut counted = Counted::new(&queue.waits);
        // The registry's comes first: who waits for that keeps nothing from the others. Neither is ever closed.
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

/// Where the layers of one pull wait for slots.
pub(crate) struct Queue {
    part: Arc<Semaphore>,
    waits: Arc<Waits>,
}

/// One layer may be downloaded and unpacked until this is dropped.
pub(crate) struct Slot<'a> {
    _of_all: Option<SemaphorePermit<'a>>,
    _of_registry: Option<SemaphorePermit<'a>>,
    _counted: Counted<'a>,
}

/// The time in which a pull does nothing but wait for slots. It is not the pull's own: others take it.
#[derive(Default)]
pub(crate) struct Waits(Mutex<Waited>);

#[derive(Default)]
struct Waited {
    /// Layers that wait for a slot or have one.
    layers: usize,
    /// Those that have one.
    slots: usize,
    /// Since when there are layers and none of them has a slot.
    since: Option<Instant>,
    /// The times that are over.
    before: Duration,
}

impl Waits {
    /// What `work` comes to; nothing when it takes longer than `bound` and what it waits.
    pub(crate) async fn bounded<T>(&self, bound: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let (mut left, mut known) = (bound, Duration::ZERO);
        loop {
            if let Ok(done) = tokio::time::timeout(left, work.as_mut()).await {
                return Some(done);
            }
            // It has as much more as it waited meanwhile.
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

/// A layer that waits for a slot or has one.
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
        // One who has the slot for 100 s, and one who takes so long once it has it.
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
