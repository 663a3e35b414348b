//! HTTP of daemons: a server that limits what its clients can hold open, and requests to it.
//!
//! A client that sends its request slowly would otherwise keep a descriptor of the daemon, and a few hundred of them all.
//! Nor do such clients keep others out: at the limit, the connection that has been idle longest makes room.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use hyper1::server::conn::http1;
use hyper1::service::{Service as _, service_fn};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// What clients of a server may hold open.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Connections at once. A further one closes the one that has been idle longest; while none is idle, it waits.
    pub connections: usize,
    /// Time for the head of a request. A connection serves one request.
    pub head: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits { connections: 64, head: Duration::from_secs(5) }
    }
}

/// Where a server listens.
#[derive(Debug)]
pub enum HttpListener {
    /// On an address.
    Tcp(TcpListener),
    /// On a path of this machine.
    Unix(UnixListener),
}

/// A connection of either kind.
trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

impl HttpListener {
    async fn accept(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            HttpListener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                if let Err(error) = keep_alive(&stream) {
                    debug!(%error, "a connection whose client vanishes is not noticed");
                }
                Box::new(stream)
            }
            HttpListener::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Idle time after which the kernel asks whether the client is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Pause between two such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered questions after which the connection ends.
const KEEPALIVE_PROBES: u32 = 3;

/// Time for which a client may take nothing of what is sent to it. Whoever pages through a log takes nothing for a while.
const STALLED: Duration = Duration::from_secs(300);

/// Makes the kernel end a connection whose client has vanished: after a minute if nothing is sent, as to one that follows
/// a quiet log, else after [`STALLED`]. It would hold its connection without end, or for a quarter of an hour.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    let stalled = u32::try_from(STALLED.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, stalled)?;
    Ok(())
}

/// What a connection is idle for. Those of the first are closed before those of the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum IdleFor {
    /// The head of the request has not come.
    Head,
    /// The client does not take what is sent to it.
    Receipt,
}

/// The idle connections of a server: what for, and the ordinal number of when they became idle.
#[derive(Debug, Clone, Default)]
struct IdleConnections(Arc<IdleState>);

#[derive(Debug, Default)]
struct IdleState {
    connections: Mutex<IdleList>,
    added: Notify,
}

#[derive(Debug, Default)]
struct IdleList {
    last: u64,
    by_age: BTreeMap<(IdleFor, u64), CancellationToken>,
}

impl IdleConnections {
    /// Notes a connection, which ends with `closed`, until the guard is dropped.
    fn add(&self, why: IdleFor, closed: &CancellationToken) -> IdleGuard {
        let mut idle = self.0.connections.lock().unwrap_or_else(PoisonError::into_inner);
        idle.last += 1;
        let place = (why, idle.last);
        idle.by_age.insert(place, closed.clone());
        self.0.added.notify_one();
        IdleGuard { idle: self.clone(), place }
    }

    /// Closes the connection that has been idle longest. Returns whether there was one.
    fn close_one(&self) -> bool {
        let mut idle = self.0.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = idle.by_age.pop_first();
        oldest.inspect(|(_, closed)| closed.cancel()).is_some()
    }

    /// A place of `places`. If none is free, the connection that has been idle longest makes room, or the first that becomes
    /// idle.
    async fn place(&self, places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let mut is_closed = places.available_permits() > 0;
        loop {
            is_closed = is_closed || self.close_one();
            tokio::select! {
                biased;
                place = places.clone().acquire_owned() => return place.ok(),
                () = self.0.added.notified() => {}
            }
        }
    }
}

/// A connection is idle while it lives.
#[derive(Debug)]
struct IdleGuard {
    idle: IdleConnections,
    place: (IdleFor, u64),
}

impl Drop for IdleGuard {
    fn drop(&mut self) {
        let mut idle = self.idle.0.connections.lock().unwrap_or_else(PoisonError::into_inner);
        idle.by_age.remove(&self.place);
    }
}

/// A connection whose writes fail when the client takes nothing for [`STALLED`].
struct Progressing {
    stream: Box<dyn Connection>,
    /// When the write that waits fails.
    limit: Option<(Pin<Box<Sleep>>, IdleGuard)>,
    idle: IdleConnections,
    closed: CancellationToken,
}

impl Progressing {
    fn limited<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.limit = None;
            return done;
        }
        let Progressing { limit, idle, closed, .. } = self;
        let (limit, _) = limit
            .get_or_insert_with(|| (Box::pin(sleep(STALLED)), idle.add(IdleFor::Receipt, closed)));
        limit.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Progressing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Progressing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limited(cx, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(cx);
        self.limited(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.limited(cx, done)
    }
}

/// Serves until `shutdown`, which also closes the connections.
pub async fn serve(
    listener: HttpListener,
    app: Router,
    limits: HttpLimits,
    shutdown: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let idle = IdleConnections::default();
    let mut open = JoinSet::new();
    loop {
        let accepted = async {
            let stream = listener.accept().await?;
            Ok::<_, io::Error>((stream, idle.place(&places).await))
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            accepted = accepted => match accepted {
                Ok((stream, place)) => {
                    let (app, idle) = (app.clone(), idle.clone());
                    open.spawn(async move {
                        connection(stream, app, limits, idle).await;
                        drop(place);
                    });
                    while open.try_join_next().is_some() {}
                }
                Err(error) => {
                    warn!(%error, "a connection cannot be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

async fn connection(
    stream: Box<dyn Connection>,
    app: Router,
    limits: HttpLimits,
    idle: IdleConnections,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head).keep_alive(false);
    let closed = CancellationToken::new();
    let waits = Mutex::new(Some(idle.add(IdleFor::Head, &closed)));
    let app = TowerToHyperService::new(app);
    let answer = service_fn(move |request| {
        waits.lock().unwrap_or_else(PoisonError::into_inner).take();
        app.call(request)
    });
    let stream = Progressing { stream, limit: None, idle, closed: closed.clone() };
    tokio::select! {
        biased;
        () = closed.cancelled() => debug!("an idle connection makes room for another one"),
        served = http.serve_connection(TokioIo::new(stream), answer) => {
            if let Err(error) = served {
                debug!(%error, "connection ended");
            }
        }
    }
}

/// Time that a client gives a daemon to accept its connection, and again to send the head of its answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Sends `GET path` over a connection. It follows no redirect.
///
/// # Errors
/// The path or token is none, the connection broke, or the head of the answer took longer than [`ANSWER_LIMIT`].
pub async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    path: &str,
    token: Option<&str>,
) -> io::Result<Response<Body>> {
    let mut request = Request::get(path).header(header::HOST, host);
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::empty()).map_err(io::Error::other)?;
    let answered = within_limit(async {
        let handshake = hyper1::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(io::Error::other)
    });
    Ok(answered.await?.map(Body::new))
}

/// The result of a step of a request; an error of the kind `TimedOut` after [`ANSWER_LIMIT`].
///
/// # Errors
/// That of the step, or that it took too long.
pub async fn within_limit<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late =
        |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {ANSWER_LIMIT:?}"));
    timeout(ANSWER_LIMIT, step).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use axum::routing::get as on_get;
    use rcfarm_store::time::monotonic;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn vanished_client_is_noticed_within_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.unwrap();
        keep_alive(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let idle = sockopt::tcp_keepidle(&stream).unwrap();
        let probes = sockopt::tcp_keepcnt(&stream).unwrap();
        let noticed = idle + sockopt::tcp_keepintvl(&stream).unwrap() * probes;
        assert_eq!(noticed, Duration::from_secs(60));
        // Probes are not sent while output waits for its receipt.
        let stalled = sockopt::tcp_user_timeout(&stream).unwrap();
        assert_eq!(u128::from(stalled), STALLED.as_millis());
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_takes_nothing_loses_its_connection() {
        let (mut client, server) = tokio::io::duplex(1_024);
        let app = Router::new().route("/", on_get(|| async { vec![b'x'; 100_000] }));
        let limits = HttpLimits::default();
        let served = connection(Box::new(server), app, limits, IdleConnections::default());
        let asked_at = monotonic();
        let asked = async {
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut head = [0; 12];
            client.read_exact(&mut head).await.unwrap();
            assert_eq!(&head, b"HTTP/1.1 200");
            // It is there, and takes no more.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = asked => unreachable!("the client never ends"),
            () = served => assert!(monotonic() - asked_at >= STALLED, "closed too early"),
        }
    }

    /// A server with `limits` that answers `ok` at `/`, and 1 GB at `/large`.
    async fn server(limits: HttpLimits) -> (std::net::SocketAddr, tokio_util::sync::DropGuard) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let large = || async {
            let block = axum::body::Bytes::from_static(&[b'x'; 1 << 20]);
            let blocks = futures_util::stream::iter(std::iter::repeat_n(block, 1_024));
            Body::from_stream(futures_util::StreamExt::map(blocks, Ok::<_, io::Error>))
        };
        let app =
            Router::new().route("/", on_get(|| async { "ok" })).route("/large", on_get(large));
        let shutdown = CancellationToken::new();
        tokio::spawn(serve(HttpListener::Tcp(listener), app, limits, shutdown.clone()));
        (address, shutdown.drop_guard())
    }

    /// Connections that have sent this, and read nothing.
    async fn idle(address: std::net::SocketAddr, count: usize, sent: &[u8]) -> Vec<TcpStream> {
        let mut streams = Vec::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent).await.unwrap();
            streams.push(stream);
        }
        streams
    }

    const HALF: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ";

    #[tokio::test]
    async fn half_open_requests_are_closed_in_time() {
        let limits = HttpLimits { connections: 8, head: Duration::from_millis(200) };
        let (address, _server) = server(limits).await;
        for mut stream in idle(address, 2, HALF).await {
            let mut answer = Vec::new();
            // Closed without an answer, or with 408.
            let _ = stream.read_to_end(&mut answer).await;
            assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
        }
    }

    /// However many there are and however long they may take: nothing here waits for a limit of time.
    #[tokio::test]
    async fn idle_connections_make_room_for_others() {
        let limits = HttpLimits { connections: 4, head: Duration::from_secs(100_000) };
        let (address, _server) = server(limits).await;
        let mut kept = Vec::new();
        for sent in [HALF, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", b""] {
            kept.extend(idle(address, 16, sent).await);
            let stream = TcpStream::connect(address).await.unwrap();
            let answer = get(stream, "x", "/", None).await.unwrap();
            assert_eq!(answer.status(), 200, "beside {:?}", String::from_utf8_lossy(sent));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_never_answers_is_given_up() {
        let (client, _server) = tokio::io::duplex(1_024);
        let error = get(client, "x", "/", None).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}
