//! Vectors of the mini cluster: reference, hived.md §4.2. `M…` and `P…` are its numbers.
