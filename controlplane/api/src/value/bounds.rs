//! Limits on JSON, checked before anything is built from it.
//!
//! A body of 3 MiB of `{},{},…` in place of containers would become 2 GiB of containers. One pass
//! over the bytes, without allocations, counts what decoding would create.

/// Maximum nesting depth of values. Readers go 128 levels deep, and find objects in lists, in their
/// managed fields and in the audit log.
pub const MAX_DEPTH: usize = 100;

/// Maximum number of objects in lists: containers, endpoints, rules.
pub const MAX_LISTED_OBJECTS: usize = 8_192;

/// Maximum number of objects in total.
pub const MAX_OBJECTS: usize = 32_768;

/// Maximum number of values, scalars included.
pub const MAX_VALUES: usize = 262_144;

/// Factor by which an accepted object may exceed every bound, to leave room for what the server
/// adds and for the result of a patch.
const GROWTH: usize = 4;

/// No JSON of this size or less can exceed a bound other than the depth.
const HARMLESS: usize = MAX_LISTED_OBJECTS * 3;

/// Limit that is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// Deeper than [`MAX_DEPTH`].
    #[error("json: exceeded max depth")]
    Depth,
    /// Too many of the counted items.
    #[error("json: more than {limit} {what}")]
    Count {
        /// The limit.
        limit: usize,
        /// The items that are counted.
        what: &'static str,
    },
}

/// Checks JSON, well-formed or not, against all limits.
///
/// # Errors
/// The first limit that is exceeded.
pub fn check(json: &[u8]) -> Result<(), Exceeded> {
    scan(json, MAX_LISTED_OBJECTS, 1)
}

/// Like [`check`], for an accepted object that the server or a patch has changed.
///
/// # Errors
/// The first bound that is exceeded.
pub fn check_grown(json: &[u8]) -> Result<(), Exceeded> {
    scan(json, MAX_LISTED_OBJECTS, GROWTH)
}

/// Like [`check`], for a list of operations, each of which is an object: the number of operations
/// is limited elsewhere.
///
/// # Errors
/// The first bound that is exceeded.
pub fn check_operations(json: &[u8]) -> Result<(), Exceeded> {
    scan(json, MAX_OBJECTS, 1)
}

fn scan(json: &[u8], most_listed: usize, growth: usize) -> Result<(), Exceeded> {
    let opened = || json.iter().filter(|byte| matches!(byte, b'{' | b'[')).count();
    if json.len() <= HARMLESS && opened() <= MAX_DEPTH {
        return Ok(());
    }
    let mut counts = Counts {
        most_listed: most_listed * growth,
        growth,
        ..Counts::default()
    };
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                // Skips to the closing quotation mark; a backslash escapes the next byte.
                while let Some(byte) = bytes.find(|byte| matches!(byte, b'"' | b'\\')) {
                    if *byte == b'"' {
                        break;
                    }
                    bytes.next();
                }
            }
            b'{' => counts.open(false)?,
            b'[' => counts.open(true)?,
            b'}' | b']' => counts.close(),
            b',' => count(&mut counts.values, MAX_VALUES * growth, "values")?,
            _ => {}
        }
    }
    Ok(())
}

#[derive(Default)]
struct Counts {
    /// One bit for each level, the innermost last: set if the level is a list.
    lists: u128,
    depth: usize,
    values: usize,
    objects: usize,
    listed: usize,
    most_listed: usize,
    growth: usize,
}

impl Counts {
    fn open(&mut self, list: bool) -> Result<(), Exceeded> {
        if self.depth == MAX_DEPTH {
            return Err(Exceeded::Depth);
        }
        count(&mut self.values, MAX_VALUES * self.growth, "values")?;
        if !list {
            count(&mut self.objects, MAX_OBJECTS * self.growth, "objects")?;
            if self.depth > 0 && self.lists & 1 == 1 {
                count(&mut self.listed, self.most_listed, "objects in lists")?;
            }
        }
        self.lists = self.lists << 1 | u128::from(list);
        self.depth += 1;
        Ok(())
    }

    fn close(&mut self) {
        self.lists >>= 1;
        self.depth = self.depth.saturating_sub(1);
    }
}

fn count(counter: &mut usize, limit: usize, what: &'static str) -> Result<(), Exceeded> {
    *counter += 1;
    if *counter > limit {
        Err(Exceeded::Count { limit, what })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Exceeded, check};

    fn refused(json: &str) -> Option<String> {
        check(json.as_bytes()).err().map(|error: Exceeded| error.to_string())
    }

    #[test]
    fn attack_24_what_would_grow_is_refused() {
        let containers = format!(r#"{{"spec":{{"containers":[{}{{}}]}}}}"#, "{},".repeat(1_000_000));
        assert_eq!(refused(&containers).unwrap(), "json: more than 8192 objects in lists");
        let members: Vec<_> = (0..100_000).map(|number| format!(r#""{number}":{{"a":1}}"#)).collect();
        assert_eq!(
            refused(&format!("{{{}}}", members.join(","))).unwrap(),
            "json: more than 32768 objects"
        );
        assert_eq!(
            refused(&format!("[{}0]", "0,".repeat(1_500_000))).unwrap(),
            "json: more than 262144 values"
        );
        assert_eq!(refused(&"[".repeat(100_000)).unwrap(), "json: exceeded max depth");
        assert_eq!(
            refused(&r#"{"a":"#.repeat(100_000)).unwrap(),
            "json: exceeded max depth"
        );
    }

    #[test]
    fn text_is_not_structure() {
        let text = r#"{"data":{"a":"TEXT"}}"#.replace("TEXT", &r#"{},[\"{},\\"#.repeat(300_000));
        assert_eq!(refused(&text), None);
        assert_eq!(
            refused(&format!("{}\"", "[".repeat(100_000))).unwrap(),
            "json: exceeded max depth"
        );
        let siblings = format!("[{}[]]", "[[]],".repeat(8_000));
        assert_eq!(refused(&siblings), None);
    }
}
