//! The HTTP client: one `reqwest` client for raw requests and for consulrs.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::engine::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use consulrs::api::{ApiResponse, EndpointMiddleware, Features};
use consulrs::client::ConsulClientSettings;
use consulrs::error::ClientError;
use hyper::client::connect::dns::Name;
use reqwest::dns::{Addrs, Resolve, Resolving};
use reqwest::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Identity, Method, RequestBuilder, Url};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::config::{ConfigError, ConsulConfig};
use super::error::{
    DENIED, Refused, RequestContext, Route, deepest_cause, from_consulrs, transport, undecodable,
};
use super::registered::Registered;
use super::token::RequestToken;
use super::wire::Scope;
use rcfarm_store::{Index, StoreError};

/// Header of the ACL token.
const TOKEN: HeaderName = HeaderName::from_static("x-consul-token");

/// Time-out of an answer. Longer than the 7 s for which a server without a leader holds a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
const DEFAULT_MAX_REQUESTS: usize = 8;
/// Idle connections that are kept. They count against the agent's limit too.
const IDLE_CONNECTIONS: usize = 10;
const IDLE_FOR: Duration = Duration::from_secs(10);

/// Kind of a request: how it is counted, and whether it waits for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    BlockingRead,
    Write,
    Transaction,
    Session,
    Heartbeat,
    Agent,
}

impl Call {
    const NAMES: [(Call, &'static str); 7] = [
        (Call::Read, "read"),
        (Call::BlockingRead, "blocking_read"),
        (Call::Write, "write"),
        (Call::Transaction, "transaction"),
        (Call::Session, "session"),
        (Call::Heartbeat, "heartbeat"),
        (Call::Agent, "agent"),
    ];

    /// Whether the request waits for one of [`ConsulConfig::max_requests`] slots. Blocking reads are few; a late
    /// heartbeat or renewal would end the session.
    fn needs_slot(self) -> bool {
        matches!(self, Call::Read | Call::Write | Call::Transaction)
    }
}

/// Client of a Consul agent; implements [`rcfarm_store::Store`].
pub struct Consul {
    http: reqwest::Client,
    address: String,
    base: Url,
    consulrs: Consulrs,
    pub(super) token: Arc<RequestToken>,
    pub(super) registered: Registered,
    permits: Semaphore,
    counts: [AtomicU64; Call::NAMES.len()],
    pub(super) datacenter: Option<String>,
    pub(super) scope: Scope,
    pub(super) stale: bool,
}

/// An answer, whatever its status.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) index: Option<Index>,
    pub(super) filtered: bool,
    pub(super) body: Bytes,
}

impl Reply {
    /// The error of an answer that is no success.
    pub(super) fn error(&self, asked: &RequestContext<'_>) -> StoreError {
        Refused::new(self.status, &self.body).error(asked)
    }

    /// The index to wait on next. An answer without one is not Consul's: a proxy's 404 must not count as an empty tree.
    pub(super) fn index(&self, asked: &RequestContext<'_>) -> Result<Index, StoreError> {
        self.index.ok_or_else(|| undecodable(asked, &"the answer has no X-Consul-Index"))
    }

    /// Whether the token lacks rights, or is none.
    pub(super) fn is_denied(&self) -> bool {
        self.status == 403
            || (self.status == 500 && says_denied(&String::from_utf8_lossy(&self.body)))
    }

    pub(super) fn json<T: serde::de::DeserializeOwned>(
        &self,
        asked: &RequestContext<'_>,
    ) -> Result<T, StoreError> {
        serde_json::from_slice(&self.body).map_err(|error| undecodable(asked, &error))
    }
}

impl std::fmt::Debug for Consul {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consul").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Consul {
    /// Creates a client. Reads the token and certificate files, and sends no request.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting that cannot be used.
    pub fn new(config: &ConsulConfig) -> Result<Consul, ConfigError> {
        Self::with_token(config, Arc::new(RequestToken::read(config)?))
    }

    /// Another client with the same settings: it has connections of its own, and the same token at any time.
    ///
    /// # Errors
    /// As [`Consul::new`].
    pub fn another(&self, config: &ConsulConfig) -> Result<Consul, ConfigError> {
        Self::with_token(config, self.token.clone())
    }

    fn with_token(config: &ConsulConfig, token: Arc<RequestToken>) -> Result<Consul, ConfigError> {
        let mut url = config.url()?;
        let address = url.to_string();
        let mut headers = headers(config)?;
        let mut builder = reqwest::Client::builder();
        if url.scheme() == "https" {
            builder = tls(builder, config)?;
            if let Some(name) = config.server_name()? {
                builder = under_another_name(builder, &mut headers, &mut url, name)?;
            }
        } else {
            // Without TLS, the system's certificates are not read.
            builder = builder.use_rustls_tls().tls_built_in_root_certs(false);
        }
        let http = builder
            .default_headers(headers)
            .user_agent(concat!("rcfarm/", env!("CARGO_PKG_VERSION")))
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .pool_idle_timeout(IDLE_FOR)
            .build()
            .map_err(|error| ConfigError::Client(deepest_cause(&error)))?;
        let datacenter = config.datacenter.clone();
        Ok(Consul {
            consulrs: Consulrs::new(http.clone(), &url, datacenter.as_deref(), token.clone()),
            token,
            registered: Registered::default(),
            http,
            address,
            base: url,
            permits: Semaphore::new(config.max_requests.unwrap_or(DEFAULT_MAX_REQUESTS).max(1)),
            counts: Default::default(),
            datacenter,
            scope: Scope {
                namespace: config.namespace.clone(),
                partition: config.partition.clone(),
            },
            stale: config.stale.unwrap_or(false),
        })
    }

    /// Base URL of all requests, such as `http://127.0.0.1:8500/`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Number of requests since the start, by kind: `read`, `blocking_read`, `write`, `transaction`, `session`,
    /// `heartbeat`, `agent`.
    pub fn requests(&self) -> BTreeMap<&'static str, u64> {
        let counts = Call::NAMES.iter().zip(&self.counts);
        counts.map(|((_, name), count)| (*name, count.load(Ordering::Relaxed))).collect()
    }

    /// The URL of `/v1/<path>` with the configured datacenter.
    pub(super) fn url<'s>(&self, path: impl IntoIterator<Item = &'s str>) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        if let Some(datacenter) = &self.datacenter {
            url.query_pairs_mut().append_pair("dc", datacenter);
        }
        url
    }

    pub(super) fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url)
    }

    /// Sends a raw request. `waits` is the wait of a blocking query; it extends the time-out.
    pub(super) async fn send(
        &self,
        call: Call,
        request: RequestBuilder,
        waits: Duration,
    ) -> Result<Reply, StoreError> {
        let _permit = self.permit(call).await;
        self.exchange(call, request, waits, &|| true).await
    }

    /// Sends a raw request that has its permit. A refused one is sent again if the token has been replaced and
    /// `may_repeat` returns `true` right before that; else the refusal is returned.
    pub(super) async fn exchange(
        &self,
        call: Call,
        request: RequestBuilder,
        waits: Duration,
        may_repeat: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Reply, StoreError> {
        let again = request.try_clone();
        let token = self.token.current();
        let reply = self.attempt(call, request, token.clone(), waits).await?;
        match again {
            Some(again)
                if reply.is_denied() && self.token.differs_from(token.as_ref()) && may_repeat() =>
            {
                self.attempt(call, again, self.token.current(), waits).await
            }
            _ => Ok(reply),
        }
    }

    async fn attempt(
        &self,
        call: Call,
        mut request: RequestBuilder,
        token: Option<HeaderValue>,
        waits: Duration,
    ) -> Result<Reply, StoreError> {
        self.count(call);
        if let Some(token) = token {
            request = request.header(TOKEN, token);
        }
        let limit = ANSWER_WITHIN + waits + waits / 16;
        let route = Route { address: &self.address, limit };
        let broken = |error: reqwest::Error| transport(&error, route);
        let response = request.timeout(limit).send().await.map_err(broken)?;
        let headers = response.headers();
        let index = headers.get("x-consul-index").and_then(|v| v.to_str().ok()?.parse().ok());
        let filtered = headers
            .get("x-consul-results-filtered-by-acls")
            .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"true"));
        let status = response.status().as_u16();
        let body = response.bytes().await.map_err(broken)?;
        Ok(Reply { status, index: index.map(Index), filtered, body })
    }

    /// Sends a request through consulrs. `call_with` builds it from consulrs's client. A refused one is sent again if
    /// the token has been replaced.
    pub(super) async fn through_consulrs<'c, T, F>(
        &'c self,
        call: Call,
        asked: &RequestContext<'_>,
        call_with: impl Fn(&'c Consulrs) -> F + Send,
    ) -> Result<Result<T, Refused>, StoreError>
    where
        T: Send,
        F: Future<Output = Result<ApiResponse<T>, ClientError>> + Send,
    {
        let _permit = self.permit(call).await;
        let token = self.token.current();
        let answer = self.attempt_consulrs(call, asked, call_with(&self.consulrs)).await?;
        let is_denied = answer.as_ref().is_err_and(|r| r.status == 403 || says_denied(&r.body));
        if is_denied && self.token.differs_from(token.as_ref()) {
            return self.attempt_consulrs(call, asked, call_with(&self.consulrs)).await;
        }
        Ok(answer)
    }

    async fn attempt_consulrs<T>(
        &self,
        call: Call,
        asked: &RequestContext<'_>,
        request: impl Future<Output = Result<ApiResponse<T>, ClientError>> + Send,
    ) -> Result<Result<T, Refused>, StoreError> {
        self.count(call);
        match request.await {
            Ok(answer) => Ok(Ok(answer.response)),
            Err(error) => {
                let route = Route { address: &self.address, limit: ANSWER_WITHIN };
                from_consulrs(error, route, asked).map(Err)
            }
        }
    }

    /// Waits for a permit, if the call needs one.
    pub(super) async fn permit(&self, call: Call) -> Option<SemaphorePermit<'_>> {
        if call.needs_slot() { self.permits.acquire().await.ok() } else { None }
    }

    fn count(&self, call: Call) {
        if let Some(at) = Call::NAMES.iter().position(|(named, _)| *named == call) {
            self.counts[at].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn says_denied(body: &str) -> bool {
    DENIED.iter().any(|text| body.contains(text))
}

/// `id` as a path segment for consulrs. Ids that need escaping are refused, because consulrs would escape them twice.
pub(super) fn plain(id: &str, asked: &RequestContext<'_>) -> Result<String, StoreError> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_-.,:~".contains(&b);
    if !id.is_empty() && id.bytes().all(fits) && id.bytes().any(|b| b != b'.') {
        return Ok(id.to_owned());
    }
    let body = format!("not sent: {asked}: ids have letters, digits and _ - . , : ~ only");
    Err(StoreError::Rejected { status: 400, body })
}

/// The `reqwest` client in the form that consulrs requires.
pub(super) struct Consulrs {
    http: rustify::Client,
    settings: ConsulClientSettings,
    /// Consulrs puts its version in front of the address's path. So the first segment of the base path is passed as the
    /// version, and the rest as the address.
    version: String,
    token: Arc<RequestToken>,
}

impl Consulrs {
    fn new(
        http: reqwest::Client,
        base: &Url,
        datacenter: Option<&str>,
        token: Arc<RequestToken>,
    ) -> Self {
        let mut front: Vec<&str> =
            base.path_segments().into_iter().flatten().filter(|s| !s.is_empty()).collect();
        front.push("v1");
        let version = front.remove(0).to_owned();
        let mut address = base.clone();
        address.set_path(&front.join("/"));
        // An endpoint with query parameters of its own, `dc` among them, replaces these. The one that creates a session
        // has none and keeps them.
        if let Some(datacenter) = datacenter {
            address.query_pairs_mut().append_pair("dc", datacenter);
        }
        // Required by the trait. The `reqwest` client has these settings itself.
        let settings = ConsulClientSettings {
            address: address.to_string(),
            ca_certs: Vec::new(),
            client_cert: None,
            client_key: None,
            token: None,
            verify: true,
            version: 1,
        };
        Consulrs { http: rustify::Client::new(address.as_str(), http), settings, version, token }
    }
}

impl consulrs::client::Client for Consulrs {
    fn http(&self) -> &rustify::Client {
        &self.http
    }

    fn middle(&self, features: Option<Features>) -> EndpointMiddleware {
        let token = self.token.current();
        let token = token.and_then(|token| token.to_str().ok().map(str::to_owned));
        EndpointMiddleware { features, token, version: self.version.clone() }
    }

    fn settings(&self) -> &ConsulClientSettings {
        &self.settings
    }
}

/// Headers of every request but the token. Namespace and partition are headers instead of the query parameters `ns` and `partition`,
/// because consulrs does not have the latter.
fn headers(config: &ConsulConfig) -> Result<HeaderMap, ConfigError> {
    let mut headers = HeaderMap::new();
    let mut add = |setting, name: HeaderName, value: Option<String>| {
        let Some(value) = value else { return Ok(()) };
        let mut value =
            HeaderValue::from_str(&value).map_err(|_| ConfigError::NotAHeader { setting })?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Ok(())
    };
    let basic = config.http_auth.as_ref().map(|auth| {
        let auth = if auth.contains(':') { auth.clone() } else { format!("{auth}:") };
        format!("Basic {}", STANDARD.encode(auth))
    });
    let named = HeaderName::from_static;
    add("CONSUL_HTTP_AUTH", AUTHORIZATION, basic)?;
    add("CONSUL_NAMESPACE", named("x-consul-namespace"), config.namespace.clone())?;
    add("CONSUL_PARTITION", named("x-consul-partition"), config.partition.clone())?;
    Ok(headers)
}

/// Sets the trusted authorities and the client certificate.
fn tls(
    mut builder: reqwest::ClientBuilder,
    config: &ConsulConfig,
) -> Result<reqwest::ClientBuilder, ConfigError> {
    builder = builder.use_rustls_tls();
    let authorities = config.authorities()?;
    builder = builder.tls_built_in_root_certs(authorities.is_empty());
    for pem in authorities {
        match Certificate::from_pem_bundle(&pem.text) {
            Ok(certificates) if certificates.is_empty() => {
                return Err(pem.unusable("it holds no certificate".to_owned()));
            }
            Ok(certificates) => {
                builder = certificates.into_iter().fold(builder, |b, c| b.add_root_certificate(c));
            }
            Err(error) => return Err(pem.unusable(deepest_cause(&error))),
        }
    }
    if let Some(pem) = config.identity()? {
        let identity = Identity::from_pem(&pem.text);
        builder = builder.identity(identity.map_err(|e| pem.unusable(deepest_cause(&e)))?);
    }
    Ok(builder.danger_accept_invalid_certs(config.ssl_verify == Some(false)))
}

/// Makes TLS verify `name` while the connection goes to the address: the URL gets the name, and the name resolves to
/// the address.
fn under_another_name(
    builder: reqwest::ClientBuilder,
    headers: &mut HeaderMap,
    url: &mut Url,
    name: &str,
) -> Result<reqwest::ClientBuilder, ConfigError> {
    let no_name = || ConfigError::ServerName { given: name.to_owned() };
    let host = url.host_str().ok_or_else(no_name)?.to_owned();
    let authority = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.clone(),
    };
    headers.insert(HOST, HeaderValue::from_str(&authority).map_err(|_| no_name())?);
    url.set_host(Some(name)).map_err(|_| no_name())?;
    let host = host.trim_start_matches('[').trim_end_matches(']').into();
    Ok(builder.dns_resolver(Arc::new(ResolvesTo { host })))
}

/// Resolves every name to one host.
struct ResolvesTo {
    host: Arc<str>,
}

impl Resolve for ResolvesTo {
    fn resolve(&self, _: Name) -> Resolving {
        let host = self.host.clone();
        Box::pin(async move {
            // The connector replaces the port.
            let found: Vec<_> = tokio::net::lookup_host((&*host, 0u16)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
