//! The canonical text of shardings.

use super::iota::{DeviceOrder, write_list};
use super::mesh::AxisReference;
use super::sharding::{
    LeafSharding, NamedSharding, Placement, Reduction, ShardGroup, Sharding, SubgroupKind, Tiles,
};
use super::sharding_read::given_reduction;

impl Sharding<'_> {
    /// The canonical text, with braces.
    pub fn to_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        match self {
            Sharding::Single(leaf) => leaf.write(&mut text),
            Sharding::Tuple(leaves) => {
                text.push(b'{');
                for (i, leaf) in leaves.iter().enumerate() {
                    if i > 0 {
                        text.extend_from_slice(b", ");
                        if i % 5 == 0 {
                            text.extend_from_slice(format!("/*index={i}*/").as_bytes());
                        }
                    }
                    leaf.write(&mut text);
                }
                text.push(b'}');
            }
        }
        text
    }
}

impl LeafSharding<'_> {
    /// Appends the canonical text, with braces.
    pub fn write(&self, text: &mut Vec<u8>) {
        text.push(b'{');
        let mut separator: &[u8] = b" ";
        match &self.placement {
            Placement::Replicated => text.extend_from_slice(b"replicated"),
            Placement::Manual => text.extend_from_slice(b"manual"),
            Placement::Unknown => text.extend_from_slice(b"unknown"),
            Placement::Unreduced(op) => {
                text.extend_from_slice(b"unreduced");
                // XLA reads the reduction from metadata only, so the text does not repeat a
                // reduction that metadata holds.
                if *op != given_reduction(&self.metadata).unwrap_or_default() {
                    text.extend_from_slice(format!("={}", op.as_str()).as_bytes());
                }
            }
            Placement::Maximal(device) => {
                text.extend_from_slice(format!("maximal device={device}").as_bytes());
            }
            Placement::Tiled(tiles) => tiles.write(text),
            Placement::Named(named) => {
                named.write(text);
                separator = b", ";
            }
        }
        if let Some(group) = self.group {
            let (word, number) = match group {
                ShardGroup::As(number) => ("shard_as", number),
                ShardGroup::Like(number) => ("shard_like", number),
            };
            text.extend_from_slice(separator);
            text.extend_from_slice(format!("{word} {number}").as_bytes());
        }
        if !self.metadata.is_empty() {
            text.extend_from_slice(separator);
            text.extend_from_slice(b"metadata=");
            let single = self.metadata.len() == 1 && separator == b" ";
            if !single {
                text.push(b'{');
            }
            for (i, metadata) in self.metadata.iter().enumerate() {
                if i > 0 {
                    text.extend_from_slice(b", ");
                }
                text.extend_from_slice(&metadata.to_text());
            }
            if !single {
                text.push(b'}');
            }
        }
        text.push(b'}');
    }
}

impl Tiles {
    fn write(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(b"devices=[");
        write_list(text, self.dimensions.iter().copied());
        text.push(b']');
        match &self.devices {
            DeviceOrder::List(list) => write_list(text, list.iter().copied()),
            DeviceOrder::Iota(iota) => {
                text.extend_from_slice(b"<=");
                iota.write(text);
            }
        }
        if self.subgroups == [SubgroupKind::Replicated] {
            text.extend_from_slice(b" last_tile_dim_replicate");
        } else if !self.subgroups.is_empty() {
            let words: Vec<&str> = self.subgroups.iter().map(|kind| kind.as_str()).collect();
            text.extend_from_slice(format!(" last_tile_dims={{{}}}", words.join(", ")).as_bytes());
        }
    }
}

fn write_axes(text: &mut Vec<u8>, axes: &[AxisReference<'_>], is_open: bool) {
    text.push(b'{');
    for (i, axis) in axes.iter().enumerate() {
        if i > 0 {
            text.extend_from_slice(b", ");
        }
        axis.write(text);
    }
    if is_open {
        text.extend_from_slice(if axes.is_empty() { b"?" } else { b", ?" });
    }
    text.push(b'}');
}

impl NamedSharding<'_> {
    fn write(&self, text: &mut Vec<u8>) {
        self.mesh.write(text);
        if let Some(whole) = self.whole {
            text.extend_from_slice(b", ");
            text.extend_from_slice(whole.as_str().as_bytes());
            if let (SubgroupKind::Unreduced, Some((op, _))) = (whole, &self.unreduced)
                && *op != Reduction::Sum
            {
                text.extend_from_slice(format!("={}", op.as_str()).as_bytes());
            }
            return;
        }
        if self.mesh.maximal.is_none() || !self.dimensions.is_empty() {
            text.extend_from_slice(b", [");
            for (i, dimension) in self.dimensions.iter().enumerate() {
                if i > 0 {
                    text.extend_from_slice(b", ");
                }
                write_axes(text, &dimension.axes, dimension.is_open);
            }
            text.push(b']');
        }
        if !self.replicated.is_empty() {
            text.extend_from_slice(b", replicated=");
            write_axes(text, &self.replicated, false);
        }
        if let Some((op, axes)) = &self.unreduced {
            text.extend_from_slice(b", unreduced=");
            if *op != Reduction::Sum {
                text.extend_from_slice(op.as_str().as_bytes());
            }
            write_axes(text, axes, false);
        }
        if !self.manual.is_empty() {
            text.extend_from_slice(b", manual=");
            write_axes(text, &self.manual, false);
        }
    }
}
