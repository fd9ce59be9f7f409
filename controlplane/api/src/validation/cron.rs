//! The format of cron, with five fields or a word such as `@daily`; what is wrong with a schedule in the words of the
//! library that upstream uses.

/// What is wrong with a schedule; nothing when it is good.
pub(crate) fn problem(schedule: &str) -> Option<String> {
    if let Some(word) = schedule.strip_prefix('@') {
        let known = ["yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly"];
        if known.contains(&word) {
            return None;
        }
        if let Some(period) = word.strip_prefix("every ") {
            let good = period.bytes().any(|letter| letter.is_ascii_digit())
                && period
                    .bytes()
                    .all(|letter| letter.is_ascii_digit() || b"hmsun.".contains(&letter));
            return (!good).then(|| format!("failed to parse duration @every {period}"));
        }
        return Some(format!("unrecognized descriptor: {schedule}"));
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != RANGES.len() {
        return Some(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    }
    RANGES
        .iter()
        .zip(fields)
        .find_map(|(range, field)| field.split(',').find_map(|part| range.problem(part)))
}

/// What a field may hold.
struct Range {
    least: u32,
    most: u32,
    names: &'static [&'static str],
}

const RANGES: [Range; 5] = [
    Range {
        least: 0,
        most: 59,
        names: &[],
    },
    Range {
        least: 0,
        most: 23,
        names: &[],
    },
    Range {
        least: 1,
        most: 31,
        names: &[],
    },
    Range {
        least: 1,
        most: 12,
        names: &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    },
    Range {
        least: 0,
        most: 6,
        names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    },
];

impl Range {
    fn problem(&self, part: &str) -> Option<String> {
        let (span, step) = match part.split_once('/') {
            Some((_, step)) if step.contains('/') => return Some(format!("too many slashes: {part}")),
            Some((span, step)) => (span, Some(step)),
            None => (part, None),
        };
        let (start, end) = match span.split_once('-') {
            _ if span == "*" || span == "?" => (self.least, self.most),
            Some((_, end)) if end.contains('-') => return Some(format!("too many hyphens: {part}")),
            Some((start, end)) => match (self.number(start), self.number(end)) {
                (Ok(start), Ok(end)) => (start, end),
                (Err(problem), _) | (_, Err(problem)) => return Some(problem),
            },
            None => match self.number(span) {
                // `5/10` goes on to the end.
                Ok(start) => (start, if step.is_some() { self.most } else { start }),
                Err(problem) => return Some(problem),
            },
        };
        match step.map(number) {
            Some(Err(problem)) => return Some(problem),
            Some(Ok(0)) => return Some(format!("step of range should be a positive number: {part}")),
            Some(Ok(_)) | None => {}
        }
        if start < self.least {
            return Some(format!(
                "beginning of range ({start}) below minimum ({}): {part}",
                self.least
            ));
        }
        if end > self.most {
            return Some(format!("end of range ({end}) above maximum ({}): {part}", self.most));
        }
        (start > end).then(|| format!("beginning of range ({start}) beyond end of range ({end}): {part}"))
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        let lower = text.to_ascii_lowercase();
        match (self.least..).zip(self.names).find(|(_, name)| **name == lower) {
            Some((number, _)) => Ok(number),
            None => number(text),
        }
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_no_number| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
    })
}

#[cfg(test)]
mod tests {
    use super::problem;

    #[test]
    fn schedules() {
        for good in [
            "*/5 * * * *",
            "0 0 1,15 * mon-fri",
            "@hourly",
            "0-30/10 4 ? JAN *",
            "@every 1h30m",
        ] {
            assert_eq!(problem(good), None, "{good}");
        }
        let bad = [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            (
                "a * * * *",
                "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax",
            ),
            ("@often", "unrecognized descriptor: @often"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ];
        for (schedule, text) in bad {
            assert_eq!(problem(schedule).as_deref(), Some(text), "{schedule}");
        }
    }
}
