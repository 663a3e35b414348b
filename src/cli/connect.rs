//! Flags of every command, and the connection to Consul that they configure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Deserializer};

use super::dev_token;
use super::files::read_yaml;
use super::output::{Format, Output};
use super::terminal::ColorWhen;
use rcfarm_api::manifest::set_largest_manifest;
use rcfarm_consul::{Consul, ConsulConfig};
use rcfarm_store::session::KeeperRuntime;
use rcfarm_store::time::{IdSource, SystemClock};
use rcfarm_store::{Env, Prefix, Prefixed, Store};

const CONSUL: &str = "Consul";
const OUTPUT: &str = "Output";

/// Settings of the connection: flags, and the fields of the file of [`Global::config`].
#[derive(Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    /// Address of the agent: host:port, http://… or https://… [env: CONSUL_HTTP_ADDR] [default: 127.0.0.1:8500]
    #[arg(long, global = true, value_name = "ADDRESS", help_heading = CONSUL)]
    http_addr: Option<String>,
    /// ACL token; others on this machine can see it, so prefer the variable or a file [env: CONSUL_HTTP_TOKEN]
    #[arg(long, global = true, value_name = "TOKEN", help_heading = CONSUL)]
    token: Option<String>,
    /// File with the ACL token; read again when it changes [env: CONSUL_HTTP_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE", help_heading = CONSUL)]
    token_file: Option<PathBuf>,
    /// PEM file with the authorities to trust [env: CONSUL_CACERT]
    #[arg(long, global = true, value_name = "FILE", help_heading = CONSUL, hide_short_help = true)]
    ca_file: Option<PathBuf>,
    /// Directory of such files [env: CONSUL_CAPATH]
    #[arg(long, global = true, value_name = "DIR", help_heading = CONSUL, hide_short_help = true)]
    ca_path: Option<PathBuf>,
    /// PEM file with the client certificate [env: CONSUL_CLIENT_CERT]
    #[arg(long, global = true, value_name = "FILE", help_heading = CONSUL, hide_short_help = true)]
    client_cert: Option<PathBuf>,
    /// PEM file with the client key [env: CONSUL_CLIENT_KEY]
    #[arg(long, global = true, value_name = "FILE", help_heading = CONSUL, hide_short_help = true)]
    client_key: Option<PathBuf>,
    /// Name to expect in the server's certificate [env: CONSUL_TLS_SERVER_NAME]
    #[arg(long, global = true, value_name = "NAME", help_heading = CONSUL, hide_short_help = true)]
    tls_server_name: Option<String>,
    /// Namespace (Consul Enterprise) [env: CONSUL_NAMESPACE]
    #[arg(long, global = true, value_name = "NAME", help_heading = CONSUL, hide_short_help = true)]
    namespace: Option<String>,
    /// Admin partition (Consul Enterprise) [env: CONSUL_PARTITION]
    #[arg(long, global = true, value_name = "NAME", help_heading = CONSUL, hide_short_help = true)]
    partition: Option<String>,
    /// Datacenter [default: the agent's own]
    #[arg(long, global = true, value_name = "NAME", help_heading = CONSUL, hide_short_help = true)]
    datacenter: Option<String>,
    /// Let any server answer reads, not only the leader
    #[arg(long, global = true, help_heading = CONSUL)]
    #[serde(deserialize_with = "null_is_false")]
    stale: bool,
    /// Prefix of all keys [env: RCFARM_ROOT] [default: none]
    #[arg(long, global = true, value_name = "PREFIX", help_heading = CONSUL)]
    root: Option<String>,
    /// Limit of a manifest, in bytes [env: RCFARM_MAX_MANIFEST_BYTES] [default: 131072]
    #[arg(long, global = true, value_name = "BYTES", help_heading = CONSUL, hide_short_help = true)]
    max_manifest_bytes: Option<usize>,
}

/// In the file, `null` counts as absent.
fn null_is_false<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// Settings of connection and output. Order of precedence: flag, environment variable, file, default.
#[derive(clap::Args)]
pub struct Global {
    #[command(flatten)]
    settings: Settings,
    /// YAML or JSON file with any of the settings above, named as the flags are [env: RCFARM_CONFIG]
    #[arg(long, global = true, value_name = "FILE", help_heading = CONSUL)]
    config: Option<PathBuf>,
    /// How to print results
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT", help_heading = OUTPUT)]
    output: Format,
    /// Whether to colour what is not well [default: auto, on a terminal]
    #[arg(long, global = true, value_enum, value_name = "WHEN", help_heading = OUTPUT)]
    color: Option<ColorWhen>,
    /// No colours, as --color never [env: NO_COLOR]
    #[arg(long, global = true, help_heading = OUTPUT)]
    no_color: bool,
}

impl Settings {
    fn consul(&self) -> ConsulConfig {
        ConsulConfig {
            address: self.http_addr.clone(),
            token: self.token.clone(),
            token_file: self.token_file.clone(),
            ca_file: self.ca_file.clone(),
            ca_path: self.ca_path.clone(),
            client_cert: self.client_cert.clone(),
            client_key: self.client_key.clone(),
            tls_server_name: self.tls_server_name.clone(),
            namespace: self.namespace.clone(),
            partition: self.partition.clone(),
            datacenter: self.datacenter.clone(),
            stale: self.stale.then_some(true),
            ..ConsulConfig::default()
        }
    }
}

impl Global {
    pub(super) fn output(&self) -> Output {
        Output { format: self.output, color: ColorWhen::chosen(self.color, self.no_color) }
    }

    /// The address of the flag or the variable, for a server that listens there.
    pub(super) fn listen_address(&self) -> Option<String> {
        self.settings.http_addr.clone().or_else(|| std::env::var("CONSUL_HTTP_ADDR").ok())
    }

    /// The merged settings, and the prefix of all keys.
    fn settings(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<(ConsulConfig, Prefix)> {
        let variable = |name| env(name).filter(|value| !value.is_empty());
        let path = self.config.clone().or_else(|| variable("RCFARM_CONFIG").map(PathBuf::from));
        let file: Option<Option<Settings>> =
            path.map(|path| read_yaml(&path, " (--config)")).transpose()?;
        let file = file.flatten().unwrap_or_default();
        let config = self.settings.consul().or(ConsulConfig::from_env(&env)).or(file.consul());
        let text = variable("RCFARM_MAX_MANIFEST_BYTES");
        let text = text.map(|text| text.parse().context("RCFARM_MAX_MANIFEST_BYTES is no number"));
        let flag = self.settings.max_manifest_bytes;
        if let Some(bytes) = flag.or(text.transpose()?).or(file.max_manifest_bytes) {
            set_largest_manifest(bytes);
        }
        let root = self.settings.root.clone().or_else(|| variable("RCFARM_ROOT")).or(file.root);
        let root = Prefix::parse(root.as_deref().unwrap_or(""))
            .context("the root (--root, RCFARM_ROOT) must be segments of a key, as in team/a")?;
        Ok((config, root))
    }

    /// The merged settings, and the prefix of all keys. Prints warnings about the settings.
    fn consul_config(&self) -> anyhow::Result<(ConsulConfig, Prefix)> {
        let (mut config, root) = self.settings(|name| std::env::var(name).ok())?;
        let has_token = config.token.is_some() || config.token_file.is_some();
        let address = config.address.as_deref();
        if let Some(dev) = (!has_token).then(|| dev_token::find(address)).flatten() {
            // The name may lead to another address of this machine, and the token is for this one.
            config.address = Some(format!("http://{}", dev.address));
            config.token_file = Some(dev.token);
        }
        config.warnings.iter().for_each(|warning| self.output().note(warning));
        Ok((config, root))
    }

    /// The clients of a daemon. Sends no request.
    pub(super) fn daemon_clients(&self) -> anyhow::Result<DaemonClients> {
        let (config, root) = self.consul_config()?;
        let work = Consul::new(&config)?;
        let keeper = Arc::new(work.another(&config)?);
        Ok(DaemonClients { work: Arc::new(work), keeper, root })
    }

    /// The store, the address of its agent, and the prefix of its keys. Sends no request.
    pub(super) fn connect(&self) -> anyhow::Result<(Arc<dyn Store>, String, Prefix)> {
        let (config, root) = self.consul_config()?;
        let consul = Consul::new(&config)?;
        let address = consul.address().to_owned();
        Ok((Prefixed::new(Arc::new(consul), root.clone()), address, root))
    }
}

/// A store with this machine's clock and randomness.
pub(super) fn system_env(store: Arc<dyn Store>) -> Env {
    Env::new(store, Arc::new(SystemClock), Arc::new(IdSource::from_entropy()))
}

/// The clients of a daemon: one for its work, and one for its session keeper, which has its own thread and connections.
pub(super) struct DaemonClients {
    work: Arc<Consul>,
    keeper: Arc<Consul>,
    root: Prefix,
}

impl DaemonClients {
    /// Base URL of the Consul agent.
    pub(super) fn address(&self) -> &str {
        self.work.address()
    }

    /// Starts the keeper's thread.
    pub(super) fn env(&self) -> anyhow::Result<Env> {
        let keeper = KeeperRuntime::own_thread(self.keeper.clone())
            .context("cannot start a thread for the session")?;
        let store = Prefixed::new(self.work.clone(), self.root.clone());
        Ok(system_env(store).with_keeper(keeper))
    }

    /// Requests of both clients since the start, by kind.
    pub(super) fn requests(&self) -> BTreeMap<&'static str, u64> {
        let mut requests = self.work.requests();
        for (kind, count) in self.keeper.requests() {
            *requests.entry(kind).or_default() += count;
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        global: Global,
    }

    fn settings(flags: &[&str], env: &[(&str, &str)]) -> anyhow::Result<(ConsulConfig, Prefix)> {
        let only = Only::try_parse_from([&["rcfarm"], flags].concat()).unwrap();
        let find = |name: &str| env.iter().find(|(key, _)| *key == name);
        only.global.settings(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_flag_wins_over_its_variable_and_that_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rcfarm.yaml");
        std::fs::write(&path, "http-addr: file:1\nroot: from/file\ndatacenter: dc9\n").unwrap();
        let file = ("RCFARM_CONFIG", path.to_str().unwrap());

        let (config, root) = settings(&[], &[file]).unwrap();
        assert_eq!(config.address.as_deref(), Some("file:1"));
        assert_eq!((root.as_str(), config.datacenter.as_deref()), ("from/file/", Some("dc9")));

        let env = [file, ("CONSUL_HTTP_ADDR", "env:1"), ("RCFARM_ROOT", "from/env")];
        let (config, root) = settings(&[], &env).unwrap();
        assert_eq!((config.address.as_deref(), root.as_str()), (Some("env:1"), "from/env/"));

        let (config, root) =
            settings(&["--http-addr", "flag:1", "--root", "from/flag"], &env).unwrap();
        assert_eq!((config.address.as_deref(), root.as_str()), (Some("flag:1"), "from/flag/"));
    }

    #[test]
    fn null_in_the_file_counts_as_absent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rcfarm.yaml");
        for (value, stale) in [("null", None), ("", None), ("false", None), ("true", Some(true))] {
            std::fs::write(&path, format!("stale: {value}\nroot: null\n")).unwrap();
            let (config, root) = settings(&["--config", path.to_str().unwrap()], &[]).unwrap();
            assert_eq!((config.stale, root.as_str()), (stale, ""), "{value:?}");
        }
    }

    #[test]
    fn mistakes_in_the_file_and_the_root_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rcfarm.yaml");
        std::fs::write(&path, "http-adr: a\n").unwrap();
        let error = settings(&["--config", path.to_str().unwrap()], &[]).unwrap_err().to_string();
        assert!(error.contains("http-adr") && error.contains("line 1"), "{error}");
        let error = format!("{:#}", settings(&["--root", "a//b"], &[]).unwrap_err());
        assert!(error.contains("--root") && error.contains("is empty"), "{error}");
        let error = settings(&["--config", "/nowhere"], &[]).unwrap_err().to_string();
        assert!(error.contains("/nowhere"), "{error}");
    }
}
