//! Columns as bytes, for another process with the same version of this library.

use super::columns::{Columns, Texts, Values};
use super::field::{Field, Kind};

/// The first bytes.
const MAGIC: &[u8; 8] = b"hlofast2";

impl Columns {
    /// The columns as bytes, which [`Columns::from_bytes`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.heap_bytes() + 64);
        bytes.extend_from_slice(MAGIC);
        for (field, values) in self.iter() {
            let text = |bytes: &mut Vec<u8>, text: &[u8]| {
                number(bytes, text.len());
                bytes.extend_from_slice(text);
            };
            for own in [&field.name, &field.doc, &field.label] {
                text(&mut bytes, own.as_bytes());
            }
            let properties = [field.is_nullable, field.is_signed, field.adds_up].map(u8::from);
            bytes.extend_from_slice(&properties);
            text(&mut bytes, field.kind.as_str().as_bytes());
            bytes.push(tag(values));
            match values {
                Values::Rows(rows) => {
                    number(&mut bytes, rows.len());
                    bytes.extend(rows.iter().flat_map(|row| row.to_le_bytes()));
                }
                Values::Numbers(numbers) => {
                    number(&mut bytes, numbers.len());
                    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                }
                Values::Reals(reals) => {
                    number(&mut bytes, reals.len());
                    bytes.extend(reals.iter().flat_map(|real| real.to_le_bytes()));
                }
                Values::Flags(flags) => {
                    number(&mut bytes, flags.len());
                    bytes.extend(flags.iter().map(|flag| u8::from(*flag)));
                }
                Values::Texts(texts) => {
                    number(&mut bytes, texts.len());
                    texts.iter().for_each(|own| text(&mut bytes, own));
                }
                Values::Runs(runs) => {
                    number(&mut bytes, runs.len());
                    for (own, count) in runs {
                        number(&mut bytes, *count);
                        text(&mut bytes, own);
                    }
                }
            }
        }
        bytes
    }

    /// The columns that [`Columns::to_bytes`] wrote; None for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let mut columns = Self::default();
        let rest = &mut rest;
        while !rest.is_empty() {
            let field = field(rest)?;
            let values = match *take(rest, 1)?.first()? {
                0 => Values::Rows(array(rest, u32::from_le_bytes)?),
                1 => Values::Numbers(array(rest, i64::from_le_bytes)?),
                2 => Values::Reals(array(rest, f64::from_le_bytes)?),
                3 => Values::Flags(text(rest)?.iter().map(|flag| *flag != 0).collect()),
                4 => {
                    let mut texts = Texts::default();
                    for _ in 0..length(rest)? {
                        texts.push(text(rest)?);
                    }
                    Values::Texts(texts)
                }
                5 => {
                    let mut runs = Vec::new();
                    let mut rows = 0usize;
                    for _ in 0..length(rest)? {
                        let count = length(rest)?;
                        rows = rows.checked_add(count)?;
                        runs.push((text(rest)?.into(), count));
                    }
                    Values::Runs(runs)
                }
                _ => return None,
            };
            if columns.iter().next().is_some_and(|(_, first)| first.len() != values.len()) {
                return None;
            }
            if field.kind.is_text() != matches!(values, Values::Texts(_) | Values::Runs(_)) {
                return None;
            }
            columns.push(field, values);
        }
        Some(columns)
    }
}

/// The description of a column, as `to_bytes` writes it.
fn field(rest: &mut &[u8]) -> Option<Field> {
    let mut own = || Some(std::str::from_utf8(text(rest)?).ok()?.to_owned());
    let (name, doc, label) = (own()?, own()?, own()?);
    let properties = take(rest, 3)?;
    let kind = Kind::from_word(std::str::from_utf8(text(rest)?).ok()?)?;
    let mut field = Field::of(kind, name, doc, label);
    field.is_nullable = properties.first()? != &0;
    field.is_signed = properties.get(1)? != &0;
    field.adds_up = properties.get(2)? != &0;
    Some(field)
}

fn tag(values: &Values) -> u8 {
    match values {
        Values::Rows(_) => 0,
        Values::Numbers(_) => 1,
        Values::Reals(_) => 2,
        Values::Flags(_) => 3,
        Values::Texts(_) => 4,
        Values::Runs(_) => 5,
    }
}

fn number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend((number as u64).to_le_bytes());
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (own, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(own)
}

fn length(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?)).ok()
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let count = length(rest)?;
    take(rest, count)
}

/// Numbers of `N` bytes each.
fn array<T, const N: usize>(rest: &mut &[u8], value: fn([u8; N]) -> T) -> Option<Vec<T>> {
    let count = length(rest)?.checked_mul(N)?;
    let (values, _) = take(rest, count)?.as_chunks::<N>();
    Some(values.iter().map(|own| value(*own)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Row;
    use proptest::prelude::*;

    fn columns() -> impl Strategy<Value = Columns> {
        (0usize..5).prop_flat_map(|count| {
            let texts = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), count);
            let numbers = prop::collection::vec(any::<i64>(), count);
            let reals = prop::collection::vec(-1e300f64..1e300, count);
            (texts, numbers, reals).prop_map(move |(texts, numbers, reals)| {
                let mut columns = Columns::default();
                columns.same(Field::word("same", "").label("Same"), b"\xffx", count);
                let positive = numbers.iter().map(|number| *number > 0);
                columns.flags(Field::flag("flags", "one"), positive);
                let rows = numbers.iter().map(|number| Row(*number as u32));
                columns.rows(Field::instruction("rows", ""), rows);
                columns.texts(Field::text("texts", "").nullable(), texts.iter());
                let field = Field::count("numbers", "").signed().summed();
                columns.numbers(field, numbers.into_iter());
                columns.reals(Field::seconds("reals", ""), reals.into_iter());
                columns
            })
        })
    }

    proptest! {
        #[test]
        fn columns_come_back(columns in columns(), more in columns()) {
            let read = Columns::from_bytes(&columns.to_bytes());
            prop_assert_eq!(read.as_ref(), Some(&columns));
            // More rows can be appended to columns that were read.
            let mut both = columns;
            both.append(more.clone());
            let mut read = read.unwrap_or_default();
            read.append(Columns::from_bytes(&more.to_bytes()).unwrap_or_default());
            prop_assert_eq!(read, both);
        }

        #[test]
        fn other_bytes_are_refused(columns in columns(), at in 0usize..400, value: u8) {
            let mut bytes = columns.to_bytes();
            let at = at % bytes.len();
            // A cut inside the text is detected; a cut between two columns leaves fewer columns.
            if let Some(cut) = Columns::from_bytes(&bytes[..at]) {
                prop_assert!(cut.iter().count() < 6);
            }
            bytes[at] = value;
            if let Some(read) = Columns::from_bytes(&bytes) {
                prop_assert!(read.iter().all(|(_, values)| values.len() == read.len()));
            }
        }
    }

    #[test]
    fn counts_that_cannot_be_are_refused() {
        let mut bytes = Columns::default().to_bytes();
        assert_eq!(Columns::from_bytes(&bytes), Some(Columns::default()));
        bytes.extend([1u64.to_le_bytes().as_slice(), b"n", &[1], &u64::MAX.to_le_bytes()].concat());
        assert_eq!(Columns::from_bytes(&bytes), None);
        assert_eq!(Columns::from_bytes(b"pickled"), None);
    }
}
