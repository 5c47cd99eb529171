//! Random modules: their text in a random spelling, and what reading it must find.
//!
//! Everything follows from a seed and a size, so a failing case is two numbers.

use std::fmt::Write;

/// A generated module.
pub struct Generated {
    /// Its text.
    pub text: String,
    /// The written instructions of each named computation.
    pub computations: Vec<(String, Vec<Expected>)>,
}

/// What must be known about one written instruction.
pub struct Expected {
    /// Name without `%`.
    pub name: String,
    /// Opcode after undoing sugar.
    pub opcode: String,
    /// Canonical text of the result shape.
    pub shape: String,
    /// Names of the operands; None for those that are implied by the text.
    pub operands: Vec<Option<String>>,
    /// Whether it is the root.
    pub is_root: bool,
}

/// A small generator of random numbers (the additive sequence of a multiplicative hash).
pub struct Random(u64);

impl Random {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// A shape and its element shapes.
#[derive(Clone, PartialEq)]
enum Shape {
    Leaf(String),
    Tuple(Vec<Shape>),
}

impl Shape {
    fn random(random: &mut Random, depth: usize) -> Self {
        if depth > 0 && random.one_in(4) {
            let count = random.below(8);
            return Self::Tuple((0..count).map(|_| Self::random(random, depth - 1)).collect());
        }
        let types = [
            "pred",
            "s1",
            "s2",
            "s4",
            "s8",
            "s16",
            "s32",
            "s64",
            "u1",
            "u2",
            "u4",
            "u8",
            "u16",
            "u32",
            "u64",
            "f16",
            "bf16",
            "f32",
            "f64",
            "c64",
            "c128",
            "f8e5m2",
            "f8e4m3",
            "f8e3m4",
            "f8e4m3fn",
            "f8e4m3b11fnuz",
            "f8e5m2fnuz",
            "f8e4m3fnuz",
            "f8e8m0fnu",
            "f4e2m1fn",
        ];
        match random.below(12) {
            0 => return Self::Leaf("token[]".into()),
            1 => return Self::Leaf("opaque[]".into()),
            2 => return Self::Leaf(format!("b({}[4]{{0}})", random.pick(&types))),
            _ => {}
        }
        let rank = random.below(5);
        let dimensions: Vec<String> = (0..rank)
            .map(|_| match random.below(10) {
                0 => "?".into(),
                1 => format!("<={}", random.below(100)),
                _ => random.below(1000).to_string(),
            })
            .collect();
        let order: Vec<String> = (0..rank).rev().map(|d| d.to_string()).collect();
        let items = random.pick(&[
            "",
            "",
            "",
            ":T(8,128)",
            ":T(8,128)(2,1)",
            ":T(2,*,128)S(1)",
            ":S(5)",
            ":L(4)E(4)",
            ":E(4)S(2)SC(0:1,2)(1:3)M(16)",
            ":#(u32)*(u8)",
        ]);
        let layout = match (rank, items) {
            (0, "") => String::new(),
            _ if random.one_in(4) => String::new(),
            _ => format!("{{{}{items}}}", order.join(",")),
        };
        Self::Leaf(format!("{}[{}]{layout}", random.pick(&types), dimensions.join(",")))
    }

    fn text(&self) -> String {
        match self {
            Self::Leaf(text) => text.clone(),
            Self::Tuple(elements) => {
                let texts: Vec<String> = elements.iter().map(Self::text).collect();
                format!("({})", texts.join(", "))
            }
        }
    }
}

struct Instruction {
    name: String,
    shape: Shape,
}

struct Writer<'a> {
    random: &'a mut Random,
    text: String,
    /// Computations written so far, with their number of parameters.
    known: Vec<String>,
    computations: Vec<(String, Vec<Expected>)>,
    /// Whether only what XLA reads may be written.
    plain: bool,
    count: usize,
}

/// The module that follows from `seed`; `size` bounds its computations' lengths.
pub fn generate(seed: u64, size: usize) -> Generated {
    let mut random = Random::new(seed);
    let plain = random.one_in(3);
    let mut writer = Writer {
        random: &mut random,
        text: String::new(),
        known: Vec::new(),
        computations: Vec::new(),
        plain,
        count: 0,
    };
    writer.module(size);
    Generated { text: writer.text, computations: writer.computations }
}

impl Writer<'_> {
    /// Whitespace between tokens.
    fn gap(&mut self) -> &'static str {
        if self.plain {
            return " ";
        }
        self.random.pick(&[
            " ",
            " ",
            " ",
            " ",
            "  ",
            "\n    ",
            "\t",
            " /* x, } \" */ ",
            " // y {\n",
        ])
    }

    fn module(&mut self, size: usize) {
        let headers = [
            ", is_scheduled=true",
            ", replica_count=2, num_partitions=4",
            ", input_output_alias={ {0}: (0, {}, may-alias), {1,2}: (1, {0}) }",
            ", buffer_donor={ (0, {}) }, alias_passthrough_params=true",
            ", allow_spmd_sharding_propagation_to_output={true,false}",
            ", frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<[\"a\"=2]>}, k=\"v /* w */\"}",
            ", entry_computation_layout={(f32[2]{0}, /*index=1*/s32[])->(f32[2]{0:T(8)})}",
        ];
        if !self.random.one_in(8) {
            self.text.push_str("HloModule m");
            let mut used = Vec::new();
            for _ in 0..self.random.below(4) {
                let header = self.random.pick(&headers);
                if !used.contains(&header) {
                    self.text.push_str(header);
                    used.push(header);
                }
            }
            self.text.push('\n');
            if self.random.one_in(3) {
                self.text.push_str(
                    "\nFileNames\n1 \"/a/b.py\"\n2 \"c d\"\n\nFunctionNames\n1 \"main.<locals>.f\"\n\n\
                     FileLocations\n1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=2 \
                     end_column=9}\n\nStackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n",
                );
            }
        }
        let count = 1 + self.random.below(4);
        for index in 0..count {
            let name = format!("comp.{index}");
            let is_last = index + 1 == count;
            let is_entry = is_last || index == 0 && self.text.is_empty();
            if is_entry && (index == 0 || is_last) && self.known.iter().all(|n| n != "entry") {
                self.text.push_str("ENTRY ");
                self.known.push("entry".into());
            }
            let rows = self.computation(&name, size);
            self.computations.push((name.clone(), rows));
            self.known.push(name);
        }
    }

    fn fresh(&mut self) -> String {
        self.count += 1;
        let stem =
            self.random.pick(&["add", "fusion", "x", "param", "a-b.c-", "tuple", "b", "__xla_q"]);
        format!("{stem}.{}", self.count)
    }

    /// `name` where it is used or defined.
    fn mark(&mut self, name: &str) -> String {
        if self.random.one_in(2) { format!("%{name}") } else { name.to_string() }
    }

    fn computation(&mut self, name: &str, size: usize) -> Vec<Expected> {
        let marked = self.mark(name);
        let _ = writeln!(self.text, "{marked} {{");
        let count = 1 + self.random.below(size.max(1));
        let root = if self.random.one_in(3) { Some(self.random.below(count)) } else { None };
        let mut scope: Vec<Instruction> = Vec::new();
        let mut expected: Vec<Expected> = Vec::new();
        let mut parameters = 0;
        for index in 0..count {
            if root == Some(index) || root.is_none() && index + 1 == count && !self.random.one_in(4)
            {
                self.text.push_str("  ROOT ");
            }
            self.instruction(&mut scope, &mut expected, &mut parameters);
            self.text.push('\n');
        }
        let last = expected.len() - 1;
        expected[root.unwrap_or(last)].is_root = true;
        self.text.push('}');
        if self.random.one_in(6) {
            self.text.push_str(", execution_thread=\"side\"");
        }
        self.text.push_str("\n\n");
        expected
    }

    fn instruction(
        &mut self,
        scope: &mut Vec<Instruction>,
        expected: &mut Vec<Expected>,
        parameters: &mut usize,
    ) {
        let name = self.fresh();
        let mut shape = Shape::random(self.random, 3);
        let mut operands: Vec<Option<String>> = Vec::new();
        let mut payload = String::new();
        let mut tail = String::new();
        let mut written = None;
        let kind = if scope.is_empty() { 0 } else { self.random.below(14) };
        let opcode = match kind {
            0 => {
                payload = parameters.to_string();
                *parameters += 1;
                "parameter"
            }
            1 => {
                let (leaf, literal) = self.random_literal();
                shape = Shape::Leaf(leaf);
                payload = literal;
                "constant"
            }
            2 => {
                let chosen: Vec<usize> =
                    (0..self.random.below(9)).map(|_| self.random.below(scope.len())).collect();
                shape = Shape::Tuple(chosen.iter().map(|i| scope[*i].shape.clone()).collect());
                payload = self.operands(scope, &chosen, &mut operands);
                "tuple"
            }
            3 => {
                let from = self.random.below(scope.len());
                let elements = match &scope[from].shape {
                    Shape::Tuple(elements) if !elements.is_empty() => elements.clone(),
                    _ => Vec::new(),
                };
                payload = self.operands(scope, &[from], &mut operands);
                if elements.is_empty() {
                    "copy"
                } else {
                    let index = self.random.below(elements.len());
                    shape = elements[index].clone();
                    let _ = write!(tail, ", index={index}");
                    "get-tuple-element"
                }
            }
            4 if self.known.iter().any(|known| known != "entry") => {
                let known: Vec<&str> = self
                    .known
                    .iter()
                    .map(String::as_str)
                    .filter(|known| *known != "entry")
                    .collect();
                let called = self.random.pick(&known).to_string();
                let other = self.random.pick(&known).to_string();
                let from = self.random.below(scope.len());
                payload = self.operands(scope, &[from], &mut operands);
                let (opcode, roles) = match self.random.below(5) {
                    0 => ("call", format!(", to_apply=%{called}")),
                    1 => ("fusion", format!(", kind=kLoop, calls={called}")),
                    2 => ("while", format!(", condition={other}, body=%{called}")),
                    3 => {
                        let list = format!("{{{called}, /* c */ %{other}}}");
                        ("conditional", format!(", branch_computations={list}"))
                    }
                    _ => ("custom-call", format!(", called_computations={{%{called}}}")),
                };
                tail.push_str(&roles);
                opcode
            }
            5 => {
                let from = self.random.below(scope.len());
                payload = self.operands(scope, &[from], &mut operands);
                tail.push_str(
                    ", to_apply={ p = f32[] parameter(0)\n q = f32[] parameter(1)\n \
                     ROOT r = f32[] add(p, q) }, dimensions={0}",
                );
                "map"
            }
            6 => {
                let from = self.random.below(scope.len());
                let operand = scope[from].shape.text();
                shape = Shape::Tuple(vec![
                    Shape::Tuple(vec![Shape::Leaf(operand)]),
                    shape,
                    Shape::Leaf("u32[]".into()),
                ]);
                payload = self.mark(&scope[from].name);
                operands.push(Some(scope[from].name.clone()));
                written =
                    Some(self.random.pick(&["negate-start", "custom-call-start", "bitcast-start"]));
                if self.random.one_in(2) {
                    tail.push_str(", async_execution_thread=\"side\"");
                }
                "async-start"
            }
            7 => {
                let from = self.random.below(scope.len());
                payload = self.operands(scope, &[from], &mut operands);
                written = Some("custom-call-done");
                "async-done"
            }
            8 => {
                let from = self.random.below(scope.len());
                payload = self.operands(scope, &[from, from], &mut operands);
                let _ = write!(tail, ", control-predecessors={{%{}}}", scope[from].name);
                "maximum"
            }
            9 if !self.plain => {
                let from = self.random.below(scope.len());
                let inner = self.mark(&scope[from].name);
                payload = format!("f32[7] add({inner}, f32[3]{{0}} negate({inner}))");
                operands.push(None);
                "abs"
            }
            10 if !self.plain => {
                payload = String::new();
                written = Some("fancy-new-op");
                tail.push_str(", some_list={1, {2, 3}}, some_word=kWord, some_text='a\"b'");
                "unknown"
            }
            11 if !self.plain => self.tuple_path(scope, &mut payload, &mut operands, &mut shape),
            _ => {
                let count = 1 + self.random.below(7);
                let chosen: Vec<usize> =
                    (0..count).map(|_| self.random.below(scope.len())).collect();
                payload = self.operands(scope, &chosen, &mut operands);
                tail.push_str(", custom_call_target=\"t/u\"");
                "custom-call"
            }
        };
        self.random_attributes(&mut tail, written.is_some());
        let (marked, gap) = (self.mark(&name), self.gap());
        let text = shape.text();
        let word = written.unwrap_or(opcode);
        let _ = write!(self.text, "  {marked}{gap}= {text}{gap}{word}({payload}){tail}");
        expected.push(Expected {
            name: name.clone(),
            opcode: opcode.into(),
            shape: text,
            operands,
            is_root: false,
        });
        scope.push(Instruction { name, shape });
    }

    /// An operand written as `%x#0`, if some tuple is there to take it from.
    fn tuple_path(
        &mut self,
        scope: &[Instruction],
        payload: &mut String,
        operands: &mut Vec<Option<String>>,
        shape: &mut Shape,
    ) -> &'static str {
        let tuples: Vec<&Instruction> = scope
            .iter()
            .filter(|instruction| matches!(&instruction.shape, Shape::Tuple(elements) if !elements.is_empty()))
            .collect();
        if tuples.is_empty() {
            *payload = self.operands(scope, &[0], operands);
            return "copy";
        }
        let from = tuples[self.random.below(tuples.len())];
        let mut path = from.name.clone();
        let mut at = from.shape.clone();
        while let Shape::Tuple(elements) = &at {
            if elements.is_empty() || path.contains('#') && self.random.one_in(2) {
                break;
            }
            let index = self.random.below(elements.len());
            let _ = write!(path, "#{index}");
            at = elements[index].clone();
        }
        *payload = format!("%{path}");
        operands.push(None);
        *shape = at;
        "copy"
    }

    fn operands(
        &mut self,
        scope: &[Instruction],
        chosen: &[usize],
        operands: &mut Vec<Option<String>>,
    ) -> String {
        let mut text = String::new();
        let typed = self.random.one_in(3);
        for (position, index) in chosen.iter().enumerate() {
            if position > 0 {
                let gap = self.gap();
                let _ = write!(text, ",{gap}");
            }
            if position > 0 && position % 5 == 0 {
                let _ = write!(text, "/*index={position}*/");
            }
            if typed {
                let _ = write!(text, "{} ", scope[*index].shape.text());
            }
            text.push_str(&self.mark(&scope[*index].name));
            operands.push(Some(scope[*index].name.clone()));
        }
        text
    }

    fn random_literal(&mut self) -> (String, String) {
        let comment = if self.plain { "" } else { "/* i */" };
        match self.random.below(8) {
            0 => ("f32[]".into(), self.random.pick(&["1", "-2.5e-3", "inf", "-nan"]).into()),
            1 => ("pred[]".into(), "true".into()),
            2 => ("s32[3]{0}".into(), format!("{{1,{comment} -2, 3}}")),
            3 => ("f32[2,2]{1,0}".into(), "{ { 1, 2 }, { 3, nan(0x7f) } }".into()),
            4 => ("c64[1]{0}".into(), "{(1, -2)}".into()),
            5 => ("f32[100]{0}".into(), "{...}".into()),
            6 => ("bf16[0]{0}".into(), "{}".into()),
            _ => ("u64[]".into(), "18446744073709551615".into()),
        }
    }

    fn random_attributes(&mut self, tail: &mut String, is_common_only: bool) {
        let common = [
            "metadata={op_type=\"add\" op_name=\"jit(f)/add[x={\\\"y\\\"}]\" source_file=\"/a//b.py\" \
             source_line=3}",
            "metadata={op_name=\"a\" stack_frame_id=1}",
            "sharding={replicated}",
            "sharding={devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}",
            "sharding={{maximal device=3}, {devices=[2]0,1}, /*index=2*/{manual}}",
            "sharding={mesh['a'=2,'b'=4], [{'a'}, {'b', ?}], replicated={'c'}}",
            "frontend_attributes={a=\"b\",c.d={x = \"}\" // y }}",
            "backend_config={\"window\":{\"a\":[\"1\"]},\"b\":\"}/*\"}",
            "backend_config=\"{\\\"a\\\":1}\"",
            "backend_config=\"\\004\\000\\377\"",
            "statistics={visualizing_index=0, x=1}",
            "origin={(({\"v\" {0,1}}), {})}",
        ];
        let own = [
            "dimensions={0, 1}",
            "window={size=3x3 stride=2x2 pad=1_1x1_1 rhs_reversal=1x1}",
            "padding=0_0x1_-1_2",
            "slice={[0:3], [1:7:2]}",
            "dim_labels=b01f_01io->b01f",
            "replica_groups={{0,1},{2,3}}, channel_id=7",
            "replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true",
            "replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}",
            "source_target_pairs={{0,1},{1,0}}",
            "operand_layout_constraints={f32[2]{0}, (s32[], f32[3]{0})}",
            "output_to_operand_aliasing={{0}: (1, {})}",
            "direction=LT, type=TOTALORDER",
            "literal=s32[2]{0} {1, 2}",
        ];
        let mut used: Vec<String> = Vec::new();
        for _ in 0..self.random.below(4) {
            let list: &[&str] =
                if is_common_only || self.random.one_in(2) { &common } else { &own };
            let attribute = self.random.pick(list);
            let key = attribute.split('=').next().unwrap_or_default().to_string();
            if used.contains(&key) || tail.contains(&format!(", {key}=")) {
                continue;
            }
            used.push(key);
            let gap = self.gap();
            let _ = write!(tail, ",{gap}{attribute}");
        }
    }
}
