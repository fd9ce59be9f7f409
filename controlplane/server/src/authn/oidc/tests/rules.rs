//! Rules about configurations, with upstream's texts.

use super::*;

fn are_refused<const COUNT: usize>(table: [(Value, String); COUNT]) {
    for (jwt, expected) in table {
        let refused = Issuers::parse(&configuration(&jwt), &[], &["https://own.example".to_owned()]).unwrap_err();
        let expected = format!("invalid authentication configuration: jwt[0]{expected}");
        assert_eq!(refused.to_string(), expected, "{jwt}");
    }
}

#[test]
fn rules_about_issuers_are_upstreams() {
    are_refused([
        (json!({"issuer": {"url": null}}), ".issuer.url: Required value".to_owned()),
        (
            json!({"issuer": {"url": "https://own.example"}}),
            ".issuer.url: Invalid value: \"https://own.example\": URL must not overlap with disallowed issuers: \
             [https://own.example]"
                .to_owned(),
        ),
        (
            json!({"issuer": {"discoveryURL": format!("{ISSUER}/")}}),
            format!(".issuer.discoveryURL: Invalid value: \"{ISSUER}/\": discoveryURL must be different from URL"),
        ),
        (
            json!({"issuer": {"audiences": []}}),
            ".issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required".to_owned(),
        ),
        (
            json!({"issuer": {"audiences": ["a", "b"]}}),
            ".issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for multiple audiences"
                .to_owned(),
        ),
        (
            json!({"issuer": {"certificateAuthority": "x"}}),
            ".issuer.certificateAuthority: Invalid value: \"<omitted>\": data does not contain any valid RSA or ECDSA \
             certificates"
                .to_owned(),
        ),
    ]);
}

#[test]
fn rules_about_claims_are_upstreams() {
    let mapping = |username: Value| json!({"claimMappings": {"username": username}});
    let extra = |key: &str| {
        let extra = json!([{"key": key, "valueExpression": "'x'"}]);
        json!({"claimMappings": {"username": {"claim": "sub", "prefix": ""}, "extra": extra}})
    };
    let rules = |rules: Value| json!({"claimValidationRules": rules});
    let (both, neither) = (
        "claim and expression can't both be set",
        "claim or expression is required",
    );
    let email = "claims.email_verified must be used in claimMappings.username.expression or \
                 claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in \
                 claimMappings.username.expression";
    let domain = "must be a domain-prefixed path (such as \"acme.io/foo\")";
    are_refused([
        (mapping(json!({})), format!(".claimMappings.username: Required value: {neither}")),
        (
            mapping(json!({"claim": "sub"})),
            ".claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty \
             string to disable prefixing"
                .to_owned(),
        ),
        (
            mapping(json!({"claim": "sub", "expression": "claims.sub"})),
            format!(".claimMappings.username: Invalid value: \"\": {both}"),
        ),
        (
            mapping(json!({"expression": "claims.?email.orValue('')"})),
            format!(".claimMappings.username.expression: Invalid value: \"claims.?email.orValue('')\": {email}"),
        ),
        (extra("tenant"), format!(".claimMappings.extra[0].key: Invalid value: \"tenant\": {domain}")),
        (
            extra("a.k8s.io/x"),
            ".claimMappings.extra[0].key: Invalid value: \"a.k8s.io/x\": k8s.io, kubernetes.io and their subdomains are \
             reserved for Kubernetes use"
                .to_owned(),
        ),
        (rules(json!([{}])), format!(".claimValidationRules[0]: Required value: {neither}")),
        (
            rules(json!([{"expression": "claims.x"}])),
            ".claimValidationRules[0].expression: Invalid value: \"claims.x\": must evaluate to bool".to_owned(),
        ),
        (
            rules(json!([{"claim": "a"}, {"claim": "a"}])),
            ".claimValidationRules[1].claim: Duplicate value: \"a\"".to_owned(),
        ),
        (
            json!({"userValidationRules": [{"expression": ""}]}),
            ".userValidationRules[0].expression: Required value".to_owned(),
        ),
    ]);
}

#[test]
fn all_errors_of_a_configuration_are_told_at_once() {
    let text = configuration(&json!({"issuer": {"url": "http://u:p@a?b", "audiences": [""]}}));
    let refused = Issuers::parse(&text, &[], &[]).unwrap_err().to_string();
    let (field, url) = ("jwt[0].issuer", "Invalid value: \"http://u:p@a?b\": URL");
    let all = [
        format!("{field}.url: {url} scheme must be https"),
        format!("{field}.url: {url} must not contain a username or password"),
        format!("{field}.url: {url} must not contain a query"),
        format!("{field}.audiences[0]: Required value"),
    ];
    assert_eq!(
        refused,
        format!("invalid authentication configuration: [{}]", all.join(", "))
    );
    for (text, expected) in [
        ("", "empty config data"),
        (
            "{kind: Policy, apiVersion: audit.k8s.io/v1}",
            "no kind \"Policy\" is registered for version \"audit.k8s.io/v1\"",
        ),
        (
            "{kind: AuthenticationConfiguration, apiVersion: apiserver.config.k8s.io/v1beta1, anonymous: {enabled: false, \
             conditions: [{path: /healthz}]}}",
            "invalid authentication configuration: anonymous.conditions: Invalid value: [{\"Path\":\"/healthz\"}]: enabled \
             should be set to true when conditions are defined",
        ),
    ] {
        assert_eq!(Issuers::parse(text, &[], &[]).unwrap_err().to_string(), expected);
    }
}
