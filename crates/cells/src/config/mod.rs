//! HiveD's configuration, as it stands in its YAML: cell types, physical cells, virtual clusters.
//!
//! Unknown keys are ignored, such as `kubeApiServerAddress` or `skuTypes`. [`CellConfig::validate`] makes a
//! [`CellModel`] of it, or says for each wrong field which it is and what to do.

mod build;
mod check;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use rcfarm_api::{FieldError, Stored};
use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use crate::model::{CellModel, CellType, PinnedCellId, VirtualClusterName};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellConfig {
    /// The machines.
    #[serde(default, deserialize_with = "or_default")]
    pub physical_cluster: PhysicalClusterSpec,
    /// What each tenant has been promised.
    #[serde(default, deserialize_with = "or_default")]
    pub virtual_clusters: BTreeMap<VirtualClusterName, VirtualClusterSpec>,
}

/// Cell types and their instances.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhysicalClusterSpec {
    /// Types by name. They form a forest.
    #[serde(default, deserialize_with = "or_default")]
    pub cell_types: BTreeMap<CellType, CellTypeSpec>,
    /// Top cells.
    #[serde(default, deserialize_with = "or_default")]
    pub physical_cells: Vec<PhysicalCellSpec>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellTypeSpec {
    /// Type of its children.
    #[serde(default, deserialize_with = "text_or_number")]
    pub child_cell_type: CellType,
    /// Number of its children.
    #[serde(default)]
    pub child_cell_number: i64,
    /// Whether a cell of this type is one node.
    #[serde(default)]
    pub is_node_level: bool,
}

/// A physical cell. Children that are left out are made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhysicalCellSpec {
    /// Its type; a child has its parent's child type.
    #[serde(
        default,
        deserialize_with = "text_or_number",
        skip_serializing_if = "String::is_empty"
    )]
    pub cell_type: CellType,
    /// Its own segment of the address: the node's name at the node level, the device number of a leaf.
    #[serde(
        default,
        deserialize_with = "text_or_number",
        skip_serializing_if = "String::is_empty"
    )]
    pub cell_address: String,
    /// A name by which one virtual cluster can own it.
    #[serde(
        default,
        deserialize_with = "text_or_number",
        skip_serializing_if = "String::is_empty"
    )]
    pub pinned_cell_id: PinnedCellId,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub cell_children: Vec<PhysicalCellSpec>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualClusterSpec {
    /// Cells by type and number.
    #[serde(default, deserialize_with = "or_default")]
    pub virtual_cells: Vec<VirtualCellSpec>,
    /// Physical cells by name.
    #[serde(default, deserialize_with = "or_default")]
    pub pinned_cells: Vec<PinnedCellSpec>,
}

/// A number of cells of one type.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualCellSpec {
    /// Types from a top cell's down to the wanted one, with dots between.
    #[serde(default, deserialize_with = "text_or_number")]
    pub cell_type: CellType,
    /// Number of these cells that the virtual cluster is promised; 0 to what the chain has.
    #[serde(default)]
    pub cell_number: i64,
}

/// A pinned cell of a virtual cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PinnedCellSpec {
    /// The name that a physical cell has.
    #[serde(default, deserialize_with = "text_or_number")]
    pub pinned_cell_id: PinnedCellId,
}

impl Stored for CellConfig {
    const PAGE: &'static str = "docs/guide/cells.md";
}

impl CellConfig {
    /// Reads YAML or JSON. It may still be wrong: see [`CellConfig::validate`].
    ///
    /// # Errors
    ///
    /// The text is not YAML, or a field has the wrong type.
    pub fn parse(text: &str) -> Result<CellConfig, FieldError> {
        crate::yaml::read(text)
    }

    /// The model, or everything that is wrong.
    ///
    /// # Errors
    ///
    /// One per wrong field, in the order of the document.
    pub fn validate(&self) -> Result<CellModel, Vec<FieldError>> {
        let chains = check::check(self)?;
        build::build(self, chains)
    }
}

pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A text; `cellAddress: 8` and `cellAddress: null` are understood as Go's YAML parser does.
pub(crate) fn text_or_number<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<String, D::Error> {
    struct Text;
    impl<'de> Visitor<'de> for Text {
        type Value = String;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text or a whole number")
        }
        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
        fn visit_i64<E>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }
        fn visit_u64<E>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }
        fn visit_unit<E>(self) -> Result<String, E> {
            Ok(String::new())
        }
        fn visit_none<E>(self) -> Result<String, E> {
            Ok(String::new())
        }
        fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<String, D::Error> {
            inner.deserialize_str(self)
        }
    }
    deserializer.deserialize_option(Text)
}
