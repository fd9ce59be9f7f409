//! Static type checker (`cel-go/checker/checker.go`).

mod assign;
mod declarations;

use std::collections::BTreeMap;

use crate::functions;
use crate::syntax::Issue;
use crate::syntax::ast::{ACCUMULATOR, Bind, Binding, Call, Comprehension, Entry, Expr, Initializer, Kind};
use crate::types::{Environment, Type};
use crate::value::object;
use crate::value::{Text, Value};
use assign::{Substitutions, most_general};
use declarations::{Overload, overloads, type_identifier};

/// Most errors that are reported for an expression (`cel-go/common/errors.go`).
const MAX_ISSUES: usize = 100;

/// Types of all nodes, by node id.
pub(crate) type Types = Vec<Type>;

/// Checks a tree, resolves its names, and infers the types of all nodes.
pub(crate) fn check(expr: &mut Expr, nodes: usize, environment: &Environment) -> Result<Types, Vec<Issue>> {
    let mut checker = Checker {
        environment,
        locals: Vec::new(),
        types: vec![Type::Error; nodes],
        known: Substitutions::default(),
        issues: Vec::new(),
    };
    checker.check(expr);
    if !checker.issues.is_empty() {
        return Err(checker.issues);
    }
    let known = &checker.known;
    let types = checker.types.iter().map(|found| known.fill(found, true)).collect();
    if known.exceeded() {
        let message = "expression's types are too large".to_owned();
        return Err(vec![Issue { at: expr.at, message }]);
    }
    Ok(types)
}

struct Checker<'e> {
    environment: &'e Environment,
    locals: Vec<(String, Type)>,
    types: Types,
    known: Substitutions,
    issues: Vec<Issue>,
}

impl Checker<'_> {
    fn issue(&mut self, at: usize, message: String) {
        if self.issues.len() < MAX_ISSUES {
            self.issues.push(Issue { at, message });
        }
    }

    fn set(&mut self, expr: &Expr, found: Type) {
        if let Some(place) = self.types.get_mut(expr.id) {
            *place = found;
        }
    }

    fn of(&self, expr: &Expr) -> Type {
        self.types.get(expr.id).cloned().unwrap_or(Type::Error)
    }

    fn filled(&self, expr: &Expr) -> Type {
        self.known.fill(&self.of(expr), false)
    }

    fn undeclared(&mut self, at: usize, name: &str) {
        self.issue(at, format!("undeclared reference to '{name}' (in container '')"));
    }

    fn mismatch(&mut self, at: usize, expected: &Type, found: &Type) {
        let (expected, found) = (self.known.fill(expected, true), self.known.fill(found, true));
        self.issue(at, format!("expected type '{expected}' but found '{found}'"));
    }

    fn check(&mut self, expr: &mut Expr) {
        let at = expr.at;
        let found = match &mut expr.kind {
            Kind::Literal(value) | Kind::Folded { value, .. } => value.literal_type(),
            Kind::Ident(name) => {
                if let Some(found) = self.lookup(name) {
                    if self.is_type(name) {
                        expr.kind = Kind::Literal(Value::Type(Text::Shared(name.as_str().into())));
                    }
                    found
                } else {
                    let name = name.clone();
                    self.undeclared(at, &name);
                    Type::Error
                }
            }
            Kind::Select { .. } => self.select(expr),
            Kind::Call(_) => self.call(expr),
            Kind::List { elements, optional } => self.list(elements, optional),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => self.object(at, name, fields),
            Kind::Comprehension(fold) => self.comprehension(fold),
            Kind::Bind(bind) => self.bind(bind),
        };
        // A type that is too large must not grow further.
        let is_large = matches!(found, Type::List(_) | Type::Map(..) | Type::Optional(_)) && {
            drop(self.known.fill(&found, false));
            self.known.exceeded()
        };
        let found = if is_large { Type::Error } else { found };
        self.set(expr, found);
    }

    fn local(&self, name: &str) -> Option<&Type> {
        self.locals
            .iter()
            .rev()
            .find(|(known, _)| known == name)
            .map(|(_, found)| found)
    }

    fn lookup(&self, name: &str) -> Option<Type> {
        self.local(name)
            .or_else(|| self.environment.variables.get(name))
            .cloned()
            .or_else(|| type_identifier(name))
            .or_else(|| self.patch_type(name).map(|of| Type::Type(of.into())))
    }

    /// The type of a patch object by its name.
    fn patch_type(&self, name: &str) -> Option<Type> {
        object::named(name).filter(|_| self.environment.makes_patches)
    }

    fn is_type(&self, name: &str) -> bool {
        self.local(name).is_none() && !self.environment.variables.contains_key(name)
    }

    /// The qualified name of an expression, if its first part is no local variable.
    fn qualified(&self, expr: &Expr) -> Option<String> {
        match &expr.kind {
            Kind::Ident(name) => self.local(name).is_none().then(|| name.clone()),
            Kind::Select {
                operand,
                field,
                test: false,
            } => Some(format!("{}.{field}", self.qualified(operand)?)),
            _ => None,
        }
    }

    fn select(&mut self, expr: &mut Expr) -> Type {
        if let Some(name) = self.qualified(expr)
            && let Some(found) = self.lookup(&name)
        {
            expr.kind = if self.is_type(&name) {
                Kind::Literal(Value::Type(Text::Shared(name.into())))
            } else {
                Kind::Ident(name)
            };
            return found;
        }
        let at = expr.at;
        let Kind::Select { operand, field, test } = &mut expr.kind else {
            return Type::Error;
        };
        let found = self.field(at, operand, field, false);
        if *test {
            Type::Bool
        } else {
            self.known.fill(&found, false)
        }
    }

    fn field(&mut self, at: usize, operand: &mut Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let mut of = self.filled(operand);
        let mut wrapped = optional;
        if let Type::Optional(inner) = &of {
            wrapped = true;
            of = (**inner).clone();
        }
        let found = match &of {
            Type::Map(_, values) => (**values).clone(),
            Type::Object(object) => {
                if let Some(field) = object.field(field) {
                    field.schema.as_type()
                } else {
                    self.issue(at, format!("undefined field '{field}'"));
                    Type::Error
                }
            }
            Type::Struct(name) => object::field(name, field).unwrap_or_else(|| {
                self.issue(at, format!("undefined field '{field}'"));
                Type::Error
            }),
            Type::Var(_) => {
                self.known.assign(&Type::Dyn, &of);
                Type::Dyn
            }
            Type::Opaque(_) => {
                self.issue(at, format!("undefined field '{field}'"));
                Type::Error
            }
            other if other.is_dyn() => Type::Dyn,
            other => {
                self.issue(at, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        if wrapped { Type::optional(found) } else { found }
    }

    fn call(&mut self, expr: &mut Expr) -> Type {
        let at = expr.at;
        let Kind::Call(call) = &mut expr.kind else {
            return Type::Error;
        };
        if call.function == "_?._" {
            let [operand, field] = call.args.as_mut_slice() else {
                return Type::Error;
            };
            let Kind::Literal(Value::String(name)) = &field.kind else {
                return Type::Error;
            };
            let name = name.to_string();
            let found = self.field(at, operand, &name, true);
            self.set(field, Type::String);
            return self.known.fill(&found, false);
        }
        for arg in &mut call.args {
            self.check(arg);
        }
        if let Some(target) = &mut call.target {
            let namespaced = self
                .qualified(target)
                .map(|prefix| format!("{prefix}.{}", call.function));
            match namespaced.filter(|name| overloads(name).is_some()) {
                Some(name) => {
                    call.function = name;
                    call.target = None;
                }
                None => self.check(target),
            }
        }
        let is_known = self.environment.makes_patches || call.function != "jsonpatch.escapeKey";
        let Some(forms) = overloads(&call.function).filter(|_| is_known) else {
            let name = call.function.clone();
            self.undeclared(at, &name);
            return Type::Error;
        };
        call.implementation = functions::find(&call.function);
        let found = self.resolve(at, call, forms);
        if call.function == "sum" {
            // The sum of an empty list is the zero of its type.
            call.implementation = Some(functions::sum_of(&self.known.fill(&found, true)));
        }
        found
    }

    fn resolve(&mut self, at: usize, call: &Call, forms: &[Overload]) -> Type {
        let given: Vec<Type> = call.operands().map(|operand| self.of(operand)).collect();
        if matches!(call.function.as_str(), "_&&_" | "_||_") {
            let mut bad = false;
            for (operand, given) in call.operands().zip(&given) {
                if !self.known.assign(given, &Type::Bool) {
                    self.mismatch(operand.at, &Type::Bool, given);
                    bad = true;
                }
            }
            return if bad { Type::Error } else { Type::Bool };
        }
        let mut result: Option<Type> = None;
        for form in forms.iter().filter(|form| form.member == call.target.is_some()) {
            let mut fresh = BTreeMap::new();
            let wanted: Vec<Type> = form
                .arguments
                .iter()
                .map(|wanted| self.instance(wanted, &mut fresh))
                .collect();
            let outcome = self.instance(&form.result, &mut fresh);
            if self.known.assign_all(&given, &wanted) {
                let outcome = self.known.fill(&outcome, false);
                result = Some(match result {
                    Some(known) if known.is_dyn() || known == outcome => known,
                    Some(_) => Type::Dyn,
                    None => outcome,
                });
            }
        }
        result.unwrap_or_else(|| {
            let mut names = given.iter().map(|given| self.known.fill(given, true).to_string());
            let receiver = if call.target.is_some() {
                names.next().map(|name| name + ".")
            } else {
                None
            };
            let signature = format!(
                "{}({})",
                receiver.unwrap_or_default(),
                names.collect::<Vec<_>>().join(", ")
            );
            self.issue(
                at,
                format!(
                    "found no matching overload for '{}' applied to '{signature}'",
                    call.function
                ),
            );
            Type::Error
        })
    }

    /// A declared type with fresh type variables for its parameters.
    fn instance(&mut self, declared: &Type, fresh: &mut BTreeMap<char, Type>) -> Type {
        match declared {
            Type::Param(name) => fresh.entry(*name).or_insert_with(|| self.known.fresh()).clone(),
            Type::List(items) => Type::list(self.instance(items, fresh)),
            Type::Map(keys, values) => {
                let keys = self.instance(keys, fresh);
                Type::map(keys, self.instance(values, fresh))
            }
            Type::Optional(value) => Type::optional(self.instance(value, fresh)),
            Type::Type(inner) => Type::Type(self.instance(inner, fresh).into()),
            other => other.clone(),
        }
    }

    fn join(&mut self, known: Option<Type>, found: Type) -> Type {
        match known {
            None => found,
            Some(known) if self.known.assign(&known, &found) => most_general(known, found),
            Some(_) => Type::Dyn,
        }
    }

    /// The type of an optional element's value.
    fn unwrapped(&mut self, at: usize, found: Type, optional: bool) -> Type {
        if !optional {
            return found;
        }
        match self.known.fill(&found, false) {
            Type::Optional(inner) => (*inner).clone(),
            found => {
                if !found.is_dyn() {
                    self.mismatch(at, &Type::optional(found.clone()), &found);
                }
                found
            }
        }
    }

    fn list(&mut self, elements: &mut [Expr], optional: &[usize]) -> Type {
        let mut items = None;
        for (index, element) in elements.iter_mut().enumerate() {
            self.check(element);
            let found = self.of(element);
            let found = self.unwrapped(element.at, found, optional.contains(&index));
            items = Some(self.join(items, found));
        }
        Type::list(items.unwrap_or_else(|| self.known.fresh()))
    }

    fn map(&mut self, entries: &mut [Entry]) -> Type {
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            self.check(&mut entry.key);
            let key = self.of(&entry.key);
            keys = Some(self.join(keys, key));
            self.check(&mut entry.value);
            let found = self.of(&entry.value);
            let found = self.unwrapped(entry.value.at, found, entry.optional);
            values = Some(self.join(values, found));
        }
        let keys = keys.unwrap_or_else(|| self.known.fresh());
        Type::map(keys, values.unwrap_or_else(|| self.known.fresh()))
    }

    fn assert(&mut self, expr: &Expr, expected: &Type) {
        let found = self.of(expr);
        if !self.known.assign(expected, &found) {
            self.mismatch(expr.at, expected, &found);
        }
    }

    /// Construction of an object (`checkCreateStruct` of `cel-go/checker/checker.go`).
    fn object(&mut self, at: usize, name: &str, fields: &mut [Initializer]) -> Type {
        let Some(found) = self.patch_type(name) else {
            self.undeclared(at, name);
            return Type::Error;
        };
        for field in fields {
            self.check(&mut field.value);
            let given = self.filled(&field.value);
            let given = self.unwrapped(field.value.at, given, field.optional);
            let Some(wanted) = object::field(name, &field.name) else {
                self.issue(field.at, format!("undefined field '{}'", field.name));
                continue;
            };
            if !self.known.assign(&wanted, &given) {
                let given = self.known.fill(&given, true);
                let name = &field.name;
                let text = format!("expected type of field '{name}' is '{wanted}' but provided type is '{given}'");
                self.issue(field.at, text);
            }
        }
        found
    }

    fn comprehension(&mut self, fold: &mut Comprehension) -> Type {
        self.check(&mut fold.range);
        self.check(&mut fold.initial);
        let range = self.filled(&fold.range);
        let accumulator = self.of(&fold.initial);
        let (first, second) = match &range {
            Type::List(items) if fold.second.is_some() => (Type::Int, (**items).clone()),
            Type::List(items) => ((**items).clone(), Type::Dyn),
            Type::Map(keys, values) => ((**keys).clone(), (**values).clone()),
            Type::Dyn | Type::Error | Type::Var(_) => {
                self.known.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                self.issue(
                    fold.range.at,
                    format!(
                        "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                    ),
                );
                (Type::Error, Type::Error)
            }
        };
        self.locals.push((ACCUMULATOR.to_owned(), accumulator.clone()));
        let outside = self.locals.len();
        self.locals.push((fold.variable.clone(), first));
        if let Some(name) = &fold.second {
            self.locals.push((name.clone(), second));
        }
        self.check(&mut fold.condition);
        self.assert(&fold.condition, &Type::Bool);
        self.check(&mut fold.step);
        self.assert(&fold.step, &accumulator);
        self.locals.truncate(outside);
        self.check(&mut fold.result);
        self.locals.pop();
        self.filled(&fold.result)
    }

    fn bind(&mut self, bind: &mut Bind) -> Type {
        self.check(&mut bind.value);
        let found = self.filled(&bind.value);
        let content = match (&found, bind.binding) {
            (_, Binding::Plain) => found.clone(),
            (Type::Optional(inner), _) => (**inner).clone(),
            (other, _) if other.is_dyn() => Type::Dyn,
            (other, _) => {
                let other = self.known.fill(other, true);
                self.issue(
                    bind.value.at,
                    format!("found no matching overload for 'hasValue' applied to '{other}.()'"),
                );
                Type::Error
            }
        };
        self.locals.push((bind.variable.clone(), content));
        self.check(&mut bind.body);
        self.locals.pop();
        let body = self.filled(&bind.body);
        match (bind.binding, &body) {
            (Binding::Plain, _) | (Binding::FlatMap, Type::Optional(_)) => body,
            (Binding::Map, _) => Type::optional(body),
            (Binding::FlatMap, other) if other.is_dyn() => Type::Dyn,
            (Binding::FlatMap, other) => {
                let other = self.known.fill(other, true);
                self.issue(
                    bind.body.at,
                    format!("found no matching overload for '_?_:_' applied to '(bool, {other}, optional_type(dyn))'"),
                );
                Type::Error
            }
        }
    }
}
