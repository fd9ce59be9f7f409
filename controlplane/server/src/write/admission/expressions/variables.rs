//! Variables of an expression about a request, and the rights that it may ask for.

use expressions::{Authorizer, Bindings, Check, Decision, Error, Question, view};
use serde_json::Value as Json;

use crate::authn::identity::User;
use crate::authz::{Attributes, Resource};
use crate::request::context::Context;

/// Variables of an expression. As upstream, the values have the types of their JSON.
pub(crate) struct Variables<'a> {
    pub(crate) object: &'a Json,
    pub(crate) old: &'a Json,
    pub(crate) request: &'a Json,
    pub(crate) namespace: &'a Json,
    pub(crate) rights: &'a ContextAuthorizer<'a>,
    /// The resource of the request, as `authorizer.requestResource` asks about it.
    pub(crate) resource: &'a Question,
}

impl<'a> Bindings<'a> for Variables<'a> {
    fn get(&self, name: &str) -> Option<Result<expressions::Value<'a>, Error>> {
        Some(match name {
            "object" => view(self.object, None),
            "oldObject" => view(self.old, None),
            "request" => view(self.request, None),
            "namespaceObject" => view(self.namespace, None),
            "authorizer" => Ok(Check::authorizer(self.rights)),
            "authorizer.requestResource" => Ok(Check::resource(self.rights, self.resource.clone())),
            _ => return None,
        })
    }

    fn is_interrupted(&self) -> bool {
        self.rights.0.in_time().is_err()
    }
}

/// The authorizer of the server, asked for the user of a request.
pub(crate) struct ContextAuthorizer<'a>(pub(crate) &'a Context);

impl Authorizer for ContextAuthorizer<'_> {
    fn authorize(&self, question: &Question) -> Decision {
        let account = question.service_account.as_ref();
        let account = account.map(|(namespace, name)| User::account(namespace, name));
        let user = account.as_ref().unwrap_or(&self.0.user);
        let attributes = match &question.path {
            Some(path) => Attributes::path(&question.verb, path),
            None => Attributes::resource(
                &question.verb,
                Resource {
                    group: &question.group,
                    resource: &question.resource,
                    subresource: &question.subresource,
                    namespace: &question.namespace,
                    name: &question.name,
                    field_selector: &question.field_selector,
                },
            ),
        };
        let decision = self.0.server.authorizer.decide(user, &attributes);
        Decision {
            allowed: decision.is_allowed(),
            reason: decision.to_string(),
            error: None,
        }
    }
}
