//! The order of steps that depend on each other. Pure.

/// Positions in an order in which each step comes after those that it depends on. `targets`: by step, the positions of
/// those that it depends on.
///
/// # Errors
/// The positions on a cycle, in the order in which each depends on the next one.
pub fn order(targets: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut dependents = vec![Vec::new(); targets.len()];
    for (step, of_step) in targets.iter().enumerate() {
        for target in of_step {
            dependents[*target].push(step);
        }
    }
    let mut open: Vec<usize> = targets.iter().map(Vec::len).collect();
    let mut order: Vec<usize> = (0..targets.len()).filter(|step| open[*step] == 0).collect();
    let mut next = 0;
    while let Some(step) = order.get(next).copied() {
        next += 1;
        for dependent in &dependents[step] {
            open[*dependent] -= 1;
            if open[*dependent] == 0 {
                order.push(*dependent);
            }
        }
    }
    match open.iter().position(|open| *open > 0) {
        None => Ok(order),
        Some(first) => Err(cycle(targets, &open, first)),
    }
}

/// A cycle that is reached from `first`, over steps with open targets: each of them has such a target.
fn cycle(targets: &[Vec<usize>], open: &[usize], first: usize) -> Vec<usize> {
    let (mut path, mut at) = (Vec::new(), first);
    let mut position = vec![None; targets.len()];
    while position[at].is_none() {
        position[at] = Some(path.len());
        path.push(at);
        match targets[at].iter().find(|target| open[**target] > 0) {
            Some(target) => at = *target,
            None => return path,
        }
    }
    path.split_off(position[at].unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(targets: &[&[usize]]) -> Result<Vec<usize>, Vec<usize>> {
        order(&targets.iter().map(|one| one.to_vec()).collect::<Vec<_>>())
    }

    /// The graphs of Volcano's tests (`volcano.md` §5.4).
    #[test]
    fn volcanos_graphs_are_ordered_or_refused() {
        assert_eq!(ordered(&[&[1, 2], &[2], &[]]), Ok(vec![2, 1, 0]));
        assert_eq!(ordered(&[&[1], &[0]]), Err(vec![0, 1]));
        assert_eq!(ordered(&[&[], &[1]]), Err(vec![1]));
        assert!(ordered(&[&[1, 2, 3], &[2, 4], &[4], &[2, 4], &[]]).is_ok());
        assert_eq!(ordered(&[&[1, 2, 3], &[2, 4], &[4], &[2, 4], &[4, 2]]), Err(vec![4]));
    }

    #[test]
    fn long_chain_and_long_cycle_are_walked() {
        let mut targets: Vec<Vec<usize>> =
            (0..100_000usize).map(|n| n.checked_sub(1).into_iter().collect()).collect();
        assert_eq!(order(&targets).unwrap().len(), 100_000);
        targets[0] = vec![99_999];
        assert_eq!(order(&targets).unwrap_err().len(), 100_000);
    }
}
