use proptest::prelude::*;

use super::*;

const PLAIN: &str = "\
id: hello
launchables:
  web:
    launchable_type: hoist
    location: https://example.com/hello_abc.tar.gz
  side:
    launchable_type: docker
    version:
      id: abc123
      tags: {a: b}
config:
  port: 80
unknown: [1, {two: 3}]
";

fn signed(body: &str) -> String {
    let escaped: String = body
        .lines()
        .map(|line| if line.starts_with('-') { format!("- {line}\n") } else { format!("{line}\n") })
        .collect();
    format!(
        "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{escaped}\
         -----BEGIN PGP SIGNATURE-----\n\niQEcBAEBCAAG\n=abcd\n-----END PGP SIGNATURE-----\n"
    )
}

fn error(text: &str) -> String {
    Manifest::parse(text).unwrap_err().to_string()
}

#[test]
fn id_and_launchables_are_read_and_the_text_is_kept() {
    let manifest = Manifest::parse(PLAIN).unwrap();
    assert_eq!(manifest.text(), PLAIN);
    assert_eq!(manifest.id().as_str(), "hello");
    let seen: Vec<_> = manifest
        .launchables()
        .iter()
        .map(|l| (l.name.as_str(), l.kind.as_deref(), l.version.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [
            ("side", Some("docker"), Some("abc123")),
            ("web", Some("hoist"), Some("https://example.com/hello_abc.tar.gz")),
        ]
    );
}

#[test]
fn a_request_is_read_and_a_bad_one_names_its_field() {
    let text = "id: a\nresources: {cpu: 0.5, memory: 1Gi, gpu: 2}\n";
    assert_eq!(Manifest::parse(text).unwrap().resources().to_string(), "cpu=500m,memory=1Gi,gpu=2");
    assert!(Manifest::parse(PLAIN).unwrap().resources().is_zero());
    let why = error("id: a\nresources: {cpu: x}\n");
    assert!(why.contains("resources.cpu") && why.contains("500m"), "{why}");
    assert!(error("id: a\nresources: [1]\n").contains("resources"));
}

#[test]
fn little_is_required() {
    for text in
        ["id: a", "{\"id\": \"a\"}", "---\nid: a\n", "id: a\nlaunchables:\n", "id: x\nid: a\n"]
    {
        let manifest = Manifest::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!((manifest.id().as_str(), manifest.launchables().len()), ("a", 0), "{text:?}");
    }
    assert_eq!(Manifest::parse("id: 12").unwrap().id().as_str(), "12");
}

#[test]
fn a_missing_or_illegal_id_names_the_rule() {
    for text in ["", "# nothing\n", "launchables: {}\n", "id:\n", "id: ''\n", "ID: a\n", "null"] {
        assert!(error(text).contains("no field \"id\""), "{text:?}: {}", error(text));
    }
    for (text, rule) in [
        ("id: a/b\n", "only letters, digits"),
        ("id: .a\n", "starts with '.'"),
        ("id: 'a b'\n", "\"a b\" is not a legal name"),
    ] {
        let error = error(text);
        assert!(error.starts_with("field id: ") && error.contains(rule), "{text:?}: {error}");
    }
}

#[test]
fn errors_have_line_column_and_field() {
    for (text, place, field) in [
        ("id: a\nlaunchables:\n  web: [\n", "at line 3, column 8", None),
        ("id: a\n\tb: c\n", "at line 1, column 5", None),
        ("id: [a]\n", "at line 1, column 5", Some("id")),
        ("id: a\nlaunchables: 3\n", "at line 2, column 14", Some("launchables")),
        (
            "id: a\nlaunchables:\n  web:\n    location: [1]\n",
            "at line 4, column 15",
            Some("launchables.web.location"),
        ),
        ("just text\n", "at line 1, column 1", None),
        ("- id: a\n", "at line 1, column 1", None),
    ] {
        let found = error(text);
        assert!(found.contains(place), "{text:?}: {found}");
        match field {
            Some(field) => {
                assert!(found.starts_with(&format!("field {field}: ")), "{text:?}: {found}")
            }
            None => {
                let start = "field (whole value): the manifest is not valid: ";
                assert!(found.starts_with(start), "{text:?}: {found}");
            }
        }
    }
}

#[test]
fn a_signed_manifest_is_unwrapped_for_reading_only() {
    let text = signed("-dash: 1\nid: hello\n");
    let manifest = Manifest::parse(&text).unwrap();
    assert_eq!((manifest.id().as_str(), manifest.text()), ("hello", &*text));

    let crlf = text.replace('\n', "\r\n");
    assert_eq!(Manifest::parse(&crlf).unwrap().id().as_str(), "hello");
}

#[test]
fn line_numbers_of_a_signed_manifest_are_those_of_the_text() {
    assert!(error(&signed("id: [a]\n")).contains("at line 4"), "{}", error(&signed("id: [a]\n")));
}

#[test]
fn a_torn_signature_is_refused() {
    let text = signed("id: hello\n");
    let cut = |at: &str| error(&text[..text.find(at).unwrap()]);
    assert!(cut("-----END").contains("signature has no end"), "{}", cut("-----END"));
    assert!(cut("-----BEGIN PGP SIGNATURE").contains("it has no signature"));
    assert!(cut("\n\nid").contains("no empty line"));
}

#[test]
fn debug_shows_no_contents() {
    let manifest = Manifest::parse("id: a\nconfig: {password: hunter2}\n").unwrap();
    assert!(!format!("{manifest:?}").contains("hunter2"));
}

#[test]
fn the_content_hash_is_fnv_1a() {
    // Vectors published with the algorithm.
    assert_eq!(content_hash(b""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(content_hash(b"a"), 0xaf63_dc4c_8601_ec8c);
    assert_eq!(content_hash(b"foobar"), 0x8594_4171_f739_67e8);
}

proptest! {
    #[test]
    fn signing_changes_nothing_that_is_read(id in "[a-z][a-z0-9]{0,8}", port: u16) {
        let body = format!("id: {id}\nconfig:\n- port: {port}\n- -1\n");
        let plain = Manifest::parse(&body).unwrap();
        let wrapped = Manifest::parse(&signed(&body)).unwrap();
        prop_assert_eq!(plain.id(), wrapped.id());
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "(-----BEGIN PGP SIGNED MESSAGE-----|[-:\\[\\]{} \n]|id|a){0,12}") {
        if let Ok(manifest) = Manifest::parse(&text) {
            prop_assert_eq!(manifest.text(), text);
        }
    }
}
