//! How pods get a changed manifest: the value of the RC's label [`crate::key::UPDATE_LABEL`].

use std::fmt;
use std::str::FromStr;

use crate::manifest::content_hash;

/// Order in which the pods of an RC get a changed manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateOrder {
    /// One after the other: a healthy pod is restarted only if enough others are healthy.
    InOrder,
    /// All at once, as in p2.
    AtOnce,
}

/// A choice for one version of a manifest. It has no effect once the manifest is another one, so that nobody has to
/// remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateChoice {
    /// Whether pods get the manifest one after the other.
    pub order: UpdateOrder,
    /// [`content_hash`] of the manifest.
    manifest: u64,
}

impl UpdateChoice {
    /// `manifest`: its text. The choice ends with it.
    #[must_use]
    pub fn new(order: UpdateOrder, manifest: &str) -> UpdateChoice {
        UpdateChoice { order, manifest: content_hash(manifest.as_bytes()) }
    }

    /// The order for `manifest`; `None`: the choice is for another one.
    #[must_use]
    pub fn of(self, manifest: &str) -> Option<UpdateOrder> {
        (self.manifest == content_hash(manifest.as_bytes())).then_some(self.order)
    }
}

impl fmt::Display for UpdateChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            UpdateOrder::InOrder => "in-order",
            UpdateOrder::AtOnce => "at-once",
        };
        write!(f, "{order}.{:016x}", self.manifest)
    }
}

impl FromStr for UpdateChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<UpdateChoice, String> {
        let bad = || format!("{text:?} is neither in-order.HASH nor at-once.HASH");
        let (order, manifest) = text.split_once('.').ok_or_else(bad)?;
        let order = match order {
            "in-order" => UpdateOrder::InOrder,
            "at-once" => UpdateOrder::AtOnce,
            _ => return Err(bad()),
        };
        let manifest = u64::from_str_radix(manifest, 16).map_err(|_| bad())?;
        Ok(UpdateChoice { order, manifest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choice_is_for_one_version_of_a_manifest() {
        for order in [UpdateOrder::InOrder, UpdateOrder::AtOnce] {
            let choice = UpdateChoice::new(order, "id: web\n");
            let read: UpdateChoice = choice.to_string().parse().unwrap();
            assert_eq!(read.of("id: web\n"), Some(order));
            assert_eq!(read.of("id: web \n"), None);
        }
        for bad in ["", "in-order", "at-once.x", "later.0", "in-order.10000000000000000"] {
            assert!(bad.parse::<UpdateChoice>().is_err(), "{bad}");
        }
    }
}
