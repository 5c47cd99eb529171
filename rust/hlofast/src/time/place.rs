//! The place of each collective of a module on the torus of a slice.
//!
//! What libtpu wrote about its algorithm comes first, then the mesh axes of the groups laid on the
//! sides of the slice, then the size of the group alone.

use super::collective::{Kind, sides_of, sides_on, wraps};
use super::device::{Device, Topology};
use super::strategy::{Strategy, strategy};
use super::torus::{Layout, Sides, box_of, devices_of};
use crate::comms::{Along, Collective, CollectiveKind, Collectives, Mesh};
use crate::ir::Module;

/// The directions of the links that a collective occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// Both directions.
    #[default]
    Both,
    /// Towards higher coordinates: a permute by a positive distance.
    Up,
    /// Towards lower coordinates.
    Down,
}

/// Where a collective runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The box of its near devices; None off a torus.
    pub sides: Option<Sides>,
    /// Links that a permute crosses.
    pub hops: u64,
    /// The directions it occupies.
    pub lane: Lane,
}

/// The slice on which the collectives of a module run.
pub(super) struct Slice<'a> {
    module: &'a Module,
    device: &'a Device,
    mesh: Option<&'a Mesh>,
    /// None off a torus, and if the number of devices is unknown.
    layout: Option<Layout>,
}

impl<'a> Slice<'a> {
    pub fn new(
        module: &'a Module,
        collectives: &Collectives,
        device: &'a Device,
        mesh: Option<&'a Mesh>,
    ) -> Self {
        let layout = layout(module, collectives, device, mesh);
        Self { module, device, mesh, layout }
    }

    /// The place of `collective`, whose groups have `near` devices in a slice. The error names a
    /// missing figure.
    pub fn place(
        &self,
        collective: &Collective,
        along: &Along,
        near: u64,
    ) -> Result<Place, &'static str> {
        let Some(Topology::Torus(_)) = self.device.topology else {
            return Ok(Place { sides: None, hops: 1, lane: Lane::Both });
        };
        if Kind::of(collective.kind) == Kind::Permute {
            return Ok(self.permute(along));
        }
        let mut rows = [collective.row, collective.outer].into_iter();
        let told = rows.find_map(|row| strategy(self.module, row)).unwrap_or_default();
        let sides = self.sides(&told, along, near)?;
        let has_lanes = collective.kind != CollectiveKind::AllToAll;
        let lanes = told.lanes.filter(|_| has_lanes && told.sides.len() == sides.count());
        let sides = lanes.map_or(sides, |lanes| sides.with_lanes(lanes as f64));
        Ok(Place { sides: Some(sides), hops: 1, lane: Lane::Both })
    }

    fn sides(&self, told: &Strategy, along: &Along, near: u64) -> Result<Sides, &'static str> {
        let whole = self.whole_sides(along, near);
        let lengths = match (&self.layout, &whole) {
            (Some(layout), Some(sides)) => layout.lengths(sides),
            _ => Vec::new(),
        };
        let is_told = !told.sides.is_empty()
            && told.sides.len() <= self.most_sides()
            && devices_of(&told.sides) == Some(near);
        if told.is_ring && lengths != [near] && self.layout.is_some() {
            return self.ring(near);
        }
        match (is_told, whole) {
            (true, _) => sides_of(self.device, &told.sides, chip_side(self.device, &told.sides)),
            (false, Some(whole)) => {
                let chip = self.layout.as_ref().and_then(|layout| layout.chip);
                let chip = whole.iter().position(|side| Some(*side) == chip);
                sides_of(self.device, &lengths, chip)
            }
            (false, None) if self.layout.is_some() => self.ring(near),
            (false, None) => {
                let axes = along.parts.len().max(1) as u64;
                Ok(sides_on(self.device, near, axes)?.unwrap_or(Sides::ring(near, false)))
            }
        }
    }

    /// The sides of the torus, and the one between the devices of a chip.
    fn most_sides(&self) -> usize {
        dimensions(self.device) + usize::from(per_chip(self.device) > 1)
    }

    /// The sides of the slice that a group of `near` devices fills; None if it fills no whole
    /// sides.
    fn whole_sides(&self, along: &Along, near: u64) -> Option<Vec<usize>> {
        let layout = self.layout.as_ref()?;
        if devices_of(&layout.shape) == Some(near) {
            return Some((0..layout.shape.len()).collect());
        }
        let mesh = self.mesh?;
        let axes = mesh.axes();
        let is_whole = |part: &crate::comms::AxisPart| {
            axes.get(part.axis).is_some_and(|axis| axis.size == part.size)
        };
        let is_on_axes = !along.parts.is_empty() && along.parts.iter().all(is_whole);
        let sides = layout.sides_of(along.parts.iter().map(|part| part.axis));
        sides.filter(|sides| is_on_axes && devices_of(&layout.lengths(sides)) == Some(near))
    }

    /// A ring through `near` neighbouring devices that fill no whole sides. An even number of
    /// devices that do not lie on one line has a closed ring.
    fn ring(&self, near: u64) -> Result<Sides, &'static str> {
        let shape = self.layout.as_ref().map(|layout| &layout.shape[..]).unwrap_or_default();
        let is_on_line = shape.iter().any(|side| side.is_multiple_of(near) && *side > near);
        let is_side = shape.contains(&near);
        let is_closed = if is_side { wraps(self.device, near)? } else { !is_on_line };
        Ok(Sides::ring(near, is_closed && near > 2 && near.is_multiple_of(2)))
    }

    /// A permute by a fixed distance goes one way round, over as many links as the distance if its
    /// axis is one side.
    fn permute(&self, along: &Along) -> Place {
        let lane = match along.distance {
            Some(by) if by > 0 => Lane::Up,
            Some(by) if by < 0 => Lane::Down,
            _ => Lane::Both,
        };
        Place { sides: None, hops: self.hops(along).unwrap_or(1).max(1), lane }
    }

    /// The links that a permute crosses along a mesh axis that is one side; None for other axes.
    fn hops(&self, along: &Along) -> Option<u64> {
        let [part] = along.parts[..] else { return None };
        let length = self.mesh?.axes().get(part.axis)?.size;
        let sides = self.layout.as_ref()?.axes.get(part.axis)?.as_ref()?;
        if sides.len() != 1 {
            return None;
        }
        // A part of an axis counts in steps of the positions behind it.
        let step = length.checked_div(part.before.checked_mul(part.size)?)?;
        let by = along.distance?.unsigned_abs().checked_mul(step)?;
        Some(by.min(length.saturating_sub(by).max(1)))
    }
}

/// The layout of the mesh on its slice, or of all devices without a mesh.
fn layout(
    module: &Module,
    collectives: &Collectives,
    device: &Device,
    mesh: Option<&Mesh>,
) -> Option<Layout> {
    let Some(Topology::Torus(dimensions)) = device.topology else { return None };
    let slices = mesh.and_then(Mesh::slices).unwrap_or(1);
    let devices = match mesh {
        Some(mesh) => mesh.device_count(),
        None => collectives.context.devices()?,
    };
    let devices = devices / slices.max(1);
    // Devices that share a chip lie side by side: a further side.
    let per_chip = per_chip(device);
    let per_chip = if devices.is_multiple_of(per_chip) { per_chip } else { 1 };
    let told = collectives.collectives.iter().find_map(|collective| {
        let told = strategy(module, collective.row)?.slice;
        (devices_of(&told) == Some(devices)).then_some(told)
    });
    let shape = told.unwrap_or_else(|| {
        let mut shape = box_of(devices / per_chip, dimensions);
        if per_chip > 1 {
            shape.push(per_chip);
        }
        shape
    });
    let chip = chip_side(device, &shape);
    let in_slice = |axis: usize| -> u64 {
        let size = mesh.and_then(|mesh| mesh.axes().get(axis)).map_or(1, |axis| axis.size);
        let span = mesh.filter(|_| slices > 1).and_then(|mesh| mesh.axis_span(axis).slices);
        span.map_or(size, |span| span.per_block)
    };
    let axes: Vec<u64> = (0..mesh.map_or(0, |mesh| mesh.axes().len())).map(in_slice).collect();
    Some(Layout::new(shape, chip, &axes))
}

/// The dimensions of the torus; 0 off a torus.
fn dimensions(device: &Device) -> usize {
    match device.topology {
        Some(Topology::Torus(dimensions)) => usize::from(dimensions),
        _ => 0,
    }
}

/// JAX devices of one chip.
fn per_chip(device: &Device) -> u64 {
    (device.jax_devices.unwrap_or(1.0) as u64).max(1)
}

/// Which of these sides of a group joins the devices of one chip: a side beyond those of the torus,
/// as long as a chip has devices.
fn chip_side(device: &Device, sides: &[u64]) -> Option<usize> {
    let devices = per_chip(device);
    let is_further = devices > 1 && sides.len() > dimensions(device);
    sides.iter().rposition(|side| *side == devices).filter(|_| is_further)
}
