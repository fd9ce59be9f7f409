//! Circles of files within a crate. A module and its own children may know each other.

use std::collections::{BTreeMap, BTreeSet};

use super::{read, tracked};

/// Modules of a crate by their paths, with their texts.
fn modules(root: &str) -> BTreeMap<String, String> {
    let files = tracked(".rs").into_iter();
    let own = files.filter(|name| !name.ends_with("tests.rs") && !name.contains("/bin/"));
    own.filter_map(|name| {
        let path = name.strip_prefix(root)?.strip_suffix(".rs")?;
        let path = path.strip_suffix("/mod").unwrap_or(path);
        let path = if matches!(path, "lib" | "main") { "" } else { path };
        let text = read(&name);
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        Some((path.replace('/', "::"), code.to_owned()))
    })
    .collect()
}

/// Paths of the `use` items of a file, one for each name.
fn uses(text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    while let Some(line) = lines.next() {
        let public = line.split_once(" use ").filter(|(before, _)| {
            let inner = before.strip_prefix("pub");
            inner.is_some_and(|inner| inner.is_empty() || (inner.starts_with('(') && inner.ends_with(')')))
        });
        let item = line.strip_prefix("use ").or(public.map(|(_, item)| item));
        let Some(item) = item else { continue };
        let mut item = item.to_owned();
        while !item.contains(';')
            && let Some(more) = lines.next()
        {
            item.push_str(more.trim());
        }
        expand(item.split(';').next().unwrap_or_default(), &mut paths);
    }
    paths
}

/// Adds `a::b` and `a::c` for `a::{b, c}`.
fn expand(path: &str, paths: &mut Vec<String>) {
    let Some((start, inner)) = path.split_once('{') else {
        return paths.push(path.trim().to_owned());
    };
    let inner = inner.trim_end();
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let (mut depth, mut part) = (0_usize, String::new());
    for letter in inner.chars().chain([',']) {
        if letter == ',' && depth == 0 {
            if !part.trim().is_empty() {
                expand(&format!("{start}{}", part.trim()), paths);
            }
            part.clear();
            continue;
        }
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        part.push(letter);
    }
}

/// The module that a path in module `own` leads to, if it is another one of the crate and neither
/// below nor above.
fn target(own: &str, path: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let mut place: Vec<&str> = own.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts: Vec<&str> = path.split("::").map(str::trim).collect();
    match parts.remove(0) {
        "crate" => place.clear(),
        "self" => {}
        "super" => {
            place.pop();
            while parts.first() == Some(&"super") {
                place.pop();
                parts.remove(0);
            }
        }
        first => {
            place.push(first);
            if !modules.contains_key(&place.join("::")) {
                return None;
            }
        }
    }
    place.extend(parts);
    let mut longest_first = (1..=place.len()).rev().map(|length| place[..length].join("::"));
    let found = longest_first.find(|path| modules.contains_key(path))?;
    let is_below = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with("::"));
    let is_family = found == own || is_below(found.as_str(), own) || is_below(own, found.as_str());
    (!is_family && !own.is_empty()).then_some(found)
}

/// Modules that are reached from one.
fn reached<'a>(from: &str, edges: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = edges[from].iter().map(String::as_str).collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(edges[module].iter().map(String::as_str));
        }
    }
    reached
}

#[test]
fn files_make_no_circles() {
    let names = tracked(".rs");
    let roots = names
        .iter()
        .filter_map(|name| Some(format!("{}/src/", name.split_once("/src/")?.0)));
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for root in roots.collect::<BTreeSet<_>>() {
        let modules = modules(&root);
        let edges: BTreeMap<String, BTreeSet<String>> = modules
            .iter()
            .map(|(own, text)| {
                let targets = uses(text).into_iter().filter_map(|path| target(own, &path, &modules));
                (own.clone(), targets.collect())
            })
            .collect();
        let circle: Vec<String> = edges
            .keys()
            .filter(|own| reached(own, &edges).contains(own.as_str()))
            .cloned()
            .collect();
        if !circle.is_empty() {
            found.insert(root, circle);
        }
    }
    assert!(found.is_empty(), "files in circles: {found:#?}");
}
