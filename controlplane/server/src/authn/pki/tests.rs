use std::os::unix::fs::PermissionsExt;

use x509_parser::prelude::{FromDer, X509Certificate};

use super::*;

fn now() -> Timestamp {
    Timestamp::from_second(1_790_000_000).unwrap()
}

fn later(days: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + days * 86_400).unwrap()
}

#[test]
fn a_client_certificate_says_who_its_holder_is() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(&directory.path().join("pki"), now()).unwrap();
    let made = pki
        .issue(&Profile::client("jane", &["system:masters", "ops"]), now())
        .unwrap();
    let (chain, _) = made.to_der().unwrap();
    let (user, until) = client(chain.first().unwrap()).unwrap();
    assert_eq!((user.name.as_str(), until), ("jane", later(365).as_second()));
    assert_eq!(user.groups, ["system:masters", "ops", "system:authenticated"]);
    let credential = &user.extra["authentication.kubernetes.io/credential-id"][0];
    assert!(
        credential.starts_with("X509SHA256=") && credential.len() == 75,
        "{credential}"
    );
    let three = pki.issue(&Profile::client("jane", &["a", "b", "c"]), now());
    assert!(matches!(three, Err(PkiError::Groups { count: 3 })));
}

#[test]
fn a_client_certificate_may_say_the_uid_of_its_holder() {
    let uid = rcgen::DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57_683, 2]);
    let said = |value: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
        params.distinguished_name.push(uid.clone(), value);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        client(made.der()).map(|(user, _)| user.uid)
    };
    assert_eq!(said("7f3a"), Some("7f3a".to_owned()));
    assert_eq!(said(""), None);
}

#[test]
fn certificates_are_kept_until_they_do_not_fit() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let names = |names: &[&str]| Profile::Server {
        common_name: "kube-apiserver".into(),
        organizations: Vec::new(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let first = pki
        .keep("apiserver", &names(&["localhost", "127.0.0.1", "::1"]), now())
        .unwrap()
        .certificate;
    let again = |pki: &Pki, profile: &Profile, at| pki.keep("apiserver", profile, at).unwrap().certificate;
    assert_eq!(
        again(&pki, &names(&["localhost", "127.0.0.1", "::1"]), later(300)),
        first
    );
    assert_eq!(
        again(&Pki::open(directory.path(), later(1)).unwrap(), &names(&["::1"]), now()),
        first
    );
    let renamed = again(&pki, &names(&["localhost", "10.0.0.1"]), now());
    assert_ne!(renamed, first, "a new name needs a new certificate");
    let renewed = again(&pki, &names(&["localhost", "10.0.0.1"]), later(310));
    assert_ne!(renewed, renamed, "less than sixty days were left");
    std::fs::remove_file(directory.path().join("ca.key")).unwrap();
    assert!(matches!(Pki::open(directory.path(), now()), Err(PkiError::Half { .. })));
    std::fs::remove_file(directory.path().join("ca.crt")).unwrap();
    let other = Pki::open(directory.path(), now()).unwrap();
    assert_ne!(
        again(&other, &names(&["localhost", "10.0.0.1"]), later(310)),
        renewed,
        "of another authority"
    );
}

#[test]
fn the_authority_goes_on_with_its_key_before_its_certificate_ends() {
    let directory = tempfile::tempdir().unwrap();
    let open = |days| {
        Pki::open(directory.path(), later(days))
            .unwrap()
            .renewed(later(days))
            .unwrap()
    };
    let (first, profile) = (open(0), Profile::client("jane", &[]));
    assert_eq!(open(3000).authority(), first.authority());
    let early = first.keep("admin", &profile, later(3000)).unwrap();
    let next = open(3100);
    assert_eq!(open(3101).authority(), next.authority(), "it is renewed once");
    assert_eq!(
        next.keep("admin", &profile, later(3100)).unwrap().certificate,
        early.certificate
    );
    let late = next.issue(&profile, later(3100)).unwrap();
    let ders = [first.authority_der().unwrap(), next.authority_der().unwrap()];
    for der in &ders {
        let (_, authority) = X509Certificate::from_der(der).unwrap();
        for leaf in [&early, &late] {
            let (chain, _) = leaf.to_der().unwrap();
            let (_, leaf) = X509Certificate::from_der(chain.first().unwrap()).unwrap();
            assert_eq!(leaf.verify_signature(Some(authority.public_key())), Ok(()));
            assert_eq!(leaf.issuer(), authority.subject());
        }
    }
    let ends = ders.map(|der| {
        X509Certificate::from_der(&der)
            .unwrap()
            .1
            .validity()
            .not_after
            .timestamp()
    });
    assert_eq!(ends, [later(3653).as_second(), later(3100 + 3653).as_second()]);
}

#[test]
fn a_first_start_that_was_broken_off_is_begun_again() {
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca.crt");
    Pki::open(directory.path(), now()).unwrap();
    std::fs::remove_file(&authority).unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    // Once it has signed something, its loss is for the operator to mend.
    pki.keep("admin", &Profile::client(ADMIN, &["system:masters"]), now())
        .unwrap();
    std::fs::remove_file(&authority).unwrap();
    assert!(matches!(Pki::open(directory.path(), now()), Err(PkiError::Half { .. })));
}

#[test]
fn attack_32_what_others_could_read_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let (pki, config) = (directory.path().join("pki"), directory.path().join("admin.kubeconfig"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    Pki::open(&pki, now())
        .unwrap()
        .admin_kubeconfig(&config, "https://127.0.0.1:6443", now())
        .unwrap();
    let secret = [pki.join("ca.key"), pki.join("admin.key"), config.clone()];
    for path in &secret {
        assert_eq!(mode(path), 0o600, "{}", path.display());
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
    }
    std::fs::set_permissions(&pki, PermissionsExt::from_mode(0o755)).unwrap();
    Pki::open(&pki, now())
        .unwrap()
        .admin_kubeconfig(&config, "https://127.0.0.1:6443", now())
        .unwrap();
    assert_eq!(mode(&pki), 0o700);
    assert!(secret.iter().all(|path| mode(path) == 0o600));
}

#[test]
fn what_others_ask_for_is_signed_for_its_usages() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap();
    let (jane, rsa) = (
        include_str!("../../../../api/tests/requests/jane.pem"),
        include_str!("../../../../api/tests/requests/rsa.pem"),
    );
    let sign = |pem: &str, usages: &[&str], seconds| {
        let usages: Vec<String> = usages.iter().map(|usage| (*usage).to_owned()).collect();
        let request = api::certificate::Request::parse(pem.as_bytes()).unwrap();
        let signed = pki.sign(&request, &usages, seconds, now()).unwrap();
        CertificateDer::from_pem_slice(signed.as_bytes()).unwrap()
    };
    let (authority, usual) = (pki.authority_der().unwrap(), ["client auth", "digital signature"]);
    let (_, authority) = X509Certificate::from_der(&authority).unwrap();
    let signed = sign(jane, &usual, None);
    let (user, until) = client(&signed).unwrap();
    assert_eq!((user.name.as_str(), until), ("jane", later(365).as_second() - 300));
    assert_eq!(user.groups, ["dev", "ops", "qa", "system:authenticated"]);
    let (rest, certificate) = X509Certificate::from_der(&signed).unwrap();
    assert!(rest.is_empty() && !certificate.is_ca());
    assert_eq!(certificate.verify_signature(Some(authority.public_key())), Ok(()));
    assert_eq!(certificate.issuer(), authority.subject());
    assert_eq!(
        certificate.subject().to_string(),
        "O=dev, O=ops, O=qa, OU=Team, CN=jane"
    );
    let usage = certificate.key_usage().unwrap().unwrap();
    assert!(usage.critical && usage.value.digital_signature() && !usage.value.key_encipherment());
    let extended = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.client_auth && !extended.server_auth);

    let signed = sign(rsa, &["server auth", "key encipherment", "decipher only"], Some(600));
    let (_, certificate) = X509Certificate::from_der(&signed).unwrap();
    let life = certificate.validity();
    let (from, until) = (life.not_before.timestamp(), life.not_after.timestamp());
    let start = now().as_second();
    assert_eq!(
        (from, until),
        (start - 300, start + 600),
        "a short life is not cut by the skew"
    );
    let usage = certificate.key_usage().unwrap().unwrap().value;
    assert!(usage.key_encipherment() && usage.decipher_only() && !usage.digital_signature());
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    assert_eq!((names.critical, names.value.general_names.len()), (false, 2));
    let (_, far) = client(&sign(jane, &usual, Some(i32::MAX))).unwrap();
    assert_eq!(far, later(365).as_second() - 300, "no longer than a year");
    let old = Timestamp::from_second(authority.validity().not_after.timestamp() - 86_400).unwrap();
    let request = api::certificate::Request::parse(jane.as_bytes()).unwrap();
    let last = pki.sign(&request, &[], None, old).unwrap();
    let (_, until) = client(&CertificateDer::from_pem_slice(last.as_bytes()).unwrap()).unwrap();
    assert_eq!(
        until,
        authority.validity().not_after.timestamp(),
        "nor than its authority"
    );
}
