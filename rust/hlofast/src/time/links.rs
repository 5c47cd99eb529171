//! The links of a computation being played: who occupies them, and until when.

use super::place::Lane;
use std::collections::BTreeMap;

/// Limit on the transfers in flight, the latest, that a loop, branch or call slows down, so that the
/// work of a text stays linear. Compilers keep a few in flight.
const MOST_SHARING: usize = 256;

/// A collective on the links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Flight {
    pub axis: usize,
    pub lane: Lane,
    pub begin: f64,
    pub end: f64,
}

/// Both directions of the links of every axis.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    /// By axis and direction: when the links are free.
    free: Vec<[f64; 2]>,
    /// By axis and direction: seconds in use in one run of the computation.
    pub busy: Vec<[f64; 2]>,
    /// By axis: seconds of transfers that another computation waits for.
    pub loose: Vec<f64>,
    /// Collectives whose end has not been waited for, by number.
    flying: BTreeMap<u32, Flight>,
}

/// The directions that `lane` occupies.
fn directions(lane: Lane) -> [bool; 2] {
    match lane {
        Lane::Both => [true, true],
        Lane::Up => [true, false],
        Lane::Down => [false, true],
    }
}

fn share_a_direction(left: Lane, right: Lane) -> bool {
    left == Lane::Both || right == Lane::Both || left == right
}

impl Links {
    pub fn new(axes: usize) -> Self {
        Self {
            free: vec![[0.0; 2]; axes],
            busy: vec![[0.0; 2]; axes],
            loose: vec![0.0; axes],
            flying: BTreeMap::new(),
        }
    }

    /// Occupies links from `clock` on, or when they are free, for `duration`.
    pub fn take(&mut self, axis: usize, lane: Lane, clock: f64, duration: f64) -> Flight {
        let mut begin = clock;
        let used = directions(lane);
        let free = self.free.get(axis).copied().unwrap_or_default();
        for (until, is_used) in free.into_iter().zip(used) {
            if is_used {
                begin = f64::max(begin, until);
            }
        }
        let end = begin + duration;
        if let (Some(free), Some(busy)) = (self.free.get_mut(axis), self.busy.get_mut(axis)) {
            for ((until, seconds), is_used) in free.iter_mut().zip(busy).zip(used) {
                if is_used {
                    *until = end;
                    *seconds += duration;
                }
            }
        }
        Flight { axis, lane, begin, end }
    }

    /// Adds a transfer that another computation waits for.
    pub fn let_go(&mut self, flight: Flight) {
        if let Some(sum) = self.loose.get_mut(flight.axis) {
            *sum += flight.end - flight.begin;
        }
    }

    /// When all transfers of `axis` have ended.
    pub fn all_free(&self, axis: usize) -> f64 {
        self.free.get(axis).map_or(0.0, |free| f64::max(free[0], free[1]))
    }

    /// A computation that starts at `clock` lets go of transfers of these seconds.
    pub fn follow(&mut self, clock: f64, loose: &[f64], times: f64) {
        let is_any = |seconds: f64| seconds > 0.0 && times > 0.0;
        for (axis, seconds) in loose.iter().enumerate().filter(|(_, own)| is_any(**own)) {
            if let Some(sum) = self.loose.get_mut(axis) {
                *sum += seconds * times;
            }
            for until in self.free.get_mut(axis).into_iter().flatten() {
                *until = until.max(clock) + seconds * times;
            }
        }
    }

    pub fn start(&mut self, number: u32, flight: Flight) {
        self.flying.insert(number, flight);
    }

    pub fn land(&mut self, number: u32) -> Option<Flight> {
        self.flying.remove(&number)
    }

    /// All collectives in flight.
    pub fn rest(&mut self) -> BTreeMap<u32, Flight> {
        std::mem::take(&mut self.flying)
    }

    /// The collectives that keep `flight` from beginning between `clock` and its begin, with
    /// seconds each.
    pub fn queue(&self, flight: Flight, clock: f64) -> Vec<(u32, f64)> {
        if flight.begin <= clock {
            return Vec::new();
        }
        let is_before = |other: &(u32, Flight)| {
            other.1.axis == flight.axis && share_a_direction(other.1.lane, flight.lane)
        };
        let all = self.flying.iter().map(|(number, other)| (*number, *other));
        let mut before: Vec<(u32, Flight)> = all.filter(is_before).collect();
        before.sort_by(|left, right| left.1.begin.total_cmp(&right.1.begin));
        let mut at = clock;
        let mut shares = Vec::new();
        for (number, other) in before {
            let end = other.end.min(flight.begin);
            let share = end - other.begin.max(at);
            if share > 0.0 {
                shares.push((number, share));
                at = end;
            }
        }
        shares
    }

    /// A loop, branch or call runs from `clock` for `span` seconds and uses the links for `busy`
    /// seconds: transfers in flight get what it leaves.
    pub fn share(&mut self, clock: f64, span: f64, busy: &[[f64; 2]], times: f64) {
        for (axis, used) in busy.iter().enumerate() {
            // Avoids 0 times infinity.
            if *used == [0.0; 2] || times == 0.0 {
                continue;
            }
            if let Some(sum) = self.busy.get_mut(axis) {
                for (sum, more) in sum.iter_mut().zip(used) {
                    *sum += more * times;
                }
            }
            // A transfer that uses both directions is held up by their average.
            let share_of = |lane: Lane| match lane {
                Lane::Both => 0.5 * (used[0] + used[1]) * times,
                Lane::Up => used[0] * times,
                Lane::Down => used[1] * times,
            };
            let moved = |time: f64, lane: Lane| {
                let (left, idle) = (time - clock, (span - share_of(lane)).max(0.0));
                match () {
                    () if left <= 0.0 => time,
                    () if left < idle => clock + left * span / idle,
                    () => time + span - idle,
                }
            };
            let latest = self.flying.values_mut().rev().take(MOST_SHARING);
            for flight in latest.filter(|flight| flight.axis == axis) {
                flight.begin = moved(flight.begin, flight.lane);
                flight.end = moved(flight.end, flight.lane);
            }
            // The links are free when the last transfer in flight ends.
            let latest = self.flying.values().rev().take(MOST_SHARING);
            if let Some(free) = self.free.get_mut(axis) {
                for flight in latest.filter(|flight| flight.axis == axis) {
                    for (until, is_used) in free.iter_mut().zip(directions(flight.lane)) {
                        if is_used {
                            *until = f64::max(*until, flight.end);
                        }
                    }
                }
            }
        }
    }
}
