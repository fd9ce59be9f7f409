//! Match conditions of webhooks (`pkg/admission/plugin/webhook/matchconditions/matcher.go`).

use api::{Invalid, Object};
use expressions::{Bindings, Environment, Error, PER_CALL_LIMIT, Program, Type};
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};

use crate::write::admission::expressions::environment;

/// Cost that all conditions of a webhook may have (`RuntimeCELCostBudgetMatchConditions` of `pkg/apis/cel/config.go`).
const BUDGET: u64 = 2_500_000;

/// The conditions of a webhook, compiled.
pub(in crate::write::admission) struct Conditions(Vec<(String, Result<Program, String>)>);

/// Compiles an expression that is true or false.
///
/// # Errors
/// Compile errors, with upstream's messages (`pkg/admission/plugin/cel/compile.go`).
pub(in crate::write::admission) fn compile(environment: &Environment, expression: &str) -> Result<Program, String> {
    match environment.compile(expression) {
        Ok(program) if *program.result() == Type::Bool => Ok(program),
        Ok(program) => Err(format!("must evaluate to bool but got {}", program.result())),
        Err(error) => Err(error.to_string()),
    }
}

impl Conditions {
    pub(in crate::write::admission) fn new(conditions: &[MatchCondition], environment: &Environment) -> Self {
        let compiled = conditions.iter().map(|condition| {
            (
                condition.expression.clone(),
                compile(environment, &condition.expression),
            )
        });
        Self(compiled.collect())
    }

    /// True if all conditions are true. A false one decides, even if others fail.
    ///
    /// # Errors
    /// The failures of conditions.
    pub(in crate::write::admission) fn hold(&self, variables: &dyn Bindings<'_>) -> Result<bool, String> {
        let mut left = BUDGET;
        let mut is_excluded = false;
        let mut errors: Vec<String> = Vec::new();
        for (expression, program) in &self.0 {
            let before = left;
            let outcome = match program {
                Ok(program) => program.evaluate(variables, &mut left),
                Err(error) => {
                    errors.push(format!("compilation error: {error}"));
                    continue;
                }
            };
            match outcome {
                Ok(value) => is_excluded |= value.as_bool() == Some(false),
                Err(Error::Cost) if before <= PER_CALL_LIMIT => {
                    let text =
                        "validation failed due to running out of cost budget, no further validation rules will be run";
                    return Err(text.to_owned());
                }
                Err(error) => {
                    let text = format!("expression '{expression}' resulted in error: {error}");
                    if !errors.contains(&text) {
                        errors.push(text);
                    }
                }
            }
        }
        match errors.as_slice() {
            _ if is_excluded => Ok(false),
            [] => Ok(true),
            [only] => Err(only.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }
}

/// Match conditions of each webhook of a configuration; `None` for other objects.
fn of(object: &dyn Object) -> Option<Vec<&[MatchCondition]>> {
    let object = object.as_any();
    if let Some(configuration) = object.downcast_ref::<ValidatingWebhookConfiguration>() {
        let hooks = configuration.webhooks.iter().flatten();
        return Some(
            hooks
                .map(|hook| hook.match_conditions.as_deref().unwrap_or_default())
                .collect(),
        );
    }
    let configuration = object.downcast_ref::<MutatingWebhookConfiguration>()?;
    let hooks = configuration.webhooks.iter().flatten();
    Some(
        hooks
            .map(|hook| hook.match_conditions.as_deref().unwrap_or_default())
            .collect(),
    )
}

/// The faults of the expressions of a configuration, unless all conditions are as they were
/// (`validateMatchConditionsExpression` of `pkg/apis/admissionregistration/validation/validation.go`).
pub(crate) fn faults(new: &dyn Object, old: Option<&dyn Object>) -> Vec<Invalid> {
    let Some(hooks) = of(new).filter(|hooks| old.and_then(of).as_ref() != Some(hooks)) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (index, conditions) in hooks.into_iter().enumerate() {
        for (place, condition) in conditions.iter().enumerate() {
            let expression = condition.expression.trim();
            if expression.is_empty() {
                continue;
            }
            if let Err(error) = compile(environment(), expression) {
                let at = format!("webhooks[{index}].matchConditions[{place}].expression");
                found.push(Invalid::value(at, expression, error));
            }
        }
    }
    found
}
