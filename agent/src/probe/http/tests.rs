use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::*;
use crate::probe::{Outcome, judge};

const LIMIT: Duration = Duration::from_secs(30);

fn target(scheme: &str, port: u16, path: &str, headers: &[(&str, &str)]) -> Target {
    let headers: Vec<Value> = headers
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let action = json!({"port": port, "scheme": scheme, "path": path, "httpHeaders": headers});
    let action: HTTPGetAction = serde_json::from_value(action).unwrap();
    Target::new(&action, "127.0.0.1".to_owned(), port, "kube-probe/1.36")
}

/// Serves the next of the answers on each connection, and records the requests. A connection is
/// closed after its answer, except for one that ends in `…`.
fn serve(answers: &[&str]) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
    let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for answer in answers.iter().cycle() {
            let (mut connection, _) = listener.accept().unwrap();
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") && connection.read(&mut byte).unwrap() > 0 {
                request.extend(byte);
            }
            seen.lock().unwrap().push(String::from_utf8(request).unwrap());
            // A client that has read enough closes the connection before the end.
            connection.write_all(answer.trim_end_matches('…').as_bytes()).ok();
            if answer.ends_with('…') {
                open.push(connection);
            }
        }
    });
    (port, asked)
}

/// Result of a probe for one answer.
async fn judged(answer: &str) -> String {
    let (port, _) = serve(&[answer]);
    let limit = if answer.ends_with('…') {
        Duration::from_secs(3)
    } else {
        LIMIT
    };
    let answer = attempt(&Pod::default(), &target("HTTP", port, "/x y", &[]), limit)
        .await
        .unwrap();
    match judge(answer) {
        Outcome::Success => "success".to_owned(),
        Outcome::Warning(text) => format!("warning: {text}"),
        Outcome::Failure(text) => format!("failure: {}", text.replace(&format!(":{port}/"), "/")),
        Outcome::Broken(text) => format!("broken: {text}"),
        Outcome::Error(_) | Outcome::Untried => panic!("it was asked"),
    }
}

/// Written by Go 1.27's client, configured as in `pkg/probe/http`.
#[tokio::test]
async fn requests_are_written_as_by_go() {
    let (port, asked) = serve(&["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]);
    let headers = [
        ("x-a", "1"),
        ("Accept", ""),
        ("user-agent", ""),
        ("host", "h.example"),
        ("X-A", " 2 "),
        ("Empty", ""),
        ("connection", "Keep-Alive"),
        ("content-length", "7"),
    ];
    for target in [
        target("HTTP", port, "/query?q=SHOW DATABASES", &headers),
        target("HTTP", port, "/a^b", &[]),
    ] {
        let answer = get(&Pod::default(), &target, LIMIT).await.unwrap();
        assert_eq!((answer.status, answer.body), (200, Ok(Vec::new())));
    }
    let wanted = [
        "GET /query?q=SHOW DATABASES HTTP/1.1\r\nHost: h.example\r\nConnection: Keep-Alive\r\nEmpty: \r\nX-A: 1\r\nX-A: 2\r\nConnection: close\r\n\r\n".to_owned(),
        format!("GET /a%5Eb HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n"),
    ];
    assert_eq!(*asked.lock().unwrap(), wanted);
    for (header, wanted) in [
        (("a", "x\ny"), "net/http: invalid header field value for \"A\""),
        (("a b", "x"), "net/http: invalid header field name \"a b\""),
    ] {
        let refused = get(&Pod::default(), &target("HTTP", port, "/", &[header]), LIMIT).await;
        assert_eq!(refused.map(|answer| answer.status).unwrap_err().because, wanted);
    }
}

#[tokio::test]
async fn answers_are_judged_as_by_the_kubelet() {
    const OK: &str = "HTTP/1.1 200 OK\r\n";
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n";
    const FOUND: &str = "HTTP/1.1 302 Found\r\n";
    let many = format!("{}Content-Length: 0\r\n\r\n", "A: b\r\n".repeat(1000));
    let large = format!("A: {}\r\nContent-Length: 0\r\n\r\n", "b".repeat(600 << 10));
    let cut_late = format!("Content-Length: 20000\r\n\r\n{}", "b".repeat(OUTPUT_BYTES + 1));
    let kept = format!(
        "warning: Probe terminated redirects, Response body: {}",
        "b".repeat(OUTPUT_BYTES)
    );
    let late = format!("broken: {LATE_BODY}");
    for (head, rest, wanted) in [
        (OK, "Content-Length: 3\r\n\r\nabc", "success"),
        ("HTTP/1.0 200 OK\r\n", "\r\nabc", "success"),
        (OK, "A : b\r\nContent-Length: 1\r\n\r\nx", "success"),
        (OK, &many, "success"),
        (OK, &large, "success"),
        (
            "HTTP/1.1 503 No\r\n",
            "\r\n",
            "failure: HTTP probe failed with statuscode: 503",
        ),
        (FOUND, "\r\na", "warning: Probe terminated redirects, Response body: a"),
        (FOUND, &cut_late, &kept),
        (OK, "Content-Length: 7\r\n\r\nabc", "broken: unexpected EOF"),
        (
            "HTTP/1.1 500 No\r\n",
            "Content-Length: 7\r\n\r\nabc",
            "broken: unexpected EOF",
        ),
        (CHUNKED, "\r\n3\r\nabc\r\n", "broken: unexpected EOF"),
        (CHUNKED, "\r\nzz\r\nabc", "broken: invalid byte in chunk length"),
        (
            CHUNKED,
            "\r\n3\r\nabcdef\r\n0\r\n\r\n",
            "broken: malformed chunked encoding",
        ),
        (OK, "Content-Length: 7\r\n\r\nabc…", &late),
        (
            FOUND,
            "Location: http://localhost:1/x\r\nContent-Length: 9\r\n\r\nabc",
            "broken: unexpected EOF",
        ),
    ] {
        assert_eq!(judged(&format!("{head}{rest}")).await, wanted, "{head}{rest:.300}");
    }
}

#[tokio::test]
async fn what_is_no_answer_is_told_in_the_words_of_go() {
    let redirect = |location: &str| format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n");
    let broken = "net/http: HTTP/1.x transport connection broken: malformed HTTP response";
    let refused = "dial tcp 127.0.0.1:1: connect: connection refused";
    let own = "http://127.0.0.1/x%20y";
    for (answer, url, why) in [
        ("…".to_owned(), own, LATE),
        (String::new(), own, "EOF"),
        ("nonsense\r\n\r\n".to_owned(), own, broken),
        (
            redirect("ftp://127.0.0.1/"),
            "ftp://127.0.0.1/",
            "unsupported protocol scheme \"ftp\"",
        ),
        (redirect("http://127.0.0.1:1/x"), "http://127.0.0.1:1/x", refused),
        (redirect("/y"), "/y", "stopped after 10 redirects"),
        (redirect("/%zz"), own, "failed to parse Location header \"/%zz\""),
    ] {
        let wanted = format!("failure: Get \"{url}\": {why}");
        assert_eq!(judged(&answer).await, wanted, "{answer}");
    }
}

#[tokio::test]
async fn redirects_are_followed_with_a_referer_and_the_same_headers() {
    let (port, asked) = serve(&[
        "HTTP/1.1 302 Found\r\nLocation: ../z?a\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ]);
    let headers = [("Host", "h.example"), ("Authorization", "s")];
    let answer = get(&Pod::default(), &target("HTTP", port, "/x/y?q", &headers), LIMIT)
        .await
        .unwrap();
    assert_eq!(answer.status, 204);
    let wanted = format!(
        "GET /z?a HTTP/1.1\r\nHost: h.example\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nAuthorization: s\r\nReferer: http://127.0.0.1:{port}/x/y?q\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(asked.lock().unwrap()[1], wanted);
}

#[tokio::test]
async fn a_server_that_speaks_http2_alone_is_asked_in_that() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = async move {
        let (connection, _) = listener.accept().await.unwrap();
        let stream = tokio_rustls::TlsAcceptor::from(Arc::new(config))
            .accept(connection)
            .await
            .unwrap();
        let service = hyper::service::service_fn(|request: http::Request<Incoming>| async move {
            let seen = format!("{} {:?}", request.uri(), request.headers().get("x-a"));
            Ok::<_, std::convert::Infallible>(Response::new(seen))
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.serve_connection(TokioIo::new(stream), service).await.ok();
    };
    let target = target("HTTPS", port, "/a?b=c d", &[("X-A", "1"), ("Connection", "x")]);
    let pod = Pod::default();
    let asking = get(&pod, &target, LIMIT);
    let (answer, ()) = tokio::join!(asking, serving);
    let body = String::from_utf8(answer.unwrap().body.unwrap()).unwrap();
    assert_eq!(body, format!("https://127.0.0.1:{port}/a?b=c%20d Some(\"1\")"));
}

#[test]
fn only_who_does_not_speak_tls_is_asked_without() {
    let headers = [("authorization", "x"), ("A", "b")];
    let (secure, plain) = (
        target("HTTPS", 8080, "/", &headers),
        target("HTTP", 8080, "/", &headers),
    );
    let error = |because: &str| secure.unanswered(because.to_owned());
    assert_eq!(secure.insecure(&error("connection refused")), None);
    assert_eq!(plain.insecure(&error(PLAIN)), None);
    let again = secure.insecure(&error(PLAIN)).expect("another try");
    assert_eq!(again.url.to_string(), "http://127.0.0.1:8080/");
    assert_eq!(again.authority(), "127.0.0.1:8080");
    let names: Vec<&str> = again.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["A", "Accept", "User-Agent"]);
}
