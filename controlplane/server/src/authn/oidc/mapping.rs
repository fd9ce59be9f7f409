//! From the claims of a token to its user (`AuthenticateToken` of
//! `k8s.io/apiserver/plugin/pkg/authenticator/token/oidc/oidc.go`).

use std::collections::BTreeMap;

use expressions::schema::Schema;
use expressions::{Error, PER_CALL_LIMIT, Value, view};
use serde_json::{Map, Number, Value as Json, json};

use super::config::{Jwt, Mapping};
use super::validate::{Rule, Rules};
use crate::authn::identity::User;
use crate::write::admission::expressions::user as user_type;

/// Claims of a token.
pub(super) type Claims = Map<String, Json>;

const NOT_TEXTS: &str = "expression must return a string or a list of strings";

/// The user behind claims, if they and the user keep all rules. The error is upstream's text.
pub(super) fn user(jwt: &Jwt, rules: &Rules, claims: &Claims) -> Result<User, String> {
    let groups = (&jwt.claim_mappings.groups, claims.get(&jwt.claim_mappings.groups.claim));
    let reader = Reader {
        typed: doubles(Json::Object(claims.clone())),
        claims,
    };
    let name = reader.username(&jwt.claim_mappings.username, rules.username.as_ref())?;
    let groups = reader.groups(groups, rules.groups.as_ref())?;
    let uid = reader.uid(&jwt.claim_mappings.uid.claim, rules.uid.as_ref())?;
    let extra = reader.extra(&rules.extra)?;
    reader.check(jwt, rules)?;
    let info = json!({"username": name, "uid": uid, "groups": groups, "extra": extra});
    check(&rules.user, "user", &info, Some(&user_type()))
        .map_err(|error| format!("oidc: error evaluating user info validation rule: {error}"))?;
    Ok(User {
        uid,
        extra,
        ..User::new(name, groups.iter().map(String::as_str))
    })
}

/// Numbers as Go reads them into an interface.
fn doubles(json: Json) -> Json {
    match json {
        Json::Number(number) => {
            let double = number.as_f64().and_then(Number::from_f64);
            Json::Number(double.unwrap_or(number))
        }
        Json::Array(items) => items.into_iter().map(doubles).collect(),
        Json::Object(fields) => fields.into_iter().map(|(name, value)| (name, doubles(value))).collect(),
        other @ (Json::Null | Json::Bool(_) | Json::String(_)) => other,
    }
}

/// Claims, and the same as expressions see them.
struct Reader<'a> {
    claims: &'a Claims,
    typed: Json,
}

impl Reader<'_> {
    /// Follows `getUsername`.
    fn username(&self, mapping: &Mapping, rule: Option<&Rule>) -> Result<String, String> {
        if let Some(rule) = rule {
            let name = self.text(rule, "username")?;
            if name.is_empty() {
                return Err("oidc: empty username via CEL expression is not allowed".to_owned());
            }
            return Ok(name);
        }
        let claim = &mapping.claim;
        let name =
            text(self.claims, claim).map_err(|error| format!("oidc: parse username claims {claim:?}: {error}"))?;
        match self.claims.get("email_verified").filter(|_| claim == "email") {
            None | Some(Json::Bool(true)) => {}
            Some(Json::Bool(false) | Json::Null) => return Err("oidc: email not verified".to_owned()),
            Some(other) => return Err(format!("oidc: parse 'email_verified' claim: {}", unfit(other, "bool"))),
        }
        Ok(prefixed(mapping, name))
    }

    /// Follows `getGroups`: a claim may be one group, or several.
    fn groups(&self, (mapping, claim): (&Mapping, Option<&Json>), rule: Option<&Rule>) -> Result<Vec<String>, String> {
        if let Some(claim) = claim.filter(|_| !mapping.claim.is_empty()) {
            let one = std::slice::from_ref(claim);
            let groups: &[Json] = match claim {
                Json::Null => &[],
                Json::Array(groups) => groups.as_slice(),
                Json::String(_) | Json::Bool(_) | Json::Number(_) | Json::Object(_) => one,
            };
            let all: Option<Vec<&str>> = groups.iter().map(Json::as_str).collect();
            let all = all.ok_or_else(|| {
                format!(
                    "oidc: parse groups claim {:?}: {}",
                    mapping.claim,
                    unfit(claim, "string")
                )
            })?;
            return Ok(all.into_iter().map(|group| prefixed(mapping, group)).collect());
        }
        let Some(rule) = rule else {
            return Ok(Vec::new());
        };
        let texts = evaluate(rule, "claims", &self.typed, None, texts);
        texts.map_err(|error| format!("oidc: error evaluating group claim expression: {error}"))
    }

    fn uid(&self, claim: &str, rule: Option<&Rule>) -> Result<String, String> {
        if !claim.is_empty() {
            let uid = text(self.claims, claim).map_err(|error| format!("oidc: parse uid claim {claim:?}: {error}"))?;
            return Ok(uid.to_owned());
        }
        rule.map_or(Ok(String::new()), |rule| self.text(rule, "uid"))
    }

    /// Follows `getExtra`.
    fn extra(&self, rules: &[(String, Rule)]) -> Result<BTreeMap<String, Vec<String>>, String> {
        let mut extra = BTreeMap::new();
        if let Some(id) = self
            .claims
            .get("jti")
            .and_then(Json::as_str)
            .filter(|id| !id.is_empty())
        {
            let name = "authentication.kubernetes.io/credential-id".to_owned();
            extra.insert(name, vec![format!("JTI={id}")]);
        }
        for (key, rule) in rules {
            let values = evaluate(rule, "claims", &self.typed, None, texts)
                .map_err(|error| format!("oidc: error evaluating extra claim expression: {}: {error}", rule.text))?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        Ok(extra)
    }

    /// Checks required claims and rules about claims.
    fn check(&self, jwt: &Jwt, rules: &Rules) -> Result<(), String> {
        for rule in jwt.claim_validation_rules.iter().filter(|rule| !rule.claim.is_empty()) {
            let (claim, wanted) = (&rule.claim, &rule.required_value);
            if !self.claims.contains_key(claim) {
                return Err(format!("oidc: required claim {claim} not present in ID token"));
            }
            let found = text(self.claims, claim).map_err(|error| format!("oidc: parse claim {claim}: {error}"))?;
            if found != wanted {
                return Err(format!(
                    "oidc: required claim {claim} value does not match. Got = {found}, want = {wanted}"
                ));
            }
        }
        check(&rules.claims, "claims", &self.typed, None)
            .map_err(|error| format!("oidc: error evaluating claim validation expression: {error}"))
    }

    /// The text that an expression makes.
    fn text(&self, rule: &Rule, of: &str) -> Result<String, String> {
        let made = evaluate(rule, "claims", &self.typed, None, |value| {
            let text = value.as_str().map(str::to_owned);
            text.ok_or_else(|| format!("{of} claim expression must return a string"))
        });
        made.map_err(|error| format!("oidc: error evaluating {of} claim expression: {error}"))
    }
}

fn prefixed(mapping: &Mapping, text: &str) -> String {
    format!("{}{text}", mapping.prefix.as_deref().unwrap_or_default())
}

/// A claim that is a text.
fn text<'a>(claims: &'a Claims, name: &str) -> Result<&'a str, String> {
    let claim = claims.get(name).ok_or("claim not present")?;
    claim.as_str().ok_or_else(|| unfit(claim, "string"))
}

/// Error of Go's `json.Unmarshal`.
fn unfit(found: &Json, wanted: &str) -> String {
    let found = match found {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    };
    format!("json: cannot unmarshal {found} into Go value of type {wanted}")
}

/// Evaluates an expression about one variable, and reads its value.
fn evaluate<T>(
    rule: &Rule,
    variable: &str,
    json: &Json,
    schema: Option<&Schema>,
    read: impl FnOnce(&Value<'_>) -> Result<T, String>,
) -> Result<T, String> {
    let failed = |error: Error| format!("expression '{}' resulted in error: {error}", rule.text);
    let mut budget = PER_CALL_LIMIT;
    let bindings = [(variable, view(json, schema).map_err(failed)?)];
    let value = rule.program.evaluate(&bindings, &mut budget);
    read(&value.map_err(failed)?)
}

/// Follows `convertCELValueToStringList`: empty texts do not count.
fn texts(value: &Value<'_>) -> Result<Vec<String>, String> {
    let one = |value: &Value<'_>| value.as_str().map(str::to_owned).ok_or_else(|| NOT_TEXTS.to_owned());
    let mut all: Vec<String> = if let Value::List(list) = value {
        let items = list.iter().map(|item| one(&item.map_err(|error| error.to_string())?));
        items.collect::<Result<_, _>>()?
    } else if matches!(value, Value::Null) {
        Vec::new()
    } else {
        vec![one(value)?]
    };
    all.retain(|text| !text.is_empty());
    Ok(all)
}

/// Follows `checkValidationRulesEvaluation`: all are evaluated before the first that is false is an
/// error.
fn check(rules: &[Rule], variable: &str, json: &Json, schema: Option<&Schema>) -> Result<(), String> {
    let mut broken = None;
    for rule in rules {
        let kept = evaluate(rule, variable, json, schema, |value| {
            let kept = value.as_bool();
            kept.ok_or_else(|| "validation expression must return a boolean".to_owned())
        })?;
        if !kept && broken.is_none() {
            broken = Some(format!(
                "validation expression '{}' failed: {}",
                rule.text, rule.message
            ));
        }
    }
    broken.map_or(Ok(()), Err)
}
