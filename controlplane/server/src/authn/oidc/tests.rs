mod rules;

use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512,
    RsaEncoding, RsaKeyPair, RsaPublicKeyComponents,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::json;

use super::*;

const ISSUER: &str = "https://issuer.example/realm";
const NOW: i64 = 1_767_323_045;

fn encode(part: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(part)
}

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

struct Curve {
    pair: EcdsaKeyPair,
    alg: &'static str,
    crv: &'static str,
}

impl Curve {
    fn make(algorithm: &'static EcdsaSigningAlgorithm, alg: &'static str, crv: &'static str) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap();
        Self { pair, alg, crv }
    }

    fn p256() -> Self {
        Self::make(&ECDSA_P256_SHA256_FIXED_SIGNING, "ES256", "P-256")
    }

    fn published(&self, kid: &str) -> Value {
        let point = &self.pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        json!({"kty": "EC", "kid": kid, "crv": self.crv, "x": encode(x), "y": encode(y)})
    }

    fn sign(&self, kid: &str, claims: &Value) -> String {
        let message = message(&json!({"alg": self.alg, "kid": kid}), claims);
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encode(signature))
    }
}

fn message(header: &Value, claims: &Value) -> String {
    format!("{}.{}", encode(header.to_string()), encode(claims.to_string()))
}

/// Changes fields of an object; null removes one.
fn changed(mut object: Value, changes: &Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        let fields = object.as_object_mut().unwrap();
        if value.is_null() {
            fields.remove(name);
        } else {
            fields.insert(name.clone(), value.clone());
        }
    }
    object
}

fn configuration(jwt: &Value) -> String {
    let authority = rcgen::generate_simple_self_signed(["issuer.example".to_owned()]).unwrap();
    let mut usual = json!({
        "issuer": {"url": ISSUER, "audiences": ["me"], "certificateAuthority": authority.cert.pem()},
        "claimMappings": {"username": {"claim": "sub", "prefix": "p:"}},
    });
    let mut changes = jwt.clone();
    if let Some(issuer) = changes.as_object_mut().unwrap().remove("issuer") {
        usual["issuer"] = changed(usual["issuer"].take(), &issuer);
    }
    let usual = changed(usual, &changes);
    json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [usual]})
        .to_string()
}

/// Authenticators of one issuer that has published these keys just now.
async fn issuers(jwt: &Value, algorithms: &[&str], keys: &[Value]) -> Issuers {
    let algorithms: Vec<String> = algorithms.iter().map(|&name| name.to_owned()).collect();
    let issuers = Issuers::parse(&configuration(jwt), &algorithms, &[]).unwrap();
    let one = &issuers.all[0];
    one.keys_url.set("https://127.0.0.1:1/keys".to_owned()).unwrap();
    *one.keys.lock().unwrap() = keys::published(json!({"keys": keys}).to_string().as_bytes())
        .unwrap()
        .into();
    *one.fetched.lock().await = Some(Instant::now());
    issuers
}

fn claims(changes: &Value) -> Value {
    let usual = json!({"iss": ISSUER, "aud": "me", "sub": "jane", "exp": NOW + 60});
    changed(usual, changes)
}

/// The user that claims lead to, as a text: name, groups, uid and extra.
async fn outcome(jwt: &Value, changes: &Value) -> String {
    let key = Curve::p256();
    let issuers = issuers(jwt, &keys::ALGORITHMS, &[key.published("a")]).await;
    match issuers.authenticate(&key.sign("a", &claims(changes)), now()).await {
        None => "not ours".to_owned(),
        Some(Err(error)) => error,
        Some(Ok(Known { user, .. })) => {
            let groups: Vec<&str> = user.groups.iter().map(String::as_str).collect();
            format!("{} {} {:?} {:?}", user.name, groups.join(","), user.uid, user.extra)
        }
    }
}

const JANE: &str = "p:jane system:authenticated \"\" {}";

#[tokio::test(start_paused = true)]
async fn claims_about_issuer_audience_and_time_are_checked() {
    for (changes, expected) in [
        (json!({}), JANE),
        (
            json!({"iss": "https://kubernetes.default.svc.cluster.local"}),
            "not ours",
        ),
        (json!({"iss": "https://issuer.example/realm/"}), "not ours"),
        (json!({"iss": null}), "not ours"),
        (json!({"aud": ["you", "me"]}), JANE),
        (
            json!({"aud": "you"}),
            "oidc: verify token: oidc: expected audience \"me\" got [\"you\"]",
        ),
        (
            json!({"aud": null}),
            "oidc: verify token: oidc: expected audience \"me\" got []",
        ),
        (
            json!({"exp": NOW}),
            "oidc: verify token: oidc: token is expired (Token Expiry: 2026-01-02 03:04:05 +0000 UTC)",
        ),
        (json!({"exp": 1e300}), JANE),
        (json!({"nbf": NOW + 60}), JANE),
        (
            json!({"nbf": NOW + 61}),
            "oidc: verify token: oidc: current time 2026-01-02 03:04:05 +0000 UTC before the nbf (not before) time: \
             2026-01-02 03:05:06 +0000 UTC",
        ),
    ] {
        assert_eq!(outcome(&json!({}), &changes).await, expected, "{changes}");
    }
    assert!(
        outcome(&json!({}), &json!({"exp": null}))
            .await
            .contains("token is expired")
    );
    let several = json!({"issuer": {"audiences": ["me", "also"], "audienceMatchPolicy": "MatchAny"}});
    assert_eq!(outcome(&several, &json!({"aud": ["also"]})).await, JANE);
    let refused = "oidc: verify token: oidc: expected audience in [\"also\" \"me\"] got [\"you\"]";
    assert_eq!(outcome(&several, &json!({"aud": "you"})).await, refused);
}

#[tokio::test(start_paused = true)]
async fn attack_what_the_issuer_has_not_signed_proves_nothing() {
    let (key, other) = (Curve::p256(), Curve::p256());
    let published = key.published("a");
    let issuers = issuers(
        &json!({}),
        &["RS256", "ES256", "ES384"],
        std::slice::from_ref(&published),
    )
    .await;
    let good = key.sign("a", &claims(&json!({})));
    let [header, body, signature] = good.split('.').collect::<Vec<_>>().try_into().unwrap();
    let hmac = {
        let message = message(&json!({"alg": "HS256", "kid": "a"}), &claims(&json!({})));
        let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.pair.public_key().as_ref());
        format!("{message}.{}", encode(ring::hmac::sign(&secret, message.as_bytes())))
    };
    let with = |header: &Value| format!("{}.{body}.{signature}", encode(header.to_string()));
    let known = "[\"RS256\" \"ES256\" \"ES384\"]";
    let unsupported = |alg: &str| {
        format!("oidc: verify token: oidc: id token signed with unsupported algorithm, expected {known} got {alg:?}")
    };
    let unsigned = "oidc: verify token: failed to verify signature: failed to verify id token signature".to_owned();
    let forged = encode(claims(&json!({"sub": "admin"})).to_string());
    for (token, expected) in [
        (with(&json!({"alg": "none"})), unsupported("none")),
        (format!("{}.{body}.", encode(r#"{"alg":"none"}"#)), unsupported("none")),
        (hmac, unsupported("HS256")),
        (with(&json!({"alg": "ES384", "kid": "a"})), unsigned.clone()),
        (with(&json!({"alg": "RS256", "kid": "a"})), unsigned.clone()),
        (format!("{header}.{forged}.{signature}"), unsigned.clone()),
        (other.sign("a", &claims(&json!({}))), unsigned.clone()),
        (key.sign("b", &claims(&json!({}))), unsigned.clone()),
        (with(&json!({"alg": "ES256", "kid": "a", "crit": ["x"]})), unsigned),
    ] {
        let said = issuers.authenticate(&token, now()).await.unwrap().err();
        assert_eq!(said, Some(expected), "{token}");
    }
    for text in [
        "",
        "a.b.c",
        "abcdef.0123456789abcdef",
        &format!("{good}.x"),
        &format!("{header}.{body}"),
    ] {
        assert!(issuers.authenticate(text, now()).await.is_none(), "{text}");
    }
    assert!(issuers.authenticate(&good, now()).await.unwrap().is_ok());
    // A token need not name its key.
    assert!(
        issuers
            .authenticate(&key.sign("", &claims(&json!({}))), now())
            .await
            .unwrap()
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn issuers_sign_by_rsa_and_on_two_curves() {
    let made = Command::new("openssl")
        .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"])
        .output();
    let pem = made.expect("openssl, of the package of that name").stdout;
    let rsa = RsaKeyPair::from_pkcs8(PrivatePkcs8KeyDer::from_pem_slice(&pem).unwrap().secret_pkcs8_der()).unwrap();
    let public: RsaPublicKeyComponents<Vec<u8>> = rsa.public().into();
    let p384 = Curve::make(&ECDSA_P384_SHA384_FIXED_SIGNING, "ES384", "P-384");
    let published = [
        json!({"kty": "oct", "kid": "a", "k": "AAAA"}),
        json!({"kty": "RSA", "kid": "a", "n": encode(&public.n), "e": encode(&public.e)}),
        p384.published("b"),
    ];
    let issuers = issuers(&json!({}), &keys::ALGORITHMS, &published).await;
    let ways: [(&str, &'static dyn RsaEncoding); 6] = [
        ("RS256", &RSA_PKCS1_SHA256),
        ("RS384", &RSA_PKCS1_SHA384),
        ("RS512", &RSA_PKCS1_SHA512),
        ("PS256", &RSA_PSS_SHA256),
        ("PS384", &RSA_PSS_SHA384),
        ("PS512", &RSA_PSS_SHA512),
    ];
    let mut tokens = vec![p384.sign("b", &claims(&json!({})))];
    for (alg, encoding) in ways {
        let message = message(&json!({"alg": alg, "kid": "a"}), &claims(&json!({})));
        let mut signature = vec![0; rsa.public().modulus_len()];
        rsa.sign(encoding, &SystemRandom::new(), message.as_bytes(), &mut signature)
            .unwrap();
        tokens.push(format!("{message}.{}", encode(signature)));
    }
    for token in tokens {
        let said = issuers.authenticate(&token, now()).await.unwrap();
        assert_eq!(said.map(|known| known.user.name), Ok("p:jane".to_owned()), "{token}");
    }
}

#[tokio::test(start_paused = true)]
async fn users_come_from_claims() {
    let mappings = |mappings: Value| json!({"claimMappings": mappings});
    let email = mappings(json!({"username": {"claim": "email", "prefix": ""}}));
    let all = mappings(json!({
        "username": {"claim": "sub", "prefix": ""},
        "groups": {"claim": "roles", "prefix": "g:"},
        "uid": {"claim": "id"},
    }));
    let required = json!({"claimValidationRules": [{"claim": "hd", "requiredValue": "example.com"}]});
    for (jwt, changes, expected) in [
        (
            &all,
            json!({"roles": ["a", "b"], "id": "7", "jti": "x"}),
            "jane g:a,g:b,system:authenticated \"7\" {\"authentication.kubernetes.io/credential-id\": [\"JTI=x\"]}",
        ),
        (
            &all,
            json!({"roles": "a", "id": "7"}),
            "jane g:a,system:authenticated \"7\" {}",
        ),
        (&all, json!({"id": "7"}), "jane system:authenticated \"7\" {}"),
        (
            &all,
            json!({"roles": [7], "id": "7"}),
            "oidc: parse groups claim \"roles\": json: cannot unmarshal array into Go value of type string",
        ),
        (&all, json!({}), "oidc: parse uid claim \"id\": claim not present"),
        (
            &all,
            json!({"sub": null}),
            "oidc: parse username claims \"sub\": claim not present",
        ),
        (&email, json!({"email": "j@x"}), "j@x system:authenticated \"\" {}"),
        (
            &email,
            json!({"email": "j@x", "email_verified": true}),
            "j@x system:authenticated \"\" {}",
        ),
        (
            &email,
            json!({"email": "j@x", "email_verified": false}),
            "oidc: email not verified",
        ),
        (
            &email,
            json!({"email": "j@x", "email_verified": "true"}),
            "oidc: parse 'email_verified' claim: json: cannot unmarshal string into Go value of type bool",
        ),
        (&required, json!({"hd": "example.com"}), JANE),
        (&required, json!({}), "oidc: required claim hd not present in ID token"),
        (
            &required,
            json!({"hd": "x"}),
            "oidc: required claim hd value does not match. Got = x, want = example.com",
        ),
    ] {
        assert_eq!(outcome(jwt, &changes).await, expected, "{jwt} {changes}");
    }
}

#[tokio::test(start_paused = true)]
async fn users_come_from_expressions() {
    let mut jwt = json!({
        "claimMappings": {
            "username": {"expression": "claims.email_verified ? claims.email : ''"},
            "groups": {"expression": "claims.?roles.orValue([])"},
            "uid": {"expression": "claims.sub + '-uid'"},
            "extra": [{"key": "example.com/tenant", "valueExpression": "claims.?tenant"}],
        },
        "claimValidationRules": [{"expression": "claims.exp - claims.iat <= 3600.0", "message": "too long"}],
        "userValidationRules": [{"expression": "!user.username.startsWith('system:')", "message": "reserved"}],
    });
    let good = json!({"email": "j@x", "email_verified": true, "iat": NOW});
    let unmapped = "expression must return a string or a list of strings";
    let expected = format!("oidc: error evaluating extra claim expression: claims.?tenant: {unmapped}");
    assert_eq!(outcome(&jwt, &good).await, expected, "an optional is neither");
    jwt["claimMappings"]["extra"][0]["valueExpression"] = json!("claims.?tenant.orValue('')");
    for (changes, expected) in [
        (json!({}), "j@x system:authenticated \"jane-uid\" {}"),
        (
            json!({"roles": ["a", "", "b"], "tenant": "t"}),
            "j@x a,b,system:authenticated \"jane-uid\" {\"example.com/tenant\": [\"t\"]}",
        ),
        (
            json!({"email_verified": false}),
            "oidc: empty username via CEL expression is not allowed",
        ),
        (
            json!({"email": 7}),
            "oidc: error evaluating username claim expression: username claim expression must return a string",
        ),
        (
            json!({"email": null}),
            "oidc: error evaluating username claim expression: expression 'claims.email_verified ? claims.email : ''' \
             resulted in error: no such key: email",
        ),
        (
            json!({"roles": [7]}),
            "oidc: error evaluating group claim expression: expression must return a string or a list of strings",
        ),
        (
            json!({"iat": NOW - 7200}),
            "oidc: error evaluating claim validation expression: validation expression 'claims.exp - claims.iat <= 3600.0' \
             failed: too long",
        ),
        (
            json!({"email": "system:admin"}),
            "oidc: error evaluating user info validation rule: validation expression \
             '!user.username.startsWith('system:')' failed: reserved",
        ),
    ] {
        assert_eq!(
            outcome(&jwt, &changed(good.clone(), &changes)).await,
            expected,
            "{changes}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_that_come_before_the_issuer_has_answered_are_refused() {
    let issuers = Issuers::parse(&configuration(&json!({})), &["ES256".to_owned()], &[]).unwrap();
    let token = Curve::p256().sign("a", &claims(&json!({})));
    let said = issuers.authenticate(&token, now()).await.unwrap().err();
    assert_eq!(said.as_deref(), Some("oidc: authenticator not initialized"));
}
