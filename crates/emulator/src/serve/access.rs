//! Who may use a server of the emulator.

use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};

use super::refusal::HttpRefusal;

/// What requests must have. The default asks for nothing.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Hosts that requests may be for, without port. A page of another site, whose name was made to lead here, names
    /// that site. `None`: any.
    pub hosts: Option<Vec<String>>,
    /// Token that every request but GET, HEAD and OPTIONS must have, as a Consul token. `None`: none.
    pub write_token: Option<String>,
}

impl Access {
    pub(super) fn check(&self, request: &Request) -> Result<(), HttpRefusal> {
        let forbidden = |why: &str| Err(HttpRefusal::new(StatusCode::FORBIDDEN, why));
        if let Some(hosts) = &self.hosts {
            let host = host_of(request);
            if !host.is_some_and(|host| hosts.iter().any(|h| h.eq_ignore_ascii_case(host))) {
                return forbidden("Permission denied: this server is not called that (Host)");
            }
        }
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        match &self.write_token {
            Some(token) if !is_read && !has_token(request, token) => forbidden(
                "Permission denied: writes need the token that rcfarm dev has printed the file of (X-Consul-Token)",
            ),
            _ => Ok(()),
        }
    }
}

/// The host that a request is for, without port.
fn host_of(request: &Request) -> Option<&str> {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().host().or(header)?;
    if let Some((address, _)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        return Some(address);
    }
    Some(host.split_once(':').map_or(host, |(name, _)| name))
}

/// Compares in a time that depends on the lengths alone.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| std::hint::black_box(differ | (a ^ b)));
    a.len() == b.len() && differ == 0
}

fn has_token(request: &Request, token: &str) -> bool {
    let given = |headers: &HeaderMap| {
        let bearer = headers.get(header::AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")?;
        Some(bearer.to_vec())
    };
    let of_consul = request.headers().get("x-consul-token").map(|value| value.as_bytes().to_vec());
    let in_query = request.uri().query().and_then(|query| {
        query.split('&').find_map(|pair| pair.strip_prefix("token=")).map(|t| t.as_bytes().to_vec())
    });
    let given = of_consul.or_else(|| given(request.headers())).or(in_query);
    given.is_some_and(|given| is_equal(&given, token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn check(method: &str, uri: &str, headers: &[(&str, &str)]) -> bool {
        let access = Access {
            hosts: Some(vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "::1".to_owned()]),
            write_token: Some("secret".to_owned()),
        };
        let request = Request::builder().method(method).uri(uri);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        access.check(&request.body(Body::empty()).unwrap()).is_ok()
    }

    #[test]
    fn only_requests_for_this_host_are_answered() {
        for (host, permitted) in [
            ("127.0.0.1:8500", true),
            ("localhost", true),
            ("LocalHost:8500", true),
            ("[::1]:8500", true),
            ("evil.example", false),
            ("evil.example:8500", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
        ] {
            assert_eq!(check("GET", "/v1/kv/?keys", &[("host", host)]), permitted, "{host}");
        }
        assert!(!check("GET", "/v1/kv/?keys", &[]));
        assert!(!check("GET", "http://evil.example/v1/kv/x", &[("host", "localhost")]));
    }

    #[test]
    fn writes_need_the_token() {
        let here = ("host", "localhost");
        for (method, uri, header, permitted) in [
            ("GET", "/v1/kv/x", ("accept", "*/*"), true),
            ("PUT", "/v1/kv/x", ("accept", "*/*"), false),
            ("DELETE", "/v1/kv/x", ("x-consul-token", "secre"), false),
            ("PUT", "/v1/txn", ("x-consul-token", "secret"), true),
            ("PUT", "/v1/txn", ("authorization", "Bearer secret"), true),
            ("PUT", "/v1/txn", ("authorization", "Basic secret"), false),
            ("PUT", "/v1/kv/x?token=secret", ("accept", "*/*"), true),
            ("PUT", "/v1/kv/x?token=", ("accept", "*/*"), false),
        ] {
            assert_eq!(check(method, uri, &[here, header]), permitted, "{method} {uri} {header:?}");
        }
    }
}
