//! Prometheus text format, with numbers as Go formats them.

use std::fmt::{Display, Write as _};
use std::time::Duration;

/// Histogram of values.
#[derive(Debug, Clone)]
pub(crate) struct Buckets {
    bounds: &'static [f64],
    /// Counts per bucket, not cumulative; one more than there are bounds.
    counts: Box<[u64]>,
    sum: f64,
}

impl Buckets {
    /// Bounds for the items of a queue.
    pub(crate) const QUEUE: &'static [f64] = &[
        1e-08,
        1e-07,
        1e-06,
        9.999_999_999_999_999e-06,
        9.999_999_999_999_999e-05,
        0.001,
        0.01,
        0.1,
        1.0,
        10.0,
    ];

    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1].into(),
            sum: 0.0,
        }
    }

    pub(crate) fn observe(&mut self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.sum += value;
    }

    pub(crate) fn took(&mut self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }
}

/// A page in the text format, written family by family.
#[derive(Default)]
pub(crate) struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    fn family(&mut self, name: &'static str, help: &str, kind: &str) {
        self.name = name;
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    pub(crate) fn counter(&mut self, name: &'static str, help: &str) {
        self.family(name, help, "counter");
    }

    pub(crate) fn gauge(&mut self, name: &'static str, help: &str) {
        self.family(name, help, "gauge");
    }

    pub(crate) fn histogram(&mut self, name: &'static str, help: &str) {
        self.family(name, help, "histogram");
    }

    /// A sample of the last family.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, None, &value);
    }

    /// A histogram of the last family.
    pub(crate) fn buckets(&mut self, labels: &[(&str, &str)], buckets: &Buckets) {
        let mut sum = 0_u64;
        let bounds = buckets.bounds.iter().map(|bound| go(*bound));
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&buckets.counts) {
            sum += count;
            self.line("_bucket", labels, Some(&bound), &sum);
        }
        self.line("_sum", labels, None, &go(buckets.sum));
        self.line("_count", labels, None, &sum);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: &dyn Display) {
        let name = self.name;
        self.write(format_args!("{name}{suffix}"));
        let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut sign = '{';
        for (name, text) in labels {
            self.write(format_args!("{sign}{name}={text:?}"));
            sign = ',';
        }
        let end = if sign == '{' { "" } else { "}" };
        self.write(format_args!("{end} {value}\n"));
    }

    fn write(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        self.text.write_fmt(arguments).unwrap_or_default();
    }

    pub(crate) fn text(self) -> String {
        self.text
    }
}

/// A number formatted like Go: small ones with an exponent of two digits.
fn go(value: f64) -> String {
    if value == 0.0 || value >= 1e-4 {
        return value.to_string();
    }
    let text = format!("{value:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text,
    }
}
