//! Encoding of a change in etcd.

use bytes::Bytes;
use etcd_client::KeyValue;
use store::{Key, Operation, Record};

/// First byte of every row: version of the encoding.
const FORM: u8 = 1;
/// Encoding version, operation, previous revision, writer, batch number, length of the key.
const HEADER: usize = 1 + 1 + 8 + 8 + 8 + 2;

/// Append that wrote a row: a random number of the process, and its count of appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) writer: u64,
    pub(crate) number: u64,
}

/// A row of the log.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) record: Record,
    pub(crate) batch: Batch,
}

/// Keys in etcd.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) head: String,
    pub(crate) floor: String,
    pub(crate) swept: String,
    /// Ends in a slash.
    pub(crate) log: String,
    pub(crate) reserve: String,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            head: format!("{prefix}/head"),
            floor: format!("{prefix}/floor"),
            swept: format!("{prefix}/swept"),
            log: format!("{prefix}/log/"),
            reserve: format!("{prefix}/reserve/"),
        }
    }

    /// Key of the reserve that is written last: it exists while the whole reserve does.
    pub(crate) fn room(&self) -> String {
        format!("{}0", self.reserve)
    }

    /// Key of a revision's row. All numbers have the same length, so rows are ordered by them.
    pub(crate) fn row(&self, revision: u64) -> String {
        format!("{}{revision:020}", self.log)
    }
}

/// Encodes a record as the value of its row.
pub(crate) fn encode(record: &Record, batch: Batch) -> Vec<u8> {
    let key = record.key.as_str().as_bytes();
    let mut value = Vec::with_capacity(HEADER + key.len() + record.bytes.len());
    value.push(FORM);
    value.push(match record.operation {
        Operation::Create => 0,
        Operation::Update => 1,
        Operation::Delete => 2,
    });
    for number in [record.previous, batch.writer, batch.number] {
        value.extend_from_slice(&number.to_be_bytes());
    }
    // Keys of objects are far shorter.
    value.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_be_bytes());
    value.extend_from_slice(key);
    value.extend_from_slice(&record.bytes);
    value
}

/// Decodes a row; `None` if the key or value is not a valid row.
pub(crate) fn decode(names: &Names, pair: &KeyValue) -> Option<Row> {
    let revision = pair.key_str().ok()?.strip_prefix(&names.log)?.parse().ok()?;
    read(revision, pair.value())
}

fn read(revision: u64, value: &[u8]) -> Option<Row> {
    let (form, rest) = value.split_first()?;
    let (operation, rest) = rest.split_first()?;
    let (previous, rest) = rest.split_first_chunk()?;
    let (writer, rest) = rest.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (key, bytes) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    let operation = match operation {
        0 => Operation::Create,
        1 => Operation::Update,
        2 => Operation::Delete,
        _ => return None,
    };
    (*form == FORM).then_some(())?;
    Some(Row {
        record: Record {
            revision,
            key: Key::parse(std::str::from_utf8(key).ok()?).ok()?,
            operation,
            previous: u64::from_be_bytes(*previous),
            drop_previous: false,
            // These rows have no time.
            time: 0,
            bytes: Bytes::copy_from_slice(bytes),
        },
        batch: Batch {
            writer: u64::from_be_bytes(*writer),
            number: u64::from_be_bytes(*number),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_written() {
        let record = Record {
            revision: 7,
            key: Key::new("apps", "deployments", "default", "web").unwrap(),
            operation: Operation::Delete,
            previous: 5,
            drop_previous: false,
            time: 0,
            bytes: Bytes::from_static(b"{\"metadata\":{}}"),
        };
        let batch = Batch {
            writer: u64::MAX,
            number: 3,
        };
        let value = encode(&record, batch);
        let row = read(7, &value).unwrap();
        assert_eq!((row.record, row.batch), (record, batch));
        for end in 0..HEADER + 5 {
            assert!(read(7, &value[..end]).is_none(), "{end} bytes");
        }
    }
}
