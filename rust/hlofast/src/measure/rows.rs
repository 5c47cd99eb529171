//! Seconds of each instruction over the runs.

use super::{PICOSECOND, Piece};
use crate::profile::NONE;

/// Times of each row, NaN for rows without events. Of an instruction that contains others (a loop)
/// it is the time in which none of those ran.
#[derive(Clone, Debug, Default)]
pub struct RowTimes {
    /// Seconds in the step: the run of median length on each device, averaged over devices.
    pub seconds: Vec<f64>,
    /// Events in the step, averaged likewise.
    pub calls: Vec<f64>,
    /// The shortest, median and longest sum of one run, over all runs and devices.
    pub least: Vec<f64>,
    /// See `least`.
    pub median: Vec<f64>,
    /// See `least`.
    pub most: Vec<f64>,
}

/// Sums by row and run.
#[derive(Default)]
pub(super) struct Sums {
    /// Row, run, picoseconds, events.
    list: Vec<(u32, u32, i64, u32)>,
}

impl Sums {
    /// Adds the pieces of one run with the own time of each.
    pub(super) fn add(&mut self, run: u32, pieces: &[Piece], own: &[i64]) {
        let first = self.list.len();
        for (piece, own) in pieces.iter().zip(own) {
            if piece.row != NONE && !piece.is_async {
                self.list.push((piece.row, run, *own, 1));
            }
        }
        // One entry per row bounds the memory by rows times runs, whatever loops repeat.
        self.list[first..].sort_unstable();
        let mut kept = first;
        for at in first..self.list.len() {
            let (row, run, time, count) = self.list[at];
            match kept.checked_sub(1).filter(|last| *last >= first && self.list[*last].0 == row) {
                Some(last) => {
                    self.list[last].2 = self.list[last].2.saturating_add(time);
                    self.list[last].3 = self.list[last].3.saturating_add(count);
                }
                None => {
                    self.list[kept] = (row, run, time, count);
                    kept += 1;
                }
            }
        }
        self.list.truncate(kept);
    }

    /// The columns of `count` rows, from `runs` runs, of which the typical ones are the step.
    pub(super) fn rows(mut self, count: usize, runs: usize, is_typical: &[bool]) -> RowTimes {
        let column = || vec![f64::NAN; count];
        let mut times = RowTimes {
            seconds: column(),
            calls: column(),
            least: column(),
            median: column(),
            most: column(),
        };
        let devices = is_typical.iter().filter(|typical| **typical).count().max(1) as f64;
        self.list.sort_unstable();
        for same in self.list.chunk_by(|a, b| a.0 == b.0) {
            let row = same[0].0 as usize;
            if row >= count {
                continue;
            }
            let step = same.iter().filter(|entry| is_typical[entry.1 as usize]);
            let (time, calls) = step.fold((0i64, 0u64), |(time, calls), entry| {
                (time.saturating_add(entry.2), calls + u64::from(entry.3))
            });
            times.seconds[row] = time as f64 * PICOSECOND / devices;
            times.calls[row] = calls as f64 / devices;
            let mut each: Vec<i64> = same.iter().map(|entry| entry.2).collect();
            each.sort_unstable();
            // Runs without an event of the row, such as a branch not taken, count as 0.
            let without = runs.saturating_sub(each.len());
            let seconds = |at: usize| match at.checked_sub(without) {
                Some(at) => each.get(at).copied().unwrap_or(0) as f64 * PICOSECOND,
                None => 0.0,
            };
            let last = runs.saturating_sub(1);
            times.least[row] = seconds(0);
            times.median[row] = seconds(last / 2);
            times.most[row] = seconds(last);
        }
        times
    }
}
