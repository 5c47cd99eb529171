//! Sets of time as sorted, disjoint intervals.

/// Half-open intervals of picoseconds, ascending and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<(i64, i64)>);

impl Spans {
    /// The union of `intervals`, which may overlap and come in any order.
    pub(super) fn union(mut intervals: Vec<(i64, i64)>) -> Spans {
        intervals.retain(|(start, end)| start < end);
        intervals.sort_unstable();
        let mut united: Vec<(i64, i64)> = Vec::with_capacity(intervals.len());
        for (start, end) in intervals {
            match united.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => united.push((start, end)),
            }
        }
        Spans(united)
    }

    /// The intervals.
    pub(super) fn iter(&self) -> impl Iterator<Item = (i64, i64)> {
        self.0.iter().copied()
    }

    /// Total length.
    pub(super) fn length(&self) -> i64 {
        self.0.iter().fold(0i64, |sum, (start, end)| sum.saturating_add(end.saturating_sub(*start)))
    }

    /// The parts that lie in no interval of `other`.
    pub(super) fn without(&self, other: &Spans) -> Spans {
        let mut left = Vec::with_capacity(self.0.len());
        let mut first = 0;
        for (mut start, end) in self.0.iter().copied() {
            while other.0.get(first).is_some_and(|span| span.1 <= start) {
                first += 1;
            }
            for span in other.0.get(first..).unwrap_or_default() {
                if span.0 >= end {
                    break;
                }
                if start < span.0 {
                    left.push((start, span.0));
                }
                start = start.max(span.1);
            }
            if start < end {
                left.push((start, end));
            }
        }
        Spans(left)
    }
}

/// For each of `sets` its length, where an instant that lies in several sets is divided equally
/// between them. The results add up to the length of the union.
pub(super) fn divided(sets: &[Spans]) -> Vec<f64> {
    let mut shares = vec![0.0; sets.len()];
    // The begins and ends of all intervals, in order of time.
    let mut changes: Vec<(i64, bool, usize)> = Vec::new();
    for (set, spans) in sets.iter().enumerate() {
        for (start, end) in &spans.0 {
            changes.push((*start, true, set));
            changes.push((*end, false, set));
        }
    }
    changes.sort_unstable();
    let mut open: Vec<usize> = Vec::new();
    let mut since = 0;
    for (at, opens, set) in changes {
        if !open.is_empty() && at > since {
            let each = (at - since) as f64 / open.len() as f64;
            for set in &open {
                shares[*set] += each;
            }
        }
        since = at;
        match opens {
            true => open.push(set),
            false => open.retain(|other| *other != set),
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[(i64, i64)]) -> Spans {
        Spans::union(list.to_vec())
    }

    #[test]
    fn unions_and_differences() {
        let all = of(&[(5, 9), (0, 3), (2, 4), (9, 10), (7, 7)]);
        assert_eq!(all, of(&[(0, 4), (5, 10)]));
        assert_eq!(all.length(), 9);
        assert_eq!(all.without(&of(&[(1, 2), (3, 6), (8, 20)])), of(&[(0, 1), (2, 3), (6, 8)]));
        assert_eq!(all.without(&Spans::default()), all);
        assert_eq!(of(&[(0, 10)]).without(&of(&[(0, 10)])).length(), 0);
    }

    #[test]
    fn divided_time_adds_up_to_the_union() {
        let sets = [of(&[(0, 4)]), of(&[(2, 8)]), of(&[(3, 4), (10, 11)])];
        let shares = divided(&sets);
        assert!((shares[0] - (2.0 + 0.5 + 1.0 / 3.0)).abs() < 1e-12);
        assert!((shares.iter().sum::<f64>() - 9.0).abs() < 1e-12);
    }
}
