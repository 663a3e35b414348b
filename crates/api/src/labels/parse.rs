//! Parser of selectors. It accepts what Kubernetes 1.2 accepts (`p2.md` §1.11).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::names::{check_label_key, check_label_value};
use super::selector::{LabelCondition, Requirement, Selector};
use crate::{FieldError, InvalidText};

/// Why a text is not a selector, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("selector {text:?}, at character {}: {fault}", self.column())]
pub struct SelectorError {
    /// The selector as given.
    pub text: String,
    /// Offset in bytes at which the parser stopped.
    pub position: usize,
    /// The fault at that position.
    pub fault: SelectorFault,
}

/// What is wrong in a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorFault {
    /// An unexpected token.
    #[error("found {found}, expected {expected}")]
    Unexpected {
        /// The token.
        found: String,
        /// Tokens that are allowed.
        expected: &'static str,
    },
    /// The key or the value breaks its rules.
    #[error(transparent)]
    Label(#[from] InvalidText),
}

impl SelectorError {
    /// Position in characters, from 1.
    fn column(&self) -> usize {
        self.text[..self.position].chars().count() + 1
    }
}

impl From<SelectorError> for FieldError {
    fn from(error: SelectorError) -> FieldError {
        let fix = "write it like pool=web,zone in (a,b)";
        FieldError::new(FieldError::WHOLE, error.to_string(), fix)
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { tokens: lex(text), next: 0 };
        parser.selector().map(Selector::of).map_err(|(position, fault)| SelectorError {
            text: text.to_owned(),
            position,
            fault,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Word(&'t str),
    Equals,
    NotEquals,
    Not,
    Comma,
    Open,
    Close,
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Token::Word(word) => return write!(f, "{word:?}"),
            Token::Equals => "'='",
            Token::NotEquals => "'!='",
            Token::Not => "'!'",
            Token::Comma => "','",
            Token::Open => "'('",
            Token::Close => "')'",
            Token::End => "the end",
        })
    }
}

/// Cuts a text into tokens with their offsets; the last one is [`Token::End`].
///
/// A word is anything between white space and `= ! ( ) ,`. The parser checks keys and values, so that errors can tell
/// which rule is broken.
fn lex(text: &str) -> Vec<(usize, Token<'_>)> {
    let is_space = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let is_symbol = |c: char| matches!(c, '=' | '!' | '(' | ')' | ',');
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (token, length) = match first {
            c if is_space(c) => {
                at += 1;
                continue;
            }
            '=' if rest.starts_with("==") => (Token::Equals, 2),
            '=' => (Token::Equals, 1),
            '!' if rest.starts_with("!=") => (Token::NotEquals, 2),
            '!' => (Token::Not, 1),
            ',' => (Token::Comma, 1),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            _ => {
                let end = rest.find(|c| is_space(c) || is_symbol(c)).unwrap_or(rest.len());
                (Token::Word(&rest[..end]), end)
            }
        };
        tokens.push((at, token));
        at += length;
    }
    tokens.push((text.len(), Token::End));
    tokens
}

type Fault = (usize, SelectorFault);

struct Parser<'t> {
    tokens: Vec<(usize, Token<'t>)>,
    next: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Token<'t> {
        self.tokens[self.next].1
    }

    /// Takes the next token; [`Token::End`] is never passed.
    fn take(&mut self) -> Token<'t> {
        let token = self.peek();
        self.next = (self.next + 1).min(self.tokens.len() - 1);
        token
    }

    fn unexpected<T>(&self, expected: &'static str) -> Result<T, Fault> {
        let (position, token) = self.tokens[self.next];
        Err((position, SelectorFault::Unexpected { found: token.to_string(), expected }))
    }

    /// `[requirement {"," requirement}]`
    fn selector(&mut self) -> Result<Vec<Requirement>, Fault> {
        let mut requirements = Vec::new();
        if self.peek() == Token::End {
            return Ok(requirements);
        }
        loop {
            requirements.push(self.requirement()?);
            match self.peek() {
                Token::End => return Ok(requirements),
                Token::Comma => _ = self.take(),
                _ => return self.unexpected("',' or the end"),
            }
        }
    }

    /// `"!" key | key [("=" | "==" | "!=") [value] | ("in" | "notin") set]`
    fn requirement(&mut self) -> Result<Requirement, Fault> {
        let negated = self.peek() == Token::Not;
        if negated {
            self.take();
        }
        let key = match self.peek() {
            Token::Word(word) => self.checked(word, check_label_key)?,
            _ if negated => return self.unexpected("a label key"),
            _ => return self.unexpected("a label key or '!'"),
        };
        let condition = if negated {
            LabelCondition::Absent
        } else {
            match self.peek() {
                Token::End | Token::Comma => LabelCondition::Exists,
                Token::Equals => LabelCondition::Equals(self.value()?),
                Token::NotEquals => LabelCondition::NotEquals(self.value()?),
                Token::Word("in") => LabelCondition::In(self.set()?),
                Token::Word("notin") => LabelCondition::NotIn(self.set()?),
                _ => return self.unexpected("'=', '!=', 'in', 'notin', ',' or the end"),
            }
        };
        Ok(Requirement { key, condition })
    }

    /// Parses the operator, then a value; a missing value is empty.
    fn value(&mut self) -> Result<String, Fault> {
        self.take();
        match self.peek() {
            Token::End | Token::Comma => Ok(String::new()),
            Token::Word(word) => self.checked(word, check_label_value),
            _ => self.unexpected("a label value"),
        }
    }

    /// Parses the operator, then `"(" [value] {"," [value]} ")"`; a missing value is empty, so `()` holds the empty
    /// value.
    fn set(&mut self) -> Result<BTreeSet<String>, Fault> {
        self.take();
        if self.peek() != Token::Open {
            return self.unexpected("'('");
        }
        self.take();
        let mut values = BTreeSet::new();
        if self.peek() == Token::Close {
            self.take();
            values.insert(String::new());
            return Ok(values);
        }
        // The steps are those of p2's parser. So the empty value that two commas in a row stand for needs a third token
        // behind it: `(a,,)` is an error, `(a,,b)` and `(a,)` are not.
        loop {
            match self.peek() {
                Token::Word(word) => {
                    values.insert(self.checked(word, check_label_value)?);
                    if !matches!(self.peek(), Token::Comma | Token::Close) {
                        return self.unexpected("',' or ')'");
                    }
                }
                Token::Comma => {
                    self.take();
                    if values.is_empty() {
                        values.insert(String::new());
                    }
                    if self.peek() == Token::Comma {
                        self.take();
                        values.insert(String::new());
                        continue;
                    }
                    if self.peek() == Token::Close {
                        values.insert(String::new());
                    }
                }
                Token::Close => return self.unexpected("a label value or ','"),
                _ => return self.unexpected("a label value, ',' or ')'"),
            }
            if self.peek() == Token::Close {
                self.take();
                return Ok(values);
            }
        }
    }

    /// Takes the next word if it passes its check.
    fn checked(
        &mut self,
        word: &'t str,
        check: fn(&str) -> Result<(), InvalidText>,
    ) -> Result<String, Fault> {
        let position = self.tokens[self.next].0;
        check(word).map_err(|bad| (position, bad.into()))?;
        self.take();
        Ok(word.to_owned())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
