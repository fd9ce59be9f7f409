//! Prometheus' text format.

use std::fmt::Write as _;
use std::time::Duration;

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// Kubelet's metrics but cAdvisor's, and our own: a line each with name, kind and help.
const HELP: &str = include_str!("help.txt");

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of durations in seconds: Prometheus' defaults.
pub(crate) const DEFAULTS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Metric family: name, help, type, and samples with labels and values. For histograms, the suffix
/// of the name precedes the labels.
pub(crate) struct Family<'a> {
    pub(in crate::serve) name: &'a str,
    help: &'a str,
    kind: &'a str,
    samples: Vec<(String, Option<f64>)>,
}

impl<'a> Family<'a> {
    pub(super) fn new(name: &'a str, samples: impl IntoIterator<Item = (String, Option<f64>)>) -> Self {
        Self::of(HELP, name, samples)
    }

    /// Family that a table describes, in the form of `help.txt`.
    pub(super) fn of(table: &'a str, name: &'a str, samples: impl IntoIterator<Item = (String, Option<f64>)>) -> Self {
        let text = |line: &'a str| line.strip_prefix(name)?.strip_prefix(' ')?.split_once(' ');
        let described = table.lines().find_map(text);
        debug_assert!(described.is_some(), "{name} is not described");
        let (kind, help) = described.unwrap_or_default();
        Self {
            name,
            help,
            kind,
            samples: samples.into_iter().collect(),
        }
    }

    /// Family of one sample without labels.
    pub(super) fn one(name: &'a str, value: Option<f64>) -> Self {
        Self::new(name, [(String::new(), value)])
    }

    /// Writes samples with a timestamp in milliseconds; nothing without samples.
    pub(in crate::serve) fn write(&self, text: &mut String, time: Option<i64>) {
        let name = self.name;
        let mut lines = format!("# HELP {name} {}\n# TYPE {name} {}\n", self.help, self.kind);
        let time = time.map_or_else(String::new, |time| format!(" {time}"));
        let mut some = false;
        for (labels, value) in &self.samples {
            let Some(value) = value else { continue };
            some = true;
            // Writing to a String cannot fail.
            writeln!(lines, "{name}{labels} {value}{time}").ok();
        }
        if some {
            text.push_str(&lines);
        }
    }
}

/// Durations, counted by upper bounds in seconds.
#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    within: [u64; N],
    count: u64,
    sum: Duration,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self {
            within: [0; N],
            count: 0,
            sum: Duration::ZERO,
        }
    }
}

impl<const N: usize> Histogram<N> {
    pub(crate) fn observe(&mut self, bounds: &[f64; N], took: Duration) {
        self.count += 1;
        self.sum = self.sum.saturating_add(took);
        for (bound, within) in bounds.iter().zip(&mut self.within) {
            *within += u64::from(took.as_secs_f64() <= *bound);
        }
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The samples, with these labels.
    pub(super) fn samples(&self, bounds: &[f64; N], names: &[(&str, &str)]) -> Vec<(String, Option<f64>)> {
        let bucket = |bound: &str, count| {
            let labels = labels(&[names, &[("le", bound)]].concat());
            (format!("_bucket{labels}"), Some(number(count)))
        };
        let each = bounds.iter().zip(self.within);
        let mut all: Vec<_> = each.map(|(bound, within)| bucket(&bound.to_string(), within)).collect();
        all.push(bucket("+Inf", self.count));
        all.push((format!("_sum{}", labels(names)), Some(self.sum.as_secs_f64())));
        all.push((format!("_count{}", labels(names)), Some(number(self.count))));
        all
    }
}

/// `{name="value",…}`, in the order given; empty without any.
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    if pairs.is_empty() {
        return String::new();
    }
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let each = pairs
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", each.collect::<Vec<_>>().join(","))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the format has floating point numbers; 2^53 of anything are enough"
)]
pub(in crate::serve) fn number(value: u64) -> f64 {
    value as f64
}

pub(in crate::serve) fn answer(text: String) -> Response {
    ([(header::CONTENT_TYPE, TEXT)], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_families_without_samples_left_out() {
        let of = |value: &str| labels(&[("a", value), ("b", "")]);
        let samples = [(of("x\\y\"z\n"), Some(1.5)), (of("unknown"), None)];
        let table = "own gauge Help\nother gauge Help\ntook histogram Help";
        let mut text = String::new();
        Family::of(table, "own", samples).write(&mut text, Some(7));
        Family::of(table, "other", [(String::new(), None)]).write(&mut text, None);
        let parts = [
            (format!("_bucket{}", labels(&[("le", "+Inf")])), Some(2.0)),
            ("_count".to_owned(), Some(2.0)),
        ];
        Family::of(table, "took", parts).write(&mut text, None);
        assert_eq!(
            text,
            "# HELP own Help\n# TYPE own gauge\nown{a=\"x\\\\y\\\"z\\n\",b=\"\"} 1.5 7\n\
             # HELP took Help\n# TYPE took histogram\ntook_bucket{le=\"+Inf\"} 2\ntook_count 2\n"
        );
    }
}
