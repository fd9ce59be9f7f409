//! Pages with the levels and the queues as they are now
//! (`staging/src/k8s.io/apiserver/pkg/util/flowcontrol/apf_controller_debug.go`). Requests are only
//! counted: there is no page with each of them.

use std::collections::BTreeMap;

use super::FlowControl;
use super::seats::Used;

const OF_LEVELS: &str = "PriorityLevelName ActiveQueues IsIdle IsQuiescing WaitingRequests ExecutingRequests \
                         DispatchedRequests RejectedRequests TimedoutRequests CancelledRequests";
const OF_QUEUES: &str = "PriorityLevelName Index PendingRequests ExecutingRequests SeatsInUse NextDispatchR \
                         InitialSeatsSum MaxSeatsSum TotalWorkSum";

impl FlowControl {
    /// The page at a path; `None` for other paths.
    pub(crate) fn page(&self, path: &str) -> Option<String> {
        self.refresh();
        match path.strip_prefix("debug/api_priority_and_fairness/")? {
            "dump_priority_levels" => Some(self.levels()),
            "dump_queues" => Some(queues(&self.seats.used())),
            _ => None,
        }
    }

    fn levels(&self) -> String {
        let used = self.seats.used();
        let mut sums = self.numbers.sums();
        for (name, level) in used.iter().filter(|(_, level)| !level.lives) {
            let queues = level.queues.iter();
            let [waiting, running] = queues.fold([0_u64; 2], |[waits, runs], [_, waiting, running]| {
                [waits + *waiting, runs + *running]
            });
            sums.insert(name.clone(), [waiting, running, 0, 0, 0]);
        }
        let row = |(name, [waiting, running, dispatched, rejected, cancelled]): (String, [u64; 5])| {
            let level = used.get(&name);
            let active = level.map_or(0, |level| {
                level.queues.iter().filter(|[_, waiting, _]| *waiting > 0).count()
            });
            let is_idle = waiting == 0 && running == 0;
            let is_quiescing = level.is_some_and(|level| !level.lives);
            let flags = [active.to_string(), is_idle.to_string(), is_quiescing.to_string()];
            // As with upstream, a request that has waited for too long is a cancelled and a rejected one.
            let counts = [waiting, running, dispatched, rejected, 0, cancelled];
            let counts = counts.map(|count| count.to_string());
            [name].into_iter().chain(flags).chain(counts).collect::<Vec<String>>()
        };
        table(OF_LEVELS, sums.into_iter().map(row).collect())
    }
}

/// The queues that are in use: a level may have ten million. They have no virtual time.
pub(super) fn queues(used: &BTreeMap<String, Used>) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (name, level) in used.iter().filter(|(_, level)| level.queued) {
        for [index, waiting, running] in &level.queues {
            let [index, waiting, running] = [index, waiting, running].map(u64::to_string);
            let (seats, none) = (running.clone(), "-".to_owned());
            let sums = [waiting.clone(), waiting.clone(), none.clone()];
            let row = [name.clone(), index, waiting, running, seats, none];
            rows.push(row.into_iter().chain(sums).collect());
        }
    }
    table(OF_QUEUES, rows)
}

/// Aligns columns as Go's `text/tabwriter` does with cells of at least eight characters.
fn table(head: &str, mut rows: Vec<Vec<String>>) -> String {
    let head: Vec<String> = head.split(' ').map(str::to_owned).collect();
    let columns = head.len();
    rows.insert(0, head);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        // With the comma and a space.
        cells.map(|cell| cell.chars().count() + 2).fold(8, usize::max)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let Some((last, cells)) = row.split_last() else {
            continue;
        };
        for (cell, width) in cells.iter().zip(&widths) {
            text.extend([cell.as_str(), ","]);
            text.extend(std::iter::repeat_n(' ', width - cell.chars().count() - 1));
        }
        text.extend([last.as_str(), "\n"]);
    }
    text
}
