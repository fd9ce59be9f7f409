//! Estimated cost of rules, as in upstream's own tests (`TestCostEstimation` of
//! `pkg/apiserver/schema/cel/compilation_test.go`).

#![allow(clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::Value;

use super::{Compiled, declared};
use crate::structural::{Rule, Structural};

fn cost(schema: &str, rule: &str) -> u64 {
    let schema: Value = serde_yaml::from_str(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    let structural = Structural::new(&schema).expect("a structural schema");
    let declared = declared(structural.root(), false).expect("a type");
    let rule = Rule {
        rule: rule.to_owned(),
        ..Rule::default()
    };
    let compiled = Compiled::new(structural.root(), &rule, &declared);
    if let Some(Err(error)) = &compiled.program {
        panic!("{}: {error}", rule.rule);
    }
    Compiled::cost(compiled.program.as_ref(), &declared)
}

/// Removes the limit from a schema.
fn unbounded(schema: &str) -> String {
    let mut schema = schema.to_owned();
    for name in ["maxItems", "maxProperties", "maxLength"] {
        for place in [format!(", {name}: N"), format!("{name}: N, ")] {
            schema = schema.replace(&place, "");
        }
    }
    schema
}

#[test]
fn rules_cost_as_much_as_upstream_says() {
    let mut wrong = Vec::new();
    for line in include_str!("costs.txt").lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let (schema, rule) = (cells[0], cells[1]);
        let (free, bound) = (
            cost(&unbounded(schema), rule),
            cost(&schema.replace(" N", &format!(" {}", cells[3])), rule),
        );
        let is_right = if cells[2] == ">" {
            free > 10_000_000
        } else {
            free.to_string() == cells[2]
        };
        if !is_right || bound.to_string() != cells[4] {
            wrong.push(format!("{line}\n    found {free} and {bound}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
