//! The schedulers that walk from the results to the operands.

use super::Graph;

/// What a walk has done with a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Open,
    Done,
}

impl Graph {
    /// The rows, each after its operands, to which the walk goes in their order.
    pub(super) fn post_order(&self) -> Vec<u32> {
        self.walk(self.ends(), |own| own)
    }

    /// The same, to the operands first with the most further users below them, then to those with the most bytes
    /// there, then by `name`.
    pub(super) fn depth_first<'a>(
        &self,
        root: Option<u32>,
        name: impl Fn(u32) -> &'a [u8],
    ) -> Vec<u32> {
        let count = self.operands.len();
        let (mut further, mut bytes) = (vec![0usize; count], vec![0i64; count]);
        let mut every = 0i64;
        for at in self.post_order().into_iter().map(|at| at as usize) {
            // XLA leaves out parameters and constants.
            if self.operands[at].is_empty() && self.defines[at] == 0 {
                continue;
            }
            every = every.saturating_add(self.defines[at]);
            further[at] = self.users[at].len().saturating_sub(1);
            bytes[at] = self.defines[at];
            for own in &self.operands[at] {
                further[at] = further[at].saturating_add(further[*own as usize]);
                bytes[at] = bytes[at].saturating_add(bytes[*own as usize]);
            }
            further[at] = further[at].min(count);
            bytes[at] = bytes[at].min(every);
        }
        let weight = |at: u32| (further[at as usize], bytes[at as usize]);
        let ends = self.ends().filter(|at| Some(*at) != root).chain(root);
        self.walk(ends, |mut own: Vec<u32>| {
            own.sort_by(|a, b| weight(*b).cmp(&weight(*a)).then_with(|| name(*a).cmp(name(*b))));
            own
        })
    }

    /// The rows that nothing reads.
    fn ends(&self) -> impl Iterator<Item = u32> + '_ {
        let is_end = |at: &u32| self.users[*at as usize].is_empty() && !self.is_move[*at as usize];
        (0..self.operands.len() as u32).filter(is_end)
    }

    /// The rows below `ends`, each after its operands, in the order of `sorted`.
    fn walk(
        &self,
        ends: impl Iterator<Item = u32>,
        sorted: impl Fn(Vec<u32>) -> Vec<u32>,
    ) -> Vec<u32> {
        let mut states = vec![State::New; self.operands.len()];
        let mut order = Vec::with_capacity(states.len());
        let mut stack = Vec::new();
        for end in ends {
            stack.push(end);
            while let Some(at) = stack.last().copied() {
                match states[at as usize] {
                    State::New => {
                        states[at as usize] = State::Open;
                        let own = self.ordered[at as usize].iter().copied();
                        let open = own.filter(|own| states[*own as usize] != State::Done);
                        stack.extend(sorted(open.collect()).into_iter().rev());
                    }
                    State::Open => {
                        states[at as usize] = State::Done;
                        order.push(at);
                        stack.pop();
                    }
                    State::Done => {
                        stack.pop();
                    }
                }
            }
        }
        order
    }
}
