//! Columns of equal length, each with the [`Field`] that describes it.

use super::field::{Field, Kind};
use crate::ir::Row;

/// Columns of equal length with their descriptions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns {
    list: Vec<(Field, Values)>,
}

/// The values of a column. In a nullable column, [`Field::unknown`], NaN and the empty text
/// represent unknown or absent values.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Instruction rows.
    Rows(Vec<u32>),
    /// Counts, sizes and positions.
    Numbers(Vec<i64>),
    /// Seconds and other measures.
    Reals(Vec<f64>),
    /// True or false.
    Flags(Vec<bool>),
    /// Texts, one per row.
    Texts(Texts),
    /// Texts that consecutive rows share, each with its number of rows.
    Runs(Vec<(Box<[u8]>, usize)>),
}

/// Texts in one allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Texts {
    bytes: Vec<u8>,
    /// The start of each text, then the end of the last text; empty without texts.
    bounds: Vec<i64>,
}

impl Texts {
    /// Adds a text.
    pub fn push(&mut self, text: &[u8]) {
        self.push_written(|bytes| bytes.extend_from_slice(text));
    }

    /// Adds the text that `write` appends to the texts before.
    pub(super) fn push_written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.bounds.is_empty() {
            self.bounds.push(0);
        }
        write(&mut self.bytes);
        self.bounds.push(self.bytes.len() as i64);
    }

    /// Each text of `runs` as often as its number of rows.
    pub(super) fn of_runs(runs: &[(Box<[u8]>, usize)]) -> Self {
        let count = runs.iter().map(|(_, count)| count).sum::<usize>();
        let bytes = runs.iter().map(|(text, count)| text.len() * count).sum();
        let mut own =
            Self { bytes: Vec::with_capacity(bytes), bounds: Vec::with_capacity(count + 1) };
        for (text, count) in runs {
            (0..*count).for_each(|_| own.push(text));
        }
        own
    }

    /// Bytes held on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.bounds.capacity() * size_of::<i64>()
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    /// Whether there are no texts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Text `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let bounds = self.bounds.get(index..index.checked_add(2)?)?;
        self.bytes.get(bounds[0] as usize..bounds[1] as usize)
    }

    /// The texts, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.bounds
            .windows(2)
            .map(|pair| self.bytes.get(pair[0] as usize..pair[1] as usize).unwrap_or_default())
    }

    /// The concatenated texts, with the start of each text and the end of the last.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<i64>) {
        (self.bytes, self.bounds)
    }

    /// The concatenated texts, with the start of each text and the end of the last; None if any
    /// text is not UTF-8.
    pub fn as_utf8(&self) -> Option<(&str, &[i64])> {
        let all = std::str::from_utf8(&self.bytes).ok()?;
        let is_between = |at: &i64| all.is_char_boundary(*at as usize);
        self.bounds.iter().all(is_between).then_some((all, &self.bounds))
    }

    fn append(&mut self, other: &Texts) {
        let shift = self.bytes.len() as i64;
        self.bytes.extend_from_slice(&other.bytes);
        let first = usize::from(!self.bounds.is_empty());
        let more = other.bounds.get(first..).unwrap_or_default();
        self.bounds.extend(more.iter().map(|bound| bound + shift));
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Texts {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut own = Self::default();
        texts.into_iter().for_each(|text| own.push(text.as_ref()));
        own
    }
}

impl Values {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Values::Rows(values) => values.len(),
            Values::Numbers(values) => values.len(),
            Values::Reals(values) => values.len(),
            Values::Flags(values) => values.len(),
            Values::Texts(values) => values.len(),
            Values::Runs(runs) => runs.iter().map(|(_, count)| count).sum(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Approximate bytes of the values.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Values::Rows(values) => 4 * values.len(),
            Values::Numbers(values) => 8 * values.len(),
            Values::Reals(values) => 8 * values.len(),
            Values::Flags(values) => values.len(),
            Values::Texts(values) => values.bytes.len() + 8 * values.len(),
            Values::Runs(runs) => runs.iter().map(|(text, _)| text.len() + 24).sum(),
        }
    }

    /// The texts of a column of texts, row by row; None for other columns.
    pub fn texts(&self) -> Option<Box<dyn Iterator<Item = &[u8]> + '_>> {
        match self {
            Values::Texts(texts) => Some(Box::new(texts.iter())),
            Values::Runs(runs) => {
                let repeated = |(text, count): &'_ (Box<[u8]>, usize)| (text.len(), *count);
                debug_assert!(runs.iter().map(repeated).all(|(_, count)| count > 0));
                Some(Box::new(
                    runs.iter().flat_map(|(text, count)| std::iter::repeat_n(&text[..], *count)),
                ))
            }
            _ => None,
        }
    }

    fn clear(&mut self) {
        match self {
            Values::Rows(values) => values.clear(),
            Values::Numbers(values) => values.clear(),
            Values::Reals(values) => values.clear(),
            Values::Flags(values) => values.clear(),
            Values::Texts(texts) => *texts = Texts::default(),
            Values::Runs(_) => *self = Values::Texts(Texts::default()),
        }
    }

    fn append(&mut self, other: Values) -> bool {
        match (self, other) {
            (Values::Rows(all), Values::Rows(more)) => all.extend(more),
            (Values::Numbers(all), Values::Numbers(more)) => all.extend(more),
            (Values::Reals(all), Values::Reals(more)) => all.extend(more),
            (Values::Flags(all), Values::Flags(more)) => all.extend(more),
            (Values::Texts(all), Values::Texts(more)) => all.append(&more),
            (Values::Runs(all), Values::Runs(more)) => all.extend(more),
            _ => return false,
        }
        true
    }
}

/// Bytes reserved for each text of a column; most texts are words, names and paths.
const USUAL_TEXT: usize = 16;

impl Columns {
    /// Adds a column.
    pub fn push(&mut self, field: Field, values: Values) {
        debug_assert!(
            field.kind.is_text() == matches!(values, Values::Texts(_) | Values::Runs(_)),
            "{field:?}"
        );
        self.list.push((field, values));
    }

    /// The values of another column, which is as long as those before.
    fn collected<T>(&self, values: impl Iterator<Item = T>) -> Vec<T> {
        let mut all = Vec::with_capacity(self.len());
        all.extend(values);
        all
    }

    /// A column of integers.
    pub fn numbers(&mut self, field: Field, values: impl Iterator<Item = i64>) {
        let values = self.collected(values);
        let may_be_below = field.is_nullable || field.is_signed;
        debug_assert!(may_be_below || values.iter().all(|value| *value >= 0), "{field:?}");
        self.push(field, Values::Numbers(values));
    }

    /// A column of measures.
    pub fn reals(&mut self, field: Field, values: impl Iterator<Item = f64>) {
        let values = self.collected(values);
        debug_assert!(field.is_nullable || !values.iter().any(|value| value.is_nan()), "{field:?}");
        self.push(field, Values::Reals(values));
    }

    /// A column of flags.
    pub fn flags(&mut self, field: Field, values: impl Iterator<Item = bool>) {
        debug_assert_eq!(field.kind, Kind::Flag, "{field:?}");
        let values = self.collected(values);
        self.push(field, Values::Flags(values));
    }

    /// A column of texts.
    pub fn texts<T: AsRef<[u8]>>(&mut self, field: Field, values: impl Iterator<Item = T>) {
        self.written(field, values, |text, bytes| bytes.extend_from_slice(text.as_ref()));
    }

    /// A column of the texts that `write` appends to the texts before, without an allocation for each.
    pub fn written<T>(
        &mut self,
        field: Field,
        values: impl Iterator<Item = T>,
        write: impl Fn(T, &mut Vec<u8>),
    ) {
        let mut texts = Texts::default();
        texts.bounds.reserve(self.len() + 1);
        texts.bytes.reserve(USUAL_TEXT * self.len());
        values.for_each(|value| texts.push_written(|bytes| write(value, bytes)));
        self.push(field, Values::Texts(texts));
    }

    /// A column of instruction rows, all of them known.
    pub fn rows(&mut self, field: Field, values: impl Iterator<Item = Row>) {
        debug_assert!(field.kind == Kind::Instruction && !field.is_nullable, "{field:?}");
        let values = self.collected(values.map(|row| row.0));
        self.push(field, Values::Rows(values));
    }

    /// A column with the same text in `count` rows.
    pub fn same(&mut self, field: Field, text: &[u8], count: usize) {
        let runs = if count == 0 { Vec::new() } else { vec![(text.into(), count)] };
        self.push(field, Values::Runs(runs));
    }

    /// The columns: description and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Field, &Values)> {
        self.list.iter().map(|(field, values)| (field, values))
    }

    /// The values of the column `name`.
    pub fn get(&self, name: &str) -> Option<&Values> {
        self.list.iter().find(|(field, _)| field.name == name).map(|(_, values)| values)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.list.first().map_or(0, |(_, values)| values.len())
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Approximate bytes of the values.
    pub fn heap_bytes(&self) -> usize {
        // Approximate bytes that a column takes besides its values, which matter when there are few
        // rows.
        const COLUMN: usize = size_of::<(Field, Values)>() + 32;
        self.list.iter().map(|(_, values)| values.heap_bytes() + COLUMN).sum()
    }

    /// These columns followed by `others`, which have as many rows.
    #[must_use]
    pub fn before(mut self, others: Columns) -> Columns {
        self.list.extend(others.list);
        self
    }

    /// The same columns without rows.
    #[must_use]
    pub fn without_rows(mut self) -> Columns {
        self.list.iter_mut().for_each(|(_, values)| values.clear());
        self
    }

    /// Adds the rows of `other`, which has the same columns.
    pub fn append(&mut self, other: Columns) {
        if self.list.is_empty() {
            *self = other;
            return;
        }
        for ((field, values), (other_field, more)) in self.list.iter_mut().zip(other.list) {
            debug_assert_eq!(*field, other_field, "columns of one table are the same");
            let fits = values.append(more);
            debug_assert!(fits, "values of {field:?} are of one kind");
        }
    }
}

impl IntoIterator for Columns {
    type Item = (Field, Values);
    type IntoIter = std::vec::IntoIter<(Field, Values)>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}
