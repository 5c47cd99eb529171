//! The device mesh of a program: named axes, device order, and the spread over hosts and slices.

use super::digits::{Digit, Permutation, numbers};
use super::groups::{DeviceGroups, GroupSpan, span_of};
use crate::ir::decode::{DeviceOrder, Iota};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// One axis of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeshAxis {
    /// Name of the axis.
    pub name: String,
    /// Number of devices along the axis.
    pub size: u64,
}

/// Why a mesh is invalid, as a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshError(String);

impl MeshError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for MeshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MeshError {}

/// How the devices along one axis, with all other coordinates fixed, are spread over hosts and
/// slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AxisSpan {
    /// Hosts; None if the mesh does not say or the lines along the axis differ.
    pub hosts: Option<GroupSpan>,
    /// Slices; None if the mesh does not say or the lines along the axis differ.
    pub slices: Option<GroupSpan>,
}

/// Devices with coordinates along named axes, the last axis varying fastest.
#[derive(Clone, Debug)]
pub struct Mesh {
    axes: Arc<[MeshAxis]>,
    device_count: u64,
    /// Strides of the axes in the position.
    digits: Arc<[Digit]>,
    order: Order,
    hosts: Option<u64>,
    slices: Option<u64>,
}

/// The mapping between positions and devices.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// As digits.
    Digits(Permutation),
    /// As tables.
    Table { devices: Arc<[u64]>, positions: Arc<[u64]> },
}

impl PartialEq for Mesh {
    fn eq(&self, other: &Self) -> bool {
        let same_order = match (&self.order, &other.order) {
            (Order::Table { devices, .. }, Order::Table { devices: others, .. }) => {
                devices == others
            }
            (Order::Digits(order), Order::Digits(others)) => order == others,
            _ => false,
        };
        self.axes == other.axes
            && (self.hosts, self.slices) == (other.hosts, other.slices)
            && same_order
    }
}

impl Eq for Mesh {}

impl Mesh {
    /// A mesh with these axes, major first, and devices 0, 1, 2, ... in row-major order.
    pub fn new(axes: Vec<(String, i64)>) -> Result<Self, MeshError> {
        let mut device_count = 1u64;
        let mut checked: Vec<MeshAxis> = Vec::with_capacity(axes.len());
        let mut names = HashSet::with_capacity(axes.len());
        for (name, size) in axes {
            if name.is_empty() {
                return Err(MeshError::new("a mesh axis needs a name"));
            }
            if !names.insert(name.clone()) {
                return Err(MeshError::new(format!("mesh axis {name:?} is given twice")));
            }
            let Some(size) = u64::try_from(size).ok().filter(|size| *size > 0) else {
                let message =
                    format!("mesh axis {name:?} has size {size}; sizes must be at least 1");
                return Err(MeshError::new(message));
            };
            device_count = device_count
                .checked_mul(size)
                .filter(|count| i64::try_from(*count).is_ok())
                .ok_or_else(|| {
                    MeshError::new("the mesh has more devices than 64 bits can count")
                })?;
            checked.push(MeshAxis { name, size });
        }
        let mut stride = device_count;
        let digits = checked.iter().map(|axis| {
            stride /= axis.size;
            Digit { stride, size: axis.size }
        });
        Ok(Self {
            digits: digits.collect(),
            axes: checked.into(),
            device_count,
            order: Order::Digits(Permutation::identity(device_count)),
            hosts: None,
            slices: None,
        })
    }

    /// Reads `data=2,model=4`.
    pub fn parse(text: &str) -> Result<Self, MeshError> {
        let mut axes = Vec::new();
        for part in text.split(',') {
            let pair = part.split_once('=').map(|(name, size)| (name.trim(), size.trim()));
            let Some((name, size)) = pair.filter(|(name, _)| !name.is_empty()) else {
                let message = format!("expected NAME=SIZE,NAME=SIZE,... for a mesh, not {text:?}");
                return Err(MeshError::new(message));
            };
            let size: i64 = size.parse().map_err(|_| {
                MeshError::new(format!(
                    "the size of mesh axis {name:?} is not an integer: {size:?}"
                ))
            })?;
            axes.push((name.to_owned(), size));
        }
        Self::new(axes)
    }

    /// The mesh with this device order: positions 0, 1, 2, ... hold the devices that `order` lists,
    /// which must be a permutation of 0, 1, 2, ...
    pub fn with_device_order(mut self, order: &DeviceOrder) -> Result<Self, MeshError> {
        if order.len() != Some(self.device_count) {
            let given =
                order.len().map_or_else(|| "too many".to_owned(), |count| count.to_string());
            let count = self.device_count;
            return Err(MeshError::new(format!(
                "the device order has {given} devices, the mesh {count}"
            )));
        }
        self.order = match order {
            DeviceOrder::Iota(iota) => {
                let order = Permutation::of_iota(iota).ok_or_else(|| {
                    MeshError::new("the device order is not a permutation of the devices")
                })?;
                Order::Digits(order)
            }
            DeviceOrder::List(list) => Order::of_list(list)?,
        };
        Ok(self)
    }

    /// The mesh on this many hosts, each with the same number of consecutive devices.
    pub fn with_hosts(mut self, hosts: u64) -> Result<Self, MeshError> {
        self.check_blocks(hosts, "hosts")?;
        self.hosts = Some(hosts);
        self.check_nesting()?;
        Ok(self)
    }

    /// The mesh on this many slices, each with the same number of consecutive devices.
    pub fn with_slices(mut self, slices: u64) -> Result<Self, MeshError> {
        self.check_blocks(slices, "slices")?;
        self.slices = Some(slices);
        self.check_nesting()?;
        Ok(self)
    }

    fn check_blocks(&self, blocks: u64, what: &str) -> Result<(), MeshError> {
        if blocks == 0 || !self.device_count.is_multiple_of(blocks) {
            let count = self.device_count;
            return Err(MeshError::new(format!(
                "{count} devices cannot be spread evenly over {blocks} {what}"
            )));
        }
        Ok(())
    }

    fn check_nesting(&self) -> Result<(), MeshError> {
        match (self.hosts, self.slices) {
            (Some(hosts), Some(slices)) if !hosts.is_multiple_of(slices) => Err(MeshError::new(
                format!("{hosts} hosts cannot be spread evenly over {slices} slices"),
            )),
            _ => Ok(()),
        }
    }

    /// The axes, major first.
    pub fn axes(&self) -> &[MeshAxis] {
        &self.axes
    }

    /// The index of the axis with this name.
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|axis| axis.name == name)
    }

    /// Number of devices.
    pub fn device_count(&self) -> u64 {
        self.device_count
    }

    /// The stride of axis `axis` in the position.
    pub fn stride(&self, axis: usize) -> Option<u64> {
        self.digits.get(axis).map(|digit| digit.stride)
    }

    /// Number of hosts, if known.
    pub fn hosts(&self) -> Option<u64> {
        self.hosts
    }

    /// Number of slices, if known.
    pub fn slices(&self) -> Option<u64> {
        self.slices
    }

    /// Whether positions and device numbers are equal.
    pub fn is_in_order(&self) -> bool {
        matches!(&self.order, Order::Digits(order) if order.is_identity())
    }

    /// The device at a position.
    pub fn device(&self, position: u64) -> Option<u64> {
        match &self.order {
            Order::Digits(order) => (position < self.device_count).then(|| order.device(position)),
            Order::Table { devices, .. } => devices.get(usize::try_from(position).ok()?).copied(),
        }
    }

    /// The position of a device.
    pub fn position(&self, device: u64) -> Option<u64> {
        match &self.order {
            Order::Digits(order) => (device < self.device_count).then(|| order.position(device)),
            Order::Table { positions, .. } => positions.get(usize::try_from(device).ok()?).copied(),
        }
    }

    /// How the devices along axis `axis` are spread over hosts and slices.
    pub fn axis_span(&self, axis: usize) -> AxisSpan {
        let digits = self.digits.get(axis).copied().filter(|digit| digit.size > 1);
        let digits: Vec<Digit> = digits.into_iter().collect();
        let devices = match &self.order {
            Order::Digits(order) => order.devices_of(&digits),
            Order::Table { .. } => None,
        };
        let span = |blocks: Option<u64>| {
            let block = self.device_count / blocks?;
            match &devices {
                Some(devices) => span_of(devices, block),
                None => self.spelled_span(&digits, block),
            }
        };
        AxisSpan { hosts: span(self.hosts), slices: span(self.slices) }
    }

    /// Blocks that the lines along `digits` touch, for a tabulated device order; linear in the
    /// devices.
    fn spelled_span(&self, digits: &[Digit], block: u64) -> Option<GroupSpan> {
        let Order::Table { .. } = &self.order else { return None };
        super::groups::lists_span(&self.lines(digits)?, block)
    }

    /// The devices along these `digits` of the position, one list per line.
    pub(super) fn lines(&self, digits: &[Digit]) -> Option<Vec<Vec<u64>>> {
        let rest = super::digits::complement(digits, self.device_count)?;
        let starts = super::groups::values(&rest);
        let offsets = super::groups::values(digits);
        let line = |start: &u64| offsets.iter().map(|o| self.device(start + o)).collect();
        starts.iter().map(line).collect()
    }

    /// Hosts that each group of `groups` touches, and its devices on each. None if the number of
    /// hosts is unknown or groups differ.
    pub fn host_span(&self, groups: &DeviceGroups) -> Option<GroupSpan> {
        groups.span(self.device_count / self.hosts?)
    }

    /// Slices that each group of `groups` touches, and its devices on each. None if the number of
    /// slices is unknown or groups differ.
    pub fn slice_span(&self, groups: &DeviceGroups) -> Option<GroupSpan> {
        groups.span(self.device_count / self.slices?)
    }

    /// `data=2,model=4`.
    pub fn to_text(&self) -> String {
        let axes: Vec<String> =
            self.axes.iter().map(|axis| format!("{}={}", axis.name, axis.size)).collect();
        axes.join(",")
    }

    pub(super) fn digits(&self) -> &[Digit] {
        &self.digits
    }

    pub(super) fn order(&self) -> &Order {
        &self.order
    }
}

impl Order {
    fn of_list(list: &[i64]) -> Result<Self, MeshError> {
        let count = list.len();
        let mut positions = vec![u64::MAX; count];
        for (position, device) in list.iter().enumerate() {
            let slot = usize::try_from(*device).ok().and_then(|device| positions.get_mut(device));
            match slot {
                Some(slot) if *slot == u64::MAX => *slot = position as u64,
                Some(_) => {
                    let message = format!("device {device} occurs twice in the device order");
                    return Err(MeshError::new(message));
                }
                None => {
                    let message = format!(
                        "device {device} of the device order is not one of {count} devices"
                    );
                    return Err(MeshError::new(message));
                }
            }
        }
        let devices = numbers(list).unwrap_or_default();
        Ok(match Permutation::of_list(&devices) {
            Some(order) => Order::Digits(order),
            None => Order::Table { devices: devices.into(), positions: positions.into() },
        })
    }

    /// The order in HLO's form; None for 0, 1, 2, ...
    pub(super) fn to_device_order(&self) -> Option<DeviceOrder> {
        match self {
            Order::Digits(order) => {
                let iota: Iota = order.to_iota();
                (!iota.is_identity()).then_some(DeviceOrder::Iota(iota))
            }
            Order::Table { devices, .. } => {
                Some(DeviceOrder::List(devices.iter().map(|device| *device as i64).collect()))
            }
        }
    }
}

impl Mesh {
    /// The order of the devices; None for 0, 1, 2, ...
    pub fn device_order(&self) -> Option<DeviceOrder> {
        self.order.to_device_order()
    }
}
