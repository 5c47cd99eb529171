//! Small changes to a text, drawn from a seed.

/// A reproducible source of numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit` (0 if that is 0).
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next() % limit as u64) as usize }
    }

    fn pick<'a>(&mut self, from: &[&'a [u8]]) -> &'a [u8] {
        from[self.below(from.len())]
    }
}

/// What HLO text is made of, and what breaks it.
const TOKENS: &[&[u8]] = &[
    b"{",
    b"}",
    b"(",
    b")",
    b"[",
    b"]",
    b",",
    b"=",
    b"\"",
    b"'",
    b"\\",
    b"%",
    b"#0",
    b":",
    b"/*",
    b"*/",
    b"//",
    b"/",
    b"\n",
    b"\r\n",
    b"\r",
    b"\t",
    b" ",
    b"\0",
    b"\xff",
    b"\xc3\xa9",
    b"...",
    b"-",
    b"ROOT ",
    b"ENTRY ",
    b"HloModule x\n",
    b"/*index=5*/",
    b"/* c */",
    b" // c\n",
    b"->",
    b"f32[2]{0}",
    b"f32[]",
    b"(f32[], s32[])",
    b"b(f32[8])",
    b"token[]",
    b"?",
    b"<=",
    b"T(0,1)",
    b"18446744073709551616",
    b"-1",
    b"99999999999",
    b"nan",
    b"true",
    b"parameter(0)",
    b"add(",
    b"constant({1,2})",
    b"async-start",
    b"call(), to_apply={ a = f32[] parameter(0) }",
    b", metadata={op_name=\"a\"}",
    b", calls=",
    b", to_apply=%x",
    b", control-predecessors={%p}",
    b", replica_groups={{0,1}}",
    b", replica_groups=[2,4]<=[8]",
    b", sharding={replicated}",
    b", replica_groups=mesh['a'=2] {'a'}",
    b", backend_config={\"a\":\"}\"}",
    b"\n}\n",
    b", frontend_attributes={a=\"b\",c={d}}",
    b", branch_computations={}",
    b", padding= ",
    b", execution_thread=\"x\"",
    b"all-reduce-start(",
    b"%x#1#0",
    b"<=[4]T(0)",
    b"is_scheduled=true",
];

/// A changed copy of `text`.
pub fn mutate(text: &[u8], random: &mut Random) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..1 + random.below(3) {
        change(&mut text, random);
    }
    text
}

fn change(text: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(text.len() + 1);
    match random.below(12) {
        0 => {
            let end = (at + 1 + random.below(8)).min(text.len());
            text.drain(at..end);
        }
        1 => {
            let end = (at + 1 + random.below(40)).min(text.len());
            let copy = text[at..end].to_vec();
            text.splice(at..at, copy);
        }
        2 => {
            if let Some(byte) = text.get_mut(at) {
                *byte = random.next() as u8;
            }
        }
        3..=5 => {
            let token = random.pick(TOKENS);
            text.splice(at..at, token.iter().copied());
        }
        6 => {
            let token = random.pick(TOKENS);
            let end = (at + token.len()).min(text.len());
            text.splice(at..end, token.iter().copied());
        }
        7 => text.truncate(at),
        8 => join_lines(text, at),
        9 => swap_lines(text, at, random),
        10 => {
            let (start, end) = line_at(text, at);
            let copy = text[start..end].to_vec();
            let (to, _) = line_at(text, random.below(text.len() + 1));
            text.splice(to..to, copy);
        }
        _ => swap_tokens(text, at, random),
    }
}

/// The line that holds offset `at`, with its newline.
fn line_at(text: &[u8], at: usize) -> (usize, usize) {
    let at = at.min(text.len());
    let start = text[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |p| p + 1);
    let end = text[at..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |p| at + p + 1);
    (start, end)
}

fn join_lines(text: &mut [u8], at: usize) {
    let (_, end) = line_at(text, at);
    if let Some(byte @ b'\n') = text.get_mut(end.saturating_sub(1)) {
        *byte = b' ';
    }
}

fn swap_lines(text: &mut Vec<u8>, at: usize, random: &mut Random) {
    let (a, b) = line_at(text, at);
    let line: Vec<u8> = text.drain(a..b).collect();
    let (to, _) = line_at(text, random.below(text.len() + 1));
    text.splice(to..to, line);
}

/// Replaces the word at `at` by another word of the text.
fn swap_tokens(text: &mut Vec<u8>, at: usize, random: &mut Random) {
    let word = |text: &[u8], at: usize| {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-%".contains(byte);
        let at = at.min(text.len());
        let start = text[..at].iter().rposition(|byte| !is_word(byte)).map_or(0, |p| p + 1);
        let end = text[at..].iter().position(|byte| !is_word(byte)).map_or(text.len(), |p| at + p);
        (start, end)
    };
    let (from, to) = word(text, random.below(text.len() + 1));
    let copy = text[from..to].to_vec();
    let (start, end) = word(text, at);
    text.splice(start..end, copy);
}
