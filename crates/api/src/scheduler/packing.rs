//! How gangs and pods are packed onto nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Order in which nodes with room are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packing {
    /// Least allocated first: a node that fails affects few pods.
    #[default]
    Spread,
    /// Most allocated first: nodes stay empty for large requests.
    BinPack,
}

impl Packing {
    /// Its name in labels and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Packing::Spread => "spread",
            Packing::BinPack => "bin-pack",
        }
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Packing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "spread" => Ok(Packing::Spread),
            "bin-pack" => Ok(Packing::BinPack),
            _ => Err(format!("{text:?} is no packing")),
        }
    }
}
