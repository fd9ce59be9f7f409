//! Rules about a configuration, and its expressions compiled
//! (`k8s.io/apiserver/pkg/apis/apiserver/validation/validation.go`).

use std::collections::BTreeSet;

use api::Invalid;
use api::url::Url;
use api::validation::domain_prefixed_path;
use expressions::{Environment, Program, Type};

use super::config::{Configuration, Extra, Issuer, Jwt, Mapping};
use crate::write::admission::expressions::user;
use crate::write::admission::webhooks::client::trust;

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) text: String,
    pub(super) message: String,
    pub(super) program: Program,
}

/// Compiled expressions of an authenticator.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) username: Option<Rule>,
    pub(super) groups: Option<Rule>,
    pub(super) uid: Option<Rule>,
    /// With the key of each.
    pub(super) extra: Vec<(String, Rule)>,
    pub(super) claims: Vec<Rule>,
    pub(super) user: Vec<Rule>,
}

/// Rules that the configuration breaks, and the expressions of each of its authenticators.
pub(super) fn compile(configuration: &Configuration, disallowed: &[String]) -> (Vec<Rules>, Vec<Invalid>) {
    let authenticators = &configuration.jwt;
    if authenticators.len() > 64 {
        return (Vec::new(), vec![Invalid::too_many("jwt", authenticators.len(), 64)]);
    }
    let mut errors = Vec::new();
    let (mut issuers, mut discoveries) = (BTreeSet::new(), BTreeSet::new());
    let mut rules = Vec::new();
    for (index, jwt) in authenticators.iter().enumerate() {
        let field = format!("jwt[{index}]");
        let mut compiler = Compiler {
            errors: &mut errors,
            disallowed,
        };
        rules.push(compiler.authenticator(jwt, &field));
        let Issuer { url, discovery_url, .. } = &jwt.issuer;
        if !issuers.insert(url) {
            errors.push(Invalid::duplicate(format!("{field}.issuer.url"), url));
        }
        if !discovery_url.is_empty() && !discoveries.insert(discovery_url) {
            errors.push(Invalid::duplicate(
                format!("{field}.issuer.discoveryURL"),
                discovery_url,
            ));
        }
    }
    let refused = configuration.anonymous.as_ref().filter(|anonymous| !anonymous.enabled);
    if let Some(anonymous) = refused.filter(|anonymous| !anonymous.conditions.is_empty()) {
        let paths = anonymous.conditions.iter();
        let paths: Vec<String> = paths
            .map(|condition| format!("{{\"Path\":{:?}}}", condition.path))
            .collect();
        let detail = "enabled should be set to true when conditions are defined";
        errors.push(Invalid::rendered(
            "anonymous.conditions",
            format!("[{}]", paths.join(",")),
            detail,
        ));
    }
    (rules, errors)
}

struct Compiler<'a> {
    errors: &'a mut Vec<Invalid>,
    disallowed: &'a [String],
}

impl Compiler<'_> {
    fn invalid(&mut self, field: &str, value: &str, detail: &str) {
        self.errors.push(Invalid::value(field, value, detail));
    }

    fn required(&mut self, field: &str, detail: &str) {
        self.errors.push(Invalid::required(field, detail));
    }

    fn authenticator(&mut self, jwt: &Jwt, field: &str) -> Rules {
        self.issuer(&jwt.issuer, &format!("{field}.issuer"));
        let mut rules = Rules {
            claims: self.claim_rules(jwt, &format!("{field}.claimValidationRules")),
            ..Rules::default()
        };
        self.mappings(jwt, &format!("{field}.claimMappings"), &mut rules);
        let environment = Environment::default().with("user", user().as_type());
        let mut seen = BTreeSet::new();
        for (index, rule) in jwt.user_validation_rules.iter().enumerate() {
            let field = format!("{field}.userValidationRules[{index}].expression");
            if rule.expression.is_empty() {
                self.required(&field, "");
            } else if !seen.insert(&rule.expression) {
                self.errors.push(Invalid::duplicate(field, &rule.expression));
            } else {
                let compiled = self.expression(&environment, (&rule.expression, &rule.message), &field, true);
                rules.user.extend(compiled);
            }
        }
        rules
    }

    fn issuer(&mut self, issuer: &Issuer, field: &str) {
        let (url, discovery) = (issuer.url.as_str(), issuer.discovery_url.as_str());
        if url.is_empty() {
            self.required(&format!("{field}.url"), "");
        } else {
            if self.disallowed.iter().any(|own| own == url) {
                let all: BTreeSet<&str> = self.disallowed.iter().map(String::as_str).collect();
                let all = all.into_iter().collect::<Vec<_>>().join(" ");
                let detail = format!("URL must not overlap with disallowed issuers: [{all}]");
                self.invalid(&format!("{field}.url"), url, &detail);
            }
            self.url(url, &format!("{field}.url"));
        }
        if !discovery.is_empty() {
            let field = format!("{field}.discoveryURL");
            if !url.is_empty() && url.trim_end_matches('/') == discovery.trim_end_matches('/') {
                self.invalid(&field, discovery, "discoveryURL must be different from URL");
            }
            self.url(discovery, &field);
        }
        self.audiences(issuer, field);
        let authority = issuer.certificate_authority.as_bytes();
        if !authority.is_empty() && trust(authority).is_err() {
            let detail = "data does not contain any valid RSA or ECDSA certificates";
            self.invalid(&format!("{field}.certificateAuthority"), "<omitted>", detail);
        }
        // There is no egress selector here; upstream refuses one that is not configured, too.
        let selector = issuer.egress_selector_type.as_str();
        if matches!(selector, "controlplane" | "cluster") {
            let detail = format!("egress lookup required with egress selector type {selector:?}");
            self.invalid(&format!("{field}.egressSelectorType"), selector, &detail);
        } else if !selector.is_empty() {
            let detail = "egress selector must be either controlplane or cluster";
            self.invalid(&format!("{field}.egressSelectorType"), selector, detail);
        }
    }

    fn url(&mut self, text: &str, field: &str) {
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(error) => return self.invalid(field, text, &error.to_string()),
        };
        for (wrong, detail) in [
            (url.scheme != "https", "URL scheme must be https"),
            (url.user.is_some(), "URL must not contain a username or password"),
            (!url.query.is_empty(), "URL must not contain a query"),
            (!url.fragment.is_empty(), "URL must not contain a fragment"),
        ] {
            if wrong {
                self.invalid(field, text, detail);
            }
        }
    }

    fn audiences(&mut self, issuer: &Issuer, field: &str) {
        let (audiences, policy) = (&issuer.audiences, issuer.audience_match_policy.as_str());
        let policy_field = format!("{field}.audienceMatchPolicy");
        let field = format!("{field}.audiences");
        if audiences.is_empty() {
            return self.required(&field, &format!("at least one {field} is required"));
        }
        let mut seen = BTreeSet::new();
        for (index, audience) in audiences.iter().enumerate() {
            let field = format!("{field}[{index}]");
            if audience.is_empty() {
                self.required(&field, "");
            }
            if !seen.insert(audience) {
                self.errors.push(Invalid::duplicate(field, audience));
            }
        }
        if audiences.len() > 1 && policy != "MatchAny" {
            let detail = "audienceMatchPolicy must be MatchAny for multiple audiences";
            self.invalid(&policy_field, policy, detail);
        } else if !matches!(policy, "" | "MatchAny") {
            let detail = "audienceMatchPolicy must be empty or MatchAny for single audience";
            self.invalid(&policy_field, policy, detail);
        }
    }

    fn claim_rules(&mut self, jwt: &Jwt, field: &str) -> Vec<Rule> {
        let (mut claims, mut expressions) = (BTreeSet::new(), BTreeSet::new());
        let mut compiled = Vec::new();
        for (index, rule) in jwt.claim_validation_rules.iter().enumerate() {
            let field = format!("{field}[{index}]");
            match (rule.claim.as_str(), rule.expression.as_str()) {
                ("", "") => self.required(&field, "claim or expression is required"),
                (claim, "") => {
                    if !rule.message.is_empty() {
                        let detail = "may not be specified when claim is set";
                        self.invalid(&format!("{field}.message"), &rule.message, detail);
                    }
                    if !claims.insert(claim) {
                        self.errors.push(Invalid::duplicate(format!("{field}.claim"), claim));
                    }
                }
                ("", expression) => {
                    if !rule.required_value.is_empty() {
                        let detail = "may not be specified when expression is set";
                        self.invalid(&format!("{field}.requiredValue"), &rule.required_value, detail);
                    }
                    let field = format!("{field}.expression");
                    if expressions.insert(expression) {
                        compiled.extend(self.of_claims((expression, &rule.message), &field, true));
                    } else {
                        self.errors.push(Invalid::duplicate(field, expression));
                    }
                }
                (claim, _) => self.invalid(&field, claim, "claim and expression can't both be set"),
            }
        }
        compiled
    }

    fn mappings(&mut self, jwt: &Jwt, field: &str, rules: &mut Rules) {
        let mappings = &jwt.claim_mappings;
        let username = format!("{field}.username");
        rules.username = self.mapping(&mappings.username, &username, true);
        rules.groups = self.mapping(&mappings.groups, &format!("{field}.groups"), false);
        let uid = format!("{field}.uid");
        match (mappings.uid.claim.as_str(), mappings.uid.expression.as_str()) {
            (_, "") => {}
            ("", text) => rules.uid = self.of_claims((text, ""), &format!("{uid}.expression"), false),
            _ => self.invalid(&uid, "", "claim and expression can't both be set"),
        }
        self.extra(&mappings.extra, field, rules);
        // A rule that did not compile is an error already, and upstream does not count it either.
        let selects = |rule: &Rule, name: &str| rule.program.selects("claims", name);
        let extra = rules.extra.iter().map(|(_, rule)| rule);
        let mut checking = rules.username.iter().chain(extra).chain(&rules.claims);
        if rules.username.as_ref().is_some_and(|rule| selects(rule, "email"))
            && !checking.any(|rule| selects(rule, "email_verified"))
        {
            let detail = "claims.email_verified must be used in claimMappings.username.expression or \
                          claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email \
                          is used in claimMappings.username.expression";
            self.invalid(&format!("{username}.expression"), &mappings.username.expression, detail);
        }
    }

    fn mapping(&mut self, mapping: &Mapping, field: &str, is_required: bool) -> Option<Rule> {
        match (mapping.claim.as_str(), mapping.expression.as_str()) {
            ("", "") => {
                if is_required {
                    self.required(field, "claim or expression is required");
                }
                None
            }
            (_, "") => {
                if mapping.prefix.is_none() {
                    let detail =
                        "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                    self.required(&format!("{field}.prefix"), detail);
                }
                None
            }
            ("", text) => {
                if let Some(prefix) = &mapping.prefix {
                    let detail = "may not be specified when expression is set";
                    self.invalid(&format!("{field}.prefix"), prefix, detail);
                }
                self.of_claims((text, ""), &format!("{field}.expression"), false)
            }
            _ => {
                self.invalid(field, "", "claim and expression can't both be set");
                None
            }
        }
    }

    fn extra(&mut self, extra: &[Extra], field: &str, rules: &mut Rules) {
        let mut seen = BTreeSet::new();
        for (index, Extra { key, value_expression }) in extra.iter().enumerate() {
            let value = format!("{field}.extra[{index}].valueExpression");
            let field = format!("{field}.extra[{index}].key");
            if key.is_empty() {
                self.required(&field, "");
            } else {
                self.errors.extend(domain_prefixed_path(&field, key));
            }
            if *key != key.to_lowercase() {
                self.invalid(&field, key, "must be lowercase");
            }
            let domain = key.split_once('/').map_or("", |(domain, _)| domain);
            let reserved = |own: &str| {
                domain
                    .strip_suffix(own)
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            };
            if reserved("kubernetes.io") || reserved("k8s.io") {
                let detail = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
                self.invalid(&field, key, detail);
            }
            if !seen.insert(key) {
                self.errors.push(Invalid::duplicate(field, key));
            } else if value_expression.is_empty() {
                self.required(&value, "");
            } else if let Some(rule) = self.of_claims((value_expression, ""), &value, false) {
                rules.extra.push((key.clone(), rule));
            }
        }
    }

    fn of_claims(&mut self, rule: (&str, &str), field: &str, decides: bool) -> Option<Rule> {
        let environment = Environment::default().with("claims", Type::map(Type::String, Type::Dyn));
        self.expression(&environment, rule, field, decides)
    }

    /// Compiles an expression with its message; one that decides has a boolean as its value.
    fn expression(
        &mut self,
        environment: &Environment,
        (text, message): (&str, &str),
        field: &str,
        decides: bool,
    ) -> Option<Rule> {
        let wrong = match environment.compile(text) {
            Ok(program) if !decides || *program.result() == Type::Bool => {
                return Some(Rule {
                    text: text.to_owned(),
                    message: message.to_owned(),
                    program,
                });
            }
            Ok(_) => "must evaluate to bool".to_owned(),
            Err(error) => error.to_string(),
        };
        self.invalid(field, text, &wrong);
        None
    }
}
