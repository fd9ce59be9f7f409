//! Sets of completion indexes, as a Job's status writes them: `0,2-4,7`
//! (`pkg/controller/job/indexed_job_utils.go`).

use std::collections::BTreeSet;
use std::fmt;

/// Ordered intervals, both ends included, that neither overlap nor touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Indexes(Vec<(u32, u32)>);

impl Indexes {
    /// Parses a status or a rule; invalid intervals are left out, as are indexes at or above
    /// `completions`.
    pub fn parse(text: &str, completions: u32) -> Self {
        let interval = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            let most = completions.checked_sub(1)?;
            (first <= most && first <= last).then(|| (first, last.min(most)))
        };
        Self::default().with(text.split(',').filter_map(interval))
    }

    /// This set and more intervals, in any order.
    #[must_use]
    pub fn with(&self, more: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut all: Vec<(u32, u32)> = self.0.iter().copied().chain(more).collect();
        all.sort_unstable();
        let mut set = Self::default();
        for (first, last) in all {
            set.add(first, last);
        }
        set
    }

    /// This set and more indexes.
    #[must_use]
    pub fn with_each(&self, more: &BTreeSet<u32>) -> Self {
        self.with(more.iter().map(|index| (*index, *index)))
    }

    /// Appends an interval that begins at or after the last one.
    fn add(&mut self, first: u32, last: u32) {
        match self.0.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            Some(_) | None => self.0.push((first, last)),
        }
    }

    /// The intervals.
    pub fn intervals(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().copied()
    }

    /// Number of indexes.
    pub fn total(&self) -> u32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the index is in the set.
    pub fn has(&self, index: u32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    /// The first `count` indexes below `completions` that are not in the set.
    pub fn missing(&self, count: usize, completions: u32) -> Vec<u32> {
        let mut found = Vec::new();
        let mut candidate = 0;
        for (first, last) in self.intervals().chain([(completions, completions)]) {
            let until = first.min(completions);
            found.extend((candidate..until).take(count.saturating_sub(found.len())));
            candidate = candidate.max(last.saturating_add(1));
        }
        found
    }

    /// Number of indexes that are in both sets.
    pub fn common(&self, other: &Self) -> u32 {
        let overlap = |(first, last): (u32, u32)| {
            let meets = other.intervals().filter_map(move |(start, end)| {
                let (start, end) = (start.max(first), end.min(last));
                (start <= end).then(|| end - start + 1)
            });
            meets.sum::<u32>()
        };
        self.intervals().map(overlap).sum()
    }
}

/// Two adjacent indexes are listed separately, three or more as a range.
impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.0.iter().enumerate() {
            f.write_str(if position == 0 { "" } else { "," })?;
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Indexes;

    #[test]
    fn sets_of_indexes() {
        let parse = |text: &str| Indexes::parse(text, 10);
        for (text, canonical, total) in [
            ("", "", 0),
            ("0", "0", 1),
            ("0,1", "0,1", 2),
            ("1,2,3,5", "1-3,5", 4),
            ("2-4,5-7", "2-7", 6),
            ("8-20,30", "8,9", 2),
            ("x,3,4-y", "3", 1),
            ("5,1,1-2,9", "1,2,5,9", 4),
        ] {
            let set = parse(text);
            assert_eq!((set.to_string().as_str(), set.total()), (canonical, total), "{text}");
            assert_eq!(parse(&set.to_string()), set, "{text}");
        }
        assert_eq!(parse("1-2,5").missing(4, 10), [0, 3, 4, 6]);
        assert_eq!(parse("0-9").missing(4, 10), [0_u32; 0]);
        assert_eq!(parse("0-3,6-9").common(&parse("2-7")), 4);
        let set = parse("1-2,5");
        let held: Vec<u32> = (0..10).filter(|index| set.has(*index)).collect();
        assert_eq!(held, [1, 2, 5]);
    }
}
