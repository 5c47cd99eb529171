//! Divides the time of one run: computing, exposed communication by axes, copies, control, idle.

use super::spans::{Spans, divided};
use super::{Class, PICOSECOND, Piece, Run};
use crate::comms::Collectives;
use crate::profile::{DeviceKind, Profile, ProfiledDevice, TrackKind};
use std::cmp::Reverse;

/// The parts of a run, in seconds. `compute`, `exposed`, `copies`, `other` and `idle` add up to
/// `duration`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// From the first event to the last.
    pub duration: f64,
    /// At least one instruction computes.
    pub compute: f64,
    /// At least one collective runs.
    pub communication: f64,
    /// A collective runs and nothing computes.
    pub exposed: f64,
    /// An asynchronous copy runs or is waited for, and nothing above.
    pub copies: f64,
    /// Only a loop, a conditional or a call runs: their own work between other instructions.
    pub other: f64,
    /// Nothing runs.
    pub idle: f64,
    /// Communication by mesh axes, in order of first use.
    pub axes: Vec<AxisTime>,
}

/// Communication along one set of mesh axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AxisTime {
    /// The axes as text; empty for collectives whose axes are unknown.
    pub axes: String,
    /// Seconds in which a collective along the axes runs.
    pub seconds: f64,
    /// The part of them that no computation hides. Where collectives along several axes are exposed
    /// together, the time is divided equally, so that axes add up to [`Parts::exposed`].
    pub exposed: f64,
}

/// The distinct axes of the collectives.
pub(super) struct Axes {
    texts: Vec<String>,
    /// By collective: index in `texts`.
    of: Vec<usize>,
}

impl Axes {
    pub(super) fn new(axes: &[&str]) -> Axes {
        let mut texts: Vec<String> = Vec::new();
        let of = axes.iter().map(|text| {
            texts.iter().position(|known| known == text).unwrap_or_else(|| {
                texts.push((*text).to_owned());
                texts.len() - 1
            })
        });
        let of = of.collect();
        Axes { texts, of }
    }

    fn index(&self, collective: u32) -> Option<usize> {
        self.of.get(collective as usize).copied()
    }
}

/// By device: whether asynchronous collectives have no events of their own: on TPUs without a track
/// of asynchronous operations.
pub(super) fn without_transfers(profile: &Profile) -> Vec<bool> {
    let is_tpu = |device: &ProfiledDevice| device.kind == DeviceKind::Tpu;
    let mut lacks: Vec<bool> = profile.devices.iter().map(is_tpu).collect();
    for track in profile.tracks.iter().filter(|track| track.kind == TrackKind::Async) {
        if let Some(device) = lacks.get_mut(track.device as usize) {
            *device = false;
        }
    }
    lacks
}

/// Adds the time between the start and the done instruction of asynchronous collectives, where the
/// transfer itself has no event.
pub(super) fn add_transfers(pieces: &mut Vec<Piece>, collectives: &Collectives) {
    let mut open: Vec<Option<i64>> = vec![None; collectives.collectives.len()];
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|at| pieces[*at].start);
    let mut added = Vec::new();
    for at in order {
        let piece = pieces[at];
        let Some(collective) = collectives.collectives.get(piece.collective as usize) else {
            continue;
        };
        let Some(done) = collective.done else { continue };
        let begin = &mut open[piece.collective as usize];
        if piece.row == done.0 {
            if let Some(start) = begin.take() {
                let class = Class::Communication;
                added.push(Piece { start, end: piece.end, class, is_async: true, ..piece });
            }
        } else if begin.is_none() {
            *begin = Some(piece.start);
        }
    }
    pieces.extend(added);
}

/// The own time of each piece: its length, but of loops, conditionals and calls only the time in
/// which no instruction of their computations runs, on whichever track that is.
pub(super) fn own_times(pieces: &[Piece]) -> Vec<i64> {
    let mut own: Vec<i64> =
        pieces.iter().map(|piece| piece.end.saturating_sub(piece.start)).collect();
    let leaves = pieces.iter().filter(|piece| piece.class != Class::Control && !piece.is_async);
    let leaves = Spans::union(leaves.map(|piece| (piece.start, piece.end)).collect());
    let control = pieces.iter().enumerate().filter(|(_, piece)| piece.class == Class::Control);
    // Start, end in descending order, index; usize::MAX for a leaf.
    let mut marks: Vec<(i64, Reverse<i64>, usize)> =
        control.map(|(at, piece)| (piece.start, Reverse(piece.end), at)).collect();
    if marks.is_empty() {
        return own;
    }
    marks.extend(leaves.iter().map(|(start, end)| (start, Reverse(end), usize::MAX)));
    marks.sort_unstable();
    let mut around: Vec<(i64, usize)> = Vec::new();
    for (start, Reverse(end), at) in marks {
        while around.last().is_some_and(|(closes, _)| *closes <= start) {
            around.pop();
        }
        if let Some((closes, outer)) = around.last() {
            let inside = end.min(*closes).saturating_sub(start);
            own[*outer] = own[*outer].saturating_sub(inside).max(0);
        }
        if at != usize::MAX {
            around.push((end, at));
        }
    }
    own
}

/// Seconds of each collective and the part of them that no computation hides, summed over runs.
pub(super) struct Waits {
    sums: Vec<Option<(f64, f64)>>,
}

impl Waits {
    pub(super) fn new(collectives: usize) -> Waits {
        Waits { sums: vec![None; collectives] }
    }

    /// The means of `runs` runs; NaN for a collective without events.
    pub(super) fn mean(self, runs: usize) -> Vec<(f64, f64)> {
        let runs = runs.max(1) as f64;
        let mean = |sum: Option<(f64, f64)>| match sum {
            Some((seconds, exposed)) => (seconds / runs, exposed / runs),
            None => (f64::NAN, f64::NAN),
        };
        self.sums.into_iter().map(mean).collect()
    }

    /// Adds the communication of one run, given its time of computing.
    fn add(&mut self, pieces: &[Piece], clip: impl Fn(&Piece) -> (i64, i64), compute: &Spans) {
        let mut own: Vec<(u32, (i64, i64))> = pieces
            .iter()
            .filter(|piece| piece.class == Class::Communication)
            .map(|piece| (piece.collective, clip(piece)))
            .collect();
        own.sort_unstable();
        for same in own.chunk_by(|a, b| a.0 == b.0) {
            let Some(sum) = self.sums.get_mut(same[0].0 as usize) else { continue };
            let spans = Spans::union(same.iter().map(|(_, span)| *span).collect());
            let sum = sum.get_or_insert_default();
            sum.0 += spans.length() as f64 * PICOSECOND;
            sum.1 += spans.without(compute).length() as f64 * PICOSECOND;
        }
    }
}

/// The parts of one run; the times of its collectives are added to `waits`.
pub(super) fn parts(pieces: &[Piece], run: &Run, axes: &Axes, waits: Option<&mut Waits>) -> Parts {
    let begin = run.start_ps;
    let close = begin.saturating_add(run.duration_ps);
    let clip = |piece: &Piece| (piece.start.max(begin), piece.end.min(close));
    let of = |class: Class| {
        let list = pieces.iter().filter(|piece| piece.class == class);
        Spans::union(list.map(clip).collect())
    };
    let (compute, communication) = (of(Class::Compute), of(Class::Communication));
    let exposed = communication.without(&compute);
    let busy = Spans::union([&compute, &communication].iter().flat_map(|set| set.iter()).collect());
    let copies = of(Class::Copy).without(&busy);
    let busy = Spans::union([&busy, &copies].iter().flat_map(|set| set.iter()).collect());
    let other = of(Class::Control).without(&busy);

    let mut by_axes: Vec<Vec<(i64, i64)>> = vec![Vec::new(); axes.texts.len() + 1];
    if let Some(waits) = waits {
        waits.add(pieces, clip, &compute);
    }
    for piece in pieces.iter().filter(|piece| piece.class == Class::Communication) {
        let index = axes.index(piece.collective).unwrap_or(axes.texts.len());
        by_axes[index].push(clip(piece));
    }
    let by_axes: Vec<Spans> = by_axes.into_iter().map(Spans::union).collect();
    let alone: Vec<Spans> = by_axes.iter().map(|spans| spans.without(&compute)).collect();
    let seconds = |picoseconds: i64| picoseconds as f64 * PICOSECOND;
    let mut shown = Vec::new();
    for (index, exposed) in divided(&alone).into_iter().enumerate() {
        let length = by_axes[index].length();
        if length > 0 {
            let text = axes.texts.get(index).cloned().unwrap_or_default();
            shown.push(AxisTime {
                axes: text,
                seconds: seconds(length),
                exposed: exposed * PICOSECOND,
            });
        }
    }
    let mut parts = Parts {
        duration: seconds(run.duration_ps),
        compute: seconds(compute.length()),
        communication: seconds(communication.length()),
        exposed: seconds(exposed.length()),
        copies: seconds(copies.length()),
        other: seconds(other.length()),
        axes: shown,
        idle: 0.0,
    };
    let working = compute.length() + exposed.length() + copies.length() + other.length();
    parts.idle = seconds(run.duration_ps - working);
    parts
}

/// The mean of `runs`; axes that one of them lacks count as 0 there.
pub(super) fn mean<'a>(runs: impl Iterator<Item = &'a Parts>) -> Parts {
    let mut sum = Parts::default();
    let mut count = 0.0;
    for parts in runs {
        count += 1.0;
        sum.duration += parts.duration;
        sum.compute += parts.compute;
        sum.communication += parts.communication;
        sum.exposed += parts.exposed;
        sum.copies += parts.copies;
        sum.other += parts.other;
        sum.idle += parts.idle;
        for axis in &parts.axes {
            match sum.axes.iter_mut().find(|known| known.axes == axis.axes) {
                Some(known) => {
                    known.seconds += axis.seconds;
                    known.exposed += axis.exposed;
                }
                None => sum.axes.push(axis.clone()),
            }
        }
    }
    if count > 0.0 {
        let figures = [
            &mut sum.duration,
            &mut sum.compute,
            &mut sum.communication,
            &mut sum.exposed,
            &mut sum.copies,
            &mut sum.other,
            &mut sum.idle,
        ];
        for figure in figures {
            *figure /= count;
        }
        for axis in &mut sum.axes {
            axis.seconds /= count;
            axis.exposed /= count;
        }
    }
    sum
}
