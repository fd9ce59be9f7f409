//! The expressions of a policy, compiled (`pkg/admission/plugin/cel/{compile,composition}.go`).
//!
//! A variable is a name of its own to expressions, `variables.NAME`, of the type that its expression has: it can be read
//! by those that come after it, and is evaluated when it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Invalid, Object};
use expressions::schema::{Field, ObjectSchema, Schema, Shape};
use expressions::{CompileError, Environment, Program, Type};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, Mutation, ValidatingAdmissionPolicy};

use super::definition::{Definition, Spec};
use crate::write::admission::expressions::{AUTHORIZER, environment, without_authorizer};
use crate::write::admission::webhooks::conditions::{self, Conditions};

/// An expression with its program.
pub(super) struct Expression {
    pub(super) text: String,
    pub(super) program: Result<Program, String>,
}

/// Compiled validation of a policy.
pub(super) struct Validation {
    pub(super) expression: Expression,
    pub(super) message: String,
    pub(super) message_expression: Option<Expression>,
    pub(super) reason: Option<String>,
}

/// The manner in which a mutation changes an object.
#[derive(Clone, Copy)]
pub(super) enum Patch {
    /// Fields are set as server-side apply does.
    Configuration,
    /// `JSONPatch`
    Operations,
}

impl Patch {
    /// The manner of a mutation, with its expression.
    fn of(mutation: &Mutation) -> Option<(Self, &str)> {
        let (manner, text) = match mutation.patch_type.as_str() {
            "ApplyConfiguration" => {
                let own = mutation.apply_configuration.as_ref()?;
                (Self::Configuration, own.expression.as_deref())
            }
            "JSONPatch" => (Self::Operations, mutation.json_patch.as_ref()?.expression.as_deref()),
            _ => return None,
        };
        Some((manner, text.unwrap_or_default()))
    }

    /// Name of the member with its expression.
    const fn member(self) -> &'static str {
        match self {
            Self::Configuration => "applyConfiguration",
            Self::Operations => "jsonPatch",
        }
    }
}

/// Compiled expressions of a policy.
pub(super) struct Compiled {
    pub(super) conditions: Option<Conditions>,
    pub(super) variables: BTreeMap<String, Result<Program, String>>,
    pub(super) validations: Vec<Validation>,
    /// Audit annotations by key.
    pub(super) annotations: Vec<(String, Expression)>,
    pub(super) mutations: Vec<(Patch, Expression)>,
    /// Levels that an evaluation nests at most, all variables included.
    pub(super) levels: usize,
}

impl Compiled {
    pub(super) fn new(spec: &Spec) -> Self {
        let mut environments = Environments::new(spec.param_kind.is_some());
        let conditions = spec.match_conditions.as_deref().filter(|own| !own.is_empty());
        let conditions = conditions.map(|own| Conditions::new(own, &environments.full));
        let mut levels = 0_usize;
        let mut variables = BTreeMap::new();
        for own in spec.variables.iter().flatten() {
            let program = environments.variable(&own.name, &own.expression);
            levels = levels.saturating_add(program.as_ref().map_or(0, Program::depth));
            variables.insert(own.name.clone(), program);
        }
        let validations: Vec<_> = spec.validations.iter().flatten().collect();
        let validations: Vec<Validation> = validations
            .into_iter()
            .map(|own| Validation {
                expression: expression(&own.expression, |text| environments.validation(text)),
                message: own.message.clone().unwrap_or_default(),
                message_expression: own
                    .message_expression
                    .as_deref()
                    .filter(|text| !text.is_empty())
                    .map(|text| expression(text, |text| environments.message(text))),
                reason: own.reason.clone(),
            })
            .collect();
        let annotations: Vec<(String, Expression)> = spec
            .audit_annotations
            .iter()
            .flatten()
            .map(|own| {
                let compiled = expression(&own.value_expression, |text| environments.annotation(text));
                (own.key.clone(), compiled)
            })
            .collect();
        let mutations: Vec<_> = spec.mutations.iter().flatten().filter_map(Patch::of).collect();
        let mutations: Vec<(Patch, Expression)> = mutations
            .into_iter()
            .map(|(manner, text)| (manner, expression(text, |text| environments.mutation(manner, text))))
            .collect();
        let all = validations
            .iter()
            .flat_map(|own| [Some(&own.expression), own.message_expression.as_ref()])
            .flatten()
            .chain(annotations.iter().map(|(_, own)| own))
            .chain(mutations.iter().map(|(_, own)| own));
        let deepest = all
            .filter_map(|own| own.program.as_ref().ok().map(Program::depth))
            .max();
        Self {
            conditions,
            variables,
            levels: levels.saturating_add(deepest.unwrap_or(0)),
            validations,
            annotations,
            mutations,
        }
    }
}

fn expression(text: &str, compile: impl FnOnce(&str) -> Result<Program, String>) -> Expression {
    Expression {
        text: text.to_owned(),
        program: compile(text),
    }
}

/// CEL environments, including the variables declared so far.
pub(super) struct Environments {
    full: Environment,
    /// Messages do not ask the authorizer.
    plain: Environment,
    names: Vec<String>,
}

impl Environments {
    fn new(has_params: bool) -> Self {
        let with = |environment: Environment| {
            let environment = environment.with("variables", names(&[]));
            if has_params {
                environment.with("params", Type::Dyn)
            } else {
                environment
            }
        };
        Self {
            full: with(environment().clone()),
            plain: with(without_authorizer().clone()),
            names: Vec::new(),
        }
    }

    /// Variables for objects of a known type, and params, if the policy has any.
    pub(super) fn typed(object: &Type, params: Option<&Type>) -> Self {
        let variables = without_authorizer()
            .clone()
            .with("object", object.clone())
            .with("oldObject", object.clone())
            .with("variables", names(&[]));
        let plain = match params {
            Some(params) => variables.with("params", params.clone()),
            None => variables,
        };
        Self {
            full: plain.clone().with("authorizer", AUTHORIZER),
            plain,
            names: Vec::new(),
        }
    }

    /// Errors of an expression, for any result type.
    pub(super) fn issues(&self, text: &str) -> Option<String> {
        match self.compiled(&self.full, text) {
            Err(CompileError::Issues(issues)) => Some(issues),
            // No program is built for expressions that are only checked.
            Ok(_) | Err(CompileError::Constant(_)) => None,
        }
    }

    fn compile(&self, environment: &Environment, text: &str) -> Result<Program, String> {
        self.compiled(environment, text).map_err(|error| error.to_string())
    }

    fn compiled(&self, environment: &Environment, text: &str) -> Result<Program, CompileError> {
        if text.contains("has(") && !self.names.is_empty() {
            // Presence is asked of the fields of `variables`, which are many to declare for every expression.
            environment.clone().with("variables", names(&self.names)).compile(text)
        } else {
            environment.compile(text)
        }
    }

    /// Compiles a variable and makes it known.
    pub(super) fn variable(&mut self, name: &str, text: &str) -> Result<Program, String> {
        let program = self.compile(&self.full, text);
        let of = program.as_ref().map_or(Type::Dyn, |program| shown(program.result()));
        let declared = format!("variables.{name}");
        let (full, plain) = (std::mem::take(&mut self.full), std::mem::take(&mut self.plain));
        self.full = full.with(declared.as_str(), of.clone());
        self.plain = plain.with(declared, of);
        self.names.push(name.to_owned());
        program
    }

    fn validation(&self, text: &str) -> Result<Program, String> {
        of_type(self.compile(&self.full, text)?, &[Type::Bool], "bool")
    }

    fn message(&self, text: &str) -> Result<Program, String> {
        of_type(self.compile(&self.plain, text)?, &[Type::String], "string")
    }

    fn mutation(&self, manner: Patch, text: &str) -> Result<Program, String> {
        let wanted = match manner {
            Patch::Configuration => Type::Struct("Object".into()),
            Patch::Operations => Type::list(Type::Struct("JSONPatch".into())),
        };
        let shown = wanted.to_string();
        of_type(
            self.compile(&self.full.clone().with_patches(), text)?,
            &[wanted],
            &shown,
        )
    }

    fn annotation(&self, text: &str) -> Result<Program, String> {
        let types = [Type::String, Type::Null];
        of_type(self.compile(&self.full, text)?, &types, "one of [string null_type]")
    }
}

/// The program of an expression that has one of these types.
fn of_type(program: Program, types: &[Type], shown: &str) -> Result<Program, String> {
    if types.contains(program.result()) {
        return Ok(program);
    }
    Err(format!("must evaluate to {shown} but got {}", program.result()))
}

/// The type of a variable as other expressions see it: simple types, and lists and maps of them
/// (`convertCelTypeToDeclType` of `pkg/admission/plugin/cel/composition.go`).
fn shown(of: &Type) -> Type {
    match of {
        Type::List(items) => Type::list(shown(items)),
        Type::Map(keys, values) => Type::map(shown(keys), shown(values)),
        Type::Null
        | Type::Bool
        | Type::Int
        | Type::Uint
        | Type::Double
        | Type::String
        | Type::Bytes
        | Type::Timestamp
        | Type::Duration => of.clone(),
        Type::Dyn
        | Type::Error
        | Type::Optional(_)
        | Type::Type(_)
        | Type::Object(_)
        | Type::Struct(_)
        | Type::Opaque(_)
        | Type::Param(_)
        | Type::Var(_) => Type::Dyn,
    }
}

/// The type of `variables`.
fn names(names: &[String]) -> Type {
    let fields = names.iter().map(|name| {
        let field = Field {
            json: name.clone(),
            required: false,
            schema: Schema::any(),
        };
        (name.clone(), field)
    });
    let object = ObjectSchema {
        name: "kubernetes.variables".to_owned(),
        fields: fields.collect(),
    };
    Schema::new(Shape::Object(Arc::new(object))).as_type()
}

/// The faults of the expressions of a policy, unless it is as it was
/// (`validateValidatingAdmissionPolicySpec`, `validateMutatingAdmissionPolicySpec` of `pkg/apis/admissionregistration/validation/validation.go`).
pub(crate) fn faults(new: &dyn Object, old: Option<&dyn Object>) -> Vec<Invalid> {
    let spec = |object: &dyn Object| {
        let any = object.as_any();
        let is_policy = any.is::<ValidatingAdmissionPolicy>() || any.is::<MutatingAdmissionPolicy>();
        let read = is_policy.then(|| serde_json::from_slice::<Definition>(&object.to_json()).ok());
        read.flatten().map(|policy| policy.spec)
    };
    let Some(new) = spec(new) else { return Vec::new() };
    let old = old.and_then(spec);
    if old.as_ref() == Some(&new) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut note = |path: String, text: &str, outcome: Result<Program, String>| {
        if let Err(error) = outcome
            && !text.trim().is_empty()
        {
            found.push(Invalid::value(format!("spec.{path}"), text, error));
        }
    };
    let mut environments = Environments::new(new.param_kind.is_some());
    if old.is_none_or(|old| old.match_conditions != new.match_conditions || old.param_kind != new.param_kind) {
        for (index, own) in new.match_conditions.iter().flatten().enumerate() {
            let text = own.expression.trim();
            let outcome = conditions::compile(&environments.full, text);
            note(format!("matchConditions[{index}].expression"), text, outcome);
        }
    }
    for (index, own) in new.variables.iter().flatten().enumerate() {
        let outcome = environments.variable(&own.name, &own.expression);
        note(format!("variables[{index}].expression"), &own.expression, outcome);
    }
    for (index, own) in new.validations.iter().flatten().enumerate() {
        let outcome = environments.validation(&own.expression);
        note(format!("validations[{index}].expression"), &own.expression, outcome);
        let text = own.message_expression.as_deref().unwrap_or_default();
        let outcome = environments.message(text);
        note(format!("validations[{index}].messageExpression"), text, outcome);
    }
    for (index, own) in new.audit_annotations.iter().flatten().enumerate() {
        let outcome = environments.annotation(own.value_expression.trim());
        note(
            format!("auditAnnotations[{index}].valueExpression"),
            &own.value_expression,
            outcome,
        );
    }
    for (index, own) in new.mutations.iter().flatten().enumerate() {
        if let Some((manner, text)) = Patch::of(own) {
            let text = text.trim();
            let path = format!("mutations[{index}].{}.expression", manner.member());
            note(path, text, environments.mutation(manner, text));
        }
    }
    found
}
