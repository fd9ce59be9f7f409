//! JSON paths of printer columns and selectable fields, as far as upstream's library finds one value with them
//! (`staging/src/k8s.io/client-go/util/jsonpath`).

use std::cell::Cell;

use serde_json::Value;

/// Number of steps after which a search ends without a result: alternatives multiply.
const LIMIT: u32 = 1 << 18;

/// A path that parses.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// `.name`
    Member(String),
    /// `[1]`, `[-1]`; `[]` is the first.
    Index(i64),
    /// `[*]`, `.*`, `[1:3]` begins at its first number.
    From(i64),
    /// `..name`
    Anywhere(String),
    /// `['a','b']`
    Either(Vec<Vec<Step>>),
    /// `[?(@.type=="Ready")]`
    Filter(Vec<Step>, Option<(Operator, Value)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

impl JsonPath {
    /// Parses a path; `None` if it is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        steps(text).map(Self)
    }

    /// The first value at the path.
    pub(super) fn find<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        walk(&self.0, value, &Cell::new(LIMIT))
    }
}

fn steps(text: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = text.strip_prefix('$').unwrap_or(text);
    while !rest.is_empty() {
        rest = if let Some(behind) = rest.strip_prefix(' ') {
            behind
        } else if let Some(inner) = rest.strip_prefix('[') {
            let (found, behind) = bracket(inner)?;
            steps.extend(found);
            behind
        } else if let Some(inner) = rest.strip_prefix("..") {
            let (name, behind) = name(inner);
            steps.push(Step::Anywhere(name));
            behind
        } else {
            let (name, behind) = name(rest.strip_prefix('.')?);
            match name.as_str() {
                // A dot alone is the object itself.
                "" => {}
                "*" => steps.push(Step::From(0)),
                _ => steps.push(Step::Member(name)),
            }
            behind
        };
    }
    Some(steps)
}

/// A name up to the next dot, bracket or space; a backslash takes the next character as it is.
fn name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '.' | '[' | ' ' => return (name, text.get(at..).unwrap_or_default()),
            '\\' => name.extend(letters.next().map(|(_, letter)| letter)),
            letter => name.push(letter),
        }
    }
    (name, "")
}

/// Text in brackets, and the text behind them.
fn bracket(text: &str) -> Option<(Vec<Step>, &str)> {
    if let Some(filter) = text.strip_prefix("?(") {
        let (inner, behind) = filter.split_once(")]")?;
        return Some((vec![condition(inner)?], behind));
    }
    let (inner, behind) = text.split_once(']')?;
    if inner.contains(',') {
        let paths = inner.split(',').map(|path| steps(&format!("[{}]", path.trim())));
        let mut paths = paths.collect::<Option<Vec<_>>>()?;
        // An empty one leads no deeper, so that a search could recurse without end.
        paths.retain(|path| !path.is_empty());
        return Some((vec![Step::Either(paths)], behind));
    }
    if let Some(name) = inner.strip_prefix('\'').and_then(|inner| inner.strip_suffix('\'')) {
        // Upstream reads it as a path: dots in the name need a backslash there too (`parseArray`).
        return Some((steps(&format!(".{name}"))?, behind));
    }
    let number = |text: &str| if text.is_empty() { Some(0) } else { text.parse().ok() };
    let step = match inner.split_once(':') {
        Some((from, _)) => Step::From(number(from)?),
        None if inner == "*" => Step::From(0),
        None => Step::Index(number(inner)?),
    };
    Some((vec![step], behind))
}

fn condition(text: &str) -> Option<Step> {
    let path = |text: &str| steps(text.trim().strip_prefix('@')?);
    let found = OPERATORS
        .into_iter()
        .filter_map(|(sign, operator)| Some((text.find(sign)?, sign, operator)));
    // The first sign counts, of those at one place the longer one.
    let Some((at, sign, operator)) = found.min_by_key(|(at, sign, _)| (*at, 2 - sign.len().min(2))) else {
        return Some(Step::Filter(path(text)?, None));
    };
    let literal = text.get(at + sign.len()..)?.trim();
    let quoted = ['\'', '"']
        .into_iter()
        .find_map(|quote| literal.strip_prefix(quote)?.strip_suffix(quote));
    let literal = match (quoted, serde_json::from_str(literal)) {
        (Some(text), _) => Value::from(text),
        (None, Ok(literal)) => literal,
        // Upstream takes a bare word for the name of something, which it does not find.
        (None, Err(_)) if literal.starts_with(char::is_alphanumeric) => return Some(Step::Either(Vec::new())),
        (None, Err(_)) => return None,
    };
    Some(Step::Filter(path(text.get(..at)?)?, Some((operator, literal))))
}

/// The first value at the end of the steps. `left` is the number of steps that may still be taken.
fn walk<'v>(steps: &[Step], value: &'v Value, left: &Cell<u32>) -> Option<&'v Value> {
    left.set(left.get().checked_sub(1)?);
    let Some((step, rest)) = steps.split_first() else {
        return Some(value);
    };
    let items = |value: &'v Value| -> Vec<&'v Value> {
        match value {
            Value::Array(items) => items.iter().collect(),
            Value::Object(members) => members.values().collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        }
    };
    match step {
        Step::Member(name) => walk(rest, value.as_object()?.get(name)?, left),
        Step::Index(index) => walk(rest, value.as_array()?.get(place(*index, value)?)?, left),
        Step::From(from) => {
            let from = place(*from, value)?;
            items(value)
                .into_iter()
                .skip(from)
                .find_map(|item| walk(rest, item, left))
        }
        Step::Anywhere(name) => {
            let here = value.as_object().and_then(|members| members.get(name));
            let here = here.and_then(|member| walk(rest, member, left));
            here.or_else(|| items(value).into_iter().find_map(|item| walk(steps, item, left)))
        }
        Step::Either(paths) => paths.iter().find_map(|path| walk(rest, walk(path, value, left)?, left)),
        Step::Filter(path, test) => items(value)
            .into_iter()
            .filter(|item| holds(walk(path, item, left), test.as_ref()))
            .find_map(|item| walk(rest, item, left)),
    }
}

/// The place of an item; negative indices count from the end.
fn place(index: i64, list: &Value) -> Option<usize> {
    if index >= 0 {
        return usize::try_from(index).ok();
    }
    let back = usize::try_from(index.unsigned_abs()).ok()?;
    list.as_array()?.len().checked_sub(back)
}

fn holds(found: Option<&Value>, test: Option<&(Operator, Value)>) -> bool {
    let (Some(found), Some((operator, wanted))) = (found, test) else {
        return found.is_some() && test.is_none();
    };
    let order = match (found, wanted) {
        (Value::Number(one), Value::Number(other)) => one.as_f64().partial_cmp(&other.as_f64()),
        (Value::String(one), Value::String(other)) => Some(one.cmp(other)),
        (one, other) => (one == other).then_some(std::cmp::Ordering::Equal),
    };
    match operator {
        Operator::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
        Operator::NotEqual => !order.is_some_and(std::cmp::Ordering::is_eq),
        Operator::Less => order.is_some_and(std::cmp::Ordering::is_lt),
        Operator::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
        Operator::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
        Operator::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::JsonPath;

    #[test]
    fn the_first_value_is_found() {
        let object = json!({
            "spec": {"replicas": 3, "a.b": "dotted", "list": [{"name": "x", "n": 1}, {"name": "y", "n": 2}]},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let rows = [
            (".spec.replicas", json!(3)),
            (".spec.a\\.b", json!("dotted")),
            (".spec['a\\.b']", json!("dotted")),
            (".spec['a.b']", Value::Null),
            (".spec['none','replicas'] ", json!(3)),
            (".spec.list[].name", json!("x")),
            (".spec.list[1].name", json!("y")),
            (".spec.list[-1].name", json!("y")),
            (".spec.list[*].n", json!(1)),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type == 'Ready')].status", json!("True")),
            (".status.conditions[?(@.type==Ready)].status", Value::Null),
            (".spec.list[?(@.n>1)].name", json!("y")),
            ("..replicas", json!(3)),
            (".spec.nothing", Value::Null),
            (".spec.list[7].name", Value::Null),
        ];
        for (path, wanted) in rows {
            let found = JsonPath::parse(path)
                .unwrap()
                .find(&object)
                .cloned()
                .unwrap_or_default();
            assert_eq!(found, wanted, "{path}");
        }
        for path in ["spec", ".a[", ".a[b]", ".a[\"b\"]"] {
            assert_eq!(JsonPath::parse(path), None, "{path}");
        }
    }

    #[test]
    fn no_path_keeps_the_server_busy() {
        let nested = (0..100).fold(json!(1), |inner, _| json!({ "a": inner }));
        for path in ["['a','a']".repeat(60) + ".none", "['','']".repeat(100_000)] {
            assert_eq!(JsonPath::parse(&path).unwrap().find(&nested), None);
        }
    }
}
