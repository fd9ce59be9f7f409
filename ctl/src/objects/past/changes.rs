//! Differences between two versions of an object.

use serde_json::Value;

use crate::terminal;

/// Maximum length of a value in one line.
const LONGEST: usize = 40;
/// Fields that each write changes.
const OWN: [&str; 4] = [
    ".metadata.resourceVersion",
    ".metadata.managedFields",
    ".metadata.generation",
    ".metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]",
];

/// Changed field.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    path: String,
    from: Option<Value>,
    to: Option<Value>,
}

impl Change {
    /// Returns `spec.replicas: 1 -> 3`.
    pub(super) fn brief(&self) -> String {
        let shown = |value: &Option<Value>| value.as_ref().map_or_else(|| "none".to_owned(), short);
        format!("{}: {} -> {}", self.path, shown(&self.from), shown(&self.to))
    }

    /// Returns the field with its old and new values on separate lines.
    pub(super) fn lines(&self) -> String {
        let part = |sign: &str, value: &Option<Value>| {
            let text = value.as_ref().map(long).unwrap_or_default();
            let lines = text.lines().map(|line| format!("{sign} {line}"));
            lines.collect::<Vec<_>>()
        };
        let (from, to) = (part("-", &self.from), part("+", &self.to));
        let mut lines = vec![terminal::bold(&self.path)];
        lines.extend(from.iter().map(|line| terminal::red(line)));
        lines.extend(to.iter().map(|line| terminal::green(line)));
        lines.join("\n") + "\n"
    }
}

/// Returns the fields in which two versions differ, except for those that each write changes.
pub(super) fn between(from: &Value, to: &Value) -> Vec<Change> {
    let mut found = Vec::new();
    walk("", Some(from), Some(to), &mut found);
    for change in &mut found {
        change.path = change.path.trim_start_matches('.').to_owned();
    }
    found
}

fn walk(path: &str, from: Option<&Value>, to: Option<&Value>, found: &mut Vec<Change>) {
    if from == to || OWN.contains(&path) {
        return;
    }
    match (from, to) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let added = after.keys().filter(|key| !before.contains_key(*key));
            for key in before.keys().chain(added) {
                let step = if key.contains(['.', '/', '[']) {
                    format!("{path}[{key}]")
                } else {
                    format!("{path}.{key}")
                };
                walk(&step, before.get(key), after.get(key), found);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => items(path, before, after, found),
        _ => found.push(Change {
            path: path.to_owned(),
            from: from.cloned(),
            to: to.cloned(),
        }),
    }
}

/// Compares items by their key field, if all have one; else by index.
fn items(path: &str, before: &[Value], after: &[Value], found: &mut Vec<Change>) {
    let keys = ["name", "type", "uid", "containerPort", "port", "key", "ip"];
    let key = keys.into_iter().find(|key| {
        let mut names: Vec<String> = before.iter().chain(after).map(|item| named(item, key)).collect();
        let all = names.iter().all(|name| !name.is_empty());
        names.truncate(before.len());
        names.sort_unstable();
        names.dedup();
        all && names.len() == before.len()
    });
    let Some(key) = key else {
        for index in 0..before.len().max(after.len()) {
            walk(&format!("{path}[{index}]"), before.get(index), after.get(index), found);
        }
        return;
    };
    let find = |items: &[Value], name: &str| items.iter().find(|item| named(item, key) == name).cloned();
    for item in before {
        let name = named(item, key);
        walk(
            &format!("{path}[{name}]"),
            Some(item),
            find(after, &name).as_ref(),
            found,
        );
    }
    for item in after {
        let name = named(item, key);
        if find(before, &name).is_none() {
            walk(&format!("{path}[{name}]"), None, Some(item), found);
        }
    }
}

fn named(item: &Value, key: &str) -> String {
    match item.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn short(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    // Objects must not control the terminal.
    let text: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(&text)),
        None => text,
    }
}

fn long(value: &Value) -> String {
    let text = match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_object() || value.is_array() => {
            serde_yaml::to_string(value).unwrap_or_else(|_error| value.to_string())
        }
        None => value.to_string(),
    };
    text.chars()
        .filter(|letter| !letter.is_control() || *letter == '\n')
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn brief(from: &Value, to: &Value) -> Vec<String> {
        between(from, to).iter().map(Change::brief).collect()
    }

    #[test]
    fn fields_are_named_by_their_paths_and_items_by_their_names() {
        let from = json!({"metadata": {"resourceVersion": "1", "labels": {"a.b/c": "x"}}, "spec": {"replicas": 1, "containers": [
            {"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}], "args": ["x"]}});
        let to = json!({"metadata": {"resourceVersion": "2", "labels": {}}, "spec": {"replicas": 2, "containers": [
            {"name": "b", "image": "b:2"}, {"name": "a", "image": "a:1"}, {"name": "c"}], "args": ["x", "y"], "paused": true}});
        assert_eq!(
            brief(&from, &to),
            [
                "metadata.labels[a.b/c]: x -> none",
                "spec.args[1]: none -> y",
                "spec.containers[b].image: b:1 -> b:2",
                "spec.containers[c]: none -> {\"name\":\"c\"}",
                "spec.replicas: 1 -> 2",
                "spec.paused: none -> true",
            ]
        );
        assert_eq!(brief(&from, &from), Vec::<String>::new());
    }

    #[test]
    fn long_and_wild_values_do_not_fill_or_steer_the_terminal() {
        let from = json!({"data": {"a": "x\u{1b}[2J\n".repeat(20)}});
        let brief = brief(&from, &json!({"data": {"a": "y"}}));
        assert!(
            brief[0].chars().count() < 70 && !brief[0].contains('\u{1b}'),
            "{brief:?}"
        );
        let lines = between(&from, &json!({}))[0].lines();
        assert!(!lines.contains("\u{1b}[2J"), "{lines}");
    }
}
