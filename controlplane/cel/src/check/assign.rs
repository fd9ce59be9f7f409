//! Assignability: unification of types (`cel-go/checker/types.go`).

use std::cell::Cell;

use crate::types::Type;

/// Most parts of a type. Types may share parts, so a short text can produce one of any size.
const MAX_PARTS: usize = 1_000;
/// Most steps of a comparison of types.
const MAX_STEPS: usize = 20_000;

/// Types of type variables, with a journal for rolling back a failed attempt.
#[derive(Debug, Default)]
pub(crate) struct Substitutions {
    known: Vec<Option<Type>>,
    journal: Vec<(usize, Option<Type>)>,
    /// Remaining steps of a comparison.
    steps: Cell<usize>,
    /// A type was too large.
    exceeded: Cell<bool>,
}

impl Substitutions {
    /// A new type variable.
    pub(crate) fn fresh(&mut self) -> Type {
        self.known.push(None);
        Type::Var(self.known.len() - 1)
    }

    fn get(&self, variable: usize) -> Option<Type> {
        self.known.get(variable).cloned().flatten()
    }

    fn set(&mut self, variable: usize, to: Type) {
        if let Some(place) = self.known.get_mut(variable) {
            self.journal.push((variable, place.replace(to)));
        }
    }

    /// The type with all known variables substituted; unknown ones become `dyn` if `to_dyn` is set.
    pub(crate) fn fill(&self, of: &Type, to_dyn: bool) -> Type {
        self.filled(of, to_dyn, &mut 0)
    }

    fn filled(&self, of: &Type, to_dyn: bool, parts: &mut usize) -> Type {
        *parts += 1;
        if *parts > MAX_PARTS {
            self.exceeded.set(true);
            return Type::Error;
        }
        match of {
            Type::Var(number) => match self.get(*number) {
                Some(known) => self.filled(&known, to_dyn, parts),
                None if to_dyn => Type::Dyn,
                None => of.clone(),
            },
            Type::List(items) => Type::list(self.filled(items, to_dyn, parts)),
            Type::Map(keys, values) => {
                let keys = self.filled(keys, to_dyn, parts);
                Type::map(keys, self.filled(values, to_dyn, parts))
            }
            Type::Optional(value) => Type::optional(self.filled(value, to_dyn, parts)),
            Type::Type(inner) => Type::Type(self.filled(inner, to_dyn, parts).into()),
            other => other.clone(),
        }
    }

    /// True if a type was too large to be processed.
    pub(crate) fn exceeded(&self) -> bool {
        self.exceeded.get()
    }

    fn step(&self) -> bool {
        let left = self.steps.get().checked_sub(1);
        self.steps.set(left.unwrap_or(0));
        if left.is_none() {
            self.exceeded.set(true);
        }
        left.is_some()
    }

    /// Makes lists of types assignable to each other, all or none.
    pub(crate) fn assign_all(&mut self, left: &[Type], right: &[Type]) -> bool {
        if left.len() != right.len() {
            return false;
        }
        self.journal.clear();
        self.steps.set(MAX_STEPS);
        if left.iter().zip(right).all(|(left, right)| self.assignable(left, right)) {
            return true;
        }
        while let Some((variable, before)) = self.journal.pop() {
            if let Some(place) = self.known.get_mut(variable) {
                *place = before;
            }
        }
        false
    }

    /// Makes two types assignable to each other.
    pub(crate) fn assign(&mut self, left: &Type, right: &Type) -> bool {
        self.assign_all(std::slice::from_ref(left), std::slice::from_ref(right))
    }

    fn assignable(&mut self, left: &Type, right: &Type) -> bool {
        if !self.step() {
            return false;
        }
        if let Type::Var(variable) = right {
            let (valid, known) = self.substitutes(left, *variable);
            if valid || known {
                return valid;
            }
        }
        if let Type::Var(variable) = left {
            return self.substitutes(right, *variable).0;
        }
        if left.is_dyn() || right.is_dyn() {
            return true;
        }
        match (left, right) {
            (Type::Null, other) | (other, Type::Null) => matches!(
                other,
                Type::Null
                    | Type::Optional(_)
                    | Type::Opaque(_)
                    | Type::Object(_)
                    | Type::Struct(_)
                    | Type::Duration
                    | Type::Timestamp
            ),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(left), Type::List(right)) | (Type::Optional(left), Type::Optional(right)) => {
                self.assignable(left, right)
            }
            (Type::Map(keys, values), Type::Map(other_keys, other_values)) => {
                self.assignable(keys, other_keys) && self.assignable(values, other_values)
            }
            _ => left == right,
        }
    }

    /// Binds a variable to a type; returns whether the binding is valid, and whether the variable
    /// was bound before.
    fn substitutes(&mut self, of: &Type, variable: usize) -> (bool, bool) {
        if *of == Type::Var(variable) {
            return (true, true);
        }
        if let Some(known) = self.get(variable) {
            if *of == known {
                return (true, true);
            }
            if self.assignable(of, &known) {
                let general = if less_specific(of, &known) { of.clone() } else { known };
                if !self.occurs(variable, &general) {
                    self.set(variable, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.occurs(variable, of) {
            return (false, false);
        }
        self.set(variable, of.clone());
        (true, false)
    }

    fn occurs(&self, variable: usize, within: &Type) -> bool {
        if !self.step() {
            return true;
        }
        if *within == Type::Var(variable) {
            return true;
        }
        if let Type::Var(number) = within {
            return self.get(*number).is_some_and(|known| self.occurs(variable, &known));
        }
        within
            .parameters()
            .into_iter()
            .any(|inner| self.occurs(variable, inner))
    }
}

/// The more general one of two types that are assignable to each other.
pub(crate) fn most_general(left: Type, right: Type) -> Type {
    if less_specific(&left, &right) { left } else { right }
}

fn less_specific(left: &Type, right: &Type) -> bool {
    if matches!(left, Type::Dyn | Type::Error | Type::Var(_)) {
        return true;
    }
    if matches!(right, Type::Dyn | Type::Error | Type::Var(_)) {
        return false;
    }
    let (inner, other) = (left.parameters(), right.parameters());
    if inner.is_empty() || matches!(left, Type::Type(_)) {
        return left == right;
    }
    std::mem::discriminant(left) == std::mem::discriminant(right)
        && inner
            .into_iter()
            .zip(other)
            .all(|(left, right)| less_specific(left, right))
}
