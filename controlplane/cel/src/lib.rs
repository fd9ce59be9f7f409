//! Kubernetes' environment of the Common Expression Language: what rules of schemas, policies and match conditions are
//! written in. Written anew rather than on top of an interpreter, because cost, depth and sizes are counted at every
//! step, places in the text are part of the errors, and objects are read where they are.
//!
//! ```
//! use std::{collections::BTreeMap, sync::Arc};
//!
//! use controlplane_cel::schema::{Field, ObjectSchema, Schema, Shape};
//! use controlplane_cel::{Environment, Type, view};
//!
//! // A variable is declared with a type; the type of JSON follows from its schema. `Type::Dyn` is for what has none.
//! let replicas = Field { json: "replicas".to_owned(), required: false, schema: Schema::new(Shape::Int) };
//! let fields = BTreeMap::from([("replicas".to_owned(), replicas)]);
//! let schema = Schema::new(Shape::Object(Arc::new(ObjectSchema { name: "Spec".to_owned(), fields })));
//! let environment = Environment::default().with("self", schema.as_type()).with("params", Type::Dyn);
//!
//! // Compilation checks the types; the error displays as upstream's does, with the place in the text.
//! assert!(environment.compile("self.replica > 1").is_err());
//! let program = environment.compile("self.replicas <= 5").expect("the field is declared");
//! assert_eq!(*program.result(), Type::Bool);
//! assert!(program.uses("self") && !program.uses("params"));
//!
//! // The cost at most, by the bounds of the schemas of the variables.
//! assert!(program.estimate(&[("self", &schema)]).max < 10);
//!
//! // An evaluation looks at the JSON where it is and takes its cost from the budget.
//! let object = serde_json::json!({"replicas": 3});
//! let mut budget = 10_000_000;
//! let bindings = [("self", view(&object, Some(&schema)).expect("the object has the type"))];
//! let value = program.evaluate(&bindings, &mut budget).expect("the expression has a value");
//! assert_eq!(value.as_bool(), Some(true));
//! ```
//!
//! Variables that are costly to make, or that are expressions themselves, implement [`Bindings`]: a variable is asked
//! for when it is read. `authorizer` is declared as `Type::Opaque("kubernetes.authorization.Authorizer")` and bound by
//! [`Check::authorizer`] (`authorizer.requestResource`: a variable of that dotted name, [`Check::resource`]).
//!
//! * [`Environment`] declares variables and compiles; a [`Program`] evaluates and estimates its cost: `program`.
//! * text to tree: `syntax`; types: `check`; further refusals: `lint`; constants: `fold`.
//! * tree to value: `eval`, `functions` (one file a library); the cost, counted and beforehand: `cost`.
//! * values: `value`, those that change others: `value::object`, views of JSON by [`schema::Schema`]: `value::json`.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a value is of one of twenty kinds, of which a function takes few; all that it does not take is refused alike"
)]

mod check;
mod cost;
mod eval;
mod fold;
mod functions;
mod lint;
mod program;
pub mod schema;
mod syntax;
mod types;
mod value;

pub use cost::estimate::Range;
pub use program::{CompileError, PER_CALL_LIMIT, Program};
pub use types::{Environment, Type};
pub use value::json::{List, Map, view};
pub use value::object::{JSON_BYTES, Object};
pub use value::opaque::{Authorizer, Check, Decision, NamedFormat, Question, Semver, Url};
pub use value::time::Timestamp;
pub use value::{Bindings, Error, Key, Text, Value};
