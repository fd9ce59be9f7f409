//! Lines of container logs in the CRI format: `TIME STREAM TAG TEXT`, where tag `P` marks a line
//! that continues in the next record.

use crate::Timestamp;

/// A record of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Time of the record, as text in the log.
    pub time_text: &'a str,
    /// Time of the record.
    pub time: Timestamp,
    /// True if the line ends with this record.
    pub complete: bool,
    /// The record's bytes, without a line end.
    pub text: &'a [u8],
}

/// Parses one record, without its line end.
pub fn parse(line: &[u8]) -> Option<Record<'_>> {
    let (time_text, rest) = word(line)?;
    let (stream, rest) = word(rest)?;
    let (tag, text) = match word(rest) {
        Some((tag, text)) => (tag, text),
        None => (std::str::from_utf8(rest).ok()?, &[][..]),
    };
    if !matches!(stream, "stdout" | "stderr") {
        return None;
    }
    let complete = match tag.split(':').next() {
        Some("F") => true,
        Some("P") => false,
        Some(_) | None => return None,
    };
    Some(Record {
        time_text,
        time: time_text.parse().ok()?,
        complete,
        text,
    })
}

fn word(text: &[u8]) -> Option<(&str, &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    let (word, rest) = text.split_at(end);
    Some((std::str::from_utf8(word).ok()?, rest.get(1..)?))
}

/// Options of a log request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Follow the log after its end.
    pub follow: bool,
    /// Read the previous instance.
    pub previous: bool,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// Only this number of lines from the end.
    pub tail_lines: Option<u64>,
    /// Only records since this time.
    pub since: Option<Timestamp>,
    /// Maximum number of bytes.
    pub limit_bytes: Option<u64>,
}

/// An invalid option. The text is the response's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value {value:?} for {name}")]
pub struct OptionError {
    /// The parameter.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Options {
    /// Parses the parameters of a query; unknown ones are ignored.
    pub fn parse(parameters: &[(String, String)], now: Timestamp) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for (name, value) in parameters {
            let refused = || OptionError {
                name: name.clone(),
                value: value.clone(),
            };
            let number = || value.parse::<u64>().ok().ok_or_else(refused);
            let flag = || match value.as_str() {
                "true" | "1" | "" => Ok(true),
                "false" | "0" => Ok(false),
                _ => Err(refused()),
            };
            match name.as_str() {
                "follow" => options.follow = flag()?,
                "previous" => options.previous = flag()?,
                "timestamps" => options.timestamps = flag()?,
                "tailLines" => options.tail_lines = Some(number()?),
                "limitBytes" => options.limit_bytes = Some(number()?),
                "sinceSeconds" => {
                    let seconds = i64::try_from(number()?).ok().ok_or_else(refused)?;
                    options.since = Some(crate::after(now, -seconds));
                }
                "sinceTime" => options.since = Some(value.parse().ok().ok_or_else(refused)?),
                _ => {}
            }
        }
        Ok(options)
    }

    /// Appends the part of a record that the options select.
    pub fn render(&self, record: &Record<'_>, line_begins: bool, out: &mut Vec<u8>) {
        if self.timestamps && line_begins {
            out.extend_from_slice(record.time_text.as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(record.text);
        if record.complete {
            out.push(b'\n');
        }
    }
}

/// Bytes of a log's end that [`end`] must see: a record has at most 16 KiB of text, and 80 of them
/// some 60 bytes each before it.
pub const END: u64 = 32 << 10;
/// Maximum numbers of records and bytes in such a message.
const RECORDS: usize = 80;
const BYTES: usize = 2048;

/// Returns the end of a container's output, without times, as its termination message if it has
/// none: the last 2,048 bytes of the last 80 records. `tail` is the end of its log, [`END`] bytes
/// or all of it.
pub fn end(tail: &[u8]) -> String {
    // A record whose start is cut off is too far from the end to be shown.
    let records: Vec<_> = tail.split(|byte| *byte == b'\n').filter_map(parse).collect();
    let mut text = Vec::new();
    for record in records.iter().skip(records.len().saturating_sub(RECORDS)) {
        Options::default().render(record, true, &mut text);
    }
    let surplus = text.len().saturating_sub(BYTES);
    String::from_utf8_lossy(text.get(surplus..).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_and_rubbish_is_not() {
        let record = parse(b"2024-01-01T00:00:00.000000001Z stdout P hello world").unwrap();
        assert_eq!((record.complete, record.text), (false, &b"hello world"[..]));
        let record = parse(b"2024-01-01T00:00:00Z stderr F ").unwrap();
        assert_eq!((record.complete, record.text), (true, &b""[..]));
        for line in [
            "",
            "x",
            "2024-01-01T00:00:00Z stdout",
            "y stdout F a",
            "2024-01-01T00:00:00Z out F a",
        ] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn the_end_of_a_log_is_found_however_long_its_lines_are() {
        let records = |parts: &[(&str, String)]| {
            let each = parts.iter();
            let lines = each.map(|(tag, text)| format!("2024-01-01T00:00:00.000000001Z stdout {tag} {text}\n"));
            lines.collect::<Vec<_>>().concat()
        };
        let seen = |log: &str| {
            let cut = log.len().saturating_sub(usize::try_from(END).unwrap());
            end(&log.as_bytes()[cut..])
        };
        let part = || "z".repeat(16 << 10);
        assert_eq!(seen(""), "");
        assert_eq!(
            seen(&records(&[("F", "a".to_owned()), ("F", "b".to_owned())])),
            "a\nb\n"
        );
        let long = records(&[("F", "z".repeat(9000))]);
        assert_eq!(seen(&long), "z".repeat(2047) + "\n");
        let longer = records(&[
            ("P", part()),
            ("P", part()),
            ("F", "z".repeat(7232)),
            ("F", String::new()),
            ("F", "hi".to_owned()),
        ]);
        assert_eq!(seen(&longer), "z".repeat(2043) + "\n\nhi\n");
        let short: Vec<_> = (0..100).map(|number| ("F", number.to_string())).collect();
        assert_eq!(
            seen(&records(&short)),
            (20..100)
                .map(|number| format!("{number}\n"))
                .collect::<Vec<_>>()
                .concat()
        );
        let empty: Vec<_> = (0..2000).map(|_| ("F", String::new())).collect();
        assert_eq!(seen(&records(&empty)), "\n".repeat(80));
        let full = records(&[("F", "x".to_owned()), ("F", part()), ("F", part())]);
        assert_eq!(seen(&full), "z".repeat(2047) + "\n");
    }

    #[test]
    fn options_are_refused_by_name() {
        let parse = |name: &str, value: &str| Options::parse(&[(name.into(), value.into())], Timestamp::UNIX_EPOCH);
        assert_eq!(
            parse("tailLines", "-1").unwrap_err().to_string(),
            "invalid value \"-1\" for tailLines"
        );
        assert!(parse("follow", "true").unwrap().follow);
        assert_eq!(
            parse("sinceSeconds", "60").unwrap().since,
            Some(crate::after(Timestamp::UNIX_EPOCH, -60))
        );
    }
}
