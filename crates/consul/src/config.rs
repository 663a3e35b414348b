//! Settings of the connection to Consul, with the names of Consul's own tools (`peers.md` §5.1).

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use reqwest::Url;

const DEFAULT_ADDRESS: &str = "127.0.0.1:8500";
/// What to do instead of `unix://`: an agent may listen at several addresses.
const NO_SOCKETS: &str = "unix sockets are not supported. Let the agent listen on loopback as well, by \
    addresses { http = \"unix://… 127.0.0.1\" } in its configuration";

/// Settings of the connection to Consul. Every field is optional: [`ConsulConfig::or`] merges flags, environment and a
/// file. `Debug` shows neither token nor password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConsulConfig {
    /// `host:port`, `http://…` or `https://…`. A path after the host is put in front of every request's path. Default
    /// `127.0.0.1:8500`.
    pub address: Option<String>,
    /// ACL token of every request.
    pub token: Option<String>,
    /// File with the ACL token, read again when it changes. Replaces `token` unless it is empty.
    pub token_file: Option<PathBuf>,
    /// HTTP basic authentication: `user:password`, or `user`.
    pub http_auth: Option<String>,
    /// Use TLS even if the address has no `https://`.
    pub ssl: Option<bool>,
    /// Verify the server's certificate; default yes.
    pub ssl_verify: Option<bool>,
    /// PEM file with the authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Directory of PEM files with the authorities to trust instead of the system's.
    pub ca_path: Option<PathBuf>,
    /// PEM file with the client certificate; requires `client_key`.
    pub client_cert: Option<PathBuf>,
    /// PEM file with the client key; requires `client_cert`.
    pub client_key: Option<PathBuf>,
    /// Name in the server's certificate, if it is not the address's host.
    pub tls_server_name: Option<String>,
    /// Namespace (Consul Enterprise).
    pub namespace: Option<String>,
    /// Admin partition (Consul Enterprise).
    pub partition: Option<String>,
    /// Datacenter; default: that of the agent.
    pub datacenter: Option<String>,
    /// Any server may answer reads without a consistency mode, not only the leader.
    pub stale: Option<bool>,
    /// Ordinary requests under way at once; default 8. Blocking reads and heartbeats are not counted.
    pub max_requests: Option<usize>,
    /// Settings that were ignored, as messages for the caller to show.
    pub warnings: Vec<String>,
}

/// Why a setting cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The address has an unknown form.
    #[error(
        "the Consul address {given:?} (CONSUL_HTTP_ADDR) cannot be used: {why}; give host:port, http://host:port or https://host:port"
    )]
    Address {
        /// The address without credentials.
        given: String,
        /// The reason.
        why: String,
    },
    /// A file cannot be read.
    #[error("cannot read {} ({setting}): {error}", path.display())]
    Unreadable {
        /// The variable that names the file.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A token file has no token, and nothing else gives one.
    #[error("{} (CONSUL_HTTP_TOKEN_FILE) is empty: write the token into it, or leave it out to use none", .0.display())]
    EmptyTokenFile(PathBuf),
    /// A certificate or key cannot be used.
    #[error("cannot use {} ({setting}): {why}", path.display())]
    Pem {
        /// The variable that names the file.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY belong together: {missing} is not set")]
    HalfIdentity {
        /// The variable that is not set.
        missing: &'static str,
    },
    /// A value that cannot be put into an HTTP header.
    #[error("{setting} contains a character that HTTP headers cannot carry, such as a line break")]
    NotAHeader {
        /// The variable.
        setting: &'static str,
    },
    /// A server name that TLS cannot verify.
    #[error("CONSUL_TLS_SERVER_NAME {given:?} is not a DNS name")]
    ServerName {
        /// The name.
        given: String,
    },
    /// The HTTP client could not be created.
    #[error("cannot set up the HTTP client for Consul: {0}")]
    Client(String),
}

/// Content of a PEM file. It has no `Debug`, because it may be a private key.
pub(super) struct Pem {
    setting: &'static str,
    path: PathBuf,
    pub(super) text: Vec<u8>,
}

impl Pem {
    fn read(setting: &'static str, path: PathBuf) -> Result<Pem, ConfigError> {
        Ok(Pem { setting, text: read(setting, &path)?, path })
    }

    pub(super) fn unusable(self, why: String) -> ConfigError {
        ConfigError::Pem { setting: self.setting, path: self.path, why }
    }
}

impl ConsulConfig {
    /// The settings of the environment, read by `lookup`. Empty variables count as unset. An invalid boolean is ignored
    /// with a warning, as in Consul's tools.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| lookup(name).filter(|v| !v.is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        let mut warnings = Vec::new();
        let mut flag = |name: &str| {
            let given = text(name)?;
            let parsed = parse_bool(&given);
            if parsed.is_none() {
                warnings.push(format!("{name}={given:?} is ignored: give true or false"));
            }
            parsed
        };
        ConsulConfig {
            address: text("CONSUL_HTTP_ADDR"),
            token: text("CONSUL_HTTP_TOKEN"),
            token_file: path("CONSUL_HTTP_TOKEN_FILE"),
            http_auth: text("CONSUL_HTTP_AUTH"),
            ssl: flag("CONSUL_HTTP_SSL"),
            ssl_verify: flag("CONSUL_HTTP_SSL_VERIFY"),
            ca_file: path("CONSUL_CACERT"),
            ca_path: path("CONSUL_CAPATH"),
            client_cert: path("CONSUL_CLIENT_CERT"),
            client_key: path("CONSUL_CLIENT_KEY"),
            tls_server_name: text("CONSUL_TLS_SERVER_NAME"),
            namespace: text("CONSUL_NAMESPACE"),
            partition: text("CONSUL_PARTITION"),
            datacenter: None,
            stale: None,
            max_requests: None,
            warnings,
        }
    }

    /// These settings, and those of `below` where these are not set. Token and token file count as one setting: a token
    /// from a flag replaces a token file of the environment.
    #[must_use]
    pub fn or(self, below: ConsulConfig) -> Self {
        let (token, token_file) = if self.token.is_some() || self.token_file.is_some() {
            (self.token, self.token_file)
        } else {
            (below.token, below.token_file)
        };
        let mut warnings = self.warnings;
        warnings.extend(below.warnings);
        ConsulConfig {
            address: self.address.or(below.address),
            token,
            token_file,
            http_auth: self.http_auth.or(below.http_auth),
            ssl: self.ssl.or(below.ssl),
            ssl_verify: self.ssl_verify.or(below.ssl_verify),
            ca_file: self.ca_file.or(below.ca_file),
            ca_path: self.ca_path.or(below.ca_path),
            client_cert: self.client_cert.or(below.client_cert),
            client_key: self.client_key.or(below.client_key),
            tls_server_name: self.tls_server_name.or(below.tls_server_name),
            namespace: self.namespace.or(below.namespace),
            partition: self.partition.or(below.partition),
            datacenter: self.datacenter.or(below.datacenter),
            stale: self.stale.or(below.stale),
            max_requests: self.max_requests.or(below.max_requests),
            warnings,
        }
    }

    /// The address as a URL whose path ends in a slash.
    pub(super) fn url(&self) -> Result<Url, ConfigError> {
        let given = self.address.as_deref().unwrap_or(DEFAULT_ADDRESS).trim();
        let bad = |why: String| ConfigError::Address { given: without_credentials(given), why };
        let (scheme, rest) = given.split_once("://").unwrap_or(("http", given));
        let tls = match scheme {
            "http" => self.ssl == Some(true),
            "https" => true,
            "unix" => return Err(bad(NO_SOCKETS.to_owned())),
            other => return Err(bad(format!("the scheme {other:?} is unknown"))),
        };
        let scheme = if tls { "https" } else { "http" };
        let mut url =
            Url::parse(&format!("{scheme}://{rest}")).map_err(|error| bad(error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("credentials belong into CONSUL_HTTP_AUTH".to_owned()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("only a path may follow the host".to_owned()));
        }
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        Ok(url)
    }

    /// The token to send: that of the file, unless it is empty or there is none. An empty file without another token is an
    /// error: everything would be read as a user without rights sees it.
    pub(super) fn effective_token(&self) -> Result<Option<String>, ConfigError> {
        let in_file = self.token_file.as_deref().map(Self::token_in).transpose()?;
        match (in_file.flatten().or_else(|| self.token.clone()), &self.token_file) {
            (None, Some(path)) => Err(ConfigError::EmptyTokenFile(path.clone())),
            (token, _) => Ok(token),
        }
    }

    /// The token in a file. `None`: the file is empty.
    pub(super) fn token_in(file: &Path) -> Result<Option<String>, ConfigError> {
        let bytes = read("CONSUL_HTTP_TOKEN_FILE", file)?;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// The PEM files of the authorities to trust. Empty: the system's are trusted.
    pub(super) fn authorities(&self) -> Result<Vec<Pem>, ConfigError> {
        const DIRECTORY: &str = "CONSUL_CAPATH";
        let mut found = Vec::new();
        if let Some(path) = &self.ca_file {
            found.push(Pem::read("CONSUL_CACERT", path.clone())?);
        }
        if let Some(directory) = &self.ca_path {
            let unreadable = |error| unreadable(DIRECTORY, directory, error);
            let mut paths = Vec::new();
            for entry in fs::read_dir(directory).map_err(unreadable)? {
                let path = entry.map_err(unreadable)?.path();
                if path.is_file() {
                    paths.push(path);
                }
            }
            paths.sort();
            if paths.is_empty() {
                let why = "the directory has no files".to_owned();
                return Err(ConfigError::Pem { setting: DIRECTORY, path: directory.clone(), why });
            }
            for path in paths {
                found.push(Pem::read(DIRECTORY, path)?);
            }
        }
        Ok(found)
    }

    /// Client certificate and key as one PEM text.
    pub(super) fn identity(&self) -> Result<Option<Pem>, ConfigError> {
        let (cert, key) = match (&self.client_cert, &self.client_key) {
            (None, None) => return Ok(None),
            (Some(cert), Some(key)) => (cert, key),
            (Some(_), None) => {
                return Err(ConfigError::HalfIdentity { missing: "CONSUL_CLIENT_KEY" });
            }
            (None, Some(_)) => {
                return Err(ConfigError::HalfIdentity { missing: "CONSUL_CLIENT_CERT" });
            }
        };
        let mut pem = Pem::read("CONSUL_CLIENT_CERT", cert.clone())?;
        pem.text.push(b'\n');
        pem.text.extend(read("CONSUL_CLIENT_KEY", key)?);
        Ok(Some(pem))
    }

    /// The name to verify in the server's certificate. `None`: the address's host.
    pub(super) fn server_name(&self) -> Result<Option<&str>, ConfigError> {
        let Some(given) = self.tls_server_name.as_deref() else { return Ok(None) };
        let name = match given.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            _ => given,
        };
        let dns = !name.is_empty()
            && name.parse::<std::net::IpAddr>().is_err()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
        if dns { Ok(Some(name)) } else { Err(ConfigError::ServerName { given: given.to_owned() }) }
    }
}

impl fmt::Debug for ConsulConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "(hidden)");
        f.debug_struct("ConsulConfig")
            .field("address", &self.address.as_deref().map(without_credentials))
            .field("token", &hidden(&self.token))
            .field("token_file", &self.token_file)
            .field("http_auth", &hidden(&self.http_auth))
            .field("ssl", &self.ssl)
            .field("ssl_verify", &self.ssl_verify)
            .field("ca_file", &self.ca_file)
            .field("ca_path", &self.ca_path)
            .field("client_cert", &self.client_cert)
            .field("client_key", &self.client_key)
            .field("tls_server_name", &self.tls_server_name)
            .field("namespace", &self.namespace)
            .field("partition", &self.partition)
            .field("datacenter", &self.datacenter)
            .field("stale", &self.stale)
            .field("max_requests", &self.max_requests)
            .field("warnings", &self.warnings)
            .finish()
    }
}

/// A boolean as Go's `strconv.ParseBool` reads it.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn without_credentials(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => address.to_owned(),
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, ConfigError> {
    fs::read(path).map_err(|error| unreadable(setting, path, error))
}

fn unreadable(setting: &'static str, path: &Path, error: std::io::Error) -> ConfigError {
    ConfigError::Unreadable { setting, path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'e>(vars: &'e [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'e {
        |name| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn every_variable_of_consuls_tools_is_read() {
        let config = ConsulConfig::from_env(env(&[
            ("CONSUL_HTTP_ADDR", "consul:8500"),
            ("CONSUL_HTTP_TOKEN", "t"),
            ("CONSUL_HTTP_TOKEN_FILE", "/t"),
            ("CONSUL_HTTP_AUTH", "u:p"),
            ("CONSUL_HTTP_SSL", "T"),
            ("CONSUL_HTTP_SSL_VERIFY", "0"),
            ("CONSUL_CACERT", "/ca"),
            ("CONSUL_CAPATH", "/cas"),
            ("CONSUL_CLIENT_CERT", "/cert"),
            ("CONSUL_CLIENT_KEY", "/key"),
            ("CONSUL_TLS_SERVER_NAME", "server.dc1.consul"),
            ("CONSUL_NAMESPACE", "team"),
            ("CONSUL_PARTITION", "p"),
        ]));
        let expected = ConsulConfig {
            address: Some("consul:8500".into()),
            token: Some("t".into()),
            token_file: Some("/t".into()),
            http_auth: Some("u:p".into()),
            ssl: Some(true),
            ssl_verify: Some(false),
            ca_file: Some("/ca".into()),
            ca_path: Some("/cas".into()),
            client_cert: Some("/cert".into()),
            client_key: Some("/key".into()),
            tls_server_name: Some("server.dc1.consul".into()),
            namespace: Some("team".into()),
            partition: Some("p".into()),
            ..ConsulConfig::default()
        };
        assert_eq!(config, expected);
        assert_eq!(ConsulConfig::from_env(|_| Some(String::new())), ConsulConfig::default());
    }

    #[test]
    fn a_boolean_that_is_none_is_a_warning() {
        let config = ConsulConfig::from_env(env(&[("CONSUL_HTTP_SSL", "yes")]));
        assert_eq!(config.ssl, None);
        assert_eq!(config.warnings, ["CONSUL_HTTP_SSL=\"yes\" is ignored: give true or false"]);
    }

    #[test]
    fn flags_lie_over_the_environment() {
        let below = ConsulConfig {
            address: Some("below".into()),
            token_file: Some("/below".into()),
            stale: Some(true),
            ..ConsulConfig::default()
        };
        let flags = ConsulConfig {
            address: Some("flag".into()),
            token: Some("flag".into()),
            stale: Some(false),
            ..ConsulConfig::default()
        };
        assert_eq!(flags.clone().or(below.clone()), flags);
        assert_eq!(ConsulConfig::default().or(below.clone()), below);
    }

    #[test]
    fn an_address_becomes_a_url_or_an_error_that_says_why() {
        let url = |address: Option<&str>, ssl| {
            let address = address.map(str::to_owned);
            let config = ConsulConfig { address, ssl, ..ConsulConfig::default() };
            config.url().map(String::from).map_err(|error| error.to_string())
        };
        for (address, ssl, expected) in [
            (None, None, "http://127.0.0.1:8500/"),
            (Some("consul:8500"), None, "http://consul:8500/"),
            (Some("consul:8500"), Some(true), "https://consul:8500/"),
            (Some("http://consul:8500"), Some(true), "https://consul:8500/"),
            (Some("https://consul:8501"), Some(false), "https://consul:8501/"),
            (Some("[::1]:8500"), None, "http://[::1]:8500/"),
            (Some("https://proxy/consul/"), None, "https://proxy/consul/"),
            (Some("proxy:80/a/b"), None, "http://proxy/a/b/"),
        ] {
            assert_eq!(url(address, ssl).as_deref(), Ok(expected), "{address:?}");
        }
        for (address, why) in [
            ("unix:///var/run/consul", "addresses { http = \"unix://… 127.0.0.1\" }"),
            ("ftp://consul", "the scheme \"ftp\" is unknown"),
            ("http://", "empty host"),
            ("consul:85000", "invalid port"),
            ("consul:8500/?a", "only a path may follow the host"),
        ] {
            let error = url(Some(address), None).unwrap_err();
            assert!(error.contains(why) && error.contains("CONSUL_HTTP_ADDR"), "{error}");
        }
        let error = url(Some("http://root:secret@consul"), None).unwrap_err();
        assert!(error.contains("CONSUL_HTTP_AUTH") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_token_file_wins_unless_it_is_empty_and_must_be_readable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let config = ConsulConfig {
            token: Some("given".into()),
            token_file: Some(path.clone()),
            ..ConsulConfig::default()
        };
        let error = config.effective_token().unwrap_err().to_string();
        assert!(error.contains("CONSUL_HTTP_TOKEN_FILE"), "{error}");
        fs::write(&path, " from-file\n").unwrap();
        assert_eq!(config.effective_token().unwrap().as_deref(), Some("from-file"));
        fs::write(&path, "\n").unwrap();
        assert_eq!(config.effective_token().unwrap().as_deref(), Some("given"));
        let alone = ConsulConfig { token: None, ..config };
        let error = alone.effective_token().unwrap_err().to_string();
        assert!(error.contains("is empty") && error.contains("CONSUL_HTTP_TOKEN_FILE"), "{error}");
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let only_key = ConsulConfig { client_key: Some("/key".into()), ..ConsulConfig::default() };
        let error = only_key.identity().err().unwrap().to_string();
        assert!(error.contains("CONSUL_CLIENT_CERT is not set"), "{error}");
    }

    #[test]
    fn a_server_name_loses_its_port_and_must_be_a_name() {
        let name = |given: &str| {
            let config =
                ConsulConfig { tls_server_name: Some(given.into()), ..ConsulConfig::default() };
            config.server_name().map(|name| name.map(str::to_owned)).map_err(|e| e.to_string())
        };
        for given in ["server.dc1.consul", "server.dc1.consul:8501"] {
            assert_eq!(name(given), Ok(Some("server.dc1.consul".to_owned())));
        }
        for given in ["10.0.0.1", "a/b", ":8501"] {
            assert!(name(given).is_err(), "{given}");
        }
    }

    #[test]
    fn nothing_shows_a_secret() {
        let config = ConsulConfig {
            address: Some("http://root:hunter2@consul".into()),
            token: Some("hunter2".into()),
            http_auth: Some("root:hunter2".into()),
            ..ConsulConfig::default()
        };
        let shown = format!("{config:?}");
        assert!(shown.contains("token: Some") && !shown.contains("hunter2"), "{shown}");
    }
}
