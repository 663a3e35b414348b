//! What the farm reads of nodes and of pods' health.
