//! Rows that no text has, as the schedulers see them.

use super::{Graph, Scheduler};
use hashbrown::HashMap;

/// A row of a program.
#[derive(Clone, Debug, Default)]
pub struct Scheduled {
    /// The rows that it reads, in the order of its operands; all of them are before it.
    pub operands: Vec<u32>,
    /// The values that it makes.
    pub makes: Vec<u32>,
    /// The values that it reads.
    pub reads: Vec<u32>,
    /// Whether its result is one number.
    pub is_scalar: bool,
}

impl Scheduled {
    /// The most bytes of values in memory at once, in the order in which `scheduler` would run `rows`; the last of
    /// them is the result. `bytes` are those of the values, `name` tells the names of rows. Also the row at the peak.
    pub fn peak<'a>(
        rows: &[Scheduled],
        bytes: &[i64],
        scheduler: Scheduler,
        name: impl Fn(u32) -> &'a [u8],
    ) -> (i64, Option<u32>) {
        let graph = Graph::of_rows(rows, bytes);
        let root = (rows.len() as u32).checked_sub(1);
        let order = graph.order(scheduler, root, name);
        // By value: the step that makes it and its last use.
        let mut live: Vec<Option<(usize, usize)>> = vec![None; bytes.len()];
        let end = order.len();
        for (step, at) in order.iter().enumerate() {
            let row = &rows[*at as usize];
            row.makes.iter().for_each(|own| live[*own as usize] = Some((step, step)));
            for value in &row.reads {
                if let Some((_, last)) = &mut live[*value as usize] {
                    *last = if Some(*at) == root { end } else { step };
                }
            }
        }
        let mut changes = vec![0i64; end + 1];
        for ((first, last), size) in
            live.iter().zip(bytes).filter_map(|(own, b)| Some((own.as_ref()?, b)))
        {
            changes[*first] = changes[*first].saturating_add(*size);
            if let Some(after) = changes.get_mut(last + 1) {
                *after = after.saturating_sub(*size);
            }
        }
        let (mut most, mut step, mut sum) = (0i64, None, 0i64);
        for (at, change) in order.iter().zip(changes) {
            sum = sum.saturating_add(change);
            if sum > most {
                (most, step) = (sum, Some(*at));
            }
        }
        (most, step)
    }
}

impl Graph {
    fn of_rows(rows: &[Scheduled], bytes: &[i64]) -> Self {
        let count = rows.len();
        let unique = |own: &[u32]| {
            let mut own = own.to_vec();
            own.sort_unstable();
            own.dedup();
            own
        };
        let mut graph = Graph {
            operands: rows.iter().map(|row| unique(&row.operands)).collect(),
            users: vec![Vec::new(); count],
            ordered: rows.iter().map(|row| row.operands.clone()).collect(),
            results: vec![Vec::new(); count],
            reads: rows.iter().map(|row| unique(&row.reads)).collect(),
            defines: vec![0; count],
            is_scalar: rows.iter().map(|row| row.is_scalar).collect(),
            is_move: vec![false; count],
            source: (0..count as u32).collect(),
            bytes: bytes.to_vec(),
            starts: HashMap::default(),
            left: 0,
        };
        for (at, row) in rows.iter().enumerate() {
            let made = row.makes.iter().map(|own| bytes[*own as usize]);
            graph.defines[at] = made.fold(0, i64::saturating_add);
            for from in &graph.operands[at] {
                graph.users[*from as usize].push(at as u32);
            }
        }
        if let Some(last) = graph.results.last_mut() {
            last.clone_from(graph.reads.last().unwrap_or(&Vec::new()));
        }
        graph
    }
}
