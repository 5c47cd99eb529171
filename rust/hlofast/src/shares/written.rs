//! The shardings that a module writes on its instructions: `sharding=`, or Shardy's shardings in
//! frontend attributes.

use crate::comms::{AxisPart, Mesh};
use crate::ir::decode::{AttributeValue, FrontendAttribute, LeafSharding, Placement, decode};
use crate::ir::{Module, Opcode, Row};
use std::rc::Rc;

/// How one array is split.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// Tiles along each dimension; empty if every device holds the whole array.
    pub tiles: Vec<u64>,
    /// Mesh axes along each dimension; empty like `tiles`. None if the mesh lacks them.
    pub axes: Option<Vec<Vec<AxisPart>>>,
    /// The dimensions to which propagation may add axes.
    pub open: Vec<bool>,
    /// Axes along which the shape already is the shape of one device.
    pub manual: Vec<AxisPart>,
}

impl Written {
    /// Removes the `manual` axes, along which the shape is already divided.
    fn divide(&mut self, manual: &[AxisPart]) {
        let is_manual = |part: &AxisPart| manual.iter().any(|own| own.axis == part.axis);
        for (axes, tiles) in self.axes.iter_mut().flatten().zip(&mut self.tiles) {
            axes.retain(|part| !is_manual(part));
            *tiles = axes.iter().map(|part| part.size).product();
        }
        self.manual = manual.to_vec();
    }
}

/// The shardings of the leaves of a row; None for leaves whose sharding is unknown.
pub(crate) type Leaves = Rc<Vec<Option<Written>>>;

/// The sharding of `row`. `leaves` is the number of its arrays.
pub(crate) fn written(module: &Module, mesh: &Mesh, row: Row, leaves: usize) -> Option<Leaves> {
    let own = module.attribute_bytes(row, "sharding");
    let decoded = own.and_then(|text| decode(b"sharding", Opcode::Add, text).ok());
    let attributes = module
        .attribute_bytes(row, "frontend_attributes")
        .and_then(|text| decode(b"frontend_attributes", Opcode::Add, text).ok());
    let shardy = match &attributes {
        Some(AttributeValue::FrontendAttributes(list)) => shardy(mesh, list),
        _ => None,
    };
    let Some(AttributeValue::Sharding(sharding)) = decoded else {
        return shardy.map(Rc::new);
    };
    let mut all: Vec<Option<Written>> =
        (0..leaves).map(|leaf| of_leaf(mesh, sharding.leaf(leaf)?)).collect();
    // Only Shardy's text tells which dimensions are open.
    for (leaf, other) in all.iter_mut().zip(shardy.iter().flatten()) {
        if let (Some(leaf), Some(other)) = (leaf, other) {
            leaf.open.clone_from(&other.open);
        }
    }
    if let Some(open) = unspecified(module, row)
        && let Some(Some(leaf)) = all.first_mut()
    {
        for dimension in open {
            let Ok(dimension) = usize::try_from(dimension) else { continue };
            if dimension < 64 {
                leaf.open.resize(leaf.open.len().max(dimension + 1), false);
                leaf.open[dimension] = true;
            }
        }
    }
    Some(Rc::new(all))
}

fn of_leaf(mesh: &Mesh, leaf: &LeafSharding<'_>) -> Option<Written> {
    let tiles = match &leaf.placement {
        Placement::Unknown | Placement::Maximal(_) => return None,
        _ if leaf.is_replicated() => Vec::new(),
        Placement::Manual | Placement::Unreduced(_) => Vec::new(),
        _ => {
            let sizes = leaf.tile_dimensions()?;
            sizes.into_iter().map(|size| u64::try_from(size).ok()).collect::<Option<Vec<_>>>()?
        }
    };
    if tiles.contains(&0) {
        return None;
    }
    let Ok(spec) = mesh.partition_spec(leaf) else {
        return Some(Written { tiles, ..Written::default() });
    };
    Some(Written {
        tiles,
        open: spec.dimensions.iter().map(|dimension| dimension.is_open).collect(),
        axes: Some(spec.dimensions.into_iter().map(|dimension| dimension.axes).collect()),
        manual: spec.manual,
    })
}

/// `unspecified_dims=[0,2]` of a sharding constraint: dimensions left to propagation.
fn unspecified(module: &Module, row: Row) -> Option<Vec<i64>> {
    let config = module.backend_config(row)?;
    let text = std::str::from_utf8(&config).ok()?;
    let (_, list) = text.split_once("unspecified_dims=[")?;
    let (list, _) = list.split_once(']')?;
    list.split(',').map(|number| number.trim().parse().ok()).collect()
}

/// `#sdy.sharding<@mesh, [{"data"}, {?}]>`, or several shardings in `#sdy.sharding_per_value`.
fn shardy(mesh: &Mesh, attributes: &[FrontendAttribute<'_>]) -> Option<Vec<Option<Written>>> {
    // Inside the dictionary, the quotes of axis names are escaped.
    let plain = |key: &[u8]| -> Option<String> {
        let text = &attributes.iter().find(|own| own.key == key)?.value;
        Some(String::from_utf8_lossy(text).chars().filter(|letter| *letter != '\\').collect())
    };
    // Instructions that lead into or out of a manual computation. Inside, shapes are divided along
    // the manual axes.
    let inwards = plain(b"xla.sdy.in_shardings");
    let manual = inwards.is_some().then(|| plain(b"xla.sdy.manual_axes")).flatten();
    let text =
        plain(b"xla.sdy.sharding").or(inwards).or_else(|| plain(b"xla.sdy.out_shardings"))?;
    let mut leaves = Vec::new();
    let mut rest = text.as_str();
    while let Some((_, after)) = rest.split_once("<@") {
        let list = after.split_once('[').map_or("", |(_, list)| list);
        let (written, left) = dimensions(mesh, list);
        leaves.push(written);
        rest = left;
    }
    if let Some(manual) = manual {
        let names = manual.split_once('{').map_or("", |(_, names)| names);
        let names = names.split('"').skip(1).step_by(2);
        let manual: Vec<AxisPart> =
            names.map(|name| whole_axis(mesh, name)).collect::<Option<_>>()?;
        for leaf in leaves.iter_mut().flatten() {
            leaf.divide(&manual);
        }
    }
    (!leaves.is_empty()).then_some(leaves)
}

/// Reads `{"x", "y":(1)2, ?}, {}]` and returns the rest of the text.
fn dimensions<'t>(mesh: &Mesh, mut text: &'t str) -> (Option<Written>, &'t str) {
    let mut read = Written { axes: Some(Vec::new()), ..Written::default() };
    let mut is_known = true;
    loop {
        text = text.trim_start_matches([',', ' ']);
        let Some(inner) = text.strip_prefix('{') else { break };
        let Some((inner, rest)) = inner.split_once('}') else { return (None, "") };
        // A priority follows the braces: `{"x"}p1`.
        text = rest.trim_start_matches(|letter: char| letter == 'p' || letter.is_ascii_digit());
        let mut axes = Vec::new();
        let mut is_open = false;
        for word in inner.split(", ").map(str::trim).filter(|word| !word.is_empty()) {
            if word == "?" {
                is_open = true;
                continue;
            }
            match axis(mesh, word) {
                Some(part) => axes.push(part),
                None => is_known = false,
            }
        }
        let tiles = axes.iter().try_fold(1u64, |tiles, part| tiles.checked_mul(part.size));
        is_known &= tiles.is_some();
        read.tiles.push(tiles.unwrap_or(1));
        read.open.push(is_open);
        if let Some(all) = &mut read.axes {
            all.push(axes);
        }
    }
    (is_known.then_some(read), text)
}

/// `"x"` or `"x":(2)4`: the part of size 4 after a part of size 2.
fn axis(mesh: &Mesh, word: &str) -> Option<AxisPart> {
    let (name, rest) = word.strip_prefix('"')?.split_once('"')?;
    let whole = whole_axis(mesh, name)?;
    if rest.is_empty() {
        return Some(whole);
    }
    let (before, size) = rest.strip_prefix(":(")?.split_once(')')?;
    let (before, size): (u64, u64) = (before.parse().ok()?, size.parse().ok()?);
    let end = before.checked_mul(size).filter(|end| *end > 0)?;
    whole.size.is_multiple_of(end).then_some(AxisPart { before, size, ..whole })
}

fn whole_axis(mesh: &Mesh, name: &str) -> Option<AxisPart> {
    let axis = mesh.axis(name)?;
    Some(AxisPart { axis, before: 1, size: mesh.axes().get(axis)?.size })
}
