//! Certificate signing requests: parsing, rules of the signers, and validation of the objects.

use base64::Engine as _;
use controlplane_api::certificate::{
    AlternativeName, CLIENT, Malformed, NODE_CLIENT, NODE_SERVING, Request, check, check_chain,
};
use controlplane_api::{Object, find};
use serde_json::{Value, json};

use crate::every::fixture;
use crate::refused::refused;

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";

fn pem(name: &str) -> &'static str {
    match name {
        "ec" => include_str!("../requests/ec.pem"),
        "forged" => include_str!("../requests/forged.pem"),
        "jane" => include_str!("../requests/jane.pem"),
        "ec-sha512" => include_str!("../requests/ec-sha512.pem"),
        "named-twice" => include_str!("../requests/named-twice.pem"),
        "node" => include_str!("../requests/node.pem"),
        "p384-sha512" => include_str!("../requests/p384-sha512.pem"),
        "p521" => include_str!("../requests/p521.pem"),
        "p521-sha256" => include_str!("../requests/p521-sha256.pem"),
        "rsa" => include_str!("../requests/rsa.pem"),
        "serving" => include_str!("../requests/serving.pem"),
        "serving-mail" => include_str!("../requests/serving-mail.pem"),
        other => panic!("no request {other}"),
    }
}

fn request(name: &str) -> Request {
    Request::parse(pem(name).as_bytes()).unwrap()
}

#[test]
fn requests_are_read() {
    let jane = request("jane");
    assert_eq!((jane.common_name.as_str(), jane.names.len()), ("jane", 0));
    assert_eq!(jane.organizations, ["dev", "ops", "qa"]);
    let names = request("rsa").names;
    let address = "fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec();
    let uri = AlternativeName::Uri("spiffe://x/y".to_owned());
    assert_eq!(
        names,
        [uri, AlternativeName::Address(address)],
        "names of other sorts are left out"
    );
    assert_eq!(request("ec").common_name, "jane");
    // Same as Go's parser: the approver must see the name that counts.
    assert_eq!(request("named-twice").common_name, "jane");
}

/// `crypto/x509.CertificateRequest.CheckSignature` takes each hash with each curve.
#[test]
fn requests_of_every_curve_are_verified() {
    for name in ["ec-sha512", "p384-sha512", "p521", "p521-sha256"] {
        assert_eq!(request(name).common_name, "jane", "{name}");
        let (_, block) = x509_parser::pem::parse_x509_pem(pem(name).as_bytes()).unwrap();
        let mut forged = block.contents;
        let name_at = forged.windows(4).position(|text| text == b"jane").unwrap();
        forged[name_at] = b'd';
        let forged = base64::engine::general_purpose::STANDARD.encode(forged);
        let forged = format!("-----BEGIN CERTIFICATE REQUEST-----\n{forged}\n-----END CERTIFICATE REQUEST-----\n");
        assert_eq!(Request::parse(forged.as_bytes()), Err(Malformed::Signature), "{name}");
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let wrong = |pem: &[u8]| Request::parse(pem).unwrap_err().to_string();
    let block = "PEM block type must be CERTIFICATE REQUEST";
    assert_eq!(wrong(b""), block);
    assert_eq!(wrong(b"\xff\xfe"), block);
    assert_eq!(
        wrong(pem("jane").replace("CERTIFICATE REQUEST", "CERTIFICATE").as_bytes()),
        block
    );
    assert_eq!(
        wrong(pem("forged").as_bytes()),
        "x509: invalid signature: the request is not signed by its own key"
    );
    let short = "-----BEGIN CERTIFICATE REQUEST-----\nMIGv\n-----END CERTIFICATE REQUEST-----\n";
    assert!(wrong(short.as_bytes()).starts_with("asn1: structure error: "));
    let text = format!("said before\n{}", pem("jane"));
    assert!(Request::parse(text.as_bytes()).is_ok());
}

#[test]
fn signers_sign_what_they_are_for() {
    let client = "client auth,digital signature";
    let server = "digital signature,key encipherment,server auth";
    let organization = "subject organization is not system:nodes";
    for (signer, name, usages, expected) in [
        (NODE_CLIENT, "node", client, ""),
        (
            NODE_CLIENT,
            "node",
            "client auth,digital signature,key encipherment",
            "",
        ),
        (
            NODE_CLIENT,
            "node",
            "client auth",
            "usages did not match [client auth digital signature key encipherment]",
        ),
        (NODE_CLIENT, "jane", client, organization),
        (NODE_CLIENT, "serving", client, "DNS subjectAltNames are not allowed"),
        (NODE_SERVING, "serving", server, ""),
        (NODE_SERVING, "serving", "digital signature,server auth", ""),
        (NODE_SERVING, "node", server, "DNS or IP subjectAltName is required"),
        (
            NODE_SERVING,
            "serving-mail",
            server,
            "Email subjectAltNames are not allowed",
        ),
        (
            NODE_SERVING,
            "serving",
            client,
            "usages did not match [digital signature key encipherment server auth]",
        ),
        (NODE_SERVING, "rsa", server, organization),
        (CLIENT, "jane", "client auth", ""),
        (
            CLIENT,
            "jane",
            "client auth,server auth",
            "invalid usage for client certificate: server auth",
        ),
        (
            CLIENT,
            "jane",
            "digital signature",
            "missing required usage for client certificate: client auth",
        ),
        ("example.com/own", "jane", "any", ""),
    ] {
        let usages: Vec<String> = usages.split(',').map(str::to_owned).collect();
        let found = check(signer, &request(name), &usages).map_or_else(|unfit| unfit.to_string(), |()| String::new());
        assert_eq!(found, expected, "{signer} {name} {usages:?}");
    }
}

#[test]
fn new_requests_follow_the_rules() {
    for (patch, expected) in [
        (json!({"spec": {"usages": []}}), vec!["spec.usages: Required value"]),
        (
            json!({"spec": {"usages": ["client auth", "client auth"]}}),
            vec!["spec.usages[1]: Duplicate value: \"client auth\""],
        ),
        (
            json!({"spec": {"expirationSeconds": 599}}),
            vec![
                "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
            ],
        ),
        (
            json!({"spec": {"signerName": ""}}),
            vec!["spec.signerName: Required value"],
        ),
        (
            json!({"spec": {"signerName": "kubernetes.io/legacy-unknown"}}),
            vec![
                "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed via this API version",
            ],
        ),
        (
            json!({"spec": {"signerName": "example.com"}}),
            vec![
                "spec.signerName: Invalid value: \"example.com\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
            ],
        ),
        (
            json!({"spec": {"signerName": "example/a"}}),
            vec![
                "spec.signerName: Invalid value: \"example\": should be a domain with at least two segments separated by dots",
            ],
        ),
        (
            json!({"spec": {"request": "eA=="}}),
            vec!["spec.request: Invalid value: \"eA==\": PEM block type must be CERTIFICATE REQUEST"],
        ),
        (json!({"metadata": {"name": "system:node:A_b"}}), vec![]),
    ] {
        refused(GROUP, REQUESTS, &patch, &expected);
    }
}

#[test]
fn a_usage_must_be_known() {
    let row = find(GROUP, "v1", REQUESTS).unwrap();
    let mut value: Value = serde_json::from_slice(&fixture(row)).unwrap();
    value["spec"]["usages"] = json!(["flying"]);
    let object = row.decode(value.to_string().as_bytes()).unwrap();
    let found = row.validate(object.as_ref())[0].to_string();
    let beginning =
        "spec.usages[0]: Unsupported value: \"flying\": supported values: \"any\", \"cert sign\", \"client auth\", ";
    assert!(found.starts_with(beginning), "{found}");
}

/// Status after an update of a subresource, or its errors.
fn updated(part: &str, before: &Value, after: &Value) -> Result<Value, Vec<String>> {
    let row = find(GROUP, "v1", REQUESTS).unwrap();
    let with = |status: &Value| -> Box<dyn Object> {
        let mut value: Value = serde_json::from_slice(&fixture(row)).unwrap();
        value["status"] = status.clone();
        row.decode(value.to_string().as_bytes()).unwrap()
    };
    let (old, mut new) = (with(before), with(after));
    let errors = if part == "status" {
        row.prepare_status(new.as_mut(), old.as_ref());
        row.validate_status(new.as_ref(), old.as_ref(), &mut Vec::new())
    } else {
        row.prepare_own(new.as_mut(), old.as_ref());
        row.validate_own(new.as_ref(), old.as_ref())
    };
    if errors.is_empty() {
        let value: Value = serde_json::from_slice(&new.to_json()).unwrap();
        return Ok(value["status"].clone());
    }
    Err(errors.iter().map(ToString::to_string).collect())
}

fn condition(kind: &str, reason: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "lastTransitionTime": null, "lastUpdateTime": null})
}

#[test]
fn approvers_decide_once() {
    let (approved, denied) = (condition("Approved", "a"), condition("Denied", "d"));
    let set = json!({"conditions": [approved]});
    assert_eq!(updated("approval", &json!({}), &set), Ok(set.clone()));
    for (after, expected) in [
        (
            json!({}),
            "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\"",
        ),
        (
            json!({"conditions": [approved, denied]}),
            "status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive",
        ),
        (
            json!({"conditions": [approved, approved]}),
            "status.conditions[1].type: Duplicate value: \"Approved\"",
        ),
        (
            json!({"conditions": [{"type": "Approved", "status": "False"}]}),
            "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\"",
        ),
        (
            json!({"conditions": [approved, {"type": "Mine", "status": ""}]}),
            "status.conditions[1].status: Required value",
        ),
    ] {
        assert_eq!(
            updated("approval", &set, &after),
            Err(vec![expected.to_owned()]),
            "{after}"
        );
    }
    let certified = json!({"conditions": [approved], "certificate": "eA=="});
    assert_eq!(
        updated("approval", &json!({}), &certified),
        Ok(set),
        "an approver does not sign"
    );
}

#[test]
fn signers_sign_once_and_decide_nothing() {
    let (approved, other) = (condition("Approved", "a"), condition("Approved", "b"));
    let set = json!({"conditions": [approved]});
    let failed = json!({"conditions": [other, condition("Failed", "f")]});
    let kept = json!({"conditions": [approved, condition("Failed", "f")]});
    assert_eq!(
        updated("status", &set, &failed),
        Ok(kept),
        "decisions stay as they were"
    );
    for (before, after, expected) in [
        (
            json!({}),
            set.clone(),
            "status.conditions: Forbidden: updates may not add a condition of type \"Approved\"",
        ),
        (
            set.clone(),
            json!({}),
            "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\"",
        ),
        (
            json!({}),
            json!({"certificate": "eA=="}),
            "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block",
        ),
        (
            json!({"certificate": "eA=="}),
            json!({"certificate": "eQ=="}),
            "status.certificate: Forbidden: updates may not modify existing certificate content",
        ),
    ] {
        assert_eq!(
            updated("status", &before, &after),
            Err(vec![expected.to_owned()]),
            "{after}"
        );
    }
    let wrong = check_chain(pem("jane").as_bytes()).unwrap_err().to_string();
    assert_eq!(
        wrong,
        "only CERTIFICATE PEM blocks are allowed, found \"CERTIFICATE REQUEST\""
    );
}
