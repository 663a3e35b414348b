use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Labels, Selector};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn selector(text: &str) -> Selector {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// `p2.md` §1.11, line by line, and further cases of Kubernetes' own table of that time.
#[test]
fn spelling_and_canonical_spelling() {
    for (text, canonical) in [
        ("", ""),
        ("  \t\r\n", ""),
        ("a=b", "a=b"),
        ("a==b", "a=b"),
        (" a = b ", "a=b"),
        ("a!=b", "a!=b"),
        ("a in (b)", "a in (b)"),
        ("a in(c,b)", "a in (b,c)"),
        ("a notin ( b , c )", "a notin (b,c)"),
        ("a", "a"),
        ("!a", "!a"),
        ("! a", "!a"),
        ("z,y=1,!x", "!x,y=1,z"),
        ("a=", "a="),
        ("a=,b", "a=,b"),
        ("a!=", "a!="),
        ("a in ()", "a in ()"),
        ("a notin ()", "a notin ()"),
        ("a in (,b)", "a in (,b)"),
        ("a in (b,)", "a in (,b)"),
        ("a in (b,,c)", "a in (,b,c)"),
        ("a in (b,,,)", "a in (,b)"),
        ("a in (,)", "a in ()"),
        ("in", "in"),
        ("in in (in,notin)", "in in (in,notin)"),
        ("notin=in", "notin=in"),
        ("x=1,x=0", "x=0,x=1"),
        ("a=b,a=b", "a=b"),
        ("A=B", "A=B"),
        ("example.com/role=web", "example.com/role=web"),
    ] {
        let parsed = selector(text);
        assert_eq!(parsed.to_string(), canonical, "{text:?}");
        assert_eq!(selector(canonical), parsed, "{text:?}");
        assert_eq!(parsed.is_everything(), canonical.is_empty(), "{text:?}");
    }
}

#[test]
fn errors_say_where_and_what_was_expected() {
    for (text, at, words) in [
        ("a=b,", 4, "found the end, expected a label key or '!'"),
        (",", 0, "found ',', expected a label key or '!'"),
        ("a,,b", 2, "found ',', expected a label key or '!'"),
        ("!a=b", 2, "found '=', expected ',' or the end"),
        ("!a in (b)", 3, "found \"in\", expected ',' or the end"),
        ("a b", 2, "found \"b\", expected '=', '!=', 'in', 'notin', ',' or the end"),
        ("a=b c", 4, "found \"c\", expected ',' or the end"),
        ("a=b=c", 3, "found '=', expected ',' or the end"),
        ("a=!b", 2, "found '!', expected a label value"),
        ("=b", 0, "found '=', expected a label key or '!'"),
        ("!", 1, "found the end, expected a label key"),
        ("!!a", 1, "found '!', expected a label key"),
        ("a in b", 5, "found \"b\", expected '('"),
        ("a in", 4, "found the end, expected '('"),
        ("a in (b", 7, "found the end, expected ',' or ')'"),
        ("a in (b c)", 8, "found \"c\", expected ',' or ')'"),
        ("a in (b))", 8, "found ')', expected ',' or the end"),
        ("a in (!b)", 6, "found '!', expected a label value, ',' or ')'"),
        ("a notin (b,,)", 12, "found ')', expected a label value or ','"),
        ("a in (,,)", 8, "found ')', expected a label value or ','"),
        ("a>1", 0, "\"a>1\" is not a legal label key: only letters"),
        ("A.b/c", 0, "\"A.b/c\" is not a legal label key: the part before '/'"),
        ("a/b/c=d", 0, "\"a/b/c\" is not a legal label key: there is more than one '/'"),
        ("a=-b", 2, "\"-b\" is not a legal label value"),
        ("a in (b,c/d)", 8, "\"c/d\" is not a legal label value"),
        ("a = ü", 4, "\"ü\" is not a legal label value"),
        ("a\0", 0, "is not a legal label key"),
    ] {
        let error = text.parse::<Selector>().unwrap_err();
        assert_eq!(error.position, at, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.to_string().contains(&format!("character {}", at + 1)), "{error}");
    }
}

#[test]
fn meaning() {
    let web = labels(&[("role", "web"), ("zone", "")]);
    for (text, matched) in [
        ("", true),
        ("role", true),
        ("!role", false),
        ("!absent", true),
        ("role=web", true),
        ("role==db", false),
        ("role=", false),
        ("zone=", true),
        ("zone in ()", true),
        ("role in ()", false),
        ("absent=", false),
        ("absent in ()", false),
        ("role!=web", false),
        ("role!=db", true),
        ("absent!=web", true),
        ("absent notin (web)", true),
        ("role notin (web,db)", false),
        ("role in (db,web)", true),
        ("role=web,zone", true),
        ("role=web,!zone", false),
        ("role=web,role=db", false),
    ] {
        assert_eq!(selector(text).matches(&web), matched, "{text:?}");
        assert_eq!(selector(text).explain(&web).is_none(), matched, "{text:?}");
    }
}

#[test]
fn an_explanation_names_the_label_and_the_requirement() {
    let node = labels(&[("role", "db")]);
    let words = |text| selector(text).explain(&node).unwrap();
    assert_eq!(words("role=web"), "label role is \"db\", but role=web is required");
    assert_eq!(words("disk,role"), "there is no label disk, but disk is required");
    assert_eq!(words("!role"), "label role is \"db\", but !role is required");
}

#[test]
fn in_json_a_selector_is_its_string() {
    let parsed: Selector = serde_json::from_str(r#""b,a==1""#).unwrap();
    assert_eq!(serde_json::to_string(&parsed).unwrap(), r#""a=1,b""#);
    assert!(serde_json::from_str::<Selector>(r#""a b""#).is_err());
}

/// A requirement that the test generates, formats and evaluates by other means than the code.
#[derive(Debug, Clone)]
struct Naive {
    key: String,
    operator: &'static str,
    values: Vec<String>,
}

impl Naive {
    fn text(&self) -> String {
        let values = self.values.join(" , ");
        match self.operator {
            "exists" => self.key.clone(),
            "!" => format!("!{}", self.key),
            "in" | "notin" => format!("{} {} ({values})", self.key, self.operator),
            operator => format!("{}{operator}{}", self.key, self.values[0]),
        }
    }

    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let listed = labels.get(&self.key).map(|value| self.values.iter().any(|v| v == value));
        match self.operator {
            "exists" => listed.is_some(),
            "!" => listed.is_none(),
            "=" | "==" | "in" => listed == Some(true),
            _ => listed != Some(true),
        }
    }
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just("in"), Just("x.y/c-d")].prop_map(str::to_owned)
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![Just(""), Just("1"), Just("notin"), Just("v.2")].prop_map(str::to_owned)
}

fn naive() -> impl Strategy<Value = Naive> {
    let operators = prop::sample::select(vec!["=", "==", "!=", "in", "notin", "exists", "!"]);
    (key(), operators, prop::collection::vec(value(), 1..4)).prop_map(
        |(key, operator, mut values)| {
            if operator.contains('=') {
                values.truncate(1);
            }
            // As in p2, nothing may stand between two commas in a row and the end of the set.
            if let [_, second, third] = &values[..]
                && second.is_empty()
                && third.is_empty()
            {
                values.pop();
            }
            Naive { key, operator, values }
        },
    )
}

proptest! {
    #[test]
    fn matching_agrees_with_a_naive_model(
        requirements in prop::collection::vec(naive(), 0..5),
        labels in prop::collection::btree_map(key(), value(), 0..4),
    ) {
        let text = requirements.iter().map(Naive::text).collect::<Vec<_>>().join(" , ");
        let parsed = selector(&text);
        let expected = requirements.iter().all(|requirement| requirement.holds(&labels));
        prop_assert_eq!(parsed.matches(&labels), expected, "{}", text);
        prop_assert_eq!(parsed.explain(&labels).is_none(), expected);
    }

    #[test]
    fn the_canonical_spelling_round_trips(requirements in prop::collection::vec(naive(), 0..6)) {
        let text = requirements.iter().map(Naive::text).collect::<Vec<_>>().join(",");
        let parsed = selector(&text);
        let canonical = parsed.to_string();
        prop_assert_eq!(&selector(&canonical), &parsed);
        prop_assert_eq!(selector(&canonical).to_string(), canonical);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[a-c=!(), ü<\0]{0,20}|\\PC*") {
        if let Err(error) = text.parse::<Selector>() {
            prop_assert!(error.position <= text.len() && !error.to_string().is_empty());
        }
    }
}
