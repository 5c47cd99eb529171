//! Windows, dimension labels and sparsity.

use super::attributes::key;
use super::out::Out;
use super::record::{Store, repeated};
use super::wire::{Fault, Fields, Read};

/// Writes which operands of a convolution are sparse.
pub(super) fn sparsity(out: &mut Out<'_>, config: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let config = store.read(config, 0)?;
    let mut count = 0;
    for (number, side) in [(1, &b"lhs={"[..]), (2, b"rhs={")] {
        let Some(tensor) = config.bytes(number) else { continue };
        let mut store = Store::default();
        let tensor = store.read(tensor, 0)?;
        out.push(if count == 0 { b", sparsity_config={" } else { b" " });
        count += 1;
        out.push(side);
        out.push(b"sparsity=");
        out.integer(tensor.integer(1));
        out.byte(b'x');
        out.integer(tensor.integer(2));
        out.push(b" dimension=");
        out.integer(tensor.integer(3));
        out.push(b" stride=");
        out.integer(tensor.integer(4));
        out.byte(b'}');
    }
    if count > 0 {
        out.byte(b'}');
    }
    Ok(())
}

/// Writes `window={size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=2x2 rhs_dilate=2x2
/// rhs_reversal=1x1}`.
pub(super) fn window(out: &mut Out<'_>, message: &[u8]) -> Read<()> {
    let mut dimensions = Vec::new();
    let mut all = Fields::new(message);
    while let Some((number, value)) = all.next()? {
        if let (1, Some(dimension)) = (number, value.bytes()) {
            let mut store = Store::default();
            let dimension = store.read(dimension, 0)?;
            dimensions.push([1, 2, 3, 4, 5, 6, 7].map(|number| dimension.integer(number)));
        }
    }
    if dimensions.is_empty() {
        return Ok(());
    }
    let mut numbers = |name: &[u8], index: usize, usual: Option<i64>| {
        if usual.is_some_and(|usual| dimensions.iter().all(|dimension| dimension[index] == usual)) {
            return;
        }
        out.push(name);
        for (count, dimension) in dimensions.iter().enumerate() {
            if count > 0 {
                out.byte(b'x');
            }
            out.integer(dimension[index]);
            if index == 2 {
                out.byte(b'_');
                out.integer(dimension[3]);
            }
        }
    };
    numbers(b", window={size=", 0, None);
    numbers(b" stride=", 1, Some(1));
    if dimensions.iter().any(|dimension| dimension[2] != 0 || dimension[3] != 0) {
        numbers(b" pad=", 2, None);
    }
    numbers(b" lhs_dilate=", 5, Some(1));
    numbers(b" rhs_dilate=", 4, Some(1));
    numbers(b" rhs_reversal=", 6, Some(0));
    out.byte(b'}');
    Ok(())
}

/// Maximum number of dimensions of a convolution.
const MAX_LABELS: usize = 256;

/// Writes `dim_labels=b01f_01io->b01f`, with `?` for dimensions without a label. If labels collide,
/// spatial dimensions win over features, and features over batches, as in XLA.
pub(super) fn dimension_labels(out: &mut Out<'_>, message: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let numbers = store.read(message, repeated(&[6, 11, 12]))?;
    key(out, "dim_labels");
    let sides = [
        (11, [(7, b'b'), (8, b'f')], &b"_"[..]),
        (6, [(3, b'i'), (4, b'o')], b"->"),
        (12, [(9, b'b'), (10, b'f')], b""),
    ];
    for (spatial, letters, after) in sides {
        let mut labels: Vec<Vec<u8>> = Vec::new();
        let mut place = |at: i64, label: Vec<u8>| {
            let at = usize::try_from(at).ok().filter(|at| *at < MAX_LABELS);
            let Some(at) = at else {
                return Err(Fault::new(message, "a dimension of a convolution is out of range"));
            };
            if at >= labels.len() {
                labels.resize(at + 1, b"?".to_vec());
            }
            labels[at] = label;
            Ok(())
        };
        for (number, letter) in letters {
            place(numbers.integer(number), vec![letter])?;
        }
        for (index, dimension) in numbers.list(spatial)?.iter().enumerate() {
            // The number is negative if this side lacks the spatial dimension.
            if *dimension < 0 {
                continue;
            }
            place(*dimension, index.to_string().into_bytes())?;
        }
        labels.iter().for_each(|label| out.push(label));
        out.push(after);
    }
    Ok(())
}
