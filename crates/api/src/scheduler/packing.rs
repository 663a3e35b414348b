//! How gangs and pods are packed onto nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which of several nodes with room is taken first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packing {
    /// The one of which least is allocated: a node that fails takes little with it.
    #[default]
    Spread,
    /// The one of which most is allocated: large requests find empty nodes later on.
    BinPack,
}

impl Packing {
    /// Its word in labels and JSON.
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
