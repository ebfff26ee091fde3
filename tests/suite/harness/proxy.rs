use jobwire_tests::wait::patience;
use jobwire_tests::{Direction, Flow, Proxy, eventually};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(60);
/// Long enough for the loopback to deliver bytes that are not held back.
const A_MOMENT: Duration = Duration::from_millis(100);

/// Starts a server that answers each byte with the same byte, behind a proxy.
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    Proxy::start(&address.to_string()).await
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address())
        .await
        .expect("the proxy accepts")
}

async fn say(stream: &mut TcpStream, byte: u8) {
    stream.write_u8(byte).await.expect("the connection is open");
}

async fn hear(stream: &mut TcpStream) -> std::io::Result<u8> {
    let heard = tokio::time::timeout(patience(SOON), stream.read_u8()).await;
    heard.expect("an answer in time")
}

async fn hear_nothing(stream: &mut TcpStream) {
    let heard = tokio::time::timeout(A_MOMENT, stream.read_u8()).await;
    heard.expect_err("silence");
}

#[tokio::test]
async fn bytes_pass_and_streams_end() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    let sent = vec![7; 1_000_000];
    let (mut from, mut to) = stream.split();
    let send = async {
        to.write_all(&sent).await?;
        to.shutdown().await
    };
    let mut heard = Vec::new();
    let (sending, hearing) = tokio::join!(send, from.read_to_end(&mut heard));
    assert!(sending.is_ok() && hearing.is_ok());
    assert!(heard == sent);
    eventually("the connection to be forgotten", SOON, async || {
        (proxy.connections() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stalled_connection_says_nothing_and_loses_nothing() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.set(direction, Flow::Stall);
        say(&mut stream, 1).await;
        hear_nothing(&mut stream).await;
        proxy.set(direction, Flow::Pass);
        assert_eq!(hear(&mut stream).await.ok(), Some(1));
    }
}

#[tokio::test]
async fn a_delay_holds_each_byte_and_not_the_line() {
    let proxy = echo().await;
    let delay = Duration::from_secs(2);
    proxy.set(Direction::ToClient, Flow::Delay(delay));
    let mut stream = connect(&proxy).await;
    let start = Instant::now();
    for byte in 0..60 {
        say(&mut stream, byte).await;
        tokio::task::yield_now().await;
    }
    for byte in 0..60 {
        assert_eq!(hear(&mut stream).await.ok(), Some(byte));
    }
    // One after the other they would take two minutes.
    let took = start.elapsed();
    assert!(took >= delay && took < SOON, "{took:?}");
}

#[tokio::test]
async fn a_cut_resets_what_is_open_even_if_stalled() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    say(&mut stream, 1).await;
    assert_eq!(hear(&mut stream).await.ok(), Some(1));
    proxy.set_both(Flow::Stall);
    proxy.cut();
    let error = hear(&mut stream).await.expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    proxy.set_both(Flow::Pass);
    let mut stream = connect(&proxy).await;
    say(&mut stream, 2).await;
    assert_eq!(hear(&mut stream).await.ok(), Some(2));
}

#[tokio::test]
async fn a_refusal_spares_open_connections() {
    let proxy = echo().await;
    let mut open = connect(&proxy).await;
    say(&mut open, 1).await;
    assert_eq!(hear(&mut open).await.ok(), Some(1));
    proxy.refuse().await;
    let error = TcpStream::connect(proxy.address())
        .await
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    say(&mut open, 2).await;
    assert_eq!(hear(&mut open).await.ok(), Some(2));
    proxy.accept().await;
    let mut stream = connect(&proxy).await;
    say(&mut stream, 3).await;
    assert_eq!(hear(&mut stream).await.ok(), Some(3));
}

#[tokio::test]
async fn a_url_leads_through_the_proxy() {
    let proxy = echo().await;
    let port = proxy.address().port();
    assert_eq!(
        proxy.url("amqp://a:b@localhost:5672/%2F?heartbeat=1"),
        format!("amqp://a:b@127.0.0.1:{port}/%2F?heartbeat=1")
    );
}

#[tokio::test]
async fn a_forgotten_connection_says_nothing_for_ever_and_a_new_one_is_served() {
    let proxy = echo().await;
    let mut forgotten = connect(&proxy).await;
    say(&mut forgotten, 1).await;
    assert_eq!(hear(&mut forgotten).await.ok(), Some(1));
    proxy.forget();
    say(&mut forgotten, 2).await;
    hear_nothing(&mut forgotten).await;
    let mut stream = connect(&proxy).await;
    say(&mut stream, 3).await;
    assert_eq!(hear(&mut stream).await.ok(), Some(3));
    hear_nothing(&mut forgotten).await;
}

#[tokio::test]
async fn a_new_connection_leads_to_the_other_server() {
    let proxy = echo().await;
    let mut open = connect(&proxy).await;
    say(&mut open, 7).await;
    assert_eq!(hear(&mut open).await.ok(), Some(7));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let _ = stream.write_u8(9).await;
        let _ = stream.read_u8().await;
    });
    proxy.lead_to(&address.to_string());
    let mut stream = connect(&proxy).await;
    assert_eq!(hear(&mut stream).await.expect("an answer"), 9);
    say(&mut open, 1).await;
    assert_eq!(hear(&mut open).await.ok(), Some(1));
}
