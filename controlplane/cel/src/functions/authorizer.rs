//! Authorization checks (`k8s.io/apiserver/pkg/cel/library/authz.go`).

use std::sync::Arc;

use api::names;

use super::Function;
use crate::value::opaque::{Check, Decision, Form, Question, Stage};
use crate::value::{Error, Value};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "path" => |_, args| {
            asked(args, Stage::Authorizer, Stage::Path, |question, text| {
                not_empty("path", text)?;
                question.path = Some(text.to_owned());
                Ok(())
            })
        },
        "group" => |_, args| {
            asked(args, Stage::Authorizer, Stage::Group, |question, text| {
                text.clone_into(&mut question.group);
                Ok(())
            })
        },
        "serviceAccount" => service_account,
        "resource" => |_, args| {
            asked(args, Stage::Group, Stage::Resource, |question, text| {
                not_empty("resource", text)?;
                text.clone_into(&mut question.resource);
                Ok(())
            })
        },
        "subresource" => |_, args| refined(args, |question| &mut question.subresource),
        "namespace" => |_, args| refined(args, |question| &mut question.namespace),
        "name" => |_, args| refined(args, |question| &mut question.name),
        "fieldSelector" => |_, args| refined(args, |question| &mut question.field_selector),
        "labelSelector" => |_, args| refined(args, |question| &mut question.label_selector),
        "check" => check,
        "allowed" => |_, args| answered(args, |decision| Value::Bool(decision.allowed)),
        "reason" => |_, args| answered(args, |decision| Value::from(decision.reason.clone())),
        "errored" => |_, args| answered(args, |decision| Value::Bool(decision.error.is_some())),
        "error" => |_, args| answered(args, |decision| Value::from(decision.error.clone().unwrap_or_default())),
        _ => return None,
    })
}

fn not_empty(what: &str, text: &str) -> Result<(), Error> {
    if text.trim().is_empty() {
        return Err(Error::new(format!("{what} must not be empty")));
    }
    Ok(())
}

fn asked<'a>(
    args: &[Value<'a>],
    from: Stage,
    to: Stage,
    add: fn(&mut Question, &str) -> Result<(), Error>,
) -> Result<Value<'a>, Error> {
    let [Value::Check(check), Value::String(text)] = args else {
        return Err(Error::overload());
    };
    match &check.0 {
        Form::Question(authorizer, stage, question) if *stage == from => {
            let mut question = question.clone();
            add(&mut question, text)?;
            Ok(Value::Check(Arc::new(Check(Form::Question(*authorizer, to, question)))))
        }
        Form::Question(..) | Form::Answer(_) => Err(Error::overload()),
    }
}

fn refined<'a>(args: &[Value<'a>], field: fn(&mut Question) -> &mut String) -> Result<Value<'a>, Error> {
    let [Value::Check(check), Value::String(text)] = args else {
        return Err(Error::overload());
    };
    match &check.0 {
        Form::Question(authorizer, Stage::Resource, question) => {
            let mut question = question.clone();
            text.to_string().clone_into(field(&mut question));
            Ok(Value::Check(Arc::new(Check(Form::Question(
                *authorizer,
                Stage::Resource,
                question,
            )))))
        }
        Form::Question(..) | Form::Answer(_) => Err(Error::overload()),
    }
}

fn service_account<'a>(_: &mut super::Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let [Value::Check(check), Value::String(namespace), Value::String(name)] = args else {
        return Err(Error::overload());
    };
    if !names::dns1123_subdomain(name).is_empty() {
        return Err(Error::new("Invalid service account name"));
    }
    if !names::dns1123_label(namespace).is_empty() {
        return Err(Error::new("Invalid service account namespace"));
    }
    match &check.0 {
        Form::Question(authorizer, Stage::Authorizer, question) => {
            let question = Question {
                service_account: Some((namespace.to_string(), name.to_string())),
                ..question.clone()
            };
            Ok(Value::Check(Arc::new(Check(Form::Question(
                *authorizer,
                Stage::Authorizer,
                question,
            )))))
        }
        Form::Question(..) | Form::Answer(_) => Err(Error::overload()),
    }
}

fn check<'a>(_: &mut super::Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let [Value::Check(check), Value::String(verb)] = args else {
        return Err(Error::overload());
    };
    match &check.0 {
        Form::Question(authorizer, Stage::Path | Stage::Resource, question) => {
            let question = Question {
                verb: verb.to_string(),
                ..question.clone()
            };
            Ok(Value::Check(Arc::new(Check(Form::Answer(
                authorizer.authorize(&question),
            )))))
        }
        Form::Question(..) | Form::Answer(_) => Err(Error::overload()),
    }
}

fn answered<'a>(args: &[Value<'a>], read: fn(&Decision) -> Value<'static>) -> Result<Value<'a>, Error> {
    match args {
        [Value::Check(check)] => match &check.0 {
            Form::Answer(decision) => Ok(read(decision)),
            Form::Question(..) => Err(Error::overload()),
        },
        _ => Err(Error::overload()),
    }
}
