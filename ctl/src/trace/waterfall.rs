//! Drawing of the steps.

use super::steps::{Moment, Step};
use crate::terminal;

const WIDTH: i128 = 40;

/// Returns a line for each step: milliseconds from the first step to the first and last object, and
/// a bar between them.
pub(super) fn draw(title: &str, steps: &[Step]) -> String {
    let fine = steps
        .iter()
        .flat_map(|step| &step.times)
        .filter(|moment| !moment.whole_second);
    let Some(start) = fine.min().or_else(|| steps.iter().flat_map(|step| &step.times).min()) else {
        return format!("{title}: nothing is known of its way\n");
    };
    let fine = steps
        .iter()
        .flat_map(|step| &step.times)
        .filter(|moment| !moment.whole_second);
    let end = fine.max().unwrap_or(start);
    let span = (end.nanoseconds - start.nanoseconds).max(1);
    let mut rows = vec![
        ["STEP", "FIRST", "LAST", "COUNT", "", "SOURCE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for step in steps {
        rows.push(row(step, start, span));
    }
    let total = milliseconds(span);
    format!(
        "{}\n{}\n{total} ms from the first step to the last that is known to the millisecond\n",
        terminal::bold(title),
        terminal::columns(&rows).trim_end()
    )
}

fn row(step: &Step, start: &Moment, span: i128) -> Vec<String> {
    let (Some(first), Some(last)) = (step.times.first(), step.times.last()) else {
        return vec![step.name.to_string(), "unknown".to_owned()];
    };
    let shown = |moment: &Moment| {
        if moment.whole_second {
            // The source has whole seconds: the time is somewhere in the second, and not before the
            // start.
            let from = (moment.nanoseconds - start.nanoseconds) / 1_000_000;
            format!("{}–{} ms", from.max(0), from + 1000)
        } else {
            format!("{} ms", milliseconds(moment.nanoseconds - start.nanoseconds))
        }
    };
    let bar = if first.whole_second || last.whole_second {
        String::new()
    } else {
        bar(first, last, start, span)
    };
    let name = step.name.to_string();
    vec![
        name,
        shown(first),
        shown(last),
        step.times.len().to_string(),
        bar,
        step.source.to_owned(),
    ]
}

fn bar(first: &Moment, last: &Moment, start: &Moment, span: i128) -> String {
    let column =
        |moment: &Moment| usize::try_from((moment.nanoseconds - start.nanoseconds) * (WIDTH - 1) / span).unwrap_or(0);
    let (from, to) = (column(first), column(last));
    format!("{}{}", "·".repeat(from), "█".repeat(to.saturating_sub(from) + 1))
}

/// Formats milliseconds with one decimal.
fn milliseconds(nanoseconds: i128) -> String {
    let tenths = nanoseconds.div_euclid(100_000);
    format!("{}.{}", tenths.div_euclid(10), tenths.rem_euclid(10))
}

#[cfg(test)]
mod tests {
    use super::super::steps::parse;
    use super::*;

    #[test]
    fn shows_milliseconds_seconds_and_what_is_unknown() {
        let moment = |text: &str| parse(text).unwrap();
        let steps = [
            Step {
                name: "stored".into(),
                times: vec![moment("2026-01-01T00:00:00.100Z")],
                source: "audit log",
            },
            Step {
                name: "started".into(),
                times: vec![moment("2026-01-01T00:00:00.140Z"), moment("2026-01-01T00:00:00.1505Z")],
                source: "events",
            },
            Step {
                name: "ready".into(),
                times: vec![moment("2026-01-01T00:00:01Z")],
                source: "pod status",
            },
            Step {
                name: "network".into(),
                times: Vec::new(),
                source: "events",
            },
        ];
        let text = draw("web", &steps);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("stored").contains("0.0 ms"), "{text}");
        assert!(
            line("started").contains("40.0 ms") && line("started").contains("50.5 ms"),
            "{text}"
        );
        assert!(line("ready").contains("900–1900 ms"), "{text}");
        assert_eq!(line("network"), "network   unknown");
        assert!(
            text.ends_with("50.5 ms from the first step to the last that is known to the millisecond\n"),
            "{text}"
        );
    }
}
