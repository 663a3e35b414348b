//! Farm, agent and command line on a real Consul that speaks TLS, verifies its clients' certificates and denies by
//! default. Each thing that may be wrong with the set-up is answered with the flag that mends it.

use std::path::Path;

use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{
    AuthorityKeyIdentifier, BasicConstraints, KeyUsage, SubjectAlternativeName,
    SubjectKeyIdentifier,
};
use openssl::x509::{X509, X509Builder, X509Name};
use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::{Process, free_ports};
use rcfarm_testing::program::Program;
use rcfarm_testing::wait::{eventually, until};

use super::acl_policies::{denying, must_not_be_denied, run, with_policy};
use crate::harness::RealCluster;

/// The name in the server's certificate, as Consul's own tools give it. No certificate names an address.
const SERVER: &str = "server.dc1.consul";

fn new_key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

fn common_name(text: &str) -> X509Name {
    let mut name = X509Name::builder().unwrap();
    name.append_entry_by_nid(Nid::COMMONNAME, text).unwrap();
    name.build()
}

/// A certificate that is valid for a day from now on, not signed yet.
fn unsigned(subject: &str, issuer: &str, key: &PKey<Private>) -> X509Builder {
    let mut certificate = X509::builder().unwrap();
    let mut serial = BigNum::new().unwrap();
    serial.rand(120, MsbOption::MAYBE_ZERO, false).unwrap();
    certificate.set_version(2).unwrap();
    certificate.set_serial_number(&serial.to_asn1_integer().unwrap()).unwrap();
    certificate.set_subject_name(&common_name(subject)).unwrap();
    certificate.set_issuer_name(&common_name(issuer)).unwrap();
    certificate.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    certificate.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
    certificate.set_pubkey(key).unwrap();
    certificate
}

/// An authority that issues certificates into a directory.
struct TestAuthority<'a> {
    dir: &'a Path,
    name: &'a str,
    certificate: X509,
    key: PKey<Private>,
}

impl<'a> TestAuthority<'a> {
    /// Its certificate is in `dir/<file>.pem`.
    fn new(dir: &'a Path, file: &str, name: &'a str) -> Self {
        let key = new_key();
        let mut certificate = unsigned(name, name, &key);
        let basic = BasicConstraints::new().critical().ca().build().unwrap();
        certificate.append_extension(basic).unwrap();
        let usage = KeyUsage::new().critical().key_cert_sign().crl_sign().build().unwrap();
        certificate.append_extension(usage).unwrap();
        let id = SubjectKeyIdentifier::new().build(&certificate.x509v3_context(None, None));
        certificate.append_extension(id.unwrap()).unwrap();
        certificate.sign(&key, MessageDigest::sha256()).unwrap();
        let certificate = certificate.build();
        std::fs::write(dir.join(format!("{file}.pem")), certificate.to_pem().unwrap()).unwrap();
        TestAuthority { dir, name, certificate, key }
    }

    /// Writes `<file>.pem` and `<file>.key`: a certificate for one DNS name, and its key.
    fn issue(&self, file: &str, dns: &str) {
        let key = new_key();
        let mut certificate = unsigned(dns, self.name, &key);
        let context = certificate.x509v3_context(Some(&self.certificate), None);
        let names = SubjectAlternativeName::new().dns(dns).build(&context).unwrap();
        let of = AuthorityKeyIdentifier::new().keyid(true).build(&context).unwrap();
        certificate.append_extension(names).unwrap();
        certificate.append_extension(of).unwrap();
        certificate.sign(&self.key, MessageDigest::sha256()).unwrap();
        let pem = certificate.build().to_pem().unwrap();
        std::fs::write(self.dir.join(format!("{file}.pem")), pem).unwrap();
        let key = key.private_key_to_pem_pkcs8().unwrap();
        std::fs::write(self.dir.join(format!("{file}.key")), key).unwrap();
    }
}

/// A Consul on TLS. Its port without TLS is the harness's.
struct TlsConsul {
    cluster: RealCluster,
    /// Address of the port with TLS.
    https: String,
    /// Certificates: `ca`, `server` and `client`; `other`, an authority of another name, and `again`, one of the same.
    files: tempfile::TempDir,
}

impl TlsConsul {
    async fn start() -> TlsConsul {
        let files = tempfile::tempdir().unwrap();
        let authority = TestAuthority::new(files.path(), "ca", "Consul Agent CA");
        authority.issue("server", SERVER);
        authority.issue("client", "client.dc1.consul");
        TestAuthority::new(files.path(), "other", "Another CA");
        TestAuthority::new(files.path(), "again", "Consul Agent CA");
        let [port] = free_ports();
        let at = |file: &str| files.path().join(file).display().to_string();
        let tls = format!(
            "ports {{ https = {port} }}\nverify_incoming = true\nca_file = \"{}\"\ncert_file = \"{}\"\nkey_file = \"{}\"\n",
            at("ca.pem"),
            at("server.pem"),
            at("server.key"),
        );
        let server = ConsulServer::with_config(&(denying() + "\n" + &tls)).await;
        let cluster = RealCluster::on_server(server);
        TlsConsul { cluster, https: format!("https://127.0.0.1:{port}"), files }
    }

    /// The flags of a connection: the address, an authority, and the names of a server and of a client's files.
    fn flags(
        &self,
        address: &str,
        authority: &str,
        name: Option<&str>,
        client: bool,
    ) -> Vec<String> {
        let at = |file: &str| self.files.path().join(file).display().to_string();
        let mut flags = vec!["--http-addr".to_owned(), address.to_owned()];
        flags.extend(["--ca-file".to_owned(), at(authority)]);
        flags.extend(name.into_iter().flat_map(|n| ["--tls-server-name".to_owned(), n.to_owned()]));
        if client {
            flags.extend(["--client-cert".to_owned(), at("client.pem")]);
            flags.extend(["--client-key".to_owned(), at("client.key")]);
        }
        flags
    }

    /// The flags with which everything is right.
    fn right(&self) -> Vec<String> {
        self.flags(&self.https, "ca.pem", Some(SERVER), true)
    }

    /// The program of a role, with a token of its documented policy.
    async fn role(&self, name: &str) -> Program {
        with_policy(&self.cluster, name, "").await
    }

    fn daemon(&self, program: &Program, words: &str, flags: &[String], log: &str) -> Daemon {
        let words: Vec<&str> = words.split(' ').chain(flags.iter().map(String::as_str)).collect();
        let dir = self.cluster.dir.path();
        let data = words.contains(&"--data-dir").then(|| dir.join("data"));
        Daemon::new(Process::start(&mut program.command(&words), dir, log), data)
    }
}

#[tokio::test]
async fn farm_node_and_cli_work_over_tls_with_policies() {
    let consul = TlsConsul::start().await;
    let cluster = &consul.cluster;
    let web = "id: web\nlaunchables:\n  main: {launchable_type: process, command: sleep 600}\n";
    std::fs::write(cluster.dir.path().join("web.yaml"), web).unwrap();
    let (node, farm, user) =
        (consul.role("node").await, consul.role("farm").await, consul.role("user").await);
    let flags = consul.right();
    let words = "node run --name n1 --label pool=a --data-dir data";
    let agent = consul.daemon(&node, words, &flags, "node.log");
    let daemon = consul.daemon(&farm, "farm run --name f1", &flags, "farm.log");

    let create = "rc create -f web.yaml --node-selector pool=a --replicas 1 --wait";
    let words: Vec<&str> = create.split(' ').chain(flags.iter().map(String::as_str)).collect();
    user.run(&words).await.ok();
    // The same by Consul's variables.
    let at = |file: &str| consul.files.path().join(file).display().to_string();
    let viewer = consul.role("viewer").await;
    let viewer = viewer
        .with_env("CONSUL_HTTP_ADDR", consul.https.trim_start_matches("https://"))
        .with_env("CONSUL_HTTP_SSL", "true")
        .with_env("CONSUL_CACERT", &at("ca.pem"))
        .with_env("CONSUL_CLIENT_CERT", &at("client.pem"))
        .with_env("CONSUL_CLIENT_KEY", &at("client.key"))
        .with_env("CONSUL_TLS_SERVER_NAME", SERVER);
    until("its process runs", async || {
        let pods = run(&viewer, "-o json pod list web").await.json();
        pods[0]["phase"] == "Running"
    })
    .await;
    run(&viewer, "doctor").await.ok();
    for log in ["node.log", "farm.log"] {
        must_not_be_denied(cluster, log);
    }
    daemon.stop().await;
    agent.stop().await;
}

#[tokio::test]
async fn each_mistake_with_tls_has_its_hint() {
    let consul = TlsConsul::start().await;
    let viewer = consul.role("viewer").await;
    let http = format!("http://{}", consul.cluster.address);
    let swapped =
        [consul.https.replace("https://", "http://"), http.replace("http://", "https://")];
    let name = Some(SERVER);
    let mistakes = [
        ("wrong CA", consul.flags(&consul.https, "other.pem", name, true), "--ca-file"),
        ("CA made again", consul.flags(&consul.https, "again.pem", name, true), "--ca-file"),
        ("no name", consul.flags(&consul.https, "ca.pem", None, true), "--tls-server-name"),
        (
            "wrong name",
            consul.flags(&consul.https, "ca.pem", Some("server.dc2.consul"), true),
            "--tls-server-name",
        ),
        ("no certificate", consul.flags(&consul.https, "ca.pem", name, false), "--client-cert"),
        (
            "http to https",
            consul.flags(&swapped[0], "ca.pem", name, true),
            "speaks TLS: give the address as https://",
        ),
        (
            "https to http",
            consul.flags(&swapped[1], "ca.pem", name, true),
            "does not speak TLS: give the address as http://",
        ),
    ];
    for (mistake, flags, remedy) in mistakes {
        let words: Vec<&str> =
            ["rc", "list"].into_iter().chain(flags.iter().map(String::as_str)).collect();
        let error = viewer.run(&words).await.failed();
        let hint = error.lines().find(|line| line.starts_with("hint:")).unwrap_or("");
        assert!(hint.contains(remedy), "{mistake}: {error}");
        assert!(!hint.contains("is the agent running"), "{mistake}: {error}");
    }
    // The same in doctor, and from daemons, which wait.
    let wrong = consul.flags(&consul.https, "other.pem", name, true);
    let words = ["doctor"].into_iter().chain(wrong.iter().map(String::as_str));
    let ran = viewer.run(&words.collect::<Vec<_>>()).await;
    assert!(ran.code == 1 && ran.stdout.contains("--ca-file"), "{ran:?}");
    for (words, log) in
        [("farm run --name f1", "farm.log"), ("node run --name n1 --data-dir data", "node.log")]
    {
        let _daemon = consul.daemon(&viewer, words, &wrong, log);
        let log = consul.cluster.dir.path().join(log);
        let text = || std::fs::read_to_string(&log).unwrap();
        let has_fix = |line: &str| line.contains("fix=") && line.contains("--ca-file");
        eventually("the remedy", || text().lines().any(has_fix)).await;
    }
    let words = consul.right();
    let words: Vec<&str> =
        ["rc", "list"].into_iter().chain(words.iter().map(String::as_str)).collect();
    viewer.run(&words).await.ok();
}
