//! Node ids that are mapped to the users and groups of a pod in a user namespace.

use std::collections::BTreeSet;
use std::ops::Range;

/// Number of users and groups of such a pod.
pub const COUNT: u32 = 65_536;
/// Ids from here on are not used: kernels and programs disagree about their sign.
const END: u32 = 1 << 31;

/// Returns the first of [`COUNT`] ids that no other pod has and that no subordinate range contains;
/// the search starts near a number, so that several agents on one machine do not collide. The
/// node's own first [`COUNT`] ids are never used.
pub fn free(taken: &BTreeSet<u32>, promised: &[Range<u64>], near: u64) -> Option<u32> {
    let ranges = u64::from(END / COUNT - 1);
    let start = near % ranges;
    (start..ranges).chain(0..start).find_map(|number| {
        let first = u32::try_from(number + 1).ok()?.checked_mul(COUNT)?;
        let (from, to) = (u64::from(first), u64::from(first) + u64::from(COUNT));
        let promised = promised.iter().any(|other| other.start < to && from < other.end);
        (!taken.contains(&first) && !promised).then_some(first)
    })
}

/// Ranges that `/etc/subuid` or `/etc/subgid` delegates to users of the machine.
pub fn promised(text: &str) -> Vec<Range<u64>> {
    let range = |line: &str| {
        let mut fields = line.trim().split(':').skip(1);
        let first: u64 = fields.next()?.parse().ok()?;
        let count: u64 = fields.next()?.parse().ok()?;
        Some(first..first.checked_add(count)?)
    };
    text.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pods_and_no_user_of_the_machine_share_ids() {
        let promised = promised("ann:100000:65536\n# no range\nbob:262144:1\nbroken:x:1\n");
        assert_eq!(promised, [100_000..165_536, 262_144..262_145]);
        let mut taken = BTreeSet::new();
        let mut next = || {
            let found = free(&taken, &promised, 0).unwrap();
            taken.insert(found);
            found / COUNT
        };
        assert_eq!([next(), next(), next()], [3, 5, 6]);
    }

    #[test]
    fn the_search_goes_round_and_ends() {
        let last = END / COUNT - 1;
        assert_eq!(free(&BTreeSet::new(), &[], u64::from(last) - 1), Some(last * COUNT));
        assert_eq!(
            free(&BTreeSet::from([last * COUNT]), &[], u64::from(last) - 1),
            Some(COUNT)
        );
        let all = 0..u64::from(END);
        assert_eq!(free(&BTreeSet::new(), &[all], 7), None);
    }
}
