//! Path and parameters of a request.

use std::time::Duration;

use axum::http::StatusCode;

use super::refusal::HttpRefusal;
use crate::duration;
use rcfarm_store::{BlockingWait, Consistency, Index, Query};

/// Wait of a blocking read without a positive `wait`.
const DEFAULT_WAIT: Duration = Duration::from_secs(5 * 60);

/// The path, percent-decoded once.
///
/// # Errors
/// 400 for a path that Go's server or Consul's filter of unprintable characters refuses.
pub(super) fn path(raw: &str) -> Result<String, HttpRefusal> {
    let bad = |text: &str| HttpRefusal::new(StatusCode::BAD_REQUEST, text);
    let bytes = decode(raw.as_bytes(), false).ok_or_else(|| bad("400 Bad Request"))?;
    let path = String::from_utf8_lossy(&bytes).into_owned();
    if path.chars().any(is_unprintable) { Err(bad("")) } else { Ok(path) }
}

fn decode(raw: &[u8], plus_is_space: bool) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        match raw[at] {
            b'%' => {
                let digits = raw.get(at + 1..at + 3)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                at += 3;
            }
            b'+' if plus_is_space => {
                bytes.push(b' ');
                at += 1;
            }
            byte => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    Some(bytes)
}

fn is_unprintable(c: char) -> bool {
    let format = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    let space = c.is_whitespace() && c != ' ';
    c.is_control() || format || space
}

/// The path without `//`, `.` and `..`. Go's server redirects to it.
pub(super) fn cleaned(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    let end = if path.ends_with('/') && !segments.is_empty() { "/" } else { "" };
    format!("/{}{end}", segments.join("/"))
}

/// A request after its path was matched.
#[derive(Debug)]
pub(super) struct ParsedRequest<'a> {
    /// The path's prefix in the table of endpoints.
    pub(super) what: &'static str,
    /// The rest of the path: a key, an id, a name.
    pub(super) name: &'a str,
    params: Vec<(String, String)>,
}

impl<'a> ParsedRequest<'a> {
    /// Parses the query and checks the parameters that every endpoint has.
    ///
    /// # Errors
    /// Consul's errors for namespaces, other datacenters and contradicting consistency modes.
    pub(super) fn new(
        what: &'static str,
        name: &'a str,
        query: Option<&str>,
    ) -> Result<Self, HttpRefusal> {
        let params = parameters(query.unwrap_or_default());
        let parsed = ParsedRequest { what, name, params };
        let bad = |text: &str| Err(HttpRefusal::new(StatusCode::BAD_REQUEST, text));
        if parsed.get("ns").is_some_and(|ns| !ns.is_empty()) {
            return bad(
                "Bad request: Invalid query parameter: \"ns\" - Namespaces are a Consul Enterprise feature",
            );
        }
        if parsed.has("stale") && parsed.has("consistent") {
            return bad("Cannot specify ?stale with ?consistent, conflicting semantics.");
        }
        match parsed.get("dc") {
            None | Some("" | "dc1") => Ok(parsed),
            Some(_) => {
                Err(HttpRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, "No path to datacenter"))
            }
        }
    }

    /// Whether a parameter exists, with or without a value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.params.iter().any(|(n, _)| n == name)
    }

    /// The first value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter.
    pub(super) fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s str> {
        self.params.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// A number without sign. Others get Consul's 500.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, HttpRefusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let why = match (digits, text.parse()) {
            (true, Ok(number)) => return Ok(Some(number)),
            (true, Err(_)) => "value out of range",
            (false, _) => "invalid syntax",
        };
        let what = format!("strconv.ParseUint: parsing {text:?}: {why}");
        Err(HttpRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, what))
    }

    /// The query of a read: `index`, `wait`, `stale`, `consistent`.
    pub(super) fn query(&self) -> Result<Query, HttpRefusal> {
        let bad = |text: &str| HttpRefusal::new(StatusCode::BAD_REQUEST, text);
        let wait = match self.get("wait") {
            None | Some("") => 0,
            Some(text) => duration::parse(text).map_err(|_| bad("Invalid wait time"))?,
        };
        let at_most = if wait > 0 { duration::from_nanos(wait) } else { DEFAULT_WAIT };
        let after = match self.get("index") {
            None | Some("") => 0,
            Some(_) => self.number("index").map_err(|_| bad("Invalid index"))?.unwrap_or(0),
        };
        let consistency = match (self.has("stale"), self.has("consistent")) {
            (true, _) => Consistency::Stale,
            (_, true) => Consistency::Consistent,
            _ => Consistency::Leader,
        };
        let wait = (after > 0).then_some(BlockingWait { after: Index(after), at_most });
        Ok(Query { consistency, wait })
    }

    /// Whether the answer's JSON is indented.
    pub(super) fn pretty(&self) -> bool {
        self.has("pretty")
    }

    /// All parameters sorted by name, as in Consul's error messages.
    pub(super) fn params_sorted(&self) -> String {
        let mut sorted: Vec<_> = self.params.iter().collect();
        sorted.sort();
        let shown: Vec<String> =
            sorted.iter().map(|(name, value)| format!("{name}={value}")).collect();
        shown.join("&")
    }

    /// Refuses parameters that are not modelled and would change the answer.
    pub(super) fn without(&self, names: &[&str]) -> Result<(), HttpRefusal> {
        match names.iter().find(|name| self.has(name)) {
            None => Ok(()),
            Some(name) => {
                let text = format!("?{name} is not modelled by rcfarm's Consul emulator");
                Err(HttpRefusal::new(StatusCode::BAD_REQUEST, text))
            }
        }
    }
}

fn parameters(query: &str) -> Vec<(String, String)> {
    let text = |raw: &str| {
        let bytes = decode(raw.as_bytes(), true).unwrap_or_else(|| raw.as_bytes().to_vec());
        String::from_utf8_lossy(&bytes).into_owned()
    };
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (text(name), text(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_decoded_once() {
        for (raw, decoded) in [
            ("/v1/kv/a%2Fb", "/v1/kv/a/b"),
            ("/a+b", "/a+b"),
            ("/%2520", "/%20"),
            ("/%C3%A4", "/ä"),
        ] {
            assert_eq!(path(raw).unwrap(), decoded);
        }
        for bad in ["/%zz", "/%4", "/%00", "/%0A", "/%7F", "/%E2%80%8B", "/%+1"] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cleaned_path_is_that_of_go() {
        for (path, clean) in [
            ("/v1/kv/a/b", "/v1/kv/a/b"),
            ("/v1/kv/a/", "/v1/kv/a/"),
            ("/v1/kv//a", "/v1/kv/a"),
            ("/v1/kv/a/../b", "/v1/kv/b"),
            ("/v1/kv/a/./b", "/v1/kv/a/b"),
            ("/v1/kv/a/..", "/v1/kv"),
            ("/../..", "/"),
            ("/", "/"),
        ] {
            assert_eq!(cleaned(path), clean);
        }
    }

    #[test]
    fn request_finds_parameters_with_and_without_a_value() {
        let parsed =
            ParsedRequest::new("kv/", "k", Some("recurse&separator=%2F&index=7&wait=1m30s&x=a+b"))
                .unwrap();
        assert!(parsed.has("recurse") && !parsed.has("raw"));
        assert_eq!((parsed.get("separator"), parsed.get("x")), (Some("/"), Some("a b")));
        let wait = parsed.query().unwrap().wait.unwrap();
        assert_eq!((wait.after, wait.at_most), (Index(7), Duration::from_secs(90)));
    }
}
