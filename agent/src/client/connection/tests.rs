use http_body_util::{BodyExt as _, StreamBody};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use rustls::pki_types::PrivateKeyDer;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;

async fn listen() -> (TcpListener, Uri) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    (listener, uri)
}

fn client(uris: &[Uri]) -> kube::Client {
    open(kube::Config::new(uris[0].clone()), &Servers::new(uris)).unwrap()
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

/// Reads the head of a request.
async fn request(connection: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(connection.read_u8().await.unwrap());
    }
    String::from_utf8(request).unwrap()
}

/// Reads a request of the next connection, and answers it with this.
async fn answer(listener: &TcpListener, text: &str) -> TcpStream {
    let (mut connection, _) = listener.accept().await.unwrap();
    request(&mut connection).await;
    connection.write_all(text.as_bytes()).await.unwrap();
    connection
}

const WHOLE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
const BEGUN: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n";

#[tokio::test]
async fn the_next_server_is_asked_and_watches_begin_again_when_one_is_gone() {
    let ((first, one), (second, other)) = (listen().await, listen().await);
    let client = client(&[one, other]);
    let (begun, _connection) = tokio::join!(client.send(get("/watch")), answer(&first, BEGUN));
    let mut watch = begun.unwrap().into_body();
    watch.frame().await.unwrap().unwrap();
    drop(first);
    for _ in 0..2 {
        let (asked, _) = tokio::join!(client.send(get("/")), answer(&second, WHOLE));
        assert_eq!(asked.unwrap().into_body().collect().await.unwrap().to_bytes(), "{}");
    }
    assert!(watch.frame().await.unwrap().is_err(), "the watch of the first one ends");
}

#[tokio::test]
async fn a_connection_that_nothing_uses_is_closed() {
    let (listener, uri) = listen().await;
    let client = client(&[uri]);
    let kept = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let (asked, mut connection) = tokio::join!(client.send(get("/")), answer(&listener, kept));
    asked.unwrap().into_body().collect().await.unwrap();
    tokio::time::pause();
    let ended = tokio::time::timeout(UNUSED * 3, connection.read_u8()).await;
    assert!(ended.expect("it ends").is_err());
}

#[tokio::test]
async fn a_server_that_has_lost_its_store_is_left() {
    let ((first, one), (second, other)) = (listen().await, listen().await);
    let client = client(&[one, other]);
    let lost = "HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let (asked, ..) = tokio::join!(client.send(get("/")), answer(&first, lost), answer(&second, WHOLE));
    assert_eq!(asked.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn the_kubeconfigs_proxy_leads_to_the_server() {
    let (proxy, at) = listen().await;
    let mut configuration = kube::Config::new("http://192.0.2.1:6443".parse().unwrap());
    configuration.proxy_url = Some(at);
    let client = open(configuration, &Servers::new(&[])).unwrap();
    let led = async {
        let (mut connection, _) = proxy.accept().await.unwrap();
        let asked = request(&mut connection).await;
        assert!(asked.starts_with("CONNECT 192.0.2.1:6443 HTTP/1.1\r\n"), "{asked}");
        connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        request(&mut connection).await;
        connection.write_all(WHOLE.as_bytes()).await.unwrap();
        connection
    };
    let (asked, _connection) = tokio::join!(client.send(get("/")), led);
    assert_eq!(asked.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_request_fails_once_no_server_is_there_and_goes_on_when_one_is() {
    // Ports that nobody else gets, and at which nobody listens yet.
    let [first, second] = [(); 2].map(|()| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket
    });
    let uris: [Uri; 2] = [&first, &second].map(|socket| {
        let uri = format!("http://{}", socket.local_addr().unwrap());
        uri.parse().unwrap()
    });
    let client = client(&uris);
    client.send(get("/")).await.unwrap_err();
    let first = first.listen(1).unwrap();
    let (asked, _) = tokio::join!(client.send(get("/")), answer(&first, WHOLE));
    asked.unwrap();
}

#[tokio::test]
async fn a_connection_whose_packets_vanish_ends_soon() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let uri = format!("https://{address}/").parse().unwrap();
    let stream = connector().oneshot(uri).await.unwrap().into_inner();
    let socket = SockRef::from(&stream);
    assert!(stream.nodelay().unwrap(), "HTTP/2 writes small frames");
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(SILENCE));
    assert!(
        socket.keepalive().unwrap(),
        "what waits for news is asked for a sign of life"
    );
    assert_eq!(socket.tcp_keepalive_time().unwrap(), IDLE);
    assert_eq!(socket.tcp_keepalive_interval().unwrap(), PROBE);
}

/// Serves HTTP/2 over TLS to this number of connections: answers begin with 64 KiB and never end.
async fn serve_watches(listener: TcpListener, connections: usize) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let builder = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let mut served = JoinSet::new();
    for _ in 0..connections {
        let (connection, _) = listener.accept().await.unwrap();
        connection.set_nodelay(true).unwrap();
        let stream = acceptor.accept(connection).await.unwrap();
        served.spawn(async move {
            let service = hyper::service::service_fn(async |_| {
                let begun = Frame::data(Bytes::from(vec![b' '; 64 << 10]));
                let begun = futures::stream::once(async { Ok::<_, io::Error>(begun) });
                let watch = futures::StreamExt::chain(begun, futures::stream::pending());
                Ok::<_, io::Error>(Response::new(StreamBody::new(watch)))
            });
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http2().max_concurrent_streams(100);
            builder.serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
    // A connection more is not accepted.
    drop(listener);
    served.join_all().await;
}

#[tokio::test]
async fn watches_share_a_connection_up_to_the_servers_limit_and_then_use_another() {
    let (listener, uri) = listen().await;
    let uri = uri.to_string().replace("http:", "https:").parse().unwrap();
    let mut configuration = kube::Config::new(uri);
    configuration.accept_invalid_certs = true;
    let client = open(configuration, &Servers::new(&[])).unwrap();
    let watching = async {
        let mut watches = Vec::new();
        for number in 1..=STREAMS * 2 {
            let watch = tokio::time::timeout(SILENCE, client.send(get("/watch"))).await;
            watches.push(watch.unwrap_or_else(|_| panic!("watch {number} waits")).unwrap());
        }
        // It is told although nobody reads the others.
        let last = watches.last_mut().unwrap().body_mut().frame();
        let told = tokio::time::timeout(SILENCE, last).await;
        told.expect("the last watch is not held up").unwrap().unwrap();
    };
    tokio::select! {
        () = watching => {}
        () = serve_watches(listener, 2) => panic!("the connections ended"),
    }
}

#[tokio::test]
async fn a_watch_that_is_silent_for_long_ends_though_others_use_its_connection() {
    let (listener, uri) = listen().await;
    let uri = uri.to_string().replace("http:", "https:").parse().unwrap();
    let mut configuration = kube::Config::new(uri);
    configuration.accept_invalid_certs = true;
    configuration.read_timeout = Some(Duration::from_secs(1));
    let client = open(configuration, &Servers::new(&[])).unwrap();
    let watching = async {
        let mut watch = client.send(get("/watch")).await.unwrap().into_body();
        let ends = async { while watch.frame().await.unwrap().is_ok() {} };
        let others = async {
            loop {
                let mut other = client.send(get("/")).await.unwrap().into_body();
                other.frame().await.unwrap().unwrap();
            }
        };
        tokio::select! {
            ended = tokio::time::timeout(SILENCE, ends) => ended.expect("it ends"),
            () = others => {}
        }
    };
    tokio::select! {
        () = watching => {}
        () = serve_watches(listener, 1) => panic!("the connection ended"),
    }
}
