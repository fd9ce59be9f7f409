//! Estimated and actual costs of expressions, from upstream's own tests.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use controlplane_cel::{Authorizer, Check, Decision, Environment, Question, Type};

/// An authorizer that allows everything.
struct Allowing;

impl Authorizer for Allowing {
    fn authorize(&self, _: &Question) -> Decision {
        Decision {
            allowed: true,
            ..Decision::default()
        }
    }
}

fn costs(text: &str) -> String {
    let authorizer = Type::Opaque("kubernetes.authorization.Authorizer");
    let environment = Environment::default().with("authorizer", authorizer);
    let program = environment.compile(text).unwrap_or_else(|error| panic!("{error}"));
    let estimate = program.estimate(&[]);
    let mut budget = 10_000_000;
    let bindings = [("authorizer", Check::authorizer(&Allowing))];
    let outcome = program.evaluate(&bindings, &mut budget);
    assert!(outcome.is_ok(), "{text}: {outcome:?}");
    format!("{}..{} {}", estimate.min, estimate.max, 10_000_000 - budget)
}

#[test]
fn expressions_cost_as_much_as_upstream_says() {
    let mut wrong = Vec::new();
    for line in include_str!("costs.txt").lines().filter(|line| !line.starts_with('#')) {
        let (text, expected) = line.rsplit_once(" => ").unwrap_or_else(|| panic!("no costs: {line}"));
        let found = costs(text);
        let is_same = match expected.strip_suffix(" -") {
            Some(estimate) => found.starts_with(&format!("{estimate} ")),
            None => found == expected,
        };
        if !is_same {
            wrong.push(format!("{text}\n    expected {expected}\n    found    {found}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
