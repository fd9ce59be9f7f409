//! Printed table of the measurements.

use std::io::Write as _;
use std::time::{Duration, Instant};

/// Rows in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<(String, String)>,
}

impl Table {
    /// Adds a row and prints it at once, because the whole run takes minutes.
    pub(crate) fn row(&mut self, what: impl Into<String>, figure: impl Into<String>) {
        let (what, figure) = (what.into(), figure.into());
        show(&format!("  {what}: {figure}"));
        self.rows.push((what, figure));
    }

    /// Prints all rows as a Markdown table.
    pub(crate) fn print(&self) {
        show("| what | measured |\n| --- | --- |");
        for (what, figure) in &self.rows {
            show(&format!("| {what} | {figure} |"));
        }
    }
}

fn show(line: &str) {
    // A reader that went away is no reason to lose the run.
    drop(writeln!(std::io::stdout(), "{line}"));
}

/// The wall clock of a measurement.
#[expect(clippy::disallowed_methods, reason = "measuring is what this program is for")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A duration as milliseconds with a sensible number of digits.
pub(crate) fn milliseconds(time: Duration) -> String {
    let value = time.as_secs_f64() * 1000.0;
    if value < 10.0 {
        format!("{value:.2} ms")
    } else if value < 100.0 {
        format!("{value:.1} ms")
    } else {
        format!("{value:.0} ms")
    }
}

/// Median and 99th percentile of a set of times.
pub(crate) fn percentiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |permille: usize| {
        times
            .get(times.len().saturating_sub(1) * permille / 1000)
            .copied()
            .unwrap_or_default()
    };
    format!("p50 {}, p99 {}", milliseconds(at(500)), milliseconds(at(990)))
}

/// Operations per second.
pub(crate) fn rate(count: usize, time: Duration) -> String {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    format!("{:.0}/s", f64::from(count) / time.as_secs_f64())
}
